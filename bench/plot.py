#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws the plots of a benchmark report: plot.py REPORT.json docs/plots (matplotlib: pip install matplotlib)

One SVG a subject, for what the report has; the same report and the same matplotlib make the same bytes. Each carries the report's
name and the digest of its rows, by which .ci/check_figures.py knows that it is of the report that the pages show.
"""
import argparse
import re
import sys
from pathlib import Path

import report_rows

try:
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator
except ImportError:
    sys.exit("plot.py needs matplotlib: pip install matplotlib")

# Colours of Okabe and Ito, which colour-blind readers can distinguish, and shades of them. A library has one hue in all plots.
GIWA, GIWA_2, GIWA_3, GIWA_4 = "#0072B2", "#56B4E9", "#00395A", "#A9CFE8"  # blues, with the thick lines
PYTORCH, PYTORCH_2 = "#CC79A7", "#7F3F63"
CUB, CUB_2 = "#D55E00", "#F2B48C"
# Name, colour, marker.
LOOKS = {
    "giwa": ("giwa", GIWA, "o"), "giwa_softmax": ("giwa", GIWA, "o"), "giwa_transpose": ("giwa", GIWA, "o"),
    "giwa_fp16": ("giwa fp16", GIWA_3, "*"), "giwa_fp32": ("giwa fp32", GIWA, "o"), "giwa_tf32": ("giwa tf32", GIWA_2, "P"),
    "giwa_fp32_exact": ("giwa fp32_exact", GIWA_4, "X"),
    "wgmma": ("giwa: wgmma", GIWA, "o"), "mma": ("giwa: mma.sync", GIWA_2, "P"),
    "register_tile": ("giwa: register tile", GIWA_3, "X"), "fp32_by_fp16": ("giwa: fp32 by split fp16", GIWA, "o"),
    "giwa_for_all_index": ("giwa::for_all, by index", GIWA_2, "P"),
    "giwa_for_all_elementwise": ("giwa::for_all, elementwise", GIWA, "o"),
    "torch": ("PyTorch", PYTORCH, "D"), "efficient": ("PyTorch, memory-efficient", PYTORCH, "s"),
    "flex": ("FlexAttention of PyTorch, compiled", PYTORCH_2, "D"),
    "cudnn": ("cuDNN", "#E69F00", "s"), "cublas": ("cuBLAS", "#8C6100", "s"), "flash": ("FlashAttention-2", "#009E73", "^"),
    "cub_device_for_bulk": ("cub::DeviceFor::Bulk", CUB_2, "s"), "cub_device_transform": ("cub::DeviceTransform", CUB, "D"),
    "thrust_transform": ("thrust::transform", "#D9C800", "^"),
    "plain_kernel": ("plain kernel", "#999999", "v"), "copy": ("copy", "#000000", ""),
}
MASKS = ("full", "causal")
plt.rcParams.update({
    "svg.hashsalt": "giwa", "svg.fonttype": "none", "font.family": "DejaVu Sans", "font.size": 10,
    "figure.facecolor": "white", "axes.facecolor": "white", "savefig.facecolor": "white", "axes.edgecolor": "#444444",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#DDDDDD", "axes.axisbelow": True,
    "axes.titlesize": 11, "legend.frameon": False, "lines.markersize": 5.5,
})


class Report:
    def __init__(self, path):
        self.data = report_rows.load(path)
        self.digest = report_rows.digest(self.data)

    def cells(self, suite):
        """{case: {contender: its first row}}"""
        return {case: {name: rows[0] for name, rows in contenders.items()}
                for case, contenders in report_rows.cells(self.data, suite).items()}

    def series(self, suite, pattern, value="value"):
        """{contender: [(the pattern's one group as a number, value)]}, of the cases that match."""
        found = {}
        for case, contenders in self.cells(suite).items():
            if match := re.match(pattern, case):
                for name, r in contenders.items():
                    if r[value] is not None:
                        found.setdefault(name, []).append((int(match[1]), r[value]))
        return {name: sorted(points) for name, points in found.items()}

    def save(self, figure, name, folder, title, note=""):
        where = f"{self.data['gpu']}, {self.data['date'][:10]}, commit {self.data['commit']}"
        figure.suptitle(title, fontsize=13, fontweight="bold", y=1 - 0.07 / figure.get_figheight(), va="top")
        figure.text(0.5, 1 - 0.4 / figure.get_figheight(), f"{where}{'; ' if note else ''}{note}", ha="center", va="center",
                    fontsize=9, color="#444444")
        path = Path(folder) / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None, "Creator": None,
                                       "Description": f"giwa report {self.data['name']} {self.digest}"})
        plt.close(figure)
        text = path.read_text(encoding="utf-8").replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")  # as wide
        path.write_text(re.sub(r"[ \t]+\n", "\n", text), encoding="utf-8")
        print(f"{path}: {path.stat().st_size // 1024} KB")


def figure(rows, columns, width, height, bottom=0.0, **more):
    """Room above for the title, below for a legend."""
    f, axes = plt.subplots(rows, columns, figsize=(width, height), squeeze=False, layout="constrained", **more)
    f.get_layout_engine().set(rect=(0, bottom / height, 1, 1 - (0.55 + bottom) / height))
    return f, axes


def lengths(axis, values):
    axis.set_xscale("log", base=2)
    axis.xaxis.set_minor_locator(NullLocator())
    values = sorted(set(values))
    axis.set_xticks(values, [f"{v // 1024}k" if v >= 1024 and v % 1024 == 0 else str(v) for v in values])
    axis.tick_params(axis="x", labelsize=8)


def lines(axis, series, order):
    for name in order:
        if name in series:
            label, colour, marker = LOOKS[name]
            ours = label.startswith("giwa")
            axis.plot(*zip(*series[name]), label=label, color=colour, marker=marker, linewidth=2.2 if ours else 1.4,
                      linestyle="--" if name == "copy" else "-", zorder=3 if ours else 2)


def from_zero(axes):
    """Once all is drawn: axes may share their limits."""
    for axis in axes:
        axis.set_ylim(0, axis.get_ylim()[1])


def legend(f, axes, columns=4):
    handles = {}
    for axis in axes.flat:
        handles.update(dict(zip(*axis.get_legend_handles_labels()[::-1])))
    f.legend(handles.values(), handles.keys(), loc="lower center", ncols=columns, bbox_to_anchor=(0.5, 0))


def by_length(report, folder, name, suite, element, contenders, title):
    f, axes = figure(2, 3, 9.6, 6.2, 0.35, sharey=True, sharex=True)
    for i, mask in enumerate(MASKS):
        for j, size in enumerate((64, 128, 256)):
            axis = axes[i][j]
            series = report.series(suite, rf"{element}/{mask}/D{size}/\d+x\d+x(\d+)(?: |$)")
            lines(axis, series, contenders)
            lengths(axis, [x for points in series.values() for x, _ in points])
            axis.set_title(f"head size {size}, {mask}")
            if j == 0:
                axis.set_ylabel("TFLOP/s")
            if i == 1:
                axis.set_xlabel("tokens in a sequence, 16384 in all")
    from_zero(axes.flat)
    legend(f, axes)
    report.save(f, name, folder, title)


def attention_fp16(report, folder):
    by_length(report, folder, "attention_fp16", "attention_fp16", "fp16", ("giwa", "cudnn", "flash"),
              "Attention forward, fp16")


def attention_bf16(report, folder):
    by_length(report, folder, "attention_bf16", "attention_bf16", "bf16", ("giwa", "cudnn"), "Attention forward, bf16")


def attention_backward(report, folder):
    by_length(report, folder, "attention_backward", "attention_backward", "fp16", ("giwa", "cudnn", "flash"),
              "Gradients of attention, fp16; of giwa in a fixed order")


def attention_fp32(report, folder):
    by_length(report, folder, "attention_fp32", "attention_fp32", "fp32", ("giwa_tf32", "giwa_fp32", "giwa_fp32_exact", "efficient"),
              "Attention forward, fp32 inputs")


def attention_accuracy(report, folder):
    """Speed against error; the best is at the upper left."""
    f, axes = figure(1, 3, 9.6, 3.9, 0.35, sharey=True, sharex=True)
    for axis, size in zip(axes[0], (64, 128, 256)):
        speed = {}
        for suite, element in (("attention_fp32", "fp32"), ("attention_fp16", "fp16")):
            for case, contenders in report.cells(suite).items():
                if re.match(rf"{element}/full/D{size}/\d+x\d+x4096(?: |$)", case):
                    speed.update({"giwa_fp16" if n == "giwa" else n: r["value"] for n, r in contenders.items()})
        error = report.cells("accuracy").get(f"random/full/D{size}/4096", {})
        for name in ("giwa_fp16", "giwa_tf32", "giwa_fp32", "giwa_fp32_exact", "efficient"):
            if name in speed and name in error and error[name]["value"]:
                label, colour, marker = LOOKS[name]
                axis.scatter(error[name]["value"], speed[name], s=90 if marker == "*" else 60, color=colour, marker=marker,
                             label=label, zorder=3)
                axis.annotate(f"{speed[name]:.0f}", (error[name]["value"], speed[name]), fontsize=8,
                              xytext={"giwa_fp16": (-8, 8), "giwa_tf32": (-8, -15)}.get(name, (7, 4)),
                              textcoords="offset points")
        axis.set_xscale("log")
        axis.set_yscale("log", base=2)
        axis.set_yticks([16, 32, 64, 128, 256, 512, 1024])
        axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.set_title(f"head size {size}")
        axis.set_xlabel("relative error, against float64")
    axes[0][0].set_ylabel("TFLOP/s, 4096 tokens, full")
    legend(f, axes, 5)
    report.save(f, "attention_accuracy", folder, "Attention on fp32 inputs: speed against error",
                "further left is more exact, further up is faster")


def bars(axis, groups, order, names=None, horizontal=False, number="{:.0f}"):
    """groups: {label: {contender: value}}"""
    order = [n for n in order if any(n in g for g in groups.values())]
    width = 0.8 / max(1, len(order))
    for i, name in enumerate(order):
        label, colour, _ = LOOKS[name]
        at = [(k - 0.4 + (i + 0.5) * width, g[name]) for k, g in enumerate(groups.values()) if name in g]
        draw = axis.barh if horizontal else axis.bar
        drawn = draw([x for x, _ in at], [y for _, y in at], width * 0.94, label=(names or {}).get(name, label), color=colour)
        axis.bar_label(drawn, [number.format(y) for _, y in at], fontsize=7, padding=2, rotation=0 if horizontal else 90)
    ticks = axis.set_yticks if horizontal else axis.set_xticks
    ticks(range(len(groups)), list(groups))
    axis.grid(False, axis="y" if horizontal else "x")
    if horizontal:
        axis.invert_yaxis()
        axis.margins(x=0.12)
    else:
        axis.margins(y=0.18)


def score_modifiers(report, folder):
    names = {"plain": "plain", "causal": "causal mask", "softcap": "softcap", "alibi": "ALiBi, causal",
             "window": "window of 1024,\ncausal"}
    groups, sizes = {}, ""
    for case, contenders in report.cells("attention_flex").items():
        if match := re.match(r"fp16/flex/(\w+)/D(\d+)/(\d+)x(\d+)x(\d+)", case):
            groups[names.get(match[1], match[1])] = {n: r["value"] for n, r in contenders.items()}
            sizes = f"head size {match[2]}, {match[3]} x {match[4]} heads, {match[5]} tokens"
    f, axes = figure(1, 1, 7.2, 4.2, 0.35)
    bars(axes[0][0], groups, ("giwa", "flex"), horizontal=True)
    axes[0][0].set_xlabel("TFLOP/s of the products that the mask keeps")
    legend(f, axes)
    report.save(f, "score_modifiers", folder, "Score modifiers and masks, fp16", sizes)


def matmul(report, folder):
    f, axes = figure(1, 3, 9.6, 4.0, 0.35, width_ratios=(3, 3, 2))
    for axis, element in zip(axes[0], ("fp16", "bf16")):
        series = report.series("matmul", rf"matmul/{element}/(\d+)x\1x\1$")
        lines(axis, series, ("cublas", "wgmma", "mma", "register_tile"))
        lengths(axis, [x for points in series.values() for x, _ in points])
        axis.set_title(element)
        axis.set_xlabel("m = n = k")
    from_zero(axes[0][:2])
    groups = {}
    for case, contenders in report.cells("matmul").items():
        if match := re.match(r"matmul/fp32/(\d+)x\1x\1$", case):
            groups[match[1]] = {n: r["value"] for n, r in contenders.items()}
    bars(axes[0][2], groups, ("cublas", "fp32_by_fp16", "register_tile"))
    axes[0][2].set_title("fp32")
    axes[0][2].set_xlabel("m = n = k")
    axes[0][0].set_ylabel("TFLOP/s")
    legend(f, axes, 5)
    report.save(f, "matmul", folder, "The matrix product of the examples, step by step")


def softmax(report, folder):
    f, axes = figure(1, 3, 9.6, 3.9, 0.35, sharey=True)
    for axis, element in zip(axes[0], ("fp32", "fp16", "bf16")):
        pattern = rf"softmax/{element}/\d+x(\d+)$"
        series = report.series("softmax", pattern)
        series.update({n: s for n, s in report.series("torch", pattern).items() if n == "torch"})
        lines(axis, series, ("copy", "giwa_softmax", "torch"))
        axis.set_xscale("log", base=2)
        axis.set_xticks([256, 1024, 4096, 16384, 65536], ["256", "1k", "4k", "16k", "64k"])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_title(element)
        axis.set_xlabel("columns")
    axes[0][0].set_ylabel("GB/s, read and written")
    from_zero(axes.flat)
    legend(f, axes)
    report.save(f, "softmax", folder, "Softmax of rows, 1 GiB read")


def transpose(report, folder):
    groups = {}
    for suite in ("transpose", "torch"):
        for case, contenders in report.cells(suite).items():
            if match := re.match(r"transpose/(\w+)/(\d+)x(\d+)$", case):
                group = groups.setdefault(f"{match[1]}\n{match[2]} x {match[3]}", {})
                group.update({n: r["value"] for n, r in contenders.items() if n == "torch" or suite == "transpose"})
    f, axes = figure(1, 1, 9.6, 4.0, 0.35)
    bars(axes[0][0], groups, ("giwa_transpose", "torch", "copy"))
    axes[0][0].tick_params(axis="x", labelsize=8)
    axes[0][0].set_ylabel("GB/s, read and written")
    legend(f, axes)
    report.save(f, "transpose", folder, "Transpose, compared with a plain copy", "PyTorch was measured at four of the sizes")


def for_all(report, folder):
    groups = {}
    for case, contenders in report.cells("for_all").items():
        if match := re.match(r"add/(\w+)/(\d+)$", case):
            n = int(match[2])
            size = f"2^{n.bit_length() - 1}" if n & (n - 1) == 0 else f"{n:,}".replace(",", " ")
            groups[f"{match[1]}\n{size}"] = {name: r["value"] for name, r in contenders.items()}
    f, axes = figure(1, 1, 9.6, 4.4, 0.55)
    bars(axes[0][0], groups, ("cub_device_for_bulk", "giwa_for_all_index", "plain_kernel", "cub_device_transform",
                              "giwa_for_all_elementwise", "thrust_transform"))
    axes[0][0].set_ylabel("GB/s of three arrays")
    legend(f, axes, 3)
    report.save(f, "for_all", folder, "c = a + b, element by element")


def compile_time(report, folder):
    said = {"nvcc": "nvcc of an empty kernel", "giwa_nvcc": "giwa: nvcc, ahead of time", "giwa_first_call": "giwa: first call",
            "giwa_new_length": "giwa: another length", "cudnn_first_call": "cuDNN: first call",
            "cudnn_new_length": "cuDNN: another length", "flash_first_call": "FlashAttention-2: first call",
            "flash_new_length": "FlashAttention-2: another length", "flex_first_call": "FlexAttention: first call",
            "flex_first_call_cached": "FlexAttention: first call,\ncaches filled", "flex_new_length": "FlexAttention: another length"}
    cells = report.cells("compile_time")
    cases = [c for c in ("attention/causal/D128", "attention/softcap/D128") if c in cells]
    f, axes = figure(1, len(cases), 9.6, 4.6, sharex=True)
    for axis, case in zip(axes[0], cases):
        shown = [(said[n], r["value"], n) for n, r in cells[case].items() if n in said and r["value"] is not None]
        drawn = axis.barh([label for label, _, _ in shown], [v for _, v, _ in shown], 0.7, color=[
            LOOKS[n.split("_")[0]][1] for _, _, n in shown])
        axis.bar_label(drawn, [f"{v:.2g}" if v < 10 else f"{v:.0f}" for _, v, _ in shown], fontsize=8, padding=3)
        axis.invert_yaxis()
        axis.margins(x=0.12)
        axis.grid(False, axis="y")
        axis.tick_params(axis="y", labelsize=8)
        axis.set_title({"causal": "causal mask", "softcap": "softcap"}[case.split("/")[1]])
        axis.set_xlabel("seconds")
    report.save(f, "compile_time", folder, "Until the first result: compiling ahead, and at the first use")


def attention_cached(report, folder):
    """GB/s of one query a sequence, by what the cache has: for sequences of several lengths, and for many of them."""
    f, axes = figure(1, 2, 9.6, 4.2, 0.35, sharey=True)
    for axis, (title, wanted) in zip(axes[0], (("one sequence", lambda n: n == 1), ("4 to 256 sequences", lambda n: n > 1))):
        series = {}
        for case, contenders in report.cells("attention_cached").items():
            match = re.match(r"fp16/D128/(\d+)x\d+\(\d+\)x\d+$", case)
            if match and wanted(int(match[1])):
                for name, r in contenders.items():
                    series.setdefault(name, []).append((r["value"] * r["us"] * 1e-3, r["value"]))
        for name in ("giwa", "cudnn", "flash"):
            if name in series:
                label, colour, marker = LOOKS[name]
                axis.scatter(*zip(*series[name]), label=label, color=colour, marker=marker, zorder=3 if name == "giwa" else 2)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_title(title)
        axis.set_xlabel("MB of keys and values")
    axes[0][0].set_ylabel("GB/s")
    from_zero(axes.flat)
    legend(f, axes)
    report.save(f, "attention_cached", folder, "Attention to a cache, one query a sequence, fp16, head size 128", "cold caches")


PLOTS = {attention_fp16: ("attention_fp16",), attention_backward: ("attention_backward",), attention_bf16: ("attention_bf16",), attention_fp32: ("attention_fp32",),
         attention_accuracy: ("attention_fp32", "accuracy"), score_modifiers: ("attention_flex",), matmul: ("matmul",),
         attention_cached: ("attention_cached",), softmax: ("softmax",), transpose: ("transpose", "torch"), for_all: ("for_all",), compile_time: ("compile_time",)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report")
    parser.add_argument("folder")
    arguments = parser.parse_args()
    try:
        report = Report(arguments.report)
    except report_rows.ReportError as error:
        sys.exit(f"plot: {error}")
    Path(arguments.folder).mkdir(parents=True, exist_ok=True)
    for plot, suites in PLOTS.items():
        if missing := [s for s in suites if not report.cells(s)]:
            print(f"no plot {plot.__name__}: the report has nothing of {', '.join(missing)}")
        else:
            plot(report, arguments.folder)


if __name__ == "__main__":
    main()
