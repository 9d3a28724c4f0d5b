#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks that the tables of measurements in README.md and docs/ say what the files in docs/results say; --write puts them there.

A table stands between `<!-- begin table: FILE KIND -->` and `<!-- end table -->`, figures inside a sentence between the same marks, in
one line. KIND is a function in TABLES, FILE a CSV, a report
of bench/report.py, or the word `report` for the newest of those. The kind plot_NAME is the picture docs/plots/NAME.svg in its place,
drawn from that file. As long as there is no report, its tables are empty. The plots must be of the newest report and of the files as
they are, by the names and the digests that bench/plot.py writes into them, and some page must show each picture.

Outside the marks and NOTEBOOKS no sentence and no table cell has both the name of another library and a ratio or a speed: such figures
are generated or are not there. A line that needs one which is no comparison ends with `<!-- figure: allow -->`.
"""
import csv
import functools
import hashlib
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "bench"))
import report_rows  # noqa: E402

SIZES = {10_000_000: "10 000 000", 1 << 28: "2^28", 1 << 29: "2^29", 1 << 30: "2^30"}


load = functools.cache(report_rows.load)


def read(path, suite):
    """The rows of a benchmark program by cell, in their order, and in each by contender; of its CSV, or of a report's suite."""
    cells = {}
    if path.suffix == ".json":
        for case, contenders in report_rows.cells(load(path), suite).items():
            for name, (row, *_) in contenders.items():
                cells.setdefault(case, {})[name] = {
                    "gbs": f"{row['value']:.0f}", "tflops": f"{row['value']:.1f}", "speed_ratio": row["ratio"] or 1,
                    "median_us": row["us"], "peer": row["ratio_to"]}
        return cells
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            cells.setdefault(row["cell"], {})[row["contender"]] = row
    return cells


def records(path, suite):
    """The rows of a script of bench/torch: of its CSV, or of a report's suite in the same form."""
    if path.suffix != ".json":
        return report_rows.read_csv(path)
    found = []
    for case, contenders in report_rows.cells(load(path), suite).items():
        record = {"case": case.removesuffix(" (plain calls)")}
        for name, rows in contenders.items():
            short = name.removeprefix("giwa_")
            for row in rows:
                value = row["value"] if row["value"] is not None else float("nan")
                if row["metric"].startswith("error_"):
                    record[f"{short}_{row['metric'].removeprefix('error_')}"] = value
                    continue
                record[f"{short}_{'tflops' if row['unit'] == 'TFLOP/s' else 'gbs'}"] = f"{value:.0f}"
                if name == next(iter(contenders)) and row["ratio_to"]:
                    record[f"speed_of_{row['ratio_to'].removeprefix('giwa_')}"] = row["ratio"]
        found.append(record)
    return found


def ratio(row):
    return f"{float(row['speed_ratio']):.2f}"


def lines(*rows):
    head = rows[0].count("|") - 1
    return "\n".join([rows[0], "|" + "---|" * head, *rows[1:]])


def for_all(path):
    """The benchmark for_all, a line for each type and size: both forms of giwa with their ratios."""
    rows = ["| type | elements | `for_all`, by index | against `cub::DeviceFor::Bulk` | `for_all`, elementwise "
            "| against `cub::DeviceTransform` |"]
    for cell, contenders in read(path, "for_all").items():
        match = re.fullmatch(r"add/(\w+)/(\d+)", cell)
        if match is None:
            continue
        by_index, elementwise = contenders["giwa_for_all_index"], contenders["giwa_for_all_elementwise"]
        rows.append(f"| {match[1]} | {SIZES[int(match[2])]} | {by_index['gbs']} | {ratio(by_index)} "
                    f"| {elementwise['gbs']} | {ratio(elementwise)} |")
    return lines(*rows)


def by_columns(values):
    """A line for each number of columns, a column for each type; values: {(type, columns): text}."""
    types = list(dict.fromkeys(t for t, _ in values))
    columns = dict.fromkeys(c for _, c in values)
    return lines("| columns | " + " | ".join(types) + " |",
                 *(f"| {c} | " + " | ".join(values[t, c] for t in types) + " |" for c in columns))


def softmax(path):
    values = {}
    for cell, contenders in read(path, "softmax").items():
        if match := re.fullmatch(r"softmax/(\w+)/\d+x(\d+)", cell):
            row = contenders["giwa_softmax"]
            values[match[1], match[2]] = f"{row['gbs']} ({ratio(row)})"
    return by_columns(values)


def softmax_torch(path):
    values = {}
    for row in records(path, "torch"):
        if match := re.fullmatch(r"softmax/(\w+)/\d+x(\d+)", row["case"]):
            values[match[1], match[2]] = f"{float(row['speed_of_torch']):.2f}"
    return by_columns(values)


def transpose(path):
    rows = ["| type | rows x columns | relative to a copy | GB/s |"]
    for cell, contenders in read(path, "transpose").items():
        if match := re.fullmatch(r"transpose/(\w+)/(\d+)x(\d+)", cell):
            row = contenders["giwa_transpose"]
            rows.append(f"| {match[1]} | {match[2]} x {match[3]} | {ratio(row)} | {row['gbs']} |")
    return lines(*rows)


def transpose_torch(path):
    rows = ["| type | rows x columns | relative to PyTorch | GB/s |"]
    for row in records(path, "torch"):
        if match := re.fullmatch(r"transpose/(\w+)/(\d+)x(\d+)", row["case"]):
            rows.append(f"| {match[1]} | {match[2]} x {match[3]} | {float(row['speed_of_torch']):.2f} | {row['giwa_gbs']} |")
    return lines(*rows)


