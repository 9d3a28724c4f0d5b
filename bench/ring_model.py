#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The cost model of docs/several_gpus.md: ring_model.py LINES...   or   ring_model.py --hosts 4 --gpus 8 --tokens 1048576 [--net 50]

With files of lines of bench/ring_attention.cu time, prints for each line what was measured and what the model says. With --hosts,
prints what the model says of a ring over all GPUs and of a mesh: heads within a host, a ring over hosts.
"""
import argparse
import re
from pathlib import Path

LINE = re.compile(r"\s*(?P<tokens>\d+) tokens, (?P<heads>\d+) heads, (?P<kv>\d+) of k and v, (?P<mask>causal|full), zigzag, (?P<what>forward|backward) +"
                  r"1 GPU +(?P<one>[\d.]+) ms .*?, (?P<gpus>\d+) GPUs(?P<by> by heads| by a mesh|) +(?P<all>[\d.]+) ms")
HEAD_SIZE, MEMORY = 128, 3.6e12  # bytes a second that kernels of sums and copies get of an H200
LINK, LATENCY = 300e9, 25e-6     # messages over NVLink, measured by ring_attention link: bytes a second, seconds
STEP = 15e-6                     # seconds of a step that no other figure counts: launches, the pause, the last round of blocks
# The share of the time of messages by which they delay the computation: NCCL has multiprocessors, and ranks wait for the slowest.
# Of 4 H200 (2026-11-27): 1.0 to 1.3 forward, 0.6 to 0.75 backward.
LOST = {False: 1.0, True: 0.65}  # backward?


def message(size, bandwidth):
    return LATENCY + size / bandwidth if size else 0


def ring(one, tokens, heads, kv, ranks, backward, bandwidth=LINK, merges_in_kernel=True):
    """Seconds of a ring, if one GPU takes `one`: in each step the larger of computation and messages, and sums in memory."""
    own = tokens / ranks * HEAD_SIZE                                 # elements of a slice of one head
    computing = one / ranks ** 2
    sends = (12 if backward else 4) * own * kv
    # Forward, the result so far is read and written in fp32; separately it was 14 to 16 bytes. Backward, dq is added to sums of fp32 (12
    # bytes), and gradients of keys are added to those that arrive (24 for dk and dv).
    sums = own * (12 * heads + 24 * kv) if backward else own * heads * (8 if merges_in_kernel else 15)
    lost = LOST[backward] * message(sends, LINK)  # over a slower link fewer multiprocessors would do
    step = max(computing + sums / MEMORY + lost, message(sends, bandwidth)) + STEP
    return (ranks - 1) * step + computing + sums / MEMORY + STEP


def by_heads(one, tokens, heads, kv, ranks, backward, bandwidth=LINK):
    """Seconds of head-parallel ranks: two exchanges before and after the computation, which nothing hides, and copies of all."""
    own = tokens / ranks * HEAD_SIZE
    tensors = (2 * (2 * heads + 2 * kv) + 2 * 2 * heads) if backward else 2 * (2 * heads + 2 * kv)  # q, k, v, o; dout, dq, dk, dv
    sends = own * tensors * (ranks - 1) / ranks
    return one / ranks + 2 * LATENCY + sends / bandwidth + 4 * own * tensors / MEMORY + 2 * STEP


def compare(paths, merges_in_kernel):
    print(f"{'tokens':>7} {'heads':>7} {'mask':6} {'pass':8} {'ranks':>5} {'way':9} {'measured':>9} {'model':>9}  measured / model")
    for line in (line for path in paths for line in Path(path).read_text(encoding="utf-8").splitlines()):
        if not (match := LINE.search(line)):
            continue
        tokens, heads, kv, gpus = (int(match[x]) for x in ("tokens", "heads", "kv", "gpus"))
        one, measured, backward = float(match["one"]) / 1e3, float(match["all"]), match["what"] == "backward"
        if match["by"] == " by a mesh":
            continue
        more = {} if match["by"] else {"merges_in_kernel": merges_in_kernel}
        model = (by_heads if match["by"] else ring)(one, tokens, heads, kv, gpus, backward, **more) * 1e3
        print(f"{tokens:7} {f'{heads}({kv})':>7} {match['mask']:6} {match['what']:8} {gpus:5} {match['by'].strip() or 'ring':9} "
              f"{measured:9.3f} {model:9.3f}  {measured / model:.3f}")


def hosts(count, gpus, tokens, heads, kv, net, flops):
    ranks, one = count * gpus, 4 * tokens ** 2 * heads * HEAD_SIZE / 2 / flops
    for backward in (False, True):
        alone = one * (2.5 if backward else 1)
        flat = ring(alone, tokens, heads, kv, ranks, backward, bandwidth=net)
        # A row of the mesh has the tokens of a host and 1 / gpus of the heads; its exchange of heads is within the host.
        across = ring(alone / gpus, tokens, heads / gpus, kv / gpus, count, backward, bandwidth=net)
        inside = by_heads(0, tokens / count, heads, kv, gpus, backward)
        print(f"{'backward' if backward else 'forward':8} one GPU {alone * 1e3:.1f} ms; a ring of {ranks}: {flat * 1e3:.1f} ms, {alone / flat:.1f} times as fast; "
              f"a mesh: {(across + inside) * 1e3:.1f} ms, {alone / (across + inside):.1f} times")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("lines", nargs="*", help="files of lines of bench/ring_attention.cu time")
    parser.add_argument("--merges-separate", action="store_true", help="the lines are from before 2026-11-29")
    parser.add_argument("--hosts", type=int)
    parser.add_argument("--gpus", type=int, default=8, help="of a host")
    parser.add_argument("--tokens", type=int, default=1 << 20)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--net", type=float, default=50, help="GB/s between hosts for each GPU")
    parser.add_argument("--flops", type=float, default=600e12)
    args = parser.parse_args()
    if args.lines:
        compare(args.lines, not args.merges_separate)
    if args.hosts:
        hosts(args.hosts, args.gpus, args.tokens, args.heads, args.kv_heads, args.net * 1e9, args.flops)


if __name__ == "__main__":
    main()
