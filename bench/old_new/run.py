#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares the speed and the bits of attention_forward of two source trees, on a machine with a GPU.

  python3 bench/old_new/run.py OLD NEW [--rounds 4] [--nvcc nvcc]

OLD and NEW are git revisions, or folders that contain giwa/ (an include folder). Both are compiled for the GPU that is
there, and run alternately together with OLD once more: the ratio of OLD to itself is the noise of the machine. Prints
old time / new time for each of 36 cells, and exits with 1 if a bit of an output differs.
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


def run(program):
    """{cell: (milliseconds, hash)}"""
    text = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {cell: (float(time), bits) for cell, time, bits in (line.split() for line in text.splitlines())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--nvcc", default="nvcc")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch, arch = Path(folder), architecture()
        jobs = {}
        for name, tree in (("old", options.old), ("new", options.new)):
            include = include_folder(tree, scratch / f"tree_{name}")
            jobs[name] = subprocess.Popen([options.nvcc, "-std=c++20", "-O3", f"-arch={arch}", f"-I{include}",
                                           HERE / "cells.cu", "-o", scratch / name])
        if any([job.wait() for job in jobs.values()]):
            sys.exit("a tree does not compile")
        order = ["old", "new", "old_again"]
        programs = {"old": scratch / "old", "new": scratch / "new", "old_again": scratch / "old"}
        results = {name: [] for name in order}
        for _ in range(options.rounds):
            for name in order:
                results[name].append(run(programs[name]))
    ratios, noise, different = [], [], []
    for cell in results["old"][0]:
        time = {name: statistics.median(r[cell][0] for r in results[name]) for name in order}
        bits = {r[cell][1] for name in order for r in results[name]}
        ratios.append(time["old"] / time["new"])
        noise.append(time["old"] / time["old_again"])
        different += [cell] if len(bits) > 1 else []
        print(f"{cell:18} {time['old']:9.4f} ms  {ratios[-1]:.3f}  (old again {noise[-1]:.3f})"
              + ("  DIFFERENT BITS" if len(bits) > 1 else ""))
    for title, values in (("new", ratios), ("old again", noise)):
        print(f"{title}: geometric mean {statistics.geometric_mean(values):.4f}, lowest {min(values):.3f}")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