def matmul(path):
    """Each step in TFLOP/s, and in brackets the speed relative to cuBLAS."""
    cells = read(path, "matmul")
    steps = [s for s in ("register_tile", "mma", "wgmma", "fp32_by_fp16") if any(s in c for c in cells.values())]
    rows = ["| type | m x n x k | cuBLAS | " + " | ".join(f"`{s}`" for s in steps) + " |"]
    for cell, contenders in cells.items():
        if match := re.fullmatch(r"matmul/(\w+)/(\d+)x(\d+)x(\d+)", cell):
            found = [contenders.get(s) for s in steps]
            rows.append(f"| {match[1]} | {match[2]} x {match[3]} x {match[4]} | {contenders['cublas']['tflops']} | "
                        + " | ".join(f"{r['tflops']} ({ratio(r)})" if r else "" for r in found) + " |")
    return lines(*rows)


def matmul_step(path, step):
    """A step's TFLOP/s for 4096 x 4096 x 4096, in fp16, or in fp32 if it has only that."""
    cells = read(path, "matmul")
    return next(f"{float(row['tflops']):.3g}" for kind in ("fp16", "fp32") if (row := cells[f"matmul/{kind}/4096x4096x4096"].get(step)))


def attention(path, suite="attention_fp16"):
    """A line for each head size and length, full and causal: giwa's TFLOP/s, and in brackets the speed relative to each peer."""
    values = {}
    for row in records(path, suite):
        if match := re.fullmatch(r"(\w+)/(\w+)/D(\d+)/(\d+)x(\d+)x(\d+)", row["case"]):
            relative = ", ".join(f"{float(row[k]):.2f}" for k in row if k.startswith("speed_of_") and row[k])
            values[match[3], match[5], f"{match[4]} x {match[6]}", match[2]] = (
                f"{float(row['giwa_tflops']):.0f} ({relative})")
    cases = [c for c in dict.fromkeys(key[:3] for key in values) if all((*c, m) in values for m in ("full", "causal"))]
    return lines("| head size | heads | batch x tokens | full | causal |",
                 *(f"| {d} | {h} | {n} | {values[d, h, n, 'full']} | {values[d, h, n, 'causal']} |" for d, h, n in cases))


def attention_at_4096(path, mask):
    """giwa's TFLOP/s in fp16 with 4096 tokens and head size 64."""
    return f"{float(next(r['giwa_tflops'] for r in records(path, 'attention_fp16') if r['case'] == f'fp16/{mask}/D64/4x32x4096')):.0f}"


def attention_fp32(path):
    """A line for each head size and length: each accuracy in TFLOP/s, with the speed of fp32 relative to PyTorch memory-efficient."""
    values = {}
    for row in records(path, "attention_fp32"):
        if match := re.fullmatch(r"fp32/(\w+)/D(\d+)/(\d+)x(\d+)x(\d+)", row["case"]):
            tflops = [f"{float(row[f'{name}_tflops']):.0f}" for name in ("fp32", "tf32", "fp32_exact")]
            tflops[0] += f" ({float(row['speed_of_efficient']):.2f})"
            values[match[2], match[4], f"{match[3]} x {match[5]}", match[1]] = " | ".join(tflops)
    cases = [c for c in dict.fromkeys(key[:3] for key in values) if all((*c, m) in values for m in ("full", "causal"))]
    return lines("| head size | heads | batch x tokens | full: fp32 | tf32 | fp32_exact | causal: fp32 | tf32 | fp32_exact |",
                 *(f"| {d} | {h} | {n} | {values[d, h, n, 'full']} | {values[d, h, n, 'causal']} |" for d, h, n in cases))


def accuracy(path):
    """A line for each family and length, head size 128, full: relative errors in units of 10^-7, of all / worst row / worst column."""
    names = ("fp32", "fp32_exact", "unfused", "tf32", "fp16")
    rows = ["| inputs | keys | " + " | ".join(names).replace("unfused", "PyTorch, unfused") + " |"]
    for row in records(path, "accuracy"):
        if match := re.fullmatch(r"(\w+)/full/D128/(1024|65536)", row["case"]):
            of = [" / ".join(f"{float(row[f'{n}_{what}']) * 1e7:.3g}" for what in ("all", "row", "column")) for n in names]
            rows.append(f"| {match[1]} | {match[2]} | " + " | ".join(of) + " |")
    return lines(*rows)


def accuracy_means(path):
    """The error of fp32 relative to that of PyTorch's unfused fp32, in the geometric mean: of all, the worst row, the worst column."""
    rows = records(path, "accuracy")
    mean = {what: f"{report_rows.geometric_mean([float(r[f'fp32_{what}']) / float(r[f'unfused_{what}']) for r in rows]):.2f}"
            for what in ("all", "row", "column")}
    return (f"Over all {len(rows)} cases the error of `fp32` is {mean['all']}× that of PyTorch's unfused fp32 in the geometric mean "
            f"({mean['row']}× by the worst row, {mean['column']}× by the worst column)")


# ---- gradients

def gradient_cases(path, contender="giwa"):
    """The rows of a contender in attention_backward.py's CSV, or in a report: {case: {peer: row}}."""
    found = {}
    for row in load(path)["rows"] if path.suffix == ".json" else report_rows.of_rows("attention_backward", path):
        if row["suite"].startswith("attention_backward") and row["contender"] == contender and row["ratio"]:
            found.setdefault(row["case"], {}).setdefault(row["ratio_to"], row)  # another suite may repeat the case
    return found


def gradient_cells(path, contender="giwa", wanted=("cudnn", "flash"), element="fp16"):
    """Those of a type, of the usual head sizes and masks: {(head size, mask, tokens): {peer: row}}."""
    found = {}
    for case, peers in gradient_cases(path, contender).items():
        match = re.fullmatch(element + r"/(full|causal)/D(64|128|256)/(\d+)x(\d+)x(\d+)", case)
        if match and set(wanted) <= set(peers):
            found[int(match[2]), match[1], int(match[5])] = peers
    if not found:
        raise report_rows.ReportError(f"{path.name} has no gradients compared with {' and '.join(NAMES[p] for p in wanted)}")
    return found


