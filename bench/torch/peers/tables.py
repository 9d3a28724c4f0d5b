# SPDX-License-Identifier: MIT
"""The folder of the peers, and the tables that measure.py prints. Needs neither PyTorch nor a GPU."""
import csv
import io
import os
import re
import statistics
import sys
import tempfile
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(BENCH))  # last: its folder torch is not PyTorch
from report_rows import best_other, geometric_mean, ratio, ratios  # noqa: E402

PEERS = Path(os.environ.get("GIWA_PEERS") or Path(tempfile.gettempdir()) / "giwa_peers")
GROUPS = re.compile(r"fp16|bf16|e4m3|causal|full|window\d+|D[\d_]+|page_\d+")


def activate(folder):
    """Makes the unpacked packages importable, also by subprocesses, and keeps what they compile in that folder."""
    paths = [str(folder / "site"), str(folder / "site/nvidia_cutlass_dsl/dsl_packages")]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join(paths + [x for x in [os.environ.get("PYTHONPATH")] if x])
    os.environ.update(FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED="1", FLASH_ATTENTION_CUTE_DSL_CACHE_DIR=str(folder / "fa4_cache"),
                      FLASHINFER_WORKSPACE_BASE=str(folder / "flashinfer_cache"), FLASHINFER_CUDA_ARCH_LIST="9.0a")
    (folder / "flashinfer_cache").mkdir(parents=True, exist_ok=True)


def builds_of(texts):
    """{name: folder of its libraries} of NAME=FOLDER arguments; without any, what bench/report.py builds."""
    builds = dict(x.split("=", 1) for x in texts or [f"giwa={BENCH.parent / 'build' / 'report'}"])
    return {name: Path(folder).resolve() for name, folder in builds.items()}


def kernel_of(section, case):
    """Cells with equal ones run the same kernels, with other lengths: section, element, mask, head size, and query heads of a kv head."""
    heads, kv_heads = re.search(r"/\d+x(\d+)(?:\((\d+)\))?x", case).groups() if "sequences" not in case else (1, 1)
    return section, re.sub(r"/[^/]*(/backward)?$", "", case), int(heads) // int(kv_heads or heads)


def is_wanted(case, sizes, pattern):
    """Whether --sizes and --cells ask for a case such as forward/fp16/causal/D128/4x16x4096."""
    return (not sizes or int(re.search(r"/D(\d+)", case)[1]) in sizes) and re.search(pattern, case) is not None


def groups(cells):
    """{group: cells}: all, then each element, mask, head size and page size that some of the cells have and some have not."""
    found = {"all": cells}
    names = {x for c in cells for x in c["case"].split("/") if GROUPS.fullmatch(x)}
    for name in sorted(names, key=lambda x: (x[0] == "D", x[0] == "p", [int(n) for n in re.findall(r"\d+", x)], x)):
        some = [c for c in cells if name in c["case"].split("/")]
        if len(some) < len(cells):
            found[name] = some
    return found


def figures(ratios):
    """Geometric mean, lowest, and how many are at least 1."""
    ratios = [x for x in ratios if x]
    if not ratios:
        return "–"
    return f"{geometric_mean(ratios):.3f}, {min(ratios):.3f}, {sum(x >= 1 for x in ratios)}/{len(ratios)}"


def best(cell, ours):
    """The ratio to the fastest other library, or None."""
    peer = best_other(cell, ours) if ours in cell["us"] else None
    return peer and ratio(cell, ours, peer)


def sides_of(cells):
    """The sides of giwa, and the others."""
    sides = list(dict.fromkeys(x for c in cells for x in c["us"]))
    ours = {x for c in cells for x in c["ours"]}
    return [x for x in sides if x in ours], [x for x in sides if x not in ours]


def cell_table(cells):
    """One row for each cell: figures of all sides, then the ratio of each side of giwa to the best other."""
    ours, others = sides_of(cells)
    lines = ["| cell | " + " | ".join(ours + others) + " | " + " | ".join(f"{x} / best other" for x in ours) + " |",
             "|---|" + "---:|" * (2 * len(ours) + len(others))]
    for c in cells:
        values = [f"{c['work'] / statistics.median(c['us'][x]):.0f}" if x in c["us"] else "–" for x in ours + others]
        values += [f"{best(c, x):.3f}" if best(c, x) else "–" for x in ours]
        lines.append(f"| {c['case']} | " + " | ".join(values) + " |")
    return lines


def summary(cells):
    """For each section and each side of giwa its ratios to the peers, and to other builds in the same mode, by group."""
    lines = []
    for section in dict.fromkeys(c["section"] for c in cells):
        here = [c for c in cells if c["section"] == section]
        ours, others = sides_of(here)
        for side in ours:
            mode = side.partition(", ")[2]
            named = [x for x in ours if x != side and x.partition(", ")[2] == mode] + others
            lines += ["", f"{section}: {side} / others (geometric mean, lowest, cells with at least 1)", "",
                      "| " + " | ".join(["cells", "/ best other", *(f"/ {x}" for x in named)]) + " |", "|---|" + "---|" * (len(named) + 1)]
            for group, some in groups([c for c in here if side in c["us"]]).items():
                row = [figures(best(c, side) for c in some)]
                row += [figures(ratio(c, side, x) for c in some if x in c["us"]) for x in named]
                lines.append(f"| {group} ({len(some)}) | " + " | ".join(row) + " |")
    return lines


def csv_of(cells):
    """The cells as docs/results has such runs: a line for each side, with the ratio of its time to that of giwa's first build."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("section", "case", "side", "us", "value", "unit", "giwa_over", "lowest", "highest", "rounds"))
    for c in cells:
        first = next((x for x in c["ours"] if x in c["us"]), None)
        for side, us in c["us"].items() if first else ():
            over, typical = ratios(c, first, side), statistics.median(us)
            writer.writerow((c["section"], c["case"], "giwa" if side == first else side, f"{typical:.2f}", f"{c['work'] / typical:.1f}", c["unit"],
                             f"{statistics.median(over):.4f}", f"{min(over):.4f}", f"{max(over):.4f}", len(us)))
    return text.getvalue()


def clocks(text):
    """One line about nvidia-smi's samples (time, SM MHz, memory MHz, W, degrees) above 60 % of the highest power."""
    rows = [[float(x) for x in line.split(",")[1:4]] for line in text.splitlines() if re.fullmatch(r"[^,]+(, *[\d.]+){4}", line)]
    busy = [r for r in rows if r[2] > 0.6 * max(x[2] for x in rows)]
    if not busy:
        return "no clock samples"
    sm, _, watts = (sorted(x) for x in zip(*busy))
    return (f"SM clock under load: median {statistics.median(sm):.0f} MHz, lowest {sm[0]:.0f}; "
            f"power: median {statistics.median(watts):.0f} W, highest {watts[-1]:.0f}")
