# SPDX-License-Identifier: MIT
"""What all plots of bench/plot.py share: where their figures come from, colours, a frame of one width, and the file."""
import hashlib
import re
import sys
import textwrap
from pathlib import Path

import report_rows

try:
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FixedLocator, NullLocator
except ImportError:
    sys.exit("plot.py needs matplotlib: pip install matplotlib")

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
WIDTH = 6.6  # inches, 634 px: letters of 10 points are 13 px there, and 8 px on a telephone
# Of data sheets: TFLOP/s of dense fp16, of fp32 without tensor cores, GB/s of memory.
PEAKS = {"H200": {"fp16": 989, "fp32": 67, "memory": 4800}, "H100 80GB HBM3": {"fp16": 989, "fp32": 67, "memory": 3350}}

# Colours of Okabe and Ito, which colour-blind readers can distinguish, and shades of them. A library has one hue in all plots.
GIWA, GIWA_2, GIWA_3, GIWA_4 = "#0072B2", "#56B4E9", "#00395A", "#A9CFE8"  # blues, with the thick lines
PYTORCH, PYTORCH_2, CUB, GREY = "#CC79A7", "#7F3F63", "#D55E00", "#777777"
# Lines 2 of all pictures of docs/: on a dark screen light and dark change places, and hues stay. .ci/check_pictures.py looks for it.
DARK = "<style>@media (prefers-color-scheme: dark) { :root { filter: invert(0.9) hue-rotate(180deg) } }</style>"
OF_PYTORCH = {"torch", "efficient", "flash", "flex", "cudnn", "unfused"}
# Name, colour, marker.
LOOKS = {
    "giwa": ("giwa", GIWA, "o"), "giwa_softmax": ("giwa", GIWA, "o"), "giwa_transpose": ("giwa", GIWA, "o"),
    "giwa_fp16": ("giwa fp16", GIWA_3, "*"), "giwa_fp32": ("giwa fp32", GIWA, "o"), "giwa_tf32": ("giwa tf32", GIWA_2, "P"),
    "giwa_fp32_exact": ("giwa fp32_exact", GIWA_3, "X"),
    "wgmma": ("giwa: wgmma", GIWA, "o"), "mma": ("giwa: mma.sync", GIWA_2, "P"),
    "register_tile": ("giwa: register tile", GIWA_3, "X"), "fp32_by_fp16": ("giwa: split fp16", GIWA, "o"),
    "giwa_for_all_index": ("giwa::for_all", GIWA, "o"), "giwa_for_all_elementwise": ("giwa::for_all", GIWA, "o"),
    "torch": ("PyTorch", PYTORCH, "D"), "efficient": ("PyTorch, memory-efficient", PYTORCH, "s"),
    "flex": ("FlexAttention, compiled", PYTORCH_2, "D"), "cudnn": ("cuDNN", "#E69F00", "s"), "cublas": ("cuBLAS", "#8C6100", "s"),
    "flash": ("FlashAttention-2", "#009E73", "^"), "fa3": ("FlashAttention-3", "#D55E00", "^"), "fa4": ("FlashAttention-4", "#7B3294", "v"),
    "flashinfer": ("FlashInfer", "#009E73", "D"),
    "cub_device_for_bulk": ("CUB", CUB, "s"), "cub_device_transform": ("CUB", CUB, "s"),
    "thrust_transform": ("Thrust", "#B59F00", "^"), "plain_kernel": ("plain kernel", GREY, "v"), "copy": ("copy", "#000000", "|"),
}
plt.rcParams.update({
    "svg.hashsalt": "giwa", "svg.fonttype": "none", "font.family": "DejaVu Sans", "font.size": 10,
    "figure.facecolor": "none", "axes.facecolor": "white", "savefig.facecolor": "none", "axes.edgecolor": "#444444",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#DDDDDD", "axes.axisbelow": True,
    "axes.titlesize": 10.5, "xtick.labelsize": 9, "ytick.labelsize": 9, "legend.frameon": False, "lines.markersize": 5,
})


def short(version):
    return ".".join(version.split(".")[:2])