def gradient_ratios(path, peer, size=None):
    return [peers[peer]["ratio"] for (d, _, _), peers in gradient_cells(path).items() if size in (None, d)]


def gradient_mean(path, peer, size=None):
    return f"{report_rows.geometric_mean(gradient_ratios(path, peer, size)):.2f}"


def backward(path, contender="giwa", wanted=("cudnn", "flash"), element="fp16"):
    """A line for each head size and mask: giwa's TFLOP/s, and how many times as fast as cuDNN and FlashAttention-2."""
    cells = gradient_cells(path, contender, wanted, element)
    lengths = sorted({tokens for _, _, tokens in cells})

    def told(peers):
        return ", ".join([f"{peers[wanted[-1]]['value']:.0f}", *(f"{peers[p]['ratio']:.2f}" for p in wanted)]) if peers else ""

    return lines("| head size | mask | " + " | ".join(map(str, lengths)) + " |",
                 *(f"| {d} | {mask} | " + " | ".join(told(cells.get((d, mask, n))) for n in lengths) + " |"
                   for d, mask in dict.fromkeys((d, mask) for d, mask, _ in cells)))


def backward_any_order(path):
    """The same in any order."""
    return backward(path, "giwa, any order")


def backward_fp32(path):
    """The same in fp32, compared with PyTorch's memory-efficient attention."""
    return backward(path, "giwa", ("efficient",), "fp32")


def backward_means(path):
    sizes = dict.fromkeys(d for d, _, _ in gradient_cells(path))
    return (f"{gradient_mean(path, 'cudnn')}× cuDNN and {gradient_mean(path, 'flash')}× FlashAttention-2 over all "
            f"{len(gradient_cells(path))}; relative to cuDNN " + ", ".join(f"{gradient_mean(path, 'cudnn', d)} at {d}" for d in sizes))


def backward_cudnn(path):
    return gradient_mean(path, "cudnn")


def backward_tflops(path):
    """The lowest and the highest."""
    found = [peers["cudnn"]["value"] for peers in gradient_cells(path).values()]
    return f"{min(found):.0f}", f"{max(found):.0f}"


def gpu_of(path):
    """The GPU in a file's name, DATE_GPU_WHAT."""
    return path.name.split("_")[1].upper()


def date_of(path):
    return path.name.split("_")[0]


def backward_headline(path):
    low, high = backward_tflops(path)
    return (f"On an {gpu_of(path)} it reaches {low} to {high} TFLOP/s in fp16, {gradient_mean(path, 'cudnn')}× cuDNN and "
            f"{gradient_mean(path, 'flash')}× FlashAttention-2 (geometric mean)")


def backward_headline_ko(path):
    low, high = backward_tflops(path)
    return (f"{gpu_of(path)}에서 fp16은 {low}~{high} TFLOP/s로, 기하평균으로 cuDNN의 {gradient_mean(path, 'cudnn')}배, "
            f"FlashAttention-2의 {gradient_mean(path, 'flash')}배")


def backward_mma_sync_means(path):
    found = {}
    for (size, _, _), peers in gradient_cells(path, "giwa_mma_sync", ("flash",)).items():
        found.setdefault(size, []).append(peers["flash"]["ratio"])
    return ", ".join(f"{report_rows.geometric_mean(ratios):.2f}× at {size}" for size, ratios in found.items())


def backward_flex(path):
    """How many times as fast as FlexAttention, by mask or score modifier."""
    return ", ".join(f"{case.split('/')[2]} {peers['flex']['ratio']:.2f}" for case, peers in gradient_cases(path).items() if "flex" in peers)


def backward_more(path):
    """A line for each case beside the usual ones."""
    peers = ("cudnn", "flash", "flex")
    memory = {(r["case"], r["contender"]): r["value"] for r in report_rows.of_rows("attention_backward", path) if r["metric"] == "memory"}
    rows = ["| type, mask or score modifier, head size, batch x heads (of keys) x tokens | TFLOP/s | "
            + " | ".join(f"against {NAMES[p]}" for p in peers) + " | MB of giwa, of them |"]
    for case, found in gradient_cases(path).items():
        mb = [f"{memory[case, side]:.0f}" for side in ("giwa", *peers) if (case, side) in memory]
        case = re.sub("/both$", ", forward and backward", case.replace("/flex/", "/"))
        rows.append(f"| {case} | {next(iter(found.values()))['value']:.0f} | "
                    + " | ".join(f"{found[p]['ratio']:.2f}" if p in found else "" for p in peers) + f" | {', '.join(mb)} |")
    return lines(*rows)


def backward_forms(path):
    """Speeds relative to fp16 and a head size of 128 without a modifier, full and causal: of bf16, of 96 and of a modifier that does nothing."""
    plain, own = gradient_cases(path), gradient_cases(path, "giwa, own score")
    name = "fp16/{}/D128/4x16x4096"
    speed = lambda case: next(iter(plain[case].values()))["value"]
    of = lambda case: " and ".join(f"{speed(case.format(mask)) / speed(name.format(mask)):.2f}" for mask in ("full", "causal"))
    unchanged = " and ".join(f"{own[name.format(mask)]['giwa']['ratio']:.2f}" for mask in ("full", "causal"))
    return (f"bf16 runs at {of('bf16/{}/D128/4x16x4096')} of the speed of fp16 (full, causal), a head size of 96 at {of('fp16/{}/D96/4x16x4096')} "
            f"of the TFLOP/s of 128, and a score modifier that does nothing leaves {unchanged} of the speed")


