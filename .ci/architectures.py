#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compiles kernels that no test without a GPU runs: architectures.py [--all] [--slice K/N] [--jobs N] [--write] [example or arch]...

Device code only, and nothing is run. Without options what CI compiles: each kernel of attention, softmax and the matrix product once
for each architecture that has a way of its own. --slice 2/8 adds an eighth of all examples for 80 and 90a, where spills are errors,
and of all examples with the flags that other builds have. --all compiles every example for every architecture, or those that are
named; --write puts the table into docs/notes/architectures.md. A line says how many kernels there are, the most registers of a thread, the
kernels that keep something in local memory, and the CPU seconds. A warning of ptxas about wgmma is an error.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NVCC = os.environ.get("CUDACXX", "nvcc")
ARCHITECTURES = ["75", "80", "86", "89", "90", "90a", "100", "120"]
# The tests compile 80 and 90a.
CI = [
    ("75", "08_row_softmax"), ("75", "11_attention"),
    ("86", "16_text_to_image"),
    ("90", "11_attention"),
    ("100", "11_attention"),
    ("120", "06_matmul"), ("120", "11_attention"),
]
# What an example is compiled with in other builds: the flag, and whether it is compiled to PTX only.
FLAGS = ["--expt-relaxed-constexpr", "-DNDEBUG", "-G", "--use_fast_math"]
# Attention up to a head size of 128 may spill some bytes, see attention/tuning/, and so may the fold of 32 packed rows of
# attention to a cache: up to 760 bytes on 9.0a, twice as many on 8.0, whose warps all have 128 registers, see
# kernels/sm80/few_rows_sm80.cuh; and so may gradients of a bias. The list is that of the build.
MAY_SPILL = re.compile(re.search(r'if\(name MATCHES "(\^[^"]+_)"\) # attention', (ROOT / "examples/CMakeLists.txt").read_text())[1])


def command_of(architecture, example):
    """Of an architecture, or of a flag in its place: then PTX is enough, with the host's part, which the flag changes as well."""
    command = [NVCC, "-std=c++20", "-Wno-deprecated-gpu-targets", "-I", ROOT / "include", ROOT / "examples" / f"{example}.cu"]
    if architecture in FLAGS:
        fast = [] if architecture == "-G" else ["--Ofast-compile=max"]
        return [*command, architecture, *fast, "-gencode", "arch=compute_90a,code=compute_90a", "-c", "-o"]
    command += ["-O3", "-gencode", f"arch=compute_{architecture},code=sm_{architecture}", "-cubin", "-Xptxas=-v"]
    if architecture in ("80", "90a") and not MAY_SPILL.match(example):
        command += ["-Xptxas=-warn-spills,-warn-lmem-usage", "-Werror=all-warnings"]
    return [*command, "-o"]


def compile_one(job):
    architecture, example = job
    command = command_of(architecture, example)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        with open(Path(folder) / "log", "w+") as log:
            process = subprocess.Popen([*command, Path(folder) / "cubin"], stdout=log, stderr=log)
            _, wait_status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(wait_status)
            log.seek(0)
            text = log.read()
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", text)]
    local = sum(int(n) > 0 for n in re.findall(r"(\d+) bytes stack frame", text))
    right = process.returncode == 0 and (architecture in FLAGS or bool(registers)) and "(C75" not in text
    row = {"right": right, "kernels": len(registers), "registers": max(registers, default=0), "local": local,
           "seconds": usage.ru_utime + usage.ru_stime, "log": text}
    what = "" if architecture in FLAGS else (f"{row['kernels']:3} kernels, up to {row['registers']:3} registers, "
                                             f"{local:2} with local memory; ")
    name = architecture if architecture in FLAGS else f"sm_{architecture:4}"
    print(f"{'ok    ' if right else 'FAILED'} {name} {example:22} {what}{row['seconds']:5.1f} CPU s, "
          f"{time.monotonic() - begin:5.1f} s", flush=True)
    if not right:
        print("\n".join(line for line in text.splitlines() if not line.startswith("ptxas info") or "(C75" in line)[:4000])
    return job, row


def table(rows):
    examples, architectures = sorted({e for _, e in rows}), [a for a in ARCHITECTURES if any(a == b for b, _ in rows)]
    lines = ["| example | " + " | ".join(architectures) + " |", "|---" * (len(architectures) + 1) + "|"]
    for example in examples:
        cells = []
        for architecture in architectures:
            row = rows.get((architecture, example))
            if row is None:
                cells.append("")
            elif not row["right"]:
                cells.append("refused")
            else:
                cells.append(f"{row['kernels']}, {row['registers']}" + (f", {row['local']}" if row["local"] else ""))
        lines.append(f"| {example} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--all", action="store_true", help="every example, or those named, for every architecture, or those named")
    parser.add_argument("--slice", metavar="K/N", help="also this part of the examples, for 80 and 90a and with other builds' flags")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--write", action="store_true", help="put the table into docs/notes/architectures.md")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    if (arguments.names or arguments.write) and not arguments.all:
        parser.error("names and --write go with --all")
    examples = sorted(path.stem for path in (ROOT / "examples").glob("[0-9][0-9]_*.cu") if "__" not in path.stem)
    # 09 has no kernel.
    examples = [e for e in examples if not e.startswith("09_")]
    jobs = list(CI)
    if arguments.slice:
        part, parts = map(int, arguments.slice.split("/"))
        rotating = [(a, e) for e in examples for a in ["80", "90a"]] + [(f, e) for e in examples for f in FLAGS]
        jobs += rotating[part % parts::parts]
    if arguments.all:
        unknown = [n for n in arguments.names if n not in ARCHITECTURES + examples]
        if unknown:
            sys.exit(f"architectures: neither an example nor an architecture: {unknown}")
        jobs = [(a, e) for e in [e for e in examples if e in arguments.names] or examples
                for a in [a for a in ARCHITECTURES if a in arguments.names] or ARCHITECTURES]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        rows = dict(pool.map(compile_one, jobs))
    if arguments.all:
        print(table(rows))
    if arguments.write:
        page = ROOT / "docs/notes/architectures.md"
        text, count = re.subn(r"(?<=<!-- begin matrix -->\n).*?(?=<!-- end matrix -->)",
                              lambda _: f"\nCompiled {date.today()}:\n\n{table(rows)}\n\n", page.read_text(), flags=re.S)
        if count != 1:
            sys.exit("architectures: docs/notes/architectures.md has no place for the table")
        page.write_text(text)
    wrong = sum(not row["right"] for row in rows.values())
    print(f"architectures: {len(rows)} compiled, {wrong} failed, {sum(r['seconds'] for r in rows.values()):.0f} CPU seconds")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
