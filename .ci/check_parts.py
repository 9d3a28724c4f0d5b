#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Counts what giwa/attention/ has one of, and fails where it has more.

The folders of attention/ are parts (docs/contributing.md): an idea is written once, in its part. What a script can count is
counted here, with its limit; a limit is lowered when the count falls, and raised only with a reason.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ATTENTION = ROOT / "include/giwa/attention"
files = {path.relative_to(ATTENTION).as_posix(): path.read_text() for path in sorted(ATTENTION.rglob("*.[hc]*"))}
failures = []


def report(what, found, most):
    print(f"{what:<58} {found:>6}  at most {most}")
    if found > most:
        failures.append(what)


def containing(pattern, outside=()):
    """The files that match, but for those in some folders."""
    return [name for name, text in files.items() if re.search(pattern, text, re.M) and not name.startswith(tuple(outside))]


def functions(text):
    """(name, lines) of each function with a body, without lambdas: what stands before a brace says what the braces are."""
    code = re.sub(r'//[^\n]*|"(?:\\.|[^"\\\n])*"', lambda match: " " * len(match[0]), text)
    code = re.sub(r"^ *#.*(?:\\\n.*)*", lambda match: re.sub(r"[^\n]", " ", match[0]), code, flags=re.M)  # macros
    opened, head = [], 0
    for match in re.finditer(r"[{};]", code):
        if match[0] == "{":
            before = " ".join(code[head:match.start()].split())
            function = re.search(r"([\w~]+|operator\(\)) ?\(.*\)[\w :,<>&()]*$", before) if "[" not in before else None
            opened.append((function and function[1], match.start()))
        elif match[0] == "}" and opened:
            name, start = opened.pop()
            if name and not re.fullmatch("[A-Z_]+|if|for|while|switch|catch|requires|decltype|alignas|constexpr", name):
                yield name, text.count("\n", start, match.start()) + 1
        head = match.end()


