#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Counts the instructions of the steady loop of each wgmma kernel in cubins: what a warp issues for one tile.

  python3 test/budget/steady_loop.py [--list] [--cuobjdump cuobjdump] CUBIN...

The steady loop is the shortest way from a product back to itself that goes through the most products: masked tiles, retried
waits and scrubbed values are branches beside it. --list prints its instructions instead of their number by class.
"""
import argparse
import heapq
import re
import subprocess
import sys

LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P[T0-9]+)\s+)?([A-Z0-9.]+)(.*?);")
CLASSES = [  # the first that matches counts an instruction
    ("wgmma", r"HGMMA"), ("exp2", r"MUFU"), ("max", r"FMNMX"), ("fma, mul, add", r"FFMA|FMUL|FADD"),
    ("convert", r"F2F"), ("uniform", r"U(?!LDC|BLK|TMA)|R2UR|VOTEU"), ("barrier", r"SYNCS|BAR|WARPSYNC|WARPGROUP|DEPBAR"),
    ("shared", r"LDS|STS"), ("constant", r"LDC|ULDC"), ("shuffle, vote", r"SHFL|VOTE"), ("branch", r"BRA|BSSY|BSYNC|CALL|RET"),
    ("move", r"MOV|CS2R|S2R"), ("local", r"LDL|STL"), ("integer", r"")]


def functions(text):
    """{name: [(address, guard, opcode, operands)]}"""
    found, code = {}, None
    for line in text.splitlines():
        if "Function : " in line:
            code = found.setdefault(line.split("Function : ")[1].strip(), [])
        elif code is not None and (match := LINE.search(line)):
            address, guard, opcode, operands = match.groups()
            code.append((int(address, 16), guard, opcode, operands.strip()))
    return found


def successors(code):
    """For each instruction the numbers of those that may follow."""
    at = {address: i for i, (address, *_) in enumerate(code)}
    following = []
    for i, (_, guard, opcode, operands) in enumerate(code):
        to = [i + 1] if i + 1 < len(code) else []
        if opcode.split(".")[0] == "BRA":
            target = at[int(re.findall(r"0x([0-9a-f]+)", operands)[-1], 16)]
            to = [target, *to] if guard or "," in operands else [target]
        elif opcode.split(".")[0] in ("EXIT", "RET", "BRX") and not guard:
            to = []
        following.append(to)
    return following


def shortest_cycle(following, start):
    """The instructions from `start` back to it, without the second `start`; None if there is no way."""
    before, distance, queue = {}, {start: 0}, [(0, start)]
    while queue:
        far, i = heapq.heappop(queue)
        for j in following[i]:
            if j == start:
                way = [i]
                while way[-1] != start:
                    way.append(before[way[-1]])
                return way[::-1]
            if far + 1 < distance.get(j, sys.maxsize):
                distance[j], before[j] = far + 1, i
                heapq.heappush(queue, (far + 1, j))
    return None


def steady_loop(code):
    """The shortest cycle among those that go through the most kinds of products."""
    following = successors(code)
    cycles = {}
    for i, (_, _, opcode, _) in enumerate(code):
        if opcode.startswith("HGMMA"):
            way = shortest_cycle(following, i)
            if way is not None:
                cycles[frozenset(way)] = way
    # A cycle that runs over both the loop and a work tile's end is longer than the loop alone.
    return min(cycles.values(), key=len, default=None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cubins", nargs="+")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--cuobjdump", default="cuobjdump")
    options = parser.parse_args()
    for cubin in options.cubins:
        text = subprocess.run([options.cuobjdump, "-sass", cubin], check=True, capture_output=True, text=True).stdout
        for name, code in functions(text).items():
            loop = steady_loop(code)
            if loop is None:
                continue
            if options.list:
                for i in sorted(loop):
                    address, guard, opcode, operands = code[i]
                    print(f"{address:05x} {'@' + guard if guard else '':5} {opcode} {operands}")
                continue
            counts = dict.fromkeys((label for label, _ in CLASSES), 0)
            for i in loop:
                counts[next(label for label, pattern in CLASSES if re.match(pattern, code[i][2]))] += 1
            demangled = subprocess.run(["c++filt", name], check=True, capture_output=True, text=True).stdout.split("(")[0]
            print(f"{cubin}: {len(loop)} of {len(code)} instructions; {demangled.strip()}")
            print("   " + ", ".join(f"{label} {n}" for label, n in counts.items() if n))


if __name__ == "__main__":
    main()