def cpu_sides(path, part):
    """{case: {how: (GFLOP/s, speed relative to PyTorch)}} of attention.py's CSV; how: `-O3, alone`, `-O3 -fopenmp, alone`, `-O3 -fopenmp`."""
    found = {}
    for row in report_rows.read_csv(path):
        if match := re.fullmatch(r"cpu ([^/]*)/" + part + r"((?:full|causal)/.*)", row["case"]):
            found.setdefault(match[2], {})[match[1]] = (float(row["giwa_tflops"]) * 1000, float(row["speed_of_torch"]))
    return found


def cpu_backward_means(path):
    found = cpu_sides(path, "backward/").values()
    told = [(report_rows.geometric_mean(ratios), min(ratios)) for how in ("-O3, alone", "-O3 -fopenmp, alone")
            for ratios in [[sides[how][1] for sides in found]]]
    return "{:.2f}× (lowest {:.2f}) with `-O3`, {:.2f}× (lowest {:.2f}) with OpenMP".format(*told[0], *told[1])


# ---- one run with FlashAttention-3 and -4: the CSV of peers, whose giwa_over is giwa's speed relative to a side

SCOPES = {"all": "", "causal": "/causal/", "full": "/full/", **{f"head size {d}": f"/D{d}/" for d in (64, 128, 256)}}
SIDES = {"cudnn": "cuDNN", "fa3": "FlashAttention-3", "fa4": "FlashAttention-4", "fastest": "fastest"}


peer_cases = functools.cache(report_rows.peer_cases)


def peer_spread(path, section, side="fastest", scope="all"):
    """Geometric mean, lowest, highest, in how many cases giwa is at least as fast, and of how many."""
    ratios = [sides[side] for case, sides in peer_cases(path, section).items() if SCOPES[scope] in case and side in sides]
    return report_rows.geometric_mean(ratios), min(ratios), max(ratios), sum(r >= 1 for r in ratios), len(ratios)


def peers_table(path, section):
    told = lambda mean, low, _, ahead, cases: f"{mean:.3f}, {low:.3f}, {ahead} of {cases}"
    return lines(f"| cases | {' | '.join(SIDES.values())} |",
                 *(f"| {scope} | " + " | ".join(told(*peer_spread(path, section, side, scope)) for side in SIDES) + " |" for scope in SCOPES))


def peers_forward(path):
    return peers_table(path, "forward")


def peers_backward(path):
    return peers_table(path, "backward")


def peers_gradients(path):
    """A line for each head size: gradients relative to FlashAttention-3 and -4 and to the fastest other side."""
    rows = ["| head size | FlashAttention-3 | FlashAttention-4 | the fastest of both, cuDNN and FlashAttention-2 |"]
    for scope in ("head size 64", "head size 128", "head size 256", "all"):
        of = {side: peer_spread(path, "backward", side, scope) for side in ("fa3", "fa4", "fastest")}
        name = scope.removeprefix("head size ") if scope != "all" else f"all {of['fa3'][4]} cases"
        rows.append(f"| {name} | {of['fa3'][0]:.3f}× "
                    f"| {of['fa4'][0]:.3f}× | {of['fastest'][0]:.3f}×, lowest {of['fastest'][1]:.3f} |")
    return lines(*rows)


def peers_by_size(path):
    """Gradients and forward by head size, relative to FlashAttention-3 and -4; where giwa is slower in bold."""
    told = lambda mean, *_: f"**{mean:.3f}×**" if mean < 1 else f"{mean:.3f}×"
    return lines("| | version 3 | version 4 |", *(
        f"| {name}, head size {size} | " + " | ".join(told(*peer_spread(path, section, side, f"head size {size}")) for side in ("fa3", "fa4")) + " |"
        for section, name in (("backward", "gradients"), ("forward", "forward")) for size in (64, 128, 256)))


def peers_headline_values(path):
    """Of forward, then of gradients: geometric mean, ahead in, cases, lowest."""
    return [x for section in ("forward", "backward") for mean, low, _, ahead, cases in [peer_spread(path, section)]
            for x in (f"{mean:.3f}", ahead, cases, f"{low:.3f}")]


def peers_headline(path):
    return ("giwa is {}× the fastest of them forward (ahead in {} of {} cases, lowest {}) and {}× for gradients ({} of {}, lowest {})"
            .format(*peers_headline_values(path)))


def peers_headline_ko(path):
    return ("giwa는 이 셋 중 가장 빠른 것에 비해 순전파는 {0}배({2}개 케이스 중 {1}개에서 앞섬, 최저 {3}), 기울기는 {4}배({6}개 중 {5}개, 최저 {7})"
            .format(*peers_headline_values(path)))


def peers_forward_sentence(path):
    return "{}× the fastest of cuDNN, FlashAttention-3 and FlashAttention-4: ahead in {} of {} cases in fp16, lowest {}".format(
        *peers_headline_values(path)[:4])


def peers_deterministic(path):
    mean, low, _, _, cases = peer_spread(path, "backward", "fa3_fixed")
    return f"{mean:.3f}× over the {cases} cases of 64 and 128 (lowest {low:.3f})"


# ---- of a report only

BEST = "best_other"  # of torch/peers/measure.py: the fastest other library of each case
NAMES = {"cudnn": "cuDNN", "flash": "FlashAttention-2", "flex": "FlexAttention", "efficient": "PyTorch, memory-efficient",
         "torch": "PyTorch", "cublas": "cuBLAS", "cub_device_for_bulk": "`cub::DeviceFor::Bulk`",
         "cub_device_transform": "`cub::DeviceTransform`", "fa3": "FlashAttention-3", "fa4": "FlashAttention-4",
         "flashinfer": "FlashInfer, CUDA cores", "flashinfer_tc": "FlashInfer", "flashinfer_xqa": "FlashInfer, xqa", BEST: "best other"}