class Results:
    """The newest report, and files of single runs for what it has not; they note what a plot uses."""

    def __init__(self, path, others):
        self.report, self.path, self.others = report_rows.load(path), Path(path), others
        self.begin()

    def begin(self):
        self.of_runs, self.of_files, self.sources = {}, {}, {}

    def rows(self, suite):
        """Of the report, where bf16 is a part of a suite of peers, and in a CSV of peers a section."""
        name = re.sub(r"^(peers_\w+)_bf16$", r"\1", suite)
        return [r for r in self.report["rows"] if r["suite"] == name and (name == suite or r["case"].startswith("bf16/"))]

    def reported(self, suite):
        return bool(self.rows(suite))

    def has(self, suite):
        return suite in self.others or self.reported(suite)

    def peak(self, suite, what):
        """Of the GPU that a suite ran on; None if it is not known."""
        gpu = self.report["gpu"] if self.reported(suite) else self.others[suite][1]
        return next((peaks[what] for name, peaks in PEAKS.items() if name in gpu), None)

    def cells(self, suite):
        """{case: {contender: its first row}}"""
        found = {}
        for r in self.rows(suite):
            found.setdefault(r["case"], {}).setdefault(r["contender"], []).append(r)
        if not found:
            rows = report_rows.read_csv(self.file(suite))
            section = suite.removeprefix("peers_")
            for r in rows:
                if r["section"] == section:
                    found.setdefault(r["case"], {})[r["side"]] = [{"value": float(r["value"]), "us": float(r["us"])}]
            return {case: {name: rows[0] for name, rows in sides.items()} for case, sides in found.items()}
        self.of_report(suite)
        return {case: {name: rows[0] for name, rows in contenders.items()} for case, contenders in found.items()}

    def fastest(self, suite):
        """{case: giwa's speed relative to the fastest other side} of the 36 usual cases."""
        path = self.path if self.reported(suite) else self.file(suite)
        if path == self.path:
            self.of_report(suite)
        return {case: sides["fastest"] for case, sides in report_rows.peer_cases(path, suite.removeprefix("peers_")).items()}

    def of_report(self, suite):
        rows = self.rows(suite)
        run = [run for run in self.report["runs"] if rows[0]["suite"] in run["suites"]][-1]
        versions, cudnn = run.get("versions", {}), int(run.get("versions", {}).get("cuDNN", 0))
        sides = {r["contender"].split("_")[0] for r in rows}
        told = {"": run["gpu"], "date": run["date"][:10], "giwa": run["commit"], "driver": run["machine"]["driver_version"],
                "CUDA": short(versions.get("CUDA", "?")), "PyTorch": short(versions.get("PyTorch", "")) if sides & OF_PYTORCH else "",
                "cuDNN": f"{cudnn // 10000}.{cudnn // 100 % 100}" if cudnn and "cudnn" in sides else ""}
        for what, value in told.items():
            self.of_runs.setdefault(what, {}).setdefault(value)
        self.sources[self.report["name"]] = report_rows.digest(self.report)

    def file(self, suite):
        """The file of a suite that the report does not have."""
        names, told = self.others[suite]
        names = (names,) if isinstance(names, str) else names
        self.of_files.setdefault(told)
        self.sources.update({name: hashlib.sha256((RESULTS / name).read_bytes()).hexdigest()[:16] for name in names})
        return RESULTS / names[0] if len(names) == 1 else [RESULTS / name for name in names]

    def where(self):
        """What was used, in a sentence; runs of one report differ in their commits."""
        told = ", ".join(f"{what if what != 'date' else ''} {' and '.join(filter(None, values))}".strip()
                         for what, values in self.of_runs.items() if any(values))
        return "; ".join(filter(None, (told, *self.of_files)))

    def series(self, suite, pattern, value="value"):
        """{contender: [(the pattern's one group as a number, value)]}, of the cases that match."""
        found = {}
        for case, contenders in self.cells(suite).items():
            if match := re.match(pattern, case):
                for name, r in contenders.items():
                    if r[value] is not None:
                        found.setdefault(name, []).append((int(match[1]), r[value]))
        return {name: sorted(points) for name, points in found.items()}


def figure(rows, columns, height, **more):
    return plt.subplots(rows, columns, figsize=(WIDTH, height), squeeze=False, layout="constrained", **more)


def wrapped(text, limit=100):
    """As few lines as possible, about equally long."""
    count = len(textwrap.wrap(text, limit))
    return next(lines for width in range(1, limit + 1) if len(lines := textwrap.wrap(text, width)) <= count)


