#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares the speed and the bits of attention of source trees, on a machine with a GPU.

  python3 bench/old_new/run.py OLD NEW... [--backward] [--sizes 64,128,256] [--rounds 4] [--longest 16384] [--nvcc nvcc]

OLD and each NEW are git revisions, folders that contain giwa/ (an include folder), or programs, which cells.cu was
compiled to. All others are compiled for the GPU that is there (--arch sm_90 takes the kernel of mma.sync on a GPU that
has another), and run alternately together with OLD once more: the ratio of OLD to itself is the noise of the machine.
Each round begins with another tree, because the clock falls as the GPU warms up. Prints old time / new time for each of 36
cells of attention_forward, or of those with at most --longest tokens a sequence, one column for each tree, and exits with 1
if a bit of an output differs. With --backward of attention_backward: 72 cells, those in any order too. Fewer --sizes compile sooner.
"""
import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def include_folder(tree, scratch):
    """The include folder of a revision, extracted below scratch, or the folder itself."""
    if (Path(tree) / "giwa").is_dir():
        return Path(tree)
    archive = subprocess.run(["git", "-C", ROOT, "archive", tree, "include"], check=True, capture_output=True).stdout
    scratch.mkdir()
    subprocess.run(["tar", "x", "-C", scratch], input=archive, check=True)
    return scratch / "include"


def architecture():
    text = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], check=True,
                          capture_output=True, text=True).stdout
    capability = text.split()[0].replace(".", "")
    return "sm_" + capability + ("a" if capability == "90" else "")


def run(program, longest):
    """{cell: (milliseconds, hash)}"""
    text = subprocess.run([program, str(longest)], check=True, capture_output=True, text=True).stdout
    return {cell: (float(time), bits) for cell, time, bits in (line.split() for line in text.splitlines())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new", nargs="+")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--sizes", help="head sizes, as 64,128")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--longest", type=int, default=16384)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--arch", help="as nvcc's -arch")
    options = parser.parse_args()
    trees = [options.old, *options.new]
    with tempfile.TemporaryDirectory() as folder:
        scratch, arch = Path(folder), options.arch or architecture()
        programs, jobs = [], {}
        defines = (["-DGIWA_CELLS_BACKWARD"] if options.backward else []) + (
            ["-DGIWA_CELLS_SIZES=" + options.sizes.replace(",", r"\,")] if options.sizes else [])  # nvcc divides lists at commas
        for i, tree in enumerate(trees):
            programs.append(Path(tree).resolve() if Path(tree).is_file() else scratch / f"program_{i}")
            if not Path(tree).is_file():
                include = include_folder(tree, scratch / f"tree_{i}")
                jobs[tree] = subprocess.Popen([options.nvcc, "-std=c++20", "-O3", f"-arch={arch}", f"-I{include}", *defines,
                                               HERE / "cells.cu", "-o", programs[i]])
        failed = [tree for tree, job in jobs.items() if job.wait() != 0]  # waits for all
        if failed:
            sys.exit("does not compile: " + ", ".join(failed))
        columns = [*(Path(tree).name for tree in options.new), "old again"]
        programs.append(programs[0])
        results = [[] for _ in programs]
        for i in range(options.rounds):
            for j in range(len(programs)):
                at = (i + j) % len(programs)
                results[at].append(run(programs[at], options.longest))
    width = max(9, *map(len, columns))
    print(f"{'':22} {'old, ms':>9}", *(f"{column:>{width}}" for column in columns))
    ratios, any_different = [[] for _ in columns], False
    for cell in results[0][0]:
        times = [statistics.median(r[cell][0] for r in of_program) for of_program in results]
        line = f"{cell:22} {times[0]:9.4f}"
        for of_column, time in zip(ratios, times[1:]):
            of_column.append(times[0] / time)
            line += f" {of_column[-1]:{width}.3f}"
        bits = [{r[cell][1] for r in of_program} for of_program in results]
        different = [column for column, b in zip(columns, bits[1:]) if len(b | bits[0]) > 1]
        any_different = any_different or bool(different)
        print(line + ("  DIFFERENT BITS: " + ", ".join(different) if different else ""))
    for column, of_column in zip(columns, ratios):
        print(f"{column}: geometric mean {statistics.geometric_mean(of_column):.4f}, lowest {min(of_column):.3f}")
    sys.exit(1 if any_different else 0)


if __name__ == "__main__":
    main()
