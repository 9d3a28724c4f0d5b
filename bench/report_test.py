# SPDX-License-Identifier: MIT
"""Tests of report_rows.py, report.py, compare_reports.py and of what torch/peers does without PyTorch; they need no GPU and no package: python3 bench/report_test.py"""
import contextlib
import importlib.util
import io
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import compare_reports  # noqa: E402
import report_rows  # noqa: E402
from report_rows import ReportError, row  # noqa: E402

NEW_RUN = {"gpu": "NVIDIA Test 1", "commit": "abc", "date": "2026-01-02T03:04:05+00:00", "giwa": "0.1.0", "suites": {},
           "versions": {"CUDA": "13.0", "cuDNN": "91900"}, "machine": {"driver_version": "580.1"}}


# A cell of torch/peers/measure.py. The ratio of medians of giwa and cudnn is not the median of their ratios.
CELL = {"section": "backward", "case": "fp16/full/D64/32x32x512", "work": 5000, "unit": "TFLOP/s",
        "us": {"giwa": [10, 8, 20], "giwa, any order": [8, 10, 16], "cudnn": [15, 16, 20], "fa3": [8, 10, 18], "fa3_fixed": [5, 4, 10]},
        "ours": ["giwa", "giwa, any order"], "aside": ["fa3_fixed"]}


def attention(giwa, cudnn, case="fp16/full/D64/32x32x512"):
    return [row("attention", case, "giwa", "speed", giwa, "TFLOP/s", ratio_to="cudnn", ratio=giwa / cudnn),
            row("attention", case, "cudnn", "speed", cudnn, "TFLOP/s")]


def report(rows, **run):
    return report_rows.new_report([{**NEW_RUN, **run}], rows)


