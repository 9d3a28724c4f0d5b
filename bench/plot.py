#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws the plots of the documentation: plot.py REPORT.json docs/plots (matplotlib: pip install matplotlib)

One SVG a subject. Figures come from the report; for what it has not, from the files in docs/results that OTHERS names. The same files
and the same matplotlib make the same bytes. Each plot carries the names and digests of its sources, by which .ci/check_figures.py
knows that it is of what the pages show.
"""
import argparse
import re
import sys
from pathlib import Path

import matplotlib
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

import report_rows
from plot_frame import (CUB, GIWA, GIWA_2, GIWA_3, GIWA_4, GREY, LOOKS, Results, bars, dots, figure, from_zero, lengths, limit, lines, rows, save)

def one_run(date, commit, more="FlashAttention-4 4.0.0b36"):
    return (f"NVIDIA H200, {date}, one run: giwa {commit}, cuDNN 9.19, FlashAttention-3 of xFormers 0.0.34, {more}, PyTorch 2.11, driver 580.159.04, "
            "CUDA 13.0")


NEWEST = ("2026-11-30", "853198a0")  # of the run that PEERS names
PEERS = ("2026-11-30_h200_peers_5.csv", one_run(*NEWEST))
E4M3 = "NVIDIA H200, 2026-11-29, giwa ef0c95d, FlashAttention-3 of fa3-fwd 0.0.3, cuDNN 9.19, PyTorch 2.11, driver 580.159.04, CUDA 13.0"
# Suites that the newest report may not have: the file in docs/results (a CSV of peers if no function below reads it), and what it is of.
OTHERS = {
    "peers_forward": PEERS, "peers_backward": PEERS,
    "peers_forward_bf16": ("2026-11-29_h200_peers.csv", one_run("2026-11-29", "1453794")),
    "peers_decode": ("2026-11-30_h200_peers_2.csv", one_run("2026-11-30", "45c71ed6", "FlashInfer 0.6.11.post2")),
    "peers_flex": ("2026-11-28_h200_peers_3.csv", one_run("2026-11-28", "d83518b", "FlashAttention-4 4.0.0b36, Triton 3.6")),
    "ring": (("2026-11-27_h200x4_ring_attention.txt", "2026-11-29_h200x2_ring_attention.txt"),
             "NVIDIA H200: four, 2026-11-27, giwa a5388cb, before steps were merged in the kernel; two, 2026-11-29, giwa 3943733; NVLink, NCCL of PyTorch 2.11"),
    "peers_e4m3": ("2026-11-29_h200_peers_e4m3.csv", E4M3), "accuracy_e4m3": ("2026-11-29_h200_accuracy_e4m3.csv", E4M3),
    "training": ("2026-11-23_h200_training.csv", "NVIDIA H200, 2026-11-23, PyTorch 2.11, transformers 5.17"),
    "attention_cpu_alone": ("2026-11-27_cpu_16_cores_attention.csv",
                            "16 cores of an Intel Xeon (AVX-512), 2026-11-27, giwa 0612acd (gradients a5388cb), g++ 12.2 -O3, PyTorch 2.11"),
}
MASKS, SIZES = ("full", "causal"), (64, 128, 256)
TOKENS = "tokens in a sequence"
SHAPE = "16384 tokens in batches of sequences; 32, 16, 8 heads of 64, 128, 256"


# ---- attention

def by_length(results, suite, element, contenders, sizes=SIZES, peak="fp16", said="{}: peak of dense fp16", **more):
    """A row of panels for each head size, a column for each mask."""
    f, axes = figure(len(sizes), 2, 1.25 + 1.85 * len(sizes), sharey=True, sharex=True)
    found = set()
    for i, size in enumerate(sizes):
        for j, mask in enumerate(MASKS):
            axis = axes[i][j]
            series = results.series(suite, rf"{element}/{mask}/D{size}/\d+x\d+x(\d+)(?: |$)")
            lines(axis, series, contenders)
            found |= {x for points in series.values() for x, _ in points}
            lengths(axis, found)  # which all panels share
            limit(axis, results.peak(suite, peak), said if i == j == 0 else "", **more)
            axis.set_title(f"head size {size}, {mask}")
        axes[i][0].set_ylabel("TFLOP/s")
    for axis in axes[-1]:
        axis.set_xlabel(TOKENS)
    from_zero(axes.flat)
    return f


def peers_forward(results, folder):
    f = by_length(results, "peers_forward", "fp16", ("giwa", "cudnn", "fa3", "fa4"))
    save(results, folder, "peers_forward", f, "Attention forward, fp16", f"{SHAPE}; giwa with a workspace")


def peers_forward_bf16(results, folder):
    sizes = [size for size in SIZES if any(f"/D{size}/" in case for case in results.cells("peers_forward_bf16"))]
    f = by_length(results, "peers_forward_bf16", "bf16", ("giwa", "cudnn", "fa3", "fa4"), sizes)
    shape = f"16384 tokens in batches of sequences; {', '.join(str(2048 // x) for x in sizes)} heads of {', '.join(map(str, sizes))}"
    save(results, folder, "peers_forward_bf16", f, "Attention forward, bf16", f"{shape}; giwa with a workspace")


def peers_backward(results, folder):
    f = by_length(results, "peers_backward", "fp16", ("giwa", "cudnn", "fa3", "fa4"))
    save(results, folder, "peers_backward", f, "Gradients of attention, fp16",
         f"{SHAPE}; giwa deterministic, the others in their default mode")


def peers_map(results, folder):
    """Of each of the 36 cases, how many times as fast as the fastest other library."""
    f, axes = figure(1, 2, 3.6, sharey=True)
    shade = matplotlib.colormaps["RdBu"]
    for axis, (suite, title) in zip(axes[0], (("peers_forward", "forward"), ("peers_backward", "gradients"))):
        cells = {}
        for case, ratio in results.fastest(suite).items():
            mask, size, tokens = re.match(r"\w+/(\w+)/D(\d+)/\d+x\d+x(\d+)", case).groups()
            cells[int(size), mask, int(tokens)] = ratio
        places = sorted({(d, m) for d, m, _ in cells}, key=lambda x: (x[0], MASKS.index(x[1])))
        tokens = sorted({n for _, _, n in cells})
        for y, (d, m) in enumerate(places):
            for x, n in enumerate(tokens):
                ratio = cells[d, m, n]
                colour = shade(0.5 + max(-0.27, min(0.27, (ratio - 1) * 1.5)))
                axis.add_patch(matplotlib.patches.Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white", linewidth=1.5))
                axis.text(x, y, f"{ratio:.2f}", ha="center", va="center", fontsize=9.5)
        axis.set_xlim(-0.5, len(tokens) - 0.5)
        axis.set_xticks(range(len(tokens)), [f"{n // 1024}k" if n >= 1024 else str(n) for n in tokens])
        rows(axis, [f"{d}, {m}" for d, m in places])
        axis.set_ylim(len(places) - 0.5, -0.5)
        axis.grid(False)
        axis.tick_params(length=0)
        for spine in axis.spines.values():
            spine.set_visible(False)
        values = list(cells.values())
        axis.set_title(f"{title}: {report_rows.geometric_mean(values):.3f}× on average,\nfaster in {sum(r >= 1 for r in values)} of {len(values)}")
        axis.set_xlabel(TOKENS)
    axes[0][0].set_ylabel("head size, mask")
    save(results, folder, "peers_map", f, "giwa's speed relative to the fastest of the others",
         "fp16. Blue: giwa is faster, red: slower than the fastest of cuDNN, FlashAttention-3 and FlashAttention-4. Average: geometric mean. "
         "giwa with a workspace, its gradients deterministic")


def attention_fp32(results, folder):
    f = by_length(results, "attention_fp32", "fp32", ("giwa_tf32", "giwa_fp32", "giwa_fp32_exact", "efficient"), peak="fp32",
                  said="{}: peak without tensor cores", place=0.35, above=True)
    save(results, folder, "attention_fp32", f, "Attention forward, fp32 inputs", f"{SHAPE}; giwa with a workspace", 2)


def attention_backward_fp32(results, folder):
    f = by_length(results, "attention_backward_fp32", "fp32", ("giwa", "efficient"), (64, 128), "fp32", "{}: peak without tensor cores")
    save(results, folder, "attention_backward_fp32", f, "Gradients of attention, fp32",
         "16384 tokens in batches of sequences; 32 heads of 64, 16 heads of 128; giwa on tensor cores, deterministic")


def attention_accuracy(results, folder):
    """Speed against error; the best is at the upper left."""
    f, axes = figure(1, 3, 3.9, sharey=True, sharex=True)
    for axis, size in zip(axes[0], SIZES):
        speed = {}
        for suite, element in (("attention_fp32", "fp32"), ("attention_fp16", "fp16")):
            for case, contenders in results.cells(suite).items():
                if re.match(rf"{element}/full/D{size}/\d+x\d+x4096(?: |$)", case):
                    speed.update({"giwa_fp16" if n == "giwa" else n: r["value"] for n, r in contenders.items()})
        error = results.cells("accuracy").get(f"random/full/D{size}/4096", {})
        for name in ("giwa_fp16", "giwa_tf32", "giwa_fp32", "giwa_fp32_exact", "efficient"):
            if name in speed and name in error and error[name]["value"]:
                label, colour, marker = LOOKS[name]
                axis.scatter(error[name]["value"], speed[name], s=110 if marker == "*" else 60, color=colour, marker=marker, label=label, zorder=3)
                axis.annotate(f"{speed[name]:.0f}", (error[name]["value"], speed[name]), fontsize=9, textcoords="offset points",
                              xytext={"giwa_fp16": (-7, 8), "giwa_tf32": (-20, -14), "giwa_fp32_exact": (-5, -16)}.get(name, (6, 4)))
        axis.set_xscale("log")
        axis.set_xlim(1e-7, 2e-3)
        axis.set_xticks([1e-6, 1e-5, 1e-4, 1e-3], ["10⁻⁶", "10⁻⁵", "10⁻⁴", "10⁻³"])
        axis.set_yscale("log", base=2)
        axis.set_yticks([16, 32, 64, 128, 256, 512, 1024])
        axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.set_ylim(11, 1500)
        axis.set_title(f"head size {size}")
    axes[0][1].set_xlabel("relative error, compared with float64")
    axes[0][0].set_ylabel("TFLOP/s")
    save(results, folder, "attention_accuracy", f, "Attention on fp32 inputs: speed and error",
         "further left is more exact, further up is faster; 4096 tokens, full", 3)


def peers_e4m3(results, folder):
    f, axes = figure(1, 2, 3.6, sharey=True)
    for axis, mask in zip(axes[0], MASKS):
        series = results.series("peers_e4m3", rf"e4m3/{mask}/D128/\d+x\d+x(\d+)$")
        lines(axis, series, ("giwa", "giwa_fp16", "fa3", "cudnn"))
        lengths(axis, [x for points in series.values() for x, _ in points])
        axis.set_title(mask)
        axis.set_xlabel(TOKENS)
    axes[0][0].set_ylabel("TFLOP/s")
    from_zero(axes.flat)
    save(results, folder, "peers_e4m3", f, "Attention forward, e4m3", "16 heads of 128, 16384 tokens in batches of sequences, scales of 1; giwa in fp16 "
         "on the same numbers", 4)


def accuracy_e4m3(results, folder):
    """Errors of all that rounding does, by what shares a scale."""
    f, axes = figure(1, 3, 3.9, sharey=True)
    looks = {"giwa e4m3/tensor": ("giwa: tensor", GIWA_4, "s"), "giwa e4m3/head": ("giwa: head", GIWA_2, "P"),
             "giwa e4m3/blocks": ("giwa: 64 rows", GIWA, "o"), "giwa e4m3/rows": ("giwa: row, channel", GIWA_3, "X"),
             "fa3 e4m3/head": ("FlashAttention-3: head", LOOKS["fa3"][1], "^")}
    rows_found = report_rows.read_csv(results.file("accuracy_e4m3"))
    for axis, family in zip(axes[0], ("normal", "shifted", "outlier")):
        found = {}
        for r in rows_found:
            if match := re.match(rf"{family}/(\d+)/(\w+)$", r["case"]):
                found.setdefault(f"{r['side']}/{match[2]}", []).append((int(match[1]), 100 * float(r["whole"])))
        for name, (label, colour, marker) in looks.items():
            if name in found:
                axis.plot(*zip(*sorted(found[name])), label=label, color=colour, marker=marker, linewidth=2.2 if "giwa" in label else 1.3)
        lengths(axis, [1024, 4096, 16384, 131072])
        axis.set_yscale("log")
        axis.set_title(family)
        axis.set_xlabel("keys")
    axes[0][0].set_yticks([1, 2, 5, 10, 20, 50, 100], [f"{x} %" for x in (1, 2, 5, 10, 20, 50, 100)])
    axes[0][0].yaxis.set_minor_formatter(NullFormatter())
    axes[0][0].set_ylabel("relative error of o")
    save(results, folder, "accuracy_e4m3", f, "Attention in e4m3: error against float64",
         "head size 128, 1024 queries, full; rounding of q, k and v included. What shares a scale is named. shifted: each channel of k and v "
         "has a mean; outlier: 0.1 % of the numbers are 10 times as large", 3)


def score_modifiers(results, folder):
    names = {"plain": "plain", "causal": "causal mask", "softcap": "softcap", "alibi": "ALiBi, causal", "window": "window of 1024,\ncausal"}
    groups, what = {}, ""
    for case, contenders in results.cells("peers_flex").items():
        if match := re.match(r"fp16/flex/(\w+)/D(\d+)/(\d+)x(\d+)x(\d+)", case):
            groups[names.get(match[1], match[1])] = {n: r["value"] for n, r in contenders.items()}
            what = (f"head size {match[2]}, {match[3]} batches of {match[4]} heads, {match[5]} tokens; FLOPs of the scores that the mask leaves; "
                    "no bar: the library was not measured or does not take it")
    f, axes = figure(1, 1, 5.8)
    bars(axes[0][0], groups, ("giwa", "flex", "cudnn", "fa3", "fa4"))
    limit(axes[0][0], results.peak("peers_flex", "fp16"), "{}: peak", "x")
    axes[0][0].set_xlabel("TFLOP/s")
    save(results, folder, "score_modifiers", f, "Score modifiers and masks, fp16", what, 3)


def decode_latency(results, folder):
    f, axes = figure(1, 2, 3.6, sharey=True)
    cells = results.cells("attention_cached")
    for axis, pattern, title, label in ((axes[0][0], r"fp16/D128/(\d+)x32\(8\)x8192$", "caches of 8192 keys", "sequences"),
                                        (axes[0][1], r"fp16/D128/1x32\(8\)x(\d+)$", "one sequence", "keys in its cache")):
        lines(axis, results.series("attention_cached", pattern, "us"), ("flash", "cudnn", "giwa"))
        found = sorted((int(m[1]), c["giwa"]) for case, c in cells.items() if (m := re.match(pattern, case)))
        if peak := results.peak("attention_cached", "memory"):
            axis.plot([x for x, _ in found], [r["value"] * r["us"] / peak for _, r in found], color=GREY, linestyle="--", linewidth=1,
                      label=f"the cache read at {peak / 1000:.2g} TB/s")
        lengths(axis, [x for x, _ in found])
        for x, r in found:
            axis.annotate(f"{r['us']:.3g}", (x, r["us"]), xytext=(0, -14), textcoords="offset points", fontsize=8.5, color=GIWA, ha="center",
                          bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"}, zorder=4)
        axis.margins(x=0.12)
        axis.set_yscale("log")
        axis.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
        axis.yaxis.set_minor_locator(NullLocator())
        axis.set_title(title)
        axis.set_xlabel(label)
    axes[0][0].set_ylim(0.5, 3000)
    axes[0][0].set_ylabel("µs")
    save(results, folder, "decode_latency", f, "Decoding: time of one step's attention",
         "one query a sequence, 32 heads for 8 kv heads of 128, fp16, cold caches; in blue giwa's µs")


def decode_peers(results, folder):
    """Times of the fastest form of each library."""
    f, axes = figure(1, 2, 4.1, sharey=True, sharex=True)
    cells = results.cells("peers_decode")
    for axis, page, title in ((axes[0][0], "", "contiguous caches"), (axes[0][1], "/page_64", "pages of 64 keys")):
        groups = {}
        for case, sides in cells.items():
            if match := re.match(rf"fp16/D(\d+)/(\d+)x(\d+)\((\d+)\)x(\d+){page}$", case):
                size, batch, heads, kv_heads, keys = match.groups()
                forms = {n: [r["us"] for name, r in sides.items() if name.split("_")[0] == n] for n in ("giwa", "cudnn", "fa3", "flashinfer")}
                groups[f"{batch} x {keys}, {heads}({kv_heads}) of {size}"] = {n: min(us) / sides["giwa"]["us"] for n, us in forms.items() if us}
        dots(axis, groups, ("flashinfer", "fa3", "cudnn", "giwa"))
        axis.set_title(title)
        axis.set_xlim(0.75, 1.95)
        axis.set_xlabel("time, giwa's = 1")
    save(results, folder, "decode_peers", f, "Decoding: time relative to giwa's",
         "left of giwa: faster; sequences x keys, heads (kv heads) of a size; one query a sequence, fp16, cold caches, the fastest form of each library")


def attention_cpu(results, folder):
    f, axes = figure(2, 2, 4.9, sharex=True, sharey=True)
    path = results.file("attention_cpu_alone")
    for i, (part, title) in enumerate((("", "forward"), ("backward/", "gradients"))):
        for j, mask in enumerate(MASKS):
            axis, found = axes[i][j], {}
            for row in report_rows.read_csv(path):
                if match := re.match(rf"cpu -O3, alone/{part}{mask}/D(\d+)/1x8x(\d+)$", row["case"]):
                    for side in ("giwa", "torch"):
                        found.setdefault((side, int(match[1])), []).append((int(match[2]), 1000 * float(row[f"{side}_tflops"])))
            for (side, size), points in sorted(found.items(), key=lambda x: (x[0][0], -x[0][1])):
                label, colour, marker = LOOKS[side]
                axis.plot(*zip(*sorted(points)), color=colour, marker=marker, linewidth=2.2 if side == "giwa" else 1.3,
                          linestyle="-" if size == 128 else "--", label=f"{label}, head size {size}")
            lengths(axis, [512, 1024, 2048, 4096])
            axis.set_title(f"{title}, {mask}")
        axes[i][0].set_ylabel("GFLOP/s")
    for axis in axes[-1]:
        axis.set_xlabel("tokens")
    from_zero(axes.flat)
    save(results, folder, "attention_cpu", f, "Attention on the CPU, fp32", "one sequence, 8 heads; each library alone, on all cores", 2)


def memory(results, folder):
    """No measurement: the bytes that example 17 counts."""
    heads, size = 16, 64
    tokens = [2 ** n for n in range(9, 18)]
    tensors = [4 * n * heads * size * 2 for n in tokens]  # q, k, v and o
    scores = [n * n * heads * 2 for n in tokens]
    f, axes = figure(1, 2, 3.6, sharey=True, sharex=True)
    for axis, times, title in ((axes[0][0], 1, "bytes in memory"), (axes[0][1], 4, "bytes moved")):
        for values, label, colour, marker in (([a + times * b for a, b in zip(tensors, scores)], "unfused: scores in memory", CUB, "s"),
                                              (tensors, "fused: flash attention", GIWA, "o")):
            axis.plot(tokens, values, label=label, color=colour, marker=marker, linewidth=2.2)
        at = tokens.index(4096)
        for value, offset in ((tensors[at] + times * scores[at], 8), (tensors[at], -16)):
            axis.annotate(f"{value / 2 ** 20:.0f} MiB", (4096, value), xytext=(0, offset), textcoords="offset points", fontsize=8.5,
                          ha="right" if offset > 0 else "left")
        lengths(axis, tokens[::2])
        axis.set_yscale("log", base=2)
        axis.set_yticks([2 ** 20, 2 ** 25, 2 ** 30, 2 ** 35, 2 ** 40], ["1 MiB", "32 MiB", "1 GiB", "32 GiB", "1 TiB"])
        axis.set_title(title)
        axis.set_xlabel("tokens")
    limit(axes[0][0], 141e9, "141 GB: an H200")
    save(results, folder, "memory", f, "Memory of attention, unfused and fused",
         "computed, not measured: q, k, v, o and the scores of 16 heads of 64 in fp16, as example 17 counts them: unfused, three kernels write "
         "and read the scores twice; fused, scores stay in registers", 2)


# ---- several GPUs, training

RING = re.compile(r"\s*(?P<tokens>\d+) tokens, 16 heads, 16 of k and v, causal, \w+, (?P<what>forward|backward) +1 GPU +[\d.]+ ms "
                  r"\( *\d+ TFLOP/s\), (?P<gpus>\d+) GPUs(?P<by>| by heads) +[\d.]+ ms: (?P<speed>[\d.]+)")


def several_gpus(results, folder):
    found = {}
    for path in results.file("ring"):
        for match in filter(None, map(RING.match, path.read_text(encoding="utf-8").splitlines())):
            found.setdefault((match["what"], int(match["gpus"]), match["by"]), {})[int(match["tokens"])] = float(match["speed"])  # the last run
    f, axes = figure(1, 1, 5.0)
    axis = axes[0][0]
    for gpus, colours in ((4, (GIWA, GIWA_2)), (2, (CUB, "#E69F00"))):
        for what, colour in zip(("forward", "backward"), colours):
            for by, kind in ((" by heads", "by heads"), ("", "a ring")):
                axis.plot(*zip(*sorted(found[what, gpus, by].items())), color=colour, marker="s" if by else "o", linewidth=2,
                          linestyle="--" if by else "-", label=f"{gpus}: {'gradients' if what == 'backward' else what}, {kind}")
        limit(axis, gpus, f"{gpus} times")
    limit(axis, 1, "one GPU", place=0.72)
    lengths(axis, sorted({n for points in found.values() for n in points}))
    axis.set_yticks([0, 1, 2, 3, 4])
    axis.set_ylim(0, 4.4)
    axis.set_xlabel("tokens of the sequence")
    axis.set_ylabel("times as fast as one GPU")
    save(results, folder, "several_gpus", f, "Attention of one sequence on two and on four H200", "fp16, causal, 16 heads of 128", 2)


HEAD_SIZE, ELEMENT_BYTES, RANKS, MODEL_FLOPS = 128, 2, 4, 600e12


def efficiency(tokens, bandwidth, group, causal):
    """The share of a rank's time that is computation, for `tokens` tokens of each rank, `group` heads for a kv head, zigzag slices if
    causal. In all steps but the last one slice of keys and values travels, behind the computation of the step."""
    computing = 4 * tokens ** 2 * HEAD_SIZE * group / MODEL_FLOPS / (2 if causal else 1)  # of a kv head
    travelling = 2 * ELEMENT_BYTES * tokens * HEAD_SIZE / bandwidth
    return RANKS * computing / ((RANKS - 1) * max(computing, travelling) + computing)


def ring_model(results, folder):
    """The model of docs/several_gpus.md: the time on one GPU divided by ranks times the time on all."""
    f, axes = figure(1, 2, 3.6, sharey=True)
    tokens = [2 ** (i / 16) for i in range(96, 273)]  # 64 to 128k
    for axis, causal in zip(axes[0], (False, True)):
        for group in (1, 8):
            for bandwidth, colour in ((350, GIWA), (50, CUB)):
                axis.plot(tokens, [efficiency(t, bandwidth * 1e9, group, causal) for t in tokens], color=colour, linewidth=1.4 if group == 1 else 2.4,
                          linestyle="--" if group == 1 else "-", label=f"{bandwidth} GB/s, {group} head{'s' * (group > 1)} for a kv head")
        axis.set_title("causal, zigzag" if causal else "full")
        lengths(axis, [256, 1024, 4096, 16384, 65536])
        axis.set_xlabel("tokens of each rank")
        axis.set_ylim(0, 1.05)
    axes[0][0].set_ylabel("efficiency")
    save(results, folder, "ring_model", f, "Ring attention on 4 GPUs: a model",
         f"computed, not measured: forward, head size {HEAD_SIZE}, fp16, {MODEL_FLOPS / 1e12:.0f} TFLOP/s each; only communication costs", 2)


def training(results, folder):
    table = report_rows.read_csv(results.file("training"))
    pairs = {}
    for column in list(table[0])[1:]:
        model, side = column.rsplit(" ", 1)
        pairs.setdefault(model, {})[side] = [float(row[column]) for row in table]
    f, axes = figure(1, len(pairs), 2.7, sharey=True)
    for axis, (model, sides) in zip(axes[0], pairs.items()):
        for side, losses in sorted(sides.items()):
            ours = side == "giwa"
            axis.plot(losses, color=GIWA if ours else "#E69F00", linewidth=1.2 if ours else 3.5, zorder=3 if ours else 2,
                      label="giwa" if ours else "transformers' own attention")
        axis.set_title(model)
        axis.set_xlim(0, len(table))
        axis.set_xticks([0, 100, 200])
    axes[0][2].set_xlabel("training step")
    axes[0][0].set_ylabel("loss")
    from_zero(axes.flat)
    save(results, folder, "training", f, "Five models train alike with either attention",
         "small models, random weights, bf16 autocast; transformers' own attention: sdpa, for Gemma 2 eager")


# ---- the rest of the library

def matmul(results, folder):
    f, axes = figure(1, 3, 3.7, width_ratios=(3, 3, 2.2), sharey=True)
    for axis, element in zip(axes[0], ("fp16", "bf16", "fp32")):
        series = results.series("matmul", rf"matmul/{element}/(\d+)x\1x\1$")
        lines(axis, series, ("cublas", "wgmma", "mma", "register_tile", "fp32_by_fp16"))
        lengths(axis, [x for points in series.values() for x, _ in points])
        if element == "fp32":
            limit(axis, results.peak("matmul", "fp32"), "{}: fp32 peak", place=0.2, above=True)
            axis.margins(x=0.3)
        else:
            limit(axis, results.peak("matmul", "fp16"), "{}: peak" if element == "fp16" else "")
        axis.set_title(element)
    axes[0][1].set_xlabel("m = n = k")
    from_zero(axes[0])
    axes[0][0].set_ylabel("TFLOP/s")
    save(results, folder, "matmul", f, "The matrix product of the examples, step by step",
         "giwa's steps are examples to learn from; cuBLAS in fp32 without TF32", 3)


def softmax(results, folder):
    f, axes = figure(1, 3, 3.4, sharey=True)
    for axis, element in zip(axes[0], ("fp32", "fp16", "bf16")):
        pattern = rf"softmax/{element}/\d+x(\d+)$"
        series = results.series("softmax", pattern)
        series.update({n: s for n, s in results.series("torch", pattern).items() if n == "torch"})
        axis.plot(*zip(*series.pop("copy")), label="copy", color="black", linestyle=":", linewidth=1.5)
        lines(axis, series, ("giwa_softmax", "torch"))
        limit(axis, results.peak("softmax", "memory"), "{}: peak" if element == "fp32" else "", above=True)
        lengths(axis, [256, 1024, 4096, 16384, 65536])
        axis.set_title(element)
    axes[0][1].set_xlabel("columns")
    axes[0][0].set_ylabel("GB/s, read and written")
    axes[0][0].set_ylim(0, 5600)
    save(results, folder, "softmax", f, "Softmax of rows", "1 GiB read and 1 GiB written, any number of columns")


def transpose(results, folder):
    groups = {}
    for suite in ("transpose", "torch"):
        for case, contenders in results.cells(suite).items():
            if match := re.match(r"transpose/(\w+)/(\d+)x(\d+)$", case):
                group = groups.setdefault(f"{match[1]}, {match[2]} x {match[3]}", {})
                group.update({n: r["value"] for n, r in contenders.items() if n == "torch" or suite == "transpose"})
    f, axes = figure(1, 1, 4.4)
    dots(axes[0][0], dict(sorted(groups.items(), key=lambda x: x[0][:4], reverse=True)), ("copy", "torch", "giwa_transpose"), labelled=("giwa_transpose", "torch"))
    limit(axes[0][0], results.peak("transpose", "memory"), "{}: peak", "x")
    axes[0][0].set_xlim(0, 5000)
    axes[0][0].set_xlabel("GB/s, read and written")
    save(results, folder, "transpose", f, "Transpose", "compared with a copy; PyTorch (out.copy_(in.t())) was measured at four of the sizes")


def for_all(results, folder):
    groups = {}
    for case, contenders in results.cells("for_all").items():
        if match := re.match(r"add/(\w+)/(\d+)$", case):
            n = int(match[2])
            size = f"2^{n.bit_length() - 1}" if n & (n - 1) == 0 else f"{n:,}".replace(",", " ")
            groups[f"{match[1]}, {size}"] = {name: r["value"] for name, r in contenders.items()}
    f, axes = figure(1, 2, 4.4, sharey=True, sharex=True)
    for axis, title, order in ((axes[0][0], "by index", ("plain_kernel", "cub_device_for_bulk", "giwa_for_all_index")),
                               (axes[0][1], "elementwise, in vectors", ("thrust_transform", "cub_device_transform", "giwa_for_all_elementwise"))):
        dots(axis, groups, order, labelled=(order[-1],))
        limit(axis, results.peak("for_all", "memory"), "{}: peak" if axis is axes[0][0] else "", "x")
        axis.set_title(title)
        axis.set_xlabel("GB/s of three arrays")
        axis.set_xlim(1500, 5000)
    save(results, folder, "for_all", f, "c = a + b, element by element", "CUB: DeviceFor::Bulk by index, DeviceTransform in vectors; Thrust: transform")


def compile_time(results, folder):
    said = {"giwa_nvcc": "giwa: nvcc, ahead of time", "giwa_first_call": "giwa: first call", "giwa_new_length": "giwa: another length",
            "cudnn_first_call": "cuDNN: first call", "cudnn_new_length": "cuDNN: another length",
            "flash_first_call": "FlashAttention-2: first call", "flash_new_length": "FlashAttention-2: another length",
            "flex_first_call": "FlexAttention: first call", "flex_first_call_cached": "FlexAttention: first call, caches filled",
            "flex_new_length": "FlexAttention: another length"}
    cells = results.cells("compile_time")
    cases = {title: cells[case] for case, title in (("attention/causal/D128", "causal mask"), ("attention/softcap/D128", "softcap")) if case in cells}
    shown = {title: [(said[n], r["value"], n) for n, r in sides.items() if n in said and r["value"]] for title, sides in cases.items()}
    f, axes = figure(len(shown), 1, 1.3 + 0.29 * sum(len(x) + 2 for x in shown.values()), sharex=True, height_ratios=[len(x) for x in shown.values()])
    for axis, (title, found) in zip(axes[:, 0], shown.items()):
        axis.set_xscale("log")
        drawn = axis.barh(range(len(found)), [v for _, v, _ in found], 0.7, left=0, color=[LOOKS[n.split("_")[0]][1] for _, _, n in found])
        axis.bar_label(drawn, [f"{v:.3g} s" if v >= 1 else f"{v * 1e3:.3g} ms" for _, v, _ in found], fontsize=9, padding=3)
        rows(axis, [label for label, _, _ in found])
        axis.grid(False, axis="y")
        axis.set_xlim(1e-4, 100)
        axis.set_xticks([1e-4, 1e-3, 1e-2, 1e-1, 1, 10, 100], ["0.1 ms", "1 ms", "10 ms", "0.1 s", "1 s", "10 s", "100 s"])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_title(title)
    save(results, folder, "compile_time", f, "Time to the first result", "attention in fp16, head size 128; compiled ahead of time, or at the first use")


# Each plot with the suites that it needs.
PLOTS = {peers_forward: ("peers_forward",), peers_forward_bf16: ("peers_forward_bf16",), peers_backward: ("peers_backward",), peers_map: ("peers_forward", "peers_backward"),
         attention_fp32: ("attention_fp32",), attention_backward_fp32: ("attention_backward_fp32",),
         attention_accuracy: ("attention_fp32", "attention_fp16", "accuracy"), score_modifiers: ("peers_flex",),
         decode_latency: ("attention_cached",), decode_peers: ("peers_decode",), attention_cpu: ("attention_cpu_alone",), memory: (), several_gpus: ("ring",), ring_model: (),
         training: ("training",), matmul: ("matmul",), softmax: ("softmax", "torch"), transpose: ("transpose", "torch"), for_all: ("for_all",),
         compile_time: ("compile_time",), peers_e4m3: ("peers_e4m3",), accuracy_e4m3: ("accuracy_e4m3",)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report")
    parser.add_argument("folder")
    parser.add_argument("--only", default="", help="the plots whose names match this regular expression")
    arguments = parser.parse_args()
    try:
        results = Results(arguments.report, OTHERS)
    except report_rows.ReportError as error:
        sys.exit(f"plot: {error}")
    Path(arguments.folder).mkdir(parents=True, exist_ok=True)
    for plot, suites in PLOTS.items():
        if missing := [s for s in suites if not results.has(s)]:
            print(f"no plot {plot.__name__}: the report has nothing of {', '.join(missing)}")
        elif re.search(arguments.only, plot.__name__):
            results.begin()
            plot(results, arguments.folder)


if __name__ == "__main__":
    main()