# What giwa offers of each suite for a comparison: not its slower steps, nor ratios to copies and bare launches.
OFFERS = ("giwa", "giwa_fp32", "wgmma", "fp32_by_fp16", "giwa_for_all_index", "giwa_for_all_elementwise")


# What a reader calls a suite, or a suite's contender; others by the suite's name.
TITLES = {("matmul", "wgmma"): "matrix product by `wgmma`", ("matmul", "fp32_by_fp16"): "matrix product, fp32 by split fp16",
          ("attention_cached", "giwa"): "decoding", ("attention_backward", "giwa"): "gradients, fp16",
          ("attention_backward_more", "giwa"): "gradients, other types, heads and masks", ("attention_fp16", "giwa"): "attention, fp16",
          ("attention_backward_fp32", "giwa"): "gradients, fp32", ("attention_backward_flex", "giwa"): "gradients, masks and modifiers",
          ("attention_bf16", "giwa"): "attention, bf16", ("attention_fp32", "giwa_fp32"): "attention, fp32",
          ("attention_flex", "giwa"): "attention, masks and modifiers", ("attention_sizes", "giwa"): "attention, other sizes",
          ("attention_cpu", "giwa"): "attention on the CPU, both passes", ("torch", "giwa"): "softmax and transpose",
          ("for_all", "giwa_for_all_index"): "`for_all` by index", ("for_all", "giwa_for_all_elementwise"): "`for_all`, elementwise"}


def against_peers(report):
    """{(suite, contender, peer): [(ratio, case)]} of speeds."""
    found = {}
    for row in report["rows"]:
        if row["ratio"] and row["metric"] == "speed" and row["contender"] in OFFERS and row["ratio_to"] in NAMES:
            found.setdefault((row["suite"], row["contender"], row["ratio_to"]), []).append((row["ratio"], row["case"]))
    return found


def overview(path):
    """A line for each suite and peer: how the ratios are spread."""
    rows = ["| benchmark | geometric mean | compared with | lowest | highest | cases | behind by 3 % or more |"]
    for (suite, contender, peer), found in against_peers(load(path)).items():
        ratios = [r for r, _ in found]
        mean = report_rows.geometric_mean(ratios)
        rows.append(f"| {TITLES.get((suite, contender), suite)} | {mean:.2f} | {NAMES[peer]} | {min(ratios):.2f} | {max(ratios):.2f} "
                    f"| {len(ratios)} | {sum(r <= 0.97 for r in ratios)} |")
    return lines(*rows)


def headline(path):
    """The comparison with the fastest of the others first, then with each; all of one run."""
    one, two = (peer_spread(path, section) for section in ("forward", "backward"))
    cudnn, fa3, fa4 = (f"{peer_spread(path, 'forward', side)[0]:.2f}× {SIDES[side]}" for side in ("cudnn", "fa3", "fa4"))
    return (f"On an NVIDIA {gpu_of(path)}, attention in fp16 runs at **{one[0]:.3f}× the fastest of cuDNN, FlashAttention-3 and FlashAttention-4** "
            f"({one[1]:.2f}–{one[2]:.2f}×, ahead in {one[3]} of {one[4]} cases), its gradients at {two[0]:.3f}× ({two[1]:.2f}–{two[2]:.2f}×, ahead in {two[3]}). "
            f"Forward it is {cudnn}, {fa3} and {fa4}. These are geometric means of one run ({date_of(path)}), with a [workspace](docs/attention.md#workspace).")


def headline_ko(path):
    one, two = (peer_spread(path, section) for section in ("forward", "backward"))
    each = ", ".join(f"{SIDES[side]}의 {peer_spread(path, 'forward', side)[0]:.2f}배" for side in ("cudnn", "fa3", "fa4"))
    return (f"NVIDIA {gpu_of(path)}에서 fp16 어텐션의 속도는 **cuDNN, FlashAttention-3, FlashAttention-4 중 가장 빠른 것의 {one[0]:.3f}배**"
            f"({one[1]:.2f}~{one[2]:.2f}배, {one[4]}개 케이스 중 {one[3]}개에서 앞섬), 기울기 계산은 {two[0]:.3f}배({two[1]:.2f}~{two[2]:.2f}배, {two[3]}개에서 "
            f"앞섬)입니다. 순전파는 각각 {each}입니다. [워크스페이스](attention.md#workspace)를 사용한 한 번의 실행({date_of(path)})의 기하평균입니다.")


def behind(path):
    """Every case in which giwa is behind a peer by 3 % or more, the worst of each suite first."""
    rows = ["| benchmark | case | compared with | speed |"]
    for (suite, contender, peer), found in against_peers(load(path)).items():
        if peer == BEST:  # which is one of the others
            continue
        mine = f" ({contender})" if contender != "giwa" else ""
        rows += [f"| {suite} | {case}{mine} | {NAMES[peer]} | {r:.2f} |" for r, case in sorted(found) if r <= 0.97]
    return lines(*rows)


def attention_cpu(path):
    rows = ["| mask, head size, batch x heads x tokens | relative to PyTorch | giwa, GFLOP/s |"]
    for case, contenders in report_rows.cells(load(path), "attention_cpu").items():
        row = contenders["giwa"][0]
        rows.append(f"| {case.split('/', 1)[1]} | {row['ratio']:.2f} | {row['value'] * 1000:.0f} |")
    return lines(*rows)


def attention_sizes(path):
    rows = ["| type, mask, head size, batch x heads (of keys) x tokens (x keys) | relative to cuDNN | relative to FlashAttention-2 | TFLOP/s |"]
    for row in records(path, "attention_sizes"):
        relative = [f"{row[k]:.2f}" if row.get(k) else "" for k in ("speed_of_cudnn", "speed_of_flash")]
        rows.append(f"| {row['case']} | {' | '.join(relative)} | {row['giwa_tflops']} |")
    return lines(*rows)