class Rows(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.at = Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def test_what_is_saved_is_loaded(self):
        made = report(attention(400, 380) + [row("accuracy", "hot", "giwa_fp16", "error_all", float("nan"), "relative")])
        path = report_rows.save(made, self.at)
        self.assertEqual(path.name, "2026-01-02_test_1_report.json")
        again = report_rows.load(path)
        self.assertEqual(made, again)
        self.assertEqual(report_rows.digest(made), report_rows.digest(again))
        self.assertIsNone(again["rows"][2]["value"])
        table = report_rows.read_csv(path.with_suffix(".csv"))
        self.assertEqual((table[0]["contender"], table[0]["value"], table[0]["ratio"]), ("giwa", "400", "1.05263"))

    def test_the_digest_is_of_every_figure(self):
        digests = {report_rows.digest(report(attention(*figures))) for figures in ((400, 380), (401, 380), (400, 381))}
        self.assertEqual(len(digests), 3)

    def refuses(self, text, sentence):
        path = self.at / "bad.json"
        path.write_text(text, encoding="utf-8")
        with self.assertRaisesRegex(ReportError, sentence):
            report_rows.load(path)

    def test_a_malformed_report_is_refused_with_a_reason(self):
        self.refuses("{", "this is no JSON")
        self.refuses("[]", "this is no benchmark report")
        self.refuses('{"benchmarks": []}', "this is no benchmark report")
        good = json.loads(report_rows.save(report(attention(400, 380)), self.at).read_text(encoding="utf-8"))

        def changed(**change):
            return json.dumps({**good, **change})

        cell = good["rows"][0]
        self.refuses(changed(runs=None), "has no `runs`")
        self.refuses(changed(rows=[cell[:-1]]), "row 1 does not have the columns")
        self.refuses(changed(rows=[["", *cell[1:]]]), "row 1 has no `suite`")
        self.refuses(changed(rows=[[*cell[:4], "fast", *cell[5:]]]), "`value` is no finite number: 'fast'")
        self.refuses(changed(rows=[[*cell[:3], "beauty", *cell[4:]]]), "the metric 'beauty' is none of")
        self.refuses(changed(rows=[[*cell[:7], "", *cell[8:]]]), "has a ratio, and no `ratio_to`")
        self.refuses(changed(rows=[cell, cell]), "row 2 is there twice: attention | fp16/full/D64/32x32x512 | giwa")
        with self.assertRaisesRegex(ReportError, "none.json: No such file"):
            report_rows.load(self.at / "none.json")

    def test_a_merge_takes_the_last_of_a_suite(self):
        other = [row("matmul", "m", "cublas", "speed", 1, "TFLOP/s")]
        merged = report_rows.merge([report(attention(1, 2) + other), report(attention(3, 4), date="2026-01-03T00:00:00+00:00")])
        self.assertEqual([r["value"] for r in merged["rows"]], [1, 3, 4])
        self.assertEqual((merged["name"], len(merged["runs"])), ("2026-01-03_test_1_report", 2))
        self.assertEqual(report_rows.merge([report(other), report(attention(1, 2), commit="abd")])["commit"], "abc, abd")
        with self.assertRaisesRegex(ReportError, "different GPUs"):
            report_rows.merge([report(other), report(attention(1, 2), gpu="NVIDIA Test 2")])

    def test_a_merge_says_of_each_suite_which_run_it_is_of(self):
        first = report(attention(1, 2), suites={"attention": {"state": "ok"}, "matmul": {"state": "ok"}})
        again = report(attention(3, 4), date="2026-01-03T00:00:00+00:00", suites={"attention": {"state": "ok"}})
        self.assertEqual([list(run["suites"]) for run in report_rows.merge([first, again])["runs"]], [["matmul"], ["attention"]])
        first["runs"][0]["suites"].pop("matmul")
        self.assertEqual(len(report_rows.merge([first, again])["runs"]), 1)

    def test_what_attention_py_writes(self):
        path = self.at / "a.csv"
        path.write_text("case,fp32_us,fp32_tflops,tf32_us,tf32_tflops,efficient_us,efficient_tflops,speed_of_tf32,lowest_tf32,"
                        "highest_tf32,speed_of_efficient,lowest_efficient,highest_efficient,apart\n"
                        "fp32/full/D64/32x32x512,100,10,50,20,300,3.33,0.5,0.4,0.6,3.1,3.0,3.2,0.001\n", encoding="utf-8")
        rows = {(r["contender"], r["ratio_to"]): r for r in report_rows.of_attention("fp32", path)}
        self.assertEqual(set(rows), {("giwa_fp32", "giwa_tf32"), ("giwa_fp32", "efficient"), ("giwa_tf32", "efficient"),
                                     ("efficient", "")})
        self.assertEqual([rows["giwa_fp32", "efficient"][c] for c in ("value", "us", "ratio", "lowest")], [10, 100, 3.1, 3.0])
        self.assertEqual([rows["giwa_tf32", "efficient"][c] for c in ("ratio", "lowest")], [6, None])

    def test_what_the_other_scripts_write(self):
        path = self.at / "c.csv"
        path.write_text("case,copy_us,copy_gbs,torch_us,torch_gbs,giwa_us,giwa_gbs,speed_of_copy,speed_of_torch\n"
                        "softmax/fp32/8x256,5,400,10,200,5.5,380,0.95,1.8\n", encoding="utf-8")
        rows = {(r["contender"], r["ratio_to"]): (r["value"], r["us"], r["ratio"]) for r in report_rows.of_compare("x", path)}
        self.assertEqual(rows, {("giwa", "torch"): (380, 5.5, 1.8), ("giwa", "copy"): (380, 5.5, 0.95),
                                ("torch", ""): (200, 10, None), ("copy", ""): (400, 5, None)})
        path.write_text("case,fp32_all,fp32_row,fp32_column,unfused_all,unfused_row,unfused_column\n"
                        "hot/full/D64/8,1e-7,nan,3e-7,2e-7,2e-7,3e-7\n", encoding="utf-8")
        rows = {(r["contender"], r["metric"]): (r["value"], r["ratio"]) for r in report_rows.of_accuracy("x", path)}
        self.assertEqual(rows["giwa_fp32", "error_all"], (1e-7, 2))  # half the error of the peer
        self.assertEqual(rows["giwa_fp32", "error_row"], (None, None))
        self.assertEqual(rows["unfused", "error_row"], (2e-7, None))
        seconds = [row("x", "empty", "nvcc", "time", 1.25, "s")]
        path.write_text(report_rows.csv_text(seconds), encoding="utf-8")
        self.assertEqual(report_rows.of_rows("x", path), seconds)

    def test_what_ring_attention_prints(self):
        path = self.at / "ring.out"
        one = "  32768 tokens, 16 heads, 4 of k and v, causal, zigzag, backward 1 GPU    12.000 ms (400 TFLOP/s), "
        path.write_text(f"fp16\n{one}2 ranks on it    15.000 ms: 0.800\n{one}2 GPUs     8.000 ms: 1.500\n", encoding="utf-8")
        ranks, alone, gpus = report_rows.of_ring_attention("several_gpus", path)
        self.assertEqual([ranks[c] for c in ("case", "contender", "value", "us", "ratio_to", "ratio")],
                         ["fp16/causal/D128/1x16(4)x32768/zigzag/backward", "giwa_on_2_ranks_on_it", 320, 15000, "giwa_on_one_gpu", 0.8])
        self.assertEqual((alone["contender"], alone["value"]), ("giwa_on_one_gpu", 400))
        self.assertEqual((gpus["contender"], gpus["value"], gpus["ratio"]), ("giwa_on_2_GPUs", 600, 1.5))

    def test_what_peers_measure_writes(self):
        path = self.at / "peers.jsonl"
        path.write_text("".join(json.dumps(c) + "\n" for c in (CELL, {**CELL, "case": "alone", "us": {"giwa": [4, 5, 6]}, "aside": []})),
                        encoding="utf-8")
        found = report_rows.of_peers("peers_backward", path)
        rows = {(r["contender"], r["ratio_to"]): r for r in found if r["case"] == CELL["case"]}
        self.assertEqual(set(rows), {("giwa", "cudnn"), ("giwa", "fa3"), ("giwa", "fa3_fixed"), ("giwa", "best_other"),
                                     ("giwa_any_order", "cudnn"), ("giwa_any_order", "fa3"), ("giwa_any_order", "fa3_fixed"),
                                     ("giwa_any_order", "giwa"), ("giwa_any_order", "best_other"), ("cudnn", ""), ("fa3", ""),
                                     ("fa3_fixed", "")})
        self.assertEqual([rows["giwa", "cudnn"][c] for c in ("metric", "value", "unit", "us", "ratio", "lowest", "highest")],
                         ["speed", 500, "TFLOP/s", 10, 1.5, 1, 2])
        self.assertEqual([rows["giwa", "best_other"][c] for c in ("ratio", "lowest", "highest")], [0.9, 0.8, 1.25])  # fa3's
        self.assertEqual((rows["giwa_any_order", "best_other"]["ratio"], rows["giwa_any_order", "giwa"]["ratio"]), (1, 1.25))
        self.assertEqual((rows["fa3_fixed", ""]["ratio"], rows["giwa", "fa3_fixed"]["ratio"]), (None, 0.5))
        alone, = (r for r in found if r["case"] == "alone")
        self.assertEqual((alone["contender"], alone["us"], alone["ratio"], alone["ratio_to"]), ("giwa", 5, None, ""))
        self.assertEqual(len(report(found)["rows"]), 13)  # no row is there twice
        path.write_text(2 * (json.dumps(CELL) + "\n"), encoding="utf-8")
        with self.assertRaisesRegex(ReportError, "D64/32x32x512 is there twice"):
            report_rows.of_peers("peers_backward", path)
        path.write_text("{}\n", encoding="utf-8")
        with self.assertRaises(KeyError):  # which report.py expects of a suite that wrote something else
            report_rows.of_peers("peers_backward", path)

    def test_what_google_benchmark_writes(self):
        path = self.at / "b.json"
        contest = {"name": "add/fp32/8/giwa/iterations:21/manual_time", "median_us": 2, "speed_ratio": 1.5, "label": "cub",
                   "GB/s": 48}
        plain = [{"name": f"{n}/1024/{d}real_time", "real_time": t, "time_unit": "ms", "flop/s": 1e10 / t}
                 for n, d, t in (("naive", "64/", 30), ("attention<64, giwa::full>", "", 3))]
        path.write_text(json.dumps({"benchmarks": [contest, *plain]}), encoding="utf-8")
        cub, loops, giwa = report_rows.of_google_benchmark("x", path)
        self.assertEqual([cub[c] for c in ("case", "contender", "value", "unit", "us", "ratio_to", "ratio")],
                         ["add/fp32/8", "giwa", 48, "GB/s", 2, "cub", 1.5])
        self.assertEqual([giwa[c] for c in ("case", "us", "ratio_to", "ratio")], [loops["case"], 3000, "three_loops", 10])


class Compare(unittest.TestCase):
    def lines(self, old, new, threshold=3):
        return list(compare_reports.compare(old, new, threshold))

    def test_known_moves(self):
        old = report(attention(400, 400) + attention(100, 100, "small") + [row("compile", "c", "nvcc", "time", 8, "s")])
        new = report(attention(440, 400) + attention(100, 101, "small") + [row("compile", "c", "nvcc", "time", 10, "s")])
        lines = self.lines(old, new)
        at = next(i for i, x in enumerate(lines) if "Ratio to the peer: 1 of 2 moved" in x)
        self.assertEqual(lines[at + 1], "    +10.0 %  1.000 -> 1.100 of cudnn: attention fp16/full/D64/32x32x512 giwa")
        at = next(i for i, x in enumerate(lines) if "Figures: 2 of 5 moved by 3 % or more" in x)
        self.assertIn("-20.0 %  8 -> 10 s: compile c nvcc time", lines[at + 1])  # the larger change comes first; slower is worse
        self.assertIn("+10.0 %  400 -> 440 TFLOP/s", lines[at + 2])
        self.assertFalse(any(x.startswith(("\nNew", "\nGone", "\nVersions")) for x in lines))
        self.assertIn("Ratio to the peer: 0 of 2", "\n".join(self.lines(old, new, 11)))

    def test_new_gone_versions(self):
        old = report(attention(400, 400), versions={"CUDA": "13.0"})
        new = report(attention(400, 400, "other"), versions={"CUDA": "13.1"}, commit="abd")
        text = "\n".join(self.lines(old, new))
        self.assertIn("New: 2\n  attention other giwa\n  attention other cudnn", text)
        self.assertIn("Gone: 2\n  attention fp16/full/D64/32x32x512 giwa", text)
        self.assertIn("Versions that differ\n  CUDA: 13.0 -> 13.1", text)

    def test_a_lower_ratio_is_a_regression(self):
        old = report(attention(400, 400) + attention(100, 100, "small") + attention(50, 40, "left out"))
        new = report(attention(380, 400) + attention(104, 100, "small"))
        self.assertEqual(list(compare_reports.regressions(old, new, 5)), [
            "     -5.0 %  1.000 -> 0.950 of cudnn: attention fp16/full/D64/32x32x512 giwa", "  gone: attention left out giwa, 1.250 of cudnn"])
        self.assertEqual(list(compare_reports.regressions(new, new, 0.1)), [])
        slower_machine = report(attention(200, 200) + attention(52, 50, "small"))  # figures alone are none
        self.assertEqual(list(compare_reports.regressions(new, slower_machine, 5)), [])
        other_suite = report([row("matmul", "x", "giwa", "speed", 1, "TFLOP/s")])  # only what was run again counts
        self.assertEqual(list(compare_reports.regressions(old, other_suite, 5)), [])
        with tempfile.TemporaryDirectory() as folder:
            paths = [report_rows.save(r, Path(folder) / name) for r, name in ((old, "old"), (new, "new"))]
            status = [subprocess.run([sys.executable, HERE / "compare_reports.py", *paths, *more], capture_output=True).returncode
                      for more in ((), ("--regression", "5"))]
        self.assertEqual(status, [0, 1])

    def test_a_new_report_is_compared_with_the_newest_of_its_gpu(self):
        import report as program
        rows = lambda giwa: [{**r, "suite": "attention_fp16"} for r in attention(giwa, 400)]
        with (tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out,
              unittest.mock.patch.object(program, "ROOT", Path(folder))):
            report_rows.save(report(rows(400)), program.ROOT / "docs" / "results")
            report_rows.save(report(rows(500), date="2026-01-01T00:00:00+00:00"), program.ROOT / "docs" / "results")
            later = {"date": "2026-01-04T00:00:00+00:00"}
            found = [program.worse_than_before(report(rows(giwa), **later), 5) for giwa in (390, 380)]
            other = program.worse_than_before(report(rows(1), gpu="NVIDIA Test 2", **later), 5)
        self.assertEqual((found, other), ([0, 1], 0))
        self.assertIn("Compared with 2026-01-02_test_1_report: 1 ratios to a peer are lower", out.getvalue())
        self.assertIn("has no report of NVIDIA Test 2", out.getvalue())

    def test_no_report_is_status_2(self):
        run = subprocess.run([sys.executable, HERE / "compare_reports.py", HERE / "report.py", HERE / "report.py"],
                             capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stdout), (2, ""))
        self.assertIn("this is no JSON", run.stderr)