def save(results, folder, name, f, title, what="", columns=4):
    """With the title, what was measured and where above, the legend below, on a white card that is dark on a dark screen."""
    height = f.get_figheight()
    handles = {}
    for axis in f.axes:
        handles.update(dict(zip(*axis.get_legend_handles_labels()[::-1])))
    bottom = 0.25 * -(-len(handles) // columns) + 0.05
    if handles:
        f.legend(handles.values(), handles.keys(), loc="lower center", ncols=columns, bbox_to_anchor=(0.5, 0), columnspacing=1.4,
                 handletextpad=0.5, borderpad=0.2)
    lines = [line for text in (what, results.where()) for line in wrapped(text)]
    f.text(0.015, 1 - 0.25 / height, title, fontsize=13, fontweight="bold", va="baseline")
    for i, line in enumerate(lines):
        f.text(0.015, 1 - (0.45 + 0.165 * i) / height, line, fontsize=8.5, color="#444444", va="baseline")
    top = 0.42 + 0.165 * len(lines)
    f.get_layout_engine().set(rect=(0.005, bottom / height, 0.985, 1 - (top + bottom) / height))
    path = Path(folder) / f"{name}.svg"
    said = ", ".join(f"{source} {digest}" for source, digest in results.sources.items()) or "computed"
    f.savefig(path, metadata={"Date": None, "Creator": None, "Title": title, "Description": f"giwa plot of {said}"})
    plt.close(f)
    text = path.read_text(encoding="utf-8").replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")  # as wide
    text = text.replace('<g id="figure_1">', '<rect width="100%" height="100%" rx="8" fill="white"/>\n <g id="figure_1">', 1)
    text = re.sub(r"(<svg [^>]*>\n)", rf"\1 {DARK}\n", text, count=1)
    path.write_text(re.sub(r"[ \t]+\n", "\n", text), encoding="utf-8")
    print(f"{path}: {path.stat().st_size // 1024} KB")


def lengths(axis, values):
    axis.set_xscale("log", base=2)
    axis.xaxis.set_minor_locator(NullLocator())
    values = sorted(set(values))
    axis.set_xticks(values, [f"{v // 1024}k" if v >= 1024 and v % 1024 == 0 else str(v) for v in values])


def lines(axis, series, order):
    for name in order:
        if name in series:
            label, colour, marker = LOOKS[name]
            ours = label.startswith("giwa")
            axis.plot(*zip(*series[name]), label=label, color=colour, marker=marker, linewidth=2.2 if ours else 1.3,
                      linestyle="--" if name == "copy" else "-", zorder=3 if ours else 2)


def dots(axis, groups, order, number="{:.0f}", labelled=()):
    """A row for each of {label: {contender: value}}, a marker for each contender in it, and a figure at those that are labelled."""
    for name in order:
        label, colour, marker = LOOKS[name]
        at = [(g[name], i) for i, g in enumerate(groups.values()) if name in g]
        if not at:
            continue
        axis.plot(*zip(*at), label=label, color=colour, marker=marker, linestyle="", markersize=11 if marker == "|" else 7,
                  markeredgewidth=2.5 if marker == "|" else 0.8, zorder=3 if label.startswith("giwa") else 2)
        for value, i in at if name in labelled else ():
            axis.annotate(number.format(value), (value, i), xytext=(0, 7), textcoords="offset points", fontsize=8.5, ha="center", color=colour)
    rows(axis, groups)


def rows(axis, labels):
    axis.yaxis.set_major_locator(FixedLocator(range(len(labels))))
    axis.set_yticklabels(list(labels))
    axis.set_ylim(len(labels) - 0.5, -1.1)
    axis.tick_params(axis="y", length=0)


def bars(axis, groups, order, number="{:.0f}"):
    """{label: {contender: value}}: a horizontal bar with its figure for each contender that a group has."""
    at, middles, shown = 0.0, [], {}
    for group in groups.values():
        there = [name for name in order if name in group]
        middles.append(at + (len(there) - 1) / 2)
        for name in there:
            shown.setdefault(name, []).append((at, group[name]))
            at += 1
        at += 0.8
    for name in order:
        if name in shown:
            drawn = axis.barh(*zip(*shown[name]), 0.9, label=LOOKS[name][0], color=LOOKS[name][1])
            axis.bar_label(drawn, [number.format(value) for _, value in shown[name]], fontsize=8.5, padding=2)
    axis.set_yticks(middles, list(groups))
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(at - 0.8, -1.6)
    axis.grid(False, axis="y")


def limit(axis, value, said="", along="y", place=0.02, above=False):
    """A dashed line at what the hardware can reach, if that is known; "{}" in what is said is its value."""
    if value is None:
        return
    (axis.axhline if along == "y" else axis.axvline)(value, color=GREY, linestyle=(0, (4, 3)), linewidth=1, zorder=1)
    if said and along == "y":
        axis.annotate(said.format(value), (place, value), xycoords=("axes fraction", "data"), xytext=(0, 3 if above else -11),
                      textcoords="offset points", fontsize=8.5, color="#555555")
    elif said:
        axis.annotate(said.format(value), (value, 1), xycoords=("data", "axes fraction"), xytext=(-3, -2), textcoords="offset points", fontsize=8.5,
                      color="#555555", ha="right", va="top")


def from_zero(axes):
    """Once all is drawn: axes may share their limits."""
    for axis in axes:
        axis.set_ylim(0, axis.get_ylim()[1])