def cells_of(path, suite):
    """{case: {contender: its rows}} of a report, or of a CSV with its columns."""
    rows = load(path)["rows"] if path.suffix == ".json" else [
        report_rows.row(**{k: v for k, v in r.items() if v}) for r in report_rows.read_csv(path)]
    return report_rows.cells({"rows": rows}, suite)


def cached(path):
    """attention_cached and its peers; `cudnn_page_N` has the same keys in pages. Without columns that nothing fills."""
    times = {"giwa": "giwa", "giwa_page_16": "pages of 16", "cudnn": "cuDNN", "flash": "FlashAttention-2", "cudnn_page_16": "cuDNN, pages of 16"}
    pairs = {("giwa", "cudnn"): "relative to cuDNN", ("giwa", "flash"): "relative to FlashAttention-2",
             ("giwa_page_16", "cudnn_page_16"): "relative to cuDNN, pages of 16"}
    table = [["type, head size, sequences x heads (of keys) x keys", *pairs.values(), "GB/s", *(f"{name}, us" for name in times.values())]]
    for case, contenders in cells_of(path, "attention_cached").items():
        us = {name: f"{r['us']:.1f}" for name, (r, *_) in contenders.items()}
        ratios = {(name, r["ratio_to"]): f"{r['ratio']:.3f}" for name, of in contenders.items() for r in of if r["ratio"]}
        gbs = "" if case.endswith("_queries") else f"{contenders['giwa'][0]['value']:.0f}"
        table.append([case, *(ratios.get(pair, "") for pair in pairs), gbs, *(us.get(name, "") for name in times)])
    columns = [c for c in zip(*table) if any(c[1:])]
    return lines(*("| " + " | ".join(row) + " |" for row in zip(*columns)))


def cached_forms(path):
    """Forms of the cache, each compared with another one, or with a kernel that only reads the cache."""
    rows = ["| case | form | us | GB/s or TFLOP/s | compared with | of its speed |"]
    for case, contenders in cells_of(path, "cached_forms").items():
        for name, (r, *_) in contenders.items():
            if r["ratio"] is None:
                continue
            value = f"{r['value']:.0f}" if r["metric"] == "speed" else ""
            rows.append(f"| {case} | {name.removeprefix('giwa_')} | {r['us']:.1f} | {value} | {r['ratio_to'].removeprefix('giwa_')} "
                        f"| {r['ratio']:.3f} |")
    return lines(*rows)


def flex(path):
    rows = ["| score and mask | relative to FlexAttention | giwa, TFLOP/s | FlexAttention, TFLOP/s |"]
    for row in records(path, "attention_flex"):
        if match := re.fullmatch(r"\w+/flex/(\w+)/.*", row["case"]):
            rows.append(f"| {match[1]} | {row['speed_of_flex']:.2f} | {row['giwa_tflops']} | {row['flex_tflops']} |")
    return lines(*rows)


def host_time(path):
    """What calls keep their thread for."""
    rows = ["| | time relative to a bare launch with as many bytes of parameters | µs |"]
    for suite in ("launch", "attention_calls"):
        for contenders in report_rows.cells(load(path), suite).values():
            rows += [f"| `{name}` | {1 / r['ratio']:.2f} | {r['value']:.2f} |"
                     for name, (r, *_) in contenders.items() if r["metric"] == "time" and r["ratio"]]
    return lines(*rows)


def functors(path):
    rows = ["| | relative to the plain call | TFLOP/s |"]
    for cell, contenders in read(path, "attention_calls").items():
        if cell.startswith("functor/"):
            rows += [f"| {name} | {ratio(r)} | {float(r['tflops']):.0f} |" for name, r in contenders.items()]
    return lines(*rows)


def compile_time(path):
    rows = ["| case | figure | s |"]
    for case, contenders in report_rows.cells(load(path), "compile_time").items():
        rows += [f"| {case} | `{name}` | {r['value']:.3g} |" for name, (r, *_) in contenders.items()]
    return lines(*rows)


def machine(path):
    """What ran where, with which versions, and at which clocks and power."""
    said = {}  # what is said of a machine: its runs
    for i, run in enumerate(load(path)["runs"], 1):
        of = run.get("machine", {})
        versions = ", ".join(f"{k} {v}" for k, v in run.get("versions", {}).items())
        text = (f"{run['gpu']}, driver {of.get('driver_version', '?')}, power limit {of.get('power.limit', '?')}, clocks up to "
                f"{of.get('clocks.max.sm', '?')} (SM) and {of.get('clocks.max.mem', '?')} (memory), {run.get('cores', '?')} CPU cores. Versions: {versions}.")
        suites = {name: told for name, told in run["suites"].items() if told["state"] == "ok"}
        watched = [(told["sm_mhz"], told["watts"]) for told in suites.values() if "sm_mhz" in told and "watts" in told]
        clocks, powers = (dict.fromkeys(f"{value:.0f}" for value in (min(values), max(values))) for values in zip(*watched)) if watched else ([], [])
        said.setdefault(text, []).append(f"| {i} | {run['date'][:16].replace('T', ' ')} | {run['commit']} | {', '.join(suites)} "
                                         f"| {' to '.join(clocks)} | {' to '.join(powers)} |")
    head = "| run | UTC | commit | benchmarks | SM clock, MHz | power, W |"
    return "\n\n".join(f"{text}\n\n{lines(head, *rows)}" for text, rows in said.items())


