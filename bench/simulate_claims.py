#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Simulates when the blocks of the kernel of all gradients claim tiles of keys and wait for each other, without a GPU:
simulate_claims.py [TOKENS...] [--full] [--heads 16] [--any-order]

A block computes tiles of 64 queries for the 128 keys that it has claimed, from the last query on, and adds each one's part of dq after the
block that has the keys before (docs/notes/backward_hopper.md). A tile takes a unit of time, with noise. Printed is the share of the ideal
time, by the number of alternating heads and by how many tiles before the end of its keys a block claims the next ones: `early` is
when it begins them.
"""
import argparse
import heapq
import random

BLOCKS = 132
ADDING, VISIBLE = 0.4, 0.3  # times until a part is added, and until the next block knows
BEGIN, NOISE = 2.0, 0.1     # the time between two claims' tiles; standard deviation of a tile's time
AHEAD = 3                   # tiles that may be computed and not added yet


def efficiency(tokens, causal, heads, alternating, tiles_before_end, ordered, seed=1):
    key_tiles, query_tiles = -(-tokens // 128), -(-tokens // 64)
    claims = [(head, tile) for first in range(0, heads, alternating) for tile in range(key_tiles)
              for head in range(first, min(first + alternating, heads))]
    added = [[(-1, 0.0)] * query_tiles for _ in range(heads)]  # the last tile of keys that added, and when others know
    waiting = {}                                               # (head, tile of queries): blocks
    noise = random.Random(seed)
    claimed = [[] for _ in range(BLOCKS)]
    now = [None] * BLOCKS  # [head, tile of keys, next step, steps, times at which parts were added]
    queue = [(0.0, block) for block in range(BLOCKS)]
    next_claim = work = end = 0

    def claim(block):
        nonlocal next_claim
        if next_claim < len(claims):
            claimed[block].append(claims[next_claim])
            next_claim += 1

    while queue:
        time, block = heapq.heappop(queue)
        if now[block] is None:
            if not claimed[block]:
                claim(block)
            if not claimed[block]:
                continue
            head, tile = claimed[block].pop(0)
            steps = query_tiles - 2 * tile if causal else query_tiles
            now[block] = [head, tile, 0, steps, []]
            if steps <= tiles_before_end:
                claim(block)
            heapq.heappush(queue, (time + BEGIN, block))
            continue
        head, tile, step, steps, done = now[block]
        query = query_tiles - 1 - step
        last, known = added[head][query]
        if ordered and last < tile - 1:
            waiting.setdefault((head, query), []).append((block, time))
            continue
        begin = max(time, done[step - AHEAD]) if step >= AHEAD else time
        computed = begin + max(0.3, noise.gauss(1, NOISE))
        done.append(max(computed, known if ordered else 0.0, done[-1] if done else 0.0) + ADDING)
        added[head][query] = tile, done[-1] + VISIBLE
        for other, since in waiting.pop((head, query), ()):
            heapq.heappush(queue, (since, other))
        work, end = work + 1, max(end, done[-1])
        now[block][2] += 1
        if steps - step - 1 == tiles_before_end:
            claim(block)
        if step + 1 == steps:
            now[block] = None
        heapq.heappush(queue, (computed, block))
    return work / BLOCKS / end


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", nargs="*", type=int, default=[4096, 16384])
    parser.add_argument("--full", action="store_true", help="without a causal mask")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--any-order", action="store_true", help="blocks do not wait for each other")
    arguments = parser.parse_args()
    alternating = [n for n in (2, 4, 8, 16, 32) if n <= arguments.heads]
    print("tokens  claim    " + "".join(f"{n:>6}" for n in alternating) + "  alternating heads")
    for tokens in arguments.tokens:
        for name, before in (("early", 1 << 30), ("6 before", 6), ("3 before", 3), ("at end", 0)):
            found = [efficiency(tokens, not arguments.full, arguments.heads, n, before, not arguments.any_order) for n in alternating]
            print(f"{tokens:6}  {name:8} " + "".join(f"{x:6.2f}" for x in found), flush=True)


if __name__ == "__main__":
    main()
