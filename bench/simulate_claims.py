#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Simulates when the blocks of the kernel of all gradients claim tiles of keys and wait for each other, without a GPU:
simulate_claims.py [TOKENS...] [--full] [--heads 16] [--any-order] [--densities 0.1 ...]

A block computes tiles of 64 queries for the 128 keys that it has claimed, from the last query on, and adds each one's part of dq after the
block that has the keys before (docs/notes/backward_hopper.md). A tile takes a unit of time, with noise. Printed is the share of the ideal
time, by the number of alternating heads and by how many tiles before the end of its keys a block claims the next ones: `early` is
when it begins them.

--densities: random blocks of 128 x 128 instead, as many for each row. Printed is the time in any order divided by that in fixed order, by
the number of alternating heads and by how many parts of dq a writer sets aside while it waits for the tile of keys before.
"""
import argparse
import heapq
import random

BLOCKS = 132
ADDING, VISIBLE = 0.4, 0.3  # times until a part is added, and until the next block knows
BEGIN, NOISE = 2.0, 0.1     # the time between two claims' tiles; standard deviation of a tile's time
AHEAD = 3                   # tiles that may be computed and not added yet
# Of a mask of blocks (H200, 2026-11-30: 11000 + 4500 cycles of each tile): the time until a part is read, and added or set aside
BEGIN_OF_BLOCKS, READ, SET_ASIDE, RELOAD = 2.4, 0.15, 0.3, 0.2


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


def random_blocks(tokens, heads, density, seed=1):
    """The tiles of queries that each tile of keys of each head sees, the last one first."""
    noise, rows = random.Random(seed), tokens // 128
    lists = [[[] for _ in range(rows)] for _ in range(heads)]
    for of_head in lists:
        for row in range(rows - 1, -1, -1):
            for tile in noise.sample(range(rows), max(1, round(density * rows))):
                of_head[tile] += [2 * row + 1, 2 * row]
    return lists


def time_of_blocks(lists, alternating, ordered, aside, seed=1):
    """The time of all blocks. A writer sets up to `aside` parts aside that wait for the tile of keys before, and adds what comes behind."""
    heads, noise = len(lists), random.Random(seed)
    claims = [(head, tile) for first in range(0, heads, alternating) for tile in range(len(lists[0]))
              for head in range(first, min(first + alternating, heads)) if lists[head][tile]]
    claims.reverse()
    before = {}  # (head, tile of keys, tile of queries): the tile of keys that adds before
    for head, of_head in enumerate(lists):
        last = {}
        for tile, queries in enumerate(of_head):
            for query in queries:
                before[head, tile, query] = last.get(query, -1)
                last[query] = tile
    known, waiting = {}, {}  # when others know of a part; who waits for it
    steps = [[] for _ in range(BLOCKS)]  # (part, whether it is the first of its work tile, whether it is the last)
    begun, written, taken, freed = ([0] * BLOCKS for _ in range(4))  # tiles that have begun; parts that are there, taken, and have left their place
    set_aside, is_writing, is_blocked = [[] for _ in range(BLOCKS)], [False] * BLOCKS, [False] * BLOCKS
    queue, number, end = [], 0, 0.0

    def at(time, action, block, *given):
        nonlocal number
        number += 1
        heapq.heappush(queue, (time, number, action, block, given))

    def is_due(time, block, part):
        head, _, query = part
        if not ordered or before[part] < 0:
            return True
        other = head, before[part], query
        if other in known and known[other] > time:
            at(known[other], write, block)
        elif other not in known:
            waiting[other] = block
        return other in known and known[other] <= time

    def begin(time, block):
        step = begun[block]
        if step == len(steps[block]) and claims:
            head, tile = claims.pop()
            queries = lists[head][tile]
            steps[block] += [((head, tile, query), i == 0, i + 1 == len(queries)) for i, query in enumerate(queries)]
        if step == len(steps[block]):
            return
        if freed[block] < step - AHEAD + 1:
            is_blocked[block] = True
            return
        begun[block] += 1
        at(time + (BEGIN_OF_BLOCKS if steps[block][step][1] else 0) + max(0.5, noise.gauss(1, NOISE)), compute, block, step)

    def compute(time, block, step):  # a part is written a tile later, or at the end of the work tile
        _, is_first, is_last = steps[block][step]
        written[block] = step + 1 if is_last else written[block] if is_first else step
        write(time, block)
        begin(time, block)

    def write(time, block):
        if is_writing[block]:
            return
        part = next((part for part in set_aside[block] if is_due(time, block, part)), None)
        if part is not None:
            set_aside[block].remove(part)
            is_writing[block] = True
            at(time + RELOAD + ADDING, finish, block, part)
        elif taken[block] < written[block]:
            part = steps[block][taken[block]][0]
            due = is_due(time, block, part)
            if not due and len(set_aside[block]) == aside:
                return
            taken[block] += 1
            is_writing[block] = True
            at(time + (READ if due else SET_ASIDE), free, block)
            at(time + (SET_ASIDE if not due else ADDING if ordered else READ), finish, block, part if due else None)
            if not due:
                set_aside[block].append(part)

    def free(time, block):
        freed[block] += 1
        if is_blocked[block]:
            is_blocked[block] = False
            begin(time, block)

    def finish(time, block, part):
        nonlocal end
        is_writing[block] = False
        if part is not None:
            known[part] = time + VISIBLE
            end = max(end, time)
            if part in waiting:
                at(known[part], write, waiting.pop(part))
        write(time, block)

    for block in range(BLOCKS):
        begin(0.0, block)
    while queue:
        time, _, action, block, given = heapq.heappop(queue)
        action(time, block, *given)
    return end


def print_blocks(tokens, heads, densities, alternating):
    print("tokens  density  aside " + "".join(f"{n:>6}" for n in alternating) + "  alternating heads")
    for n in tokens:
        for density in densities:
            lists = random_blocks(n, heads, density)
            least = time_of_blocks(lists, 1, False, 0)
            for aside in (0, 1, 2, 4, 8):
                found = [least / time_of_blocks(lists, x, True, aside) for x in alternating]
                print(f"{n:6}  {density:7}  {aside:5} " + "".join(f"{x:6.2f}" for x in found), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", nargs="*", type=int, default=[4096, 16384])
    parser.add_argument("--full", action="store_true", help="without a causal mask")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--any-order", action="store_true", help="blocks do not wait for each other")
    parser.add_argument("--densities", nargs="*", type=float, default=[], help="of random blocks")
    arguments = parser.parse_args()
    alternating = [n for n in (2, 4, 8, 16, 32) if n <= arguments.heads]
    if arguments.densities:
        return print_blocks(arguments.tokens, arguments.heads, arguments.densities, alternating)
    print("tokens  claim    " + "".join(f"{n:>6}" for n in alternating) + "  alternating heads")
    for tokens in arguments.tokens:
        for name, before in (("early", 1 << 30), ("6 before", 6), ("3 before", 3), ("at end", 0)):
            found = [efficiency(tokens, not arguments.full, arguments.heads, n, before, not arguments.any_order) for n in alternating]
            print(f"{tokens:6}  {name:8} " + "".join(f"{x:6.2f}" for x in found), flush=True)


if __name__ == "__main__":
    main()
