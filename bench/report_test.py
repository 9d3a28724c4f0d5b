# SPDX-License-Identifier: MIT
"""Tests of report_rows.py, report.py and compare_reports.py; they need no GPU and no package: python3 bench/report_test.py"""
import contextlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import compare_reports  # noqa: E402
import report_rows  # noqa: E402
from report_rows import ReportError, row  # noqa: E402

NEW_RUN = {"gpu": "NVIDIA Test 1", "commit": "abc", "date": "2026-01-02T03:04:05+00:00", "giwa": "0.1.0", "suites": {},
           "versions": {"CUDA": "13.0", "cuDNN": "91900"}, "machine": {"driver_version": "580.1"}}


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

    @unittest.skipUnless(shutil.which("cc"), "there is no C compiler")
    def test_a_peer_receives_its_call(self):
        class Tensor:
            def __init__(self, at):
                self.data_ptr = lambda: at

        names = {"causal": 1, "batch": 2, "queries": 3, "keys": 4, "heads": 6, "kv_heads": 5, "head_size": 64}
        tensors = {name: Tensor(100 + i) for i, name in enumerate(("q", "k", "v", "dout", "o", "dq", "dk", "dv", "lse"))}
        fields = [f"c->{name} == {n}" for name, n in {**names, "element": 1}.items()] + [f"(long)c->{name} == {x.data_ptr()}" for name, x in tensors.items()]
        (self.at / "peer.c").write_text(f"""#include "{HERE}/torch/peer.h"
            long long peer_forward_workspace(const struct peer_call* c) {{ return c->causal ? 7 : -1; }}
            long long peer_backward_workspace(const struct peer_call* c) {{ return c->head_size == 64 ? 0 : -1; }}
            long long peer_forward(const struct peer_call* c) {{ return c->dq == 0 && (long)c->workspace == 7 ? 0 : 1; }}
            long long peer_backward(const struct peer_call* c) {{ return {" && ".join(fields)} && (long)c->stream == 9 ? 0 : 1; }}
            """, encoding="utf-8")
        subprocess.run(["cc", "-Wall", "-Werror", "-shared", "-fPIC", self.at / "peer.c", "-o", self.at / "peer.so"], check=True)
        sys.path.append(str(HERE / "torch"))
        import peers
        library = peers.load([f"flash3={self.at / 'peer.so'}"])["flash3"]
        peer = peers.Peer(library, Tensor, "bf16", **names)
        self.assertEqual((peer.bytes("forward"), peer.bytes("backward")), (7, 0))
        self.assertEqual(peers.Peer(library, Tensor, "fp32", **names).bytes("forward"), -1)
        self.assertEqual(peers.Peer(library, Tensor, "bf16", **{**names, "causal": False}).bytes("forward"), -1)
        some = {name: x for name, x in tensors.items() if name not in ("dout", "dq", "dk", "dv")}
        peer.run("forward", 9, **some)
        peer.run("backward", 9, **{name: x for name, x in tensors.items() if name not in some})
        with self.assertRaisesRegex(RuntimeError, "backward call answers 1"):
            peer.run("backward", 8)

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
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
            program.ROOT = Path(folder)
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


class Pages(unittest.TestCase):
    """Runs .ci/check_figures.py on pages, a report and a plot that the test writes."""

    def setUp(self):
        spec = importlib.util.spec_from_file_location("check_figures", HERE.parent / ".ci" / "check_figures.py")
        self.figures = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.figures)
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
        self.assertIn("README.md does not say what docs/results says", self.check())
        self.assertIn("shows docs/plots/softmax.svg, which is not there", self.check(write=True))
        self.assertIn("of giwa, PyTorch and a copy](docs/plots/softmax.svg)", self.page.read_text(encoding="utf-8"))
        self.assertIn("| 64 | 32 | 32 x 512 | 400 (1.25) | 400 (1.25) |", self.page.read_text(encoding="utf-8"))
        plot = self.root / "docs" / "plots" / "softmax.svg"
        plot.write_text(f"<svg>giwa report {made['name']} {'0' * 16}</svg>", encoding="utf-8")
        self.assertIn("docs/plots/softmax.svg is of 2026-01-02_test_1_report 0000", self.check())
        plot.write_text(f"<svg>giwa report {made['name']} {report_rows.digest(made)}</svg>", encoding="utf-8")
        self.assertIn("3 table(s) and 1 plot(s) agree", self.check())
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

    def test_the_headline_is_of_the_newest_report(self):
        self.page.write_text("<!-- begin table: report headline -->\n<!-- end table -->\n", encoding="utf-8")
        both = [row for keys, giwa, cudnn, flash in ((512, 300, 400, 200), (1024, 400, 200, 100))
                for row in (*attention(giwa, cudnn, f"fp16/full/D64/1x1x{keys}"),
                            {**attention(giwa, flash, f"fp16/full/D64/1x1x{keys}")[0], "ratio_to": "flash"})]
        report_rows.save(report([{**r, "suite": "attention_fp16"} for r in both[:-1]]), self.root / "docs" / "results")
        self.assertIn("not in the same cases with cuDNN and FlashAttention-2", self.check(write=True))
        report_rows.save(report([{**r, "suite": "attention_fp16"} for r in both]), self.root / "docs" / "results")
        self.figures.load.cache_clear()  # the new report has the old one's name
        self.assertIn("1 table(s)", self.check(write=True))
        self.assertRegex(self.page.read_text(encoding="utf-8"), r"\*\*1\.22 times the speed of cuDNN\*\* \(0\.75 to 2\.00\) and at "
                         r"2\.45 times the speed of FlashAttention-2 \(1\.50 to 4\.00\): .* 2 cases")


TOOLS = {
    "nvidia-smi": """case "$*" in *"-l 1"*) echo "1500, 600.0, 50"; exec sleep 60 ;; esac
echo "NVIDIA Test 1, 580.1, 9.0, 345 MHz, 3201 MHz, 1980 MHz, 3201 MHz, 700.00 W, 30, 143771 MiB" """,
    "nvcc": "echo 'Cuda compilation tools, release 13.0, V13.0.88'",
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