class Peers(unittest.TestCase):
    """What bench/torch/peers does without PyTorch: its tables, and its transfers."""

    @classmethod
    def setUpClass(cls):
        sys.path.append(str(HERE / "torch" / "peers"))
        import measure
        import prepare
        import tables
        cls.measure, cls.prepare, cls.tables = measure, prepare, tables

    def test_the_best_other_side_is_of_another_library(self):
        self.assertEqual(report_rows.best_other(CELL, "giwa"), "fa3")  # neither the faster fa3_fixed nor giwa in any order
        self.assertEqual(report_rows.ratio(CELL, "giwa", "cudnn"), 1.5)
        self.assertIsNone(report_rows.best_other({**CELL, "us": {"giwa": [1]}}, "giwa"))
        self.assertIsNone(self.tables.best({**CELL, "us": {"fa3": [1]}}, "giwa"))

    def test_groups_are_what_some_cells_have(self):
        cells = [{"case": x} for x in ("fp16/full/D64/1x1x8", "fp16/causal/D128/1x1x8", "fp16/causal/D64/1x1x8/page_16")]
        self.assertEqual({name: [cells.index(c) for c in some] for name, some in self.tables.groups(cells).items()},
                         {"all": [0, 1, 2], "causal": [1, 2], "full": [0], "page_16": [2], "D64": [0, 2], "D128": [1]})

    def test_tables(self):
        other = {**CELL, "case": "fp16/causal/D64/32x32x512", "us": {"giwa": [10], "cudnn": [20]}, "aside": []}
        cells = [CELL, other]
        self.assertEqual(self.tables.cell_table(cells)[2:], [
            "| fp16/full/D64/32x32x512 | 500 | 500 | 312 | 500 | 1000 | 0.900 | 1.000 |",
            "| fp16/causal/D64/32x32x512 | 500 | – | 250 | – | – | 2.000 | – |"])
        text = "\n".join(self.tables.summary(cells))
        self.assertIn("| cells | / best other | / cudnn | / fa3 | / fa3_fixed |", text)
        self.assertIn("| all (2) | 1.342, 0.900, 1/2 | 1.732, 1.500, 2/2 | 0.900, 0.900, 0/1 | 0.500, 0.500, 0/1 |", text)
        self.assertIn("| all (1) | 1.000, 1.000, 1/1 |", text)  # of giwa in any order
        new = {**CELL, "us": {"new": [5], "old": [10], "new, any order": [4], "old, any order": [5]},
               "ours": ["new", "old", "new, any order", "old, any order"]}
        text = "\n".join(self.tables.summary([new]))
        self.assertIn("new / others (geometric mean, lowest, cells with at least 1)\n\n| cells | / best other | / old |", text)
        self.assertIn("| cells | / best other | / old, any order |\n|---|---|---|\n| all (1) | – | 1.250, 1.250, 1/1 |", text)

    def test_the_file_that_plots_read(self):
        cell = {**CELL, "section": "forward_bf16", "us": {"new": [10, 20, 30], "new, any order": [5, 10, 15], "fa3": [20, 20, 30]}, "ours": ["new", "new, any order"]}
        lines = self.tables.csv_of([cell, {**cell, "us": {"fa3": [1]}}]).splitlines()
        work, case = cell["work"], cell["case"]
        self.assertEqual(lines[1:], [
            f"forward_bf16,{case},giwa,20.00,{work / 20:.1f},TFLOP/s,1.0000,1.0000,1.0000,3",
            f'forward_bf16,{case},"new, any order",10.00,{work / 10:.1f},TFLOP/s,0.5000,0.5000,0.5000,3',
            f"forward_bf16,{case},fa3,20.00,{work / 20:.1f},TFLOP/s,1.0000,1.0000,2.0000,3"])

    def test_which_cells_are_chosen(self):
        wanted, case = self.tables.is_wanted, "forward/fp16/causal/D128/4x16x4096"
        self.assertEqual([wanted(case, *x) for x in (([], ""), ([64], ""), ([64, 128], "^forward/.*4096$"), ([], "full"))],
                         [True, False, True, False])
        kernel = self.tables.kernel_of
        self.assertEqual(kernel("backward", "fp16/causal/D128/4x32(8)x4096"), kernel("backward", "fp16/causal/D128/1x32(8)x1024"))
        self.assertNotEqual(kernel("backward", "fp16/causal/D128/4x32(8)x4096"), kernel("backward", "fp16/causal/D128/4x16(1)x4096"))
        self.assertEqual(kernel("backward_flex", "fp16/flex/alibi/D128/4x16x4096/backward"), ("backward_flex", "fp16/flex/alibi/D128", 1))
        self.assertEqual(kernel("packed", "fp16/causal/D128/8_sequences_18028")[2], 1)

    def test_only_what_compiles_is_compiled_ahead(self):
        sides = ("giwa", "giwa, any order", "cudnn", "flash", "fa3", "fa3_fixed", "flex", "fa4", "fa4_fixed", "flashinfer_tc_page_64")
        self.assertEqual([x for x in sides if not re.fullmatch(self.measure.NEEDS_NO_COMPILER, x)], ["fa4", "fa4_fixed", "flashinfer_tc_page_64"])

    def test_clocks_are_of_a_busy_gpu(self):
        text = "".join(f"2026/01/02 03:04:0{i}.000, {mhz}, 3201, {watts}, 50\n" for i, (mhz, watts) in enumerate(((345, 80.5), (1500, 650), (1400, 690))))
        self.assertEqual(self.tables.clocks(text + "2026/01/02"),
                         "SM clock under load: median 1450 MHz, lowest 1400; power: median 670 W, highest 690")
        self.assertEqual(self.tables.clocks(""), "no clock samples")

    def test_which_kernels_of_flash_attention_3_stay(self):
        mainloop = ("void device_kernel<FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, "
                    "cute::tuple<cute::C<128>, cute::C<176>, cute::C<128> >, {size_v}cutlass::half_t, float, cutlass::arch::Sm90, false> > >")
        self.assertEqual(self.prepare.family(mainloop.format(size_v="128, ")), ("forward", "half_t", 128, 128))
        self.assertEqual(self.prepare.family(mainloop.format(size_v="512, ")), ("forward", "half_t", 128, 512))
        self.assertEqual(self.prepare.family(mainloop.replace("Fwd", "Bwd").format(size_v="")), ("backward", "half_t", 128, 128))
        self.assertEqual(self.prepare.family("flash::FlashAttnFwdCombine<float>"), "auxiliary")
        self.assertIsNone(self.prepare.family("at::native::fill"))

    def test_code_that_is_not_called_becomes_zeros(self):
        name = b"_ZN5flash19FlashAttnFwdCombineE"
        def entry(kind, architecture, code):
            return struct.pack("<HHIQ", kind, 0, 64, len(code)) + bytes(12) + struct.pack("<I", architecture) + bytes(32) + code
        def fatbin(*entries):
            return b"\x50\xed\x55\xba\x01\x00\x10\x00" + struct.pack("<Q", sum(map(len, entries))) + b"".join(entries)
        wanted, other = b"\0.text." + name + b"\0" + b"a" * 20, b"\0.text._Z5otherv\0" + b"b" * 20
        data = b"x86 code" + fatbin(entry(2, 80, wanted), entry(2, 90, wanted)) + b"data" + fatbin(entry(2, 90, other)) + b"end"
        with contextlib.redirect_stdout(io.StringIO()):
            trimmed = self.prepare.trim(data, set())
            self.assertEqual((len(trimmed), trimmed.count(wanted), trimmed.count(other)), (len(data), 1, 0))
            with self.assertRaisesRegex(SystemExit, "no kernels for .*'forward', 'half_t', 64"):
                self.prepare.trim(data, {("forward", "half_t", 64, 64)})

    def test_what_is_packed_is_restored(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
            at = Path(folder)
            (at / "cache").mkdir()
            wheel = at / "cache" / "nvidia_cudnn_frontend-1.18.0-py3-none-any.whl"
            content = {"cudnn/__init__.py": b"version = 1\n", "cudnn/big.bin": os.urandom(50000), "top_level.py": b"left out"}
            with zipfile.ZipFile(wheel, "w") as z:
                for name, data in content.items():
                    z.writestr(name, data)
            part, self.prepare.PART = self.prepare.PART, 30000
            try:
                self.prepare.main([str(at / "payload"), "--frontend", "--cache", str(at / "cache"), "--limit", "0.1"])
            finally:
                self.prepare.PART = part
            transfers = sorted((at / "payload").iterdir())
            self.assertEqual([x.name for x in transfers], ["transfer_1", "transfer_2"])
            import unpack
            unpack.main([str(transfers[0]), "--peers", str(at / "peers")])
            self.assertIn("frontend: waits for frontend.tar.xz.1", out.getvalue())
            self.assertFalse((at / "peers" / "site").exists())
            unpack.main([str(transfers[1]), "--peers", str(at / "peers")])
            self.assertEqual({str(x.relative_to(at / "peers" / "site")): x.read_bytes() for x in (at / "peers" / "site").rglob("*") if x.is_file()},
                             {name: data for name, data in content.items() if "/" in name})
            damaged = next(transfers[0].glob("frontend*"))
            damaged.write_bytes(b"other")
            with self.assertRaisesRegex(SystemExit, "is damaged"):
                unpack.main([str(transfers[0]), "--peers", str(at / "elsewhere")])


def script(name):
    """A script of .ci as a module."""
    spec = importlib.util.spec_from_file_location(name, HERE.parent / ".ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Pictures(unittest.TestCase):
    """The check of the SVGs."""

    @staticmethod
    def flaws(body, ground='<rect width="100" height="100" rx="8" fill="white"/>', dark=1):
        check = script("check_pictures")
        return "\n".join(check.flaws('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 100" font-size="10" font-family="monospace">'
                                     f"{dark * check.DARK}{ground}{body}</svg>"))

    def test_dark_screens(self):
        for more, hit in (({}, ""), ({"dark": 0}, "has not once the style"), ({"dark": 2}, "has not once the style"), ({"ground": ""}, "no white ground"),
                          ({"ground": '<rect width="100" height="100" fill="white"/>'}, "no white ground"),
                          ({"ground": '<rect width="100" height="100" rx="8" fill="#eee"/>'}, "no white ground")):
            found = self.flaws('<rect width="9" height="9" rx="1" fill="blue"/>', **more)
            (self.assertIn(hit, found, more) if hit else self.assertEqual(found, "", more))

    def test_text_outside_and_on_text(self):
        for body, hit in (('<text x="10" y="20">inside</text>', ""), ('<text x="80" y="20">outside</text>', "`outside` is at 80"),
                          ('<text x="80" y="20" text-anchor="end">outside</text>', ""), ('<text x="10" y="5">high</text>', "`high`"),
                          ('<g transform="translate(60 0)"><text x="10" y="20" style="font-size: 10px">moved</text></g>', "`moved`"),
                          ('<text x="90" y="60" transform="rotate(-90 90 60)">turned</text>', ""),
                          ('<text x="90" y="20" transform="rotate(-90 90 20)">turned</text>', "`turned`"),
                          ('<text x="10" y="20">one</text><text x="12" y="24">two</text>', "`one` and `two` overlap"),
                          ('<text x="10" y="20">one</text><text x="10" y="32">two</text>', ""),
                          ('<defs><text x="200" y="20">unseen</text></defs>', "")):
            found = self.flaws(body)
            (self.assertIn(hit, found, body) if hit else self.assertEqual(found, "", body))


class Pages(unittest.TestCase):
    """Runs .ci/check_figures.py on pages, a report and a plot that the test writes."""

    def setUp(self):
        self.figures = script("check_figures")
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        (self.root / "docs" / "plots").mkdir(parents=True)
        (self.root / "docs" / "results").mkdir()
        self.page = self.root / "README.md"
        self.page.write_text("<!-- begin table: report plot_softmax -->\n<!-- end table -->\n<!-- begin table: report attention -->\n<!-- end table -->\n"
                             "<!-- begin table: old.csv for_all -->\n<!-- end table -->\n", encoding="utf-8")
        (self.root / "docs" / "results" / "old.csv").write_text("cell,contender,gbs,speed_ratio\n", encoding="utf-8")

    def tearDown(self):
        self.folder.cleanup()

    def check(self, write=False):
        """What it prints, or the sentence that it exits with."""
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                self.figures.main(write, self.root)
        except SystemExit as stop:
            return str(stop)
        return out.getvalue()

    def test_tables_and_plots_are_of_the_newest_report(self):
        self.check(write=True)
        self.assertIn("2 table(s) wait for a report", self.check())
        made = report([{**r, "suite": "attention_fp16"} for mask in ("full", "causal")
                       for r in attention(400, 320, f"fp16/{mask}/D64/32x32x512")])
        report_rows.save(made, self.root / "docs" / "results")
        self.assertIn("shows docs/plots/softmax.svg, which is not there", self.check(write=True))
        plot = self.root / "docs" / "plots" / "softmax.svg"
        plot.write_text(f"<svg>giwa plot of {made['name']} {'0' * 16}</svg>", encoding="utf-8")
        self.assertIn("README.md does not say what docs/results says", self.check())
        self.assertIn(f"docs/plots/softmax.svg is of {made['name']} 0000", self.check(write=True))
        self.assertIn("of giwa, PyTorch and a copy](docs/plots/softmax.svg)", self.page.read_text(encoding="utf-8"))
        self.assertIn("| 64 | 32 | 32 x 512 | 400 (1.25) | 400 (1.25) |", self.page.read_text(encoding="utf-8"))
        plot.write_text(f"<svg>giwa plot of {made['name']} {report_rows.digest(made)}</svg>", encoding="utf-8")
        self.assertIn("3 table(s) and 1 plot(s) agree", self.check())
        (other := plot.with_name("other.svg")).write_text("<svg>giwa plot of computed</svg>", encoding="utf-8")
        self.assertIn("no page shows docs/plots/other.svg", self.check())
        other.unlink()
        plot.write_text(f"<svg>giwa plot of old.csv {'0' * 16}</svg>", encoding="utf-8")
        self.assertIn(f"shows docs/plots/softmax.svg as of {made['name']}.json, and it is of old.csv", self.check())
        plot.write_text(f"<svg>giwa plot of {made['name']} {report_rows.digest(made)}, old.csv {'0' * 16}</svg>", encoding="utf-8")
        self.assertIn("docs/plots/softmax.svg is of old.csv 0000", self.check())
        self.page.write_text(self.page.read_text(encoding="utf-8").replace("400 (1.25)", "500 (1.25)"), encoding="utf-8")
        self.assertIn("does not say what docs/results says", self.check())

    def test_gradients_in_a_table_and_in_a_sentence(self):
        marks = "<!-- begin table: backward.csv %s -->%s<!-- end table -->"
        self.page.write_text(f"{marks % ('backward', chr(10))}\n- It is {marks % ('backward_cudnn', 'old')} times as fast.\n", encoding="utf-8")
        rows = [row("attention_backward", f"fp16/full/D64/{16384 // n}x32x{n}", "giwa", "speed", 300, "TFLOP/s", ratio_to=peer, ratio=ratio)
                for n, of_cudnn in ((512, 0.5), (1024, 2)) for peer, ratio in (("cudnn", of_cudnn), ("flash", 1.5))]
        path = self.root / "docs" / "results" / "backward.csv"
        path.write_text(report_rows.csv_text(rows), encoding="utf-8")
        self.assertIn("README.md does not say what docs/results says", self.check())
        self.assertIn("2 table(s)", self.check(write=True))
        page = self.page.read_text(encoding="utf-8")
        self.assertIn("\n| 64 | full | 300, 0.50, 1.50 | 300, 2.00, 1.50 |\n", page)
        self.assertIn(f"\n- It is {marks % ('backward_cudnn', '1.00')} times as fast.\n", page)
        path.write_text(report_rows.csv_text(rows[:1]), encoding="utf-8")
        self.assertIn("backward.csv has no gradients compared with cuDNN and FlashAttention-2", self.check())

    def test_figures_of_other_libraries_outside_marks(self):
        marked = "<!-- begin table: old.csv for_all -->\n<!-- end table -->\n"
        for said, hit in (("giwa is 1.17× cuDNN.", True), ("It is fast. It reaches 0.95 of cuBLAS at 1024.", True),
                          ("Here giwa has 2.1 times the speed of FlashAttention-2.", True),
                          ("Compared with cuDNN: 1.14× as fast.", True), ("- **cuDNN**: 1.07×", True), ("Twice as fast as cuDNN.", True),
                          ("FlashAttention-3 is faster; giwa reaches 0.97× of it.", True), ("giwa has 1.05x cuDNN.", True), ("순전파는 cuDNN의 1.14배입니다.", True),
                          ("| | PyTorch |\n|---|---|\n| forward | 0.95 |", True), ("| | PyTorch, µs |\n|---|---|\n| forward | 27 |", True),
                          ("| of | speed |\n|---|---|\n| cuDNN | 1.08–1.12× |", True), ("The softmax of JAX takes 12 µs.", True),
                          ("giwa was compared with cuDNN 9.19 and FlashAttention-4 4.0.0b36 in 36 cases.", False),
                          ("FlashAttention takes 4 × 32(8) × 4096. A call is 1.17× as fast as before.", False),
                          ("In `PyTorch` head sizes are 1 to 512.\n```\ncuDNN 1.17×\n```", False),
                          ("PyTorch's tolerance is 0.25 %. <!-- figure: allow -->", False)):
            self.page.write_text(f"{said}\n\n{marked}", encoding="utf-8")
            self.check(write=True)
            (self.assertIn if hit else self.assertNotIn)("written by hand", self.check(), said)
        self.assertIn("1 table(s)", self.check())
        self.page.write_text(f"One.\n\n{marked}\nTwo. giwa is 1.17× cuDNN.\n", encoding="utf-8")
        self.check(write=True)
        line = self.page.read_text(encoding="utf-8").split("Two")[0].count("\n") + 1
        self.assertIn(f"README.md:{line}: giwa is 1.17× cuDNN.\n1 figure", self.check())
        self.page.write_text(marked, encoding="utf-8")
        for page, hit in (("docs/notes/several_gpus.md", False), ("docs/several_gpus.md", True)):
            notebook = self.root / page
            notebook.parent.mkdir(exist_ok=True)
            notebook.write_text("# Page\n\nThe ring is 1.17× cuDNN.\n", encoding="utf-8")
            self.check(write=True)
            (self.assertIn if hit else self.assertNotIn)("written by hand", self.check(), page)

    def test_the_headline_is_of_one_run(self):
        self.page.write_text("<!-- begin table: report headline -->\n<!-- end table -->\n<!-- begin table: 2026-01-02_h200_peers.csv headline -->\n"
                             "<!-- end table -->\n", encoding="utf-8")
        results = self.root / "docs" / "results"
        peers = {"cudnn": 1.5, "fa3": 1.2, "fa4": 0.9}
        cases = [f"fp16/full/D64/1x1x{tokens}" for tokens in (512, 1024)]
        path = results / "2026-01-02_h200_peers.csv"
        path.write_text("section,case,side,us,value,giwa_over\n" + "".join(
            f"{section},{case},{side},1,1,{over}\n" for section in ("forward", "backward") for case in cases for side, over in ({"giwa": 1} | peers).items()),
            encoding="utf-8")
        report_rows.save(report([row("softmax", "a", "giwa", "speed", 1, "GB/s")]), results)
        self.assertIn("has no section forward with the usual cases", self.check(write=True))
        made = report([row(f"peers_{section}", case, "giwa", "speed", 1, "TFLOP/s", ratio_to=peer, ratio=over)
                       for section in ("forward", "backward") for case in cases for peer, over in (peers | {"best_other": 0.9}).items()])
        report_rows.save(made, results)
        self.figures.load.cache_clear()  # the new report has the old one's name
        self.assertIn("2 table(s)", self.check(write=True))
        for gpu in ("TEST", "H200"):  # of the report and of the CSV the same figures
            self.assertRegex(self.page.read_text(encoding="utf-8"), rf"On an NVIDIA {gpu}, .* \*\*0\.900× the fastest of .*\(0\.90–0\.90×, ahead in 0 of 2 cases\)"
                             r", its gradients at 0\.900× .*Forward it is 1\.50× cuDNN, 1\.20× FlashAttention-3 and 0\.90× FlashAttention-4")


TOOLS = {
    "nvidia-smi": """case "$*" in *"-l 1"*) echo "1500, 600.0, 50"; exec sleep 60 ;; esac
echo "NVIDIA Test 1, 580.1, 9.0, 345 MHz, 3201 MHz, 1980 MHz, 3201 MHz, 700.00 W, 30, 143771 MiB" """,
    "nvcc": """for x; do last=$x; done
case $last in *.so) touch "$last" ;; *) echo 'Cuda compilation tools, release 13.0, V13.0.88' ;; esac""",
    "cmake": """case "$*" in
  *-S*) touch "$4/CMakeCache.txt" ;;
  *) mkdir -p "$2/bench"
     for name in bench_softmax bench_transpose; do cp "$BENCHMARK" "$2/bench/$name"; done
     printf '#!/bin/sh\\necho no memory, error 2; exit 3\\n' > "$2/bench/bench_matmul"; chmod +x "$2/bench/bench_matmul" ;;
esac""",
    "a_benchmark": """for x; do case $x in --benchmark_out=*) out=${x#*=} ;; esac; done
echo '{"benchmarks": [{"name": "c/giwa_x/iterations:21", "median_us": 2, "speed_ratio": 0.9, "label": "copy", "GB/s": 4000}]}' > "$out" """,
}


class Runner(unittest.TestCase):
    """report.py with stand-ins for the GPU's tools: what it does with what they answer."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.at = Path(self.folder.name)
        for name, text in TOOLS.items():
            (self.at / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
            (self.at / name).chmod(0o755)
        (self.at / "work" / "build").mkdir(parents=True)

    def tearDown(self):
        self.folder.cleanup()

    def run_report(self, *arguments):
        environment = {**os.environ, "PATH": f"{self.at}:/usr/bin:/bin", "BENCHMARK": str(self.at / "a_benchmark")}
        return subprocess.run([sys.executable, HERE / "report.py", self.at / "out", "--work", self.at / "work", "--commit", "abc",
                               *arguments], capture_output=True, text=True, env=environment, timeout=100)

    def test_a_suite_that_fails_stops_no_other(self):
        run = self.run_report("--suites", "matmul,softmax,transpose,for_all")
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertIn("matmul: ended with 3", run.stdout)
        self.assertIn("no memory, error 2", run.stdout)
        self.assertIn("for_all: could not be built: bench_for_all", run.stdout)
        self.assertIn("giwa_x, speed: 0.90 x copy", run.stdout)
        made = report_rows.load(next((self.at / "out").glob("*_report.json")))
        self.assertEqual([(r["suite"], r["value"]) for r in made["rows"]], [("softmax", 4000), ("transpose", 4000)])
        told = made["runs"][0]
        self.assertEqual(told["suites"]["softmax"]["state"], "ok")
        self.assertEqual(told["suites"]["softmax"]["sm_mhz"], 1500)
        self.assertEqual((told["machine"]["power.limit"], told["versions"]["CUDA"], told["commit"]), ("700.00 W", "13.0.88", "abc"))

    def test_suites_of_other_libraries_need_their_folder(self):
        run = self.run_report("--suites", "peers_forward,softmax")
        self.assertEqual(run.returncode, 2)
        self.assertIn("peers_forward needs --peers FOLDER", run.stderr)
        self.assertIn("there is no folder", self.run_report("--suites", "peers_forward", "--peers", self.at / "none").stderr)

    def test_a_suite_of_other_libraries(self):
        import report as program
        write = "import json, os, sys; out, *seen = sys.argv[1:]; " \
                "open(out, 'w').write(json.dumps({**json.loads(os.environ['CELL']), 'case': ' '.join(map(os.path.realpath, seen))})); sys.exit(1)"
        suite = program.Suite("peers_test", 10, "", ("torch", "peers", "fp16"),
                              [sys.executable, "-c", write, "{out}", "{peers}", "{libraries}/fp16.so"], report_rows.of_peers, False)
        (self.at / "given.so").write_text("", encoding="utf-8")
        there = {"peers": self.at / "peers", "fp16": self.at / "given.so"}
        with contextlib.redirect_stdout(io.StringIO()), unittest.mock.patch.dict(os.environ, CELL=json.dumps(CELL)):
            rows, told = program.run_suite(suite, there, self.at / "work", "90a", 100, program.Log(self.at / "report.log"))
        # The rows are there although one cell was wrong, and the suite says so.
        self.assertEqual((told["state"], rows[0]["case"]), ("ended with 1", " ".join(os.path.realpath(self.at / x) for x in ("peers", "given.so"))))

    def test_only_libraries_are_built(self):
        run = self.run_report("--suites", "peers_decode,softmax", "--only-build", "--architecture", "80")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertIn("2 of 2 libraries are in", run.stdout)
        self.assertIn("arch=compute_80,code=sm_80", (self.at / "work" / "cached.stamp").read_text(encoding="utf-8"))
        self.assertFalse((self.at / "work" / "build" / "bench").exists())
        self.assertIn("cached_e4m3.so built", self.run_report("--suites", "peers_decode", "--only-build").stdout)  # for the GPU's 90a
        self.assertIn("arch=compute_90a,code=sm_90a", (self.at / "work" / "cached.stamp").read_text(encoding="utf-8"))
        self.assertNotIn("built in", self.run_report("--suites", "peers_decode", "--only-build").stdout)

    def test_limits_and_parts(self):
        part = self.run_report("--suites", "transpose,compile_time", "--minutes", "2")  # about 8 s and 140 s
        self.assertEqual(part.returncode, 1)
        self.assertIn("compile_time: left out: it takes about 140 s", part.stdout)
        kept = next((self.at / "out").glob("*_report.json")).rename(self.at / "part.json")
        whole = self.run_report("--suites", "softmax", "--into", str(kept))
        self.assertEqual(whole.returncode, 0, whole.stdout + whole.stderr)
        made = report_rows.load(next((self.at / "out").glob("*_report.json")))
        self.assertEqual([r["suite"] for r in made["rows"]], ["transpose", "softmax"])
        self.assertEqual(len(made["runs"]), 2)


if __name__ == "__main__":
    unittest.main()
