#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Counts the instructions of the steady loop of each kernel of tensor cores in cubins: what a warp issues for one tile.

  python3 test/budget/steady_loop.py [--list] [--cuobjdump cuobjdump] CUBIN...

The steady loop is, of the shortest ways from each product back to itself, the one through the most products, and of those the
shortest: masked tiles, retried waits and scrubbed values are branches beside it. What a branch can leave out is not counted, such
as the stores of dq in the kernels of all gradients on Hopper, 18 instructions. --list prints its instructions instead of their number by class.

Of mma.sync kernels it also counts the fragments (ldmatrix) that the next product after the load needs: ptxas has an order of the loop
with few and one with many of them, and the latter is 5 to 10 % slower (docs/notes/forward_hopper.md).
"""
import argparse
import heapq
import re
import subprocess
import sys

LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P[T0-9]+)\s+)?([A-Z0-9.]+)(.*?);")
CLASSES = [  # the first that matches counts an instruction
    ("wgmma", r"HGMMA"), ("mma", r"HMMA"), ("fragments", r"LDSM"), ("copies", r"LDGSTS"),
    ("exp2", r"MUFU"), ("max", r"FMNMX"), ("fma, mul, add", r"FFMA|FMUL|FADD"),
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
    # A call is of what is rare; one with a guard is how older GPUs branch.
    is_call = [opcode.split(".")[0] == "CALL" and not guard for _, guard, opcode, _ in code]
    return [[j for j in to if not is_call[j]] for to in following]


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
    """Of the shortest cycles of each product the one with the most products, of those the shortest."""
    following = successors(code)
    cycles = {}
    products = [i for i, (_, _, opcode, _) in enumerate(code) if re.match("HG?MMA", opcode)]
    for i in products[::1 + len(products) // 32]:
        way = shortest_cycle(following, i)
        if way is not None:
            cycles[frozenset(way)] = way
    # A cycle through a work tile's end alone is short, but has few products.
    return min(cycles.values(), key=lambda way: (-len(set(products).intersection(way)), len(way)), default=None)


def late_fragments(code, loop):
    """How many fragments of the loop the product after their load needs."""
    late = 0
    for at, i in enumerate(loop):
        if not code[i][2].startswith("LDSM"):
            continue
        first = int(re.match(r"R(\d+)", code[i][3])[1])
        product = next((code[j] for j in loop[at:] + loop[:at] if code[j][2].startswith("HMMA")), None)
        if product and any(first <= int(r) < first + 4 for r in re.findall(r"R(\d+)", product[3])[1:3]):
            late += 1
    return late


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
            late = f", fragments for the next product {late_fragments(code, loop)}" if counts["mma"] else ""
            print("   " + ", ".join(f"{label} {n}" for label, n in counts.items() if n) + late)


if __name__ == "__main__":
    main()