lines_of = {name: text.count("\n") for name, text in files.items()}
# With masks from data, in blocks/ and problem/: 7 files and 960 lines. Ends of rows under the last product: 60 lines. Gaps,
# small blocks, and a warp that finds visible tiles by 32: 450 lines.
# With e4m3 on Hopper and its scales: 5 files and 650 lines, and a file of tiles. The kernel for latent
# rows: 4 files and 750 lines. A tile of 8 rows for caches, and scales without an exchange: 115 lines.
# Second tiles of more head sizes, and work tiles of fewer queries: 40 lines. Rotation of q in attention_cached: a file and 370 lines.
# Head sizes above 256 on wgmma: 60 lines. Caches of integers: 50. Tables of parameters of calls: 20. Gradients whose results are stored
# while the next work tile begins: 40. Masks of blocks by votes: 70, of leaves of a cache 49.
# Gradients: runs of whole tiles for the loader, in a file, and keys that the scheduler loads: 200 lines.
# Biases with gradients in the Hopper kernel of all gradients, and gradients of parameters in that of dq: 2 files and 332 lines.
# A merge of many partials of a row by all warps of a block, and splits that are found before the wait: 81 lines.
# A part of the keys that the kernel merges with the others, for rings: 2 files and 260 lines. dk and dv that are stored while dq is
# added to: 20.
# quantize, with the parts of append_to_cache that round: 5 files and 670 lines. Caches of 4-bit integers, by the parts of 8 bits: 105;
# channels of quantize by tiles of columns: 15.
# Many latent rows, in tiles of 64, and the choice of latent kernels: 6 files and 822 lines.
# Splits of whole work tiles, and tiles of two heads of keys: 139.
# Scales that append_to_cache finds, with a mean of k and the Hadamard transform: a file and 337 lines.
# Rows of 656 bytes and lists of keys, on every path, appended and in the Hopper kernels of latent rows: 3 files and 700 lines.
# read_cache: a file and 241 lines. Scales of keys, copied apart from the keys: a file.
# Rows of 656 bytes that few rows multiply as they come: a file.
# Lists of the tiles of sequences whose lengths only the device knows: a file and 158 lines.
# K-major values of e4m3 and K-major codes: 2 files and 295 lines.
# Partials of few sequences that are merged level by level: a file and 370 lines.
# Partials of many latent rows that are copied at once, and the search of both merges for a divided work tile: 2 files and 396 lines.
report("files", len(files), 189)
# Less 82: launches of splits prepared by one part, pointers of a call checked from a list, masks joined by & and | as one
# type, threads of the CPU's workers started in one place. 156 more: tiles of 80 queries and narrow tiles of keys in the gradients of
# Hopper.
# Booleans of make_block_map by eight loads at once: 14. The Hadamard transform of pairs of neighbours, in the order of others: 5. An include that quantize.cuh lacked: 1.
# Gradients of a bias that sequences or heads share, added in turn and by four keys: 145.
# Masks that answer for 32 keys of a query at once: 70.
# Gradients of head size 96 in tiles of 80 queries, and a least number of keys for these: 13.
# Latent rows that are divided by the batch or have tiles of one size, and their merge by whole blocks: 63.
# q8_0 and q4_0, as elements of their own: a file and 70 lines. Subnormal scales of e4m3: 4.
# Copies of whole rows by cp.async, and page numbers that are used late: 40, less the search for NaN in one part: 18.
# Masks of blocks: a warp that schedules and asks, booleans by strips, parts of dq that the first one claims, and the parts of a map for
# rings: 166.
# dq of its sums by blocks that wait for their part alone: 34, by way of shared memory: 22. A loader that changes the head in an
# item: 13. More heads that alternate under a mask: 3.
# The factor of the scores in one place: 6.
# Blocks of q8_0 and q4_0 in append_to_cache: 62.
# Tiles of two heads with scales of keys, a loop that copies scales, and pages of 16 by either copy: 59. NaN past the end of a sequence
# is not counted, many rows: 6. Sections of 16 MB: 5. Scales of neighbouring keys, by one look-up with their boxes: 115.
# Two heads read ahead in append_to_cache, and a maximum that looks for infinities where there are some: 32. Tiles of 16 rows of 4 bits with scales of keys: 4.
# Rows of 656 bytes that few rows multiply as they come, with scales of sums and of P: 378.
# The bytes of scales of a key have a name; which score warps free a stage is asserted: 4.
# The loader of the second of two kernels of gradients alone waits for the first: 2.
# More registers for the output warps of lists of latent keys: 3.
# Visible bits that are exact, and the rank of a thread read again under a mask of blocks: 7.
# One warpgroup that scores latent rows, one that follows, and tiles and lists that are loaded in parts: 135.
# Bad keys by their scores, copies of gradients that begin before notes: 89. Ends of leaves of latent rows in steps, with sums in the workspace:
# 96. Whole work tiles of latent rows, and the fold of rows of bytes with their products: 51.
report("lines", sum(lines_of.values()), 33405)
longest = max(lines_of, key=lines_of.get)
# 300, and 26 for what biases and runs of whole tiles share in backward_types_sm90.cuh.
report(f"lines of the longest file, {longest}", lines_of[longest], 326)
name, most, where = max(((n, size, file) for file, text in files.items() for n, size in functions(text)), key=lambda f: f[1])
report(f"lines of the longest function, {name} in {where}", most, 80)

calls = [name for text in files.values() for name in re.findall(r"^status (attention_(?:forward|backward|cached))\(", text, re.M)]
report("overloads of attention_forward, _backward and _cached", len(calls), 9)
report("parts that choose among kernels of several architectures",
       len({name.split("/")[0] for name in containing(r"#include <giwa/attention/kernels/", ["kernels/", "reference/"])}), 1)
report("ordered lists of candidates outside of choose/", len(containing(r"\bcandidate \{|prepared_call<", ["choose/", "call/plan"])), 0)
report("files with tiles of kernels", len([name for name in files if name.startswith("tuning/")]), 5)
# Each next to what launches its kernels, so that a call does not read the parameters of others.
report("files that check pointers", len(containing(r"\bcheck_named_pointers\(\{")), 6)
report("tests of an element type by size or name",
       sum(len(re.findall(r"sizeof\(T\) [!=]= \d|same_as<(?:T|Element), (?:fp16|bf16|fp32|e4m3)>", text)) for text in files.values()), 3)
report("tests of a mask by its type", sum(len(re.findall(r"same_as<[^<>]*[Mm]ask[^<>]*, (?:full|causal)>", text)) for text in files.values()), 0)
if failures:
    sys.exit("more than one: " + "; ".join(failures))