TABLES = {f.__name__: f for f in (accuracy, accuracy_means, attention, attention_cpu, attention_fp32, attention_sizes, backward,
                                  backward_any_order, backward_forms, backward_cudnn, backward_flex, backward_fp32, backward_headline,
                                  backward_headline_ko, backward_means, backward_mma_sync_means, backward_more, behind, cached,
                                  cached_forms, compile_time, cpu_backward_means, flex, for_all, functors, headline, headline_ko,
                                  host_time, machine, matmul, overview, peers_backward, peers_by_size, peers_deterministic,
                                  peers_forward, peers_forward_sentence, peers_gradients, peers_headline, peers_headline_ko, softmax,
                                  softmax_torch, transpose, transpose_torch)}
TABLES.update({f"matmul_{step}": functools.partial(matmul_step, step=step) for step in ("register_tile", "mma", "wgmma", "fp32_by_fp16")})
TABLES.update({f"attention_{mask}": functools.partial(attention_at_4096, mask=mask) for mask in ("full", "causal")})


# What stands in the place of a picture for who cannot see it.
PLOTS = {
    "peers_forward": "TFLOP/s of attention by length, for each head size and mask, of giwa, cuDNN, FlashAttention-3 and FlashAttention-4",
    "peers_forward_bf16": "TFLOP/s of attention in bf16 by length, for each head size and mask, of giwa, cuDNN, FlashAttention-3 and FlashAttention-4",
    "peers_backward": "TFLOP/s of the gradients by length, for each head size and mask, of giwa, cuDNN, FlashAttention-3 and FlashAttention-4",
    "peers_map": "giwa's speed relative to the fastest of the others in each of 36 cases, forward and gradients: blue where giwa is faster, red where slower",
    "attention_fp32": "TFLOP/s by length, for each head size and mask, of giwa's three accuracies and PyTorch's memory-efficient attention",
    "attention_backward_fp32": "TFLOP/s of the gradients in fp32 by length, of giwa and PyTorch's memory-efficient attention",
    "attention_accuracy": "speed against error of giwa's fp16, tf32, fp32 and fp32_exact, and of PyTorch's memory-efficient attention",
    "attention_cpu": "GFLOP/s on the CPU by length, forward and gradients, full and causal, of giwa and PyTorch",
    "decode_latency": "µs of one decoding step by sequences and by keys, of giwa, cuDNN and FlashAttention-2, and what reading the cache takes",
    "decode_peers": "time of decoding relative to giwa's, of cuDNN, FlashAttention-3 and FlashInfer, with contiguous caches and with pages",
    "score_modifiers": "TFLOP/s of giwa, FlexAttention, cuDNN, FlashAttention-3 and -4: plain, causal, softcap, ALiBi, window",
    "compile_time": "time to the first result of giwa, cuDNN, FlashAttention-2 and FlexAttention, on a logarithmic axis",
    "matmul": "TFLOP/s by size of each step and of cuBLAS",
    "peers_e4m3": "TFLOP/s of attention in e4m3 by the length of the sequence: giwa, giwa in fp16, FlashAttention-3 and cuDNN",
    "accuracy_e4m3": "relative error of attention in e4m3 by the number of keys, for three kinds of inputs: giwa with four kinds of scales, and "
                     "FlashAttention-3",
    "softmax": "GB/s by number of columns of giwa, PyTorch and a copy",
    "transpose": "GB/s of giwa, PyTorch and a copy",
    "for_all": "GB/s of for_all, CUB, Thrust and a plain kernel",
}
# The same on pages in Korean.
KOREAN = {"peers_forward": "giwa, cuDNN, FlashAttention-3, FlashAttention-4의 fp16 어텐션 속도(TFLOP/s)를 헤드 크기와 마스크별로, 길이에 따라 나타낸 그래프"}


def newest_report(root):
    return max((root / "docs" / "results").glob("*_report.json"), default=None)


def picture(root, page, name, source):
    """The line of a page that shows a plot. The plot must be drawn from the file that the page's mark names, or from none."""
    path = root / "docs" / "plots" / f"{name}.svg"
    if not path.is_file():
        sys.exit(f"{page.relative_to(root)} shows docs/plots/{name}.svg, which is not there: run bench/plot.py")
    said = sources(path)
    if said and source.stem not in [x.removesuffix(".csv") for x in said]:
        sys.exit(f"{page.relative_to(root)} shows docs/plots/{name}.svg as of {source.name}, and it is of {' and '.join(said)}")
    alt = KOREAN.get(name, PLOTS[name]) if page.name.endswith(".ko.md") else PLOTS[name]
    return f"![{alt}]({os.path.relpath(path, page.parent)})"


def sources(plot):
    """{source: digest} that bench/plot.py wrote into a plot: of the report, and of files in docs/results."""
    said = re.search(r"giwa plot of ([^<]*)", plot.read_text(encoding="utf-8"))
    if not said:
        sys.exit(f"docs/plots/{plot.name} does not say what it is of: run bench/plot.py")
    return dict(x.split() for x in said[1].split(", ") if x != "computed")


def check_plots(root, pages):
    """Each plot is of the newest report and of the files as they are, and a page shows it. Answers how many there are."""
    report = newest_report(root)
    shown = "".join(page.read_text(encoding="utf-8") for page in (*pages, *(root / "examples").glob("*.md")))
    plots = sorted((root / "docs" / "plots").glob("*.svg"))
    for plot in plots:
        for source, digest in sources(plot).items():
            file = root / "docs" / "results" / source
            if file.is_file():
                wanted = f"{source} {hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"
            else:
                wanted = f"{load(report)['name']} {report_rows.digest(load(report))}" if report else "no report"
            if f"{source} {digest}" != wanted:
                sys.exit(f"docs/plots/{plot.name} is of {source} {digest}, and docs/results has {wanted}: run bench/plot.py")
    for picture_file in (*plots, *sorted((root / "docs" / "pictures").glob("*.*"))):
        if f"{picture_file.parent.name}/{picture_file.name}" not in shown:
            sys.exit(f"no page shows docs/{picture_file.parent.name}/{picture_file.name}: delete it")
    return len(plots)


