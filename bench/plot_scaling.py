#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws how attention on several GPUs scales: plot_scaling.py OUT.svg [OUTPUT_OF_RING_ATTENTION...] (matplotlib: pip install matplotlib)

Without files, the model of docs/several_gpus.md: the time on one GPU divided by ranks times the time on all, where only communication
costs. With files, what `ring_attention time` printed on machines of 2, 4 or 8 GPUs: times as fast as one GPU, by tokens.
"""
import argparse
import re
import sys
from pathlib import Path

import plot  # colours and the frame of a figure

HEAD_SIZE, ELEMENT_BYTES, RANKS = 128, 2, 4
FLOPS = 600e12  # of one GPU, fp16
COLOURS = {2: plot.GIWA, 4: plot.CUB, 8: plot.PYTORCH}
LINE = re.compile(r"\s*(?P<tokens>\d+) tokens, (?P<heads>\d+) heads, (?P<kv_heads>\d+) of k and v, (?P<mask>causal|full), \w+, "
                  r"(?P<what>forward|backward) +1 GPU +[\d.]+ ms \( *\d+ TFLOP/s\), (?P<gpus>\d+) GPUs(?P<by>| by heads) +[\d.]+ ms: (?P<speed>[\d.]+)")


def efficiency(tokens, bandwidth, group, causal, ranks=RANKS, flops=FLOPS):
    """The share of a rank's time that is computation, for `tokens` tokens of each rank, `group` heads for a kv head, zigzag slices if
    causal. In all steps but the last one slice of keys and values travels, behind the computation of the step."""
    computing = 4 * tokens ** 2 * HEAD_SIZE * group / flops / (2 if causal else 1)  # of a kv head
    travelling = 2 * ELEMENT_BYTES * tokens * HEAD_SIZE / bandwidth
    return ranks * computing / ((ranks - 1) * max(computing, travelling) + computing)


def measured(paths):
    """{(pass, mask, heads, kv heads): {(GPUs, "" or " by heads"): [(tokens, times as fast)]}}"""
    found = {}
    for path in paths:
        for match in filter(None, map(LINE.match, Path(path).read_text(encoding="utf-8").splitlines())):
            case = match["what"], match["mask"], int(match["heads"]), int(match["kv_heads"])
            found.setdefault(case, {}).setdefault((int(match["gpus"]), match["by"]), []).append((int(match["tokens"]), float(match["speed"])))
    return found


def draw_model(axes):
    tokens = [2 ** (i / 16) for i in range(96, 273)]  # 64 to 128k
    for axis, causal in zip(axes, (False, True)):
        for (group, width), (bandwidth, colour) in ((g, b) for g in ((1, 1.4), (8, 2.4)) for b in ((350, plot.GIWA), (50, plot.CUB))):
            label = f"{bandwidth} GB/s, " + ("as many kv heads as heads" if group == 1 else f"{group} heads for a kv head")
            axis.plot(tokens, [efficiency(t, bandwidth * 1e9, group, causal) for t in tokens], color=colour, linewidth=width,
                      linestyle="-" if group > 1 else "--", label=label)
        axis.set_title("causal, zigzag" if causal else "full")
        plot.lengths(axis, [256, 1024, 4096, 16384, 65536])
        axis.set_xlabel("tokens of each rank")
        axis.set_ylim(0, 1.05)
    axes[0].set_ylabel("efficiency")


def draw_measured(axes, cases):
    for axis, ((what, mask, heads, kv_heads), by_gpus) in zip(axes, sorted(cases.items())):
        for (gpus, by), points in sorted(by_gpus.items()):
            colour = COLOURS.get(gpus, plot.GIWA_3)
            axis.plot(*zip(*sorted(points)), color=colour, marker="o", linewidth=2.2, linestyle="--" if by else "-",
                      label=f"{gpus} GPUs, {'head-parallel' if by else 'a ring'}")
            axis.axhline(gpus, color=colour, linewidth=0.8, linestyle=":")
        axis.set_title(f"{what}, {mask}, {heads} heads, {kv_heads} of k and v", fontsize=9)
        plot.lengths(axis, [t for points in by_gpus.values() for t, _ in points])
        axis.set_xlabel("tokens of the sequence")
    plot.from_zero(axes)
    axes[0].set_ylabel("times as fast as one GPU")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("measured", nargs="*")
    arguments = parser.parse_args()
    cases = measured(arguments.measured)
    if arguments.measured and not cases:
        sys.exit("plot_scaling: no line of `ring_attention time` is in " + ", ".join(arguments.measured))
    figure, axes = plot.figure(1, len(cases) or 2, 4.8 * (len(cases) or 2), 4.0, 0.6)
    if cases:
        draw_measured(axes[0], cases)
        title, note = "Attention on several GPUs", f"measured: {', '.join(Path(x).name for x in arguments.measured)}"
    else:
        draw_model(axes[0])
        title = f"Ring attention, forward: a model of {RANKS} GPUs, not a measurement"
        note = f"head size {HEAD_SIZE}, fp16, {FLOPS / 1e12:.0f} TFLOP/s; only communication costs"
    plot.legend(figure, axes, 2)
    figure.suptitle(title, fontsize=13, fontweight="bold", y=1 - 0.07 / figure.get_figheight(), va="top")
    figure.text(0.5, 1 - 0.4 / figure.get_figheight(), note, ha="center", va="center", fontsize=9, color="#444444")
    figure.savefig(arguments.out, metadata={"Date": None, "Creator": None})
    out = Path(arguments.out)
    out.write_text(re.sub(r"[ \t]+\n", "\n", out.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