# ---- figures outside the marks

MARKED = re.compile(r"<!-- begin table: (report|\S+\.(?:csv|json)) (\w+) -->.*?<!-- end table -->", re.DOTALL)
# Pages, and a folder of pages, that consist of measurements with dates: their figures may be written by hand.
NOTEBOOKS = ("docs/performance.md", "docs/changelog.md", "docs/notes/")
PEERS = re.compile(r"cuDNN|FlashAttention|FlashInfer|FlexAttention|PyTorch|cuBLAS|\bCUB\b|\bcub::|Thrust\b|\bthrust::|xFormers|\bTriton\b"
                   r"|\bJAX\b|파이토치", re.IGNORECASE)
FIGURE = re.compile(  # a ratio, a speed or a time; `4 × 16` is a shape
    r"\d ?(?:×|배)(?! ?\d)|\d\.\d+ ?x\b|\b[Tt]wice as (?:fast|slow)\b"
    r"|\d\.\d+ times\b|\b(?:\d|two|three|four|five|ten|twice)(?: times)? (?:as (?:fast|slow)|the (?:speed|time|error)|faster|slower)\b"
    r"|(?<![\d.])[0-9]\.\d+ (?:of|(?:to|and) [0-9]\.\d+ of)\b|(?<![\d.])0\.\d\d+(?![\d.])|(?<![\d.])1\.\d\d+ (?:to|and|at) \d|(?<![\d.])[0-9]\.\d+[–~][0-9]\.\d"
    r"|\d ?(?:[GT]B/s|[GT]FLOP/s|[µμm]s|us|s|seconds|%|초|퍼센트)(?![\w/])")
UNIT = re.compile(r"[GT]B/s|FLOP/s|\b(?:[µμm]s|us)\b")
BARE = re.compile(r"[\s*(]*\d[\d\s.,/()*–~+-]*")  # a cell of numbers, whose unit is in the head of the table


def sentences(text):
    """(line number, sentence, '') of a page outside code and marks; of a table (line number, cell, its column and row)."""
    text = MARKED.sub(lambda match: "\n" * match[0].count("\n"), text)
    fenced, head = False, None
    for number, line in enumerate(text.splitlines(), 1):
        line = re.sub(r"\]\([^)]*\)", "]", line).strip()
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.endswith("<!-- figure: allow -->"):
            continue
        elif line.startswith("|"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
            if head is None:
                head = cells
                continue
            for i, cell in enumerate(cells):
                yield number, cell, " / ".join(filter(None, (head[i] if i < len(head) else "", cells[0] if i else "")))
        else:
            head = None
            for sentence in re.split(r"(?<=[.!?])[)*]*\s+", line):
                yield number, sentence, ""


def stray_figures(name, text):
    """What a page says of other libraries in figures that no file in docs/results stands behind."""
    for number, said, place in () if name.startswith(NOTEBOOKS) else sentences(text):
        bare = place and BARE.fullmatch(said) and ("." in said or UNIT.search(place))
        if PEERS.search(f"{place} {said}") and (FIGURE.search(said) or bare):
            yield f"{name}:{number}: {f'{place} / ' if place else ''}{said}"


def check_strays(root, pages):
    found = [flaw for page in pages for flaw in stray_figures(str(page.relative_to(root)), page.read_text(encoding="utf-8"))]
    if found:
        sys.exit("\n".join(found) + f"\n{len(found)} figure(s) of other libraries written by hand: generate them between marks "
                 "(`<!-- begin table: FILE KIND -->`), or link to docs/performance.md")


def main(write, root=ROOT):
    found = waiting = 0
    pages = (root / "README.md", *sorted((root / "docs").glob("*.md")), *sorted((root / "docs" / "notes").glob("*.md")))
    for page in pages:
        name, text, here = page.relative_to(root), page.read_text(encoding="utf-8"), 0

        def replace(match):
            nonlocal found, waiting, here
            here += 1
            gap = "\n\n" if match[4].startswith("\n") else ""
            plot = match[3].removeprefix("plot_")
            if match[3] not in TABLES and (plot not in PLOTS or plot == match[3]):
                sys.exit(f"{name} asks for a table of an unknown kind: {match[3]}")
            path = newest_report(root) if match[2] == "report" else root / "docs" / "results" / match[2]
            if path is None:
                waiting += 1
                return f"{match[1]}{gap}{match[5]}"
            found += 1
            try:
                table = picture(root, page, plot, path) if plot != match[3] else TABLES[match[3]](path)
            except (OSError, report_rows.ReportError) as error:
                sys.exit(f"{name}: {error}")
            if table.endswith("---|"):
                table = f"*{path.stem} has none of these.*"
            return f"{match[1]}{gap}{table}{gap}{match[5]}"

        wanted = re.sub(r"(<!-- begin table: (report|\S+\.(?:csv|json)) (\w+) -->)(.*?)(<!-- end table -->)", replace, text,
                        flags=re.DOTALL)
        if here != text.count("begin table"):
            sys.exit(f"{name} has a table whose marks are not as they should be")
        if write:
            page.write_text(wanted, encoding="utf-8")
        elif wanted != text:
            sys.exit(f"{name} does not say what docs/results says: run .ci/check_figures.py --write")
    if found == 0:
        sys.exit("no page has a table of measurements")
    plots = check_plots(root, pages)
    check_strays(root, pages)
    print(f"figures: {found} table(s) and {plots} plot(s) agree with docs/results"
          + (f"; {waiting} table(s) wait for a report" if waiting else ""))


if __name__ == "__main__":
    main("--write" in sys.argv[1:])
