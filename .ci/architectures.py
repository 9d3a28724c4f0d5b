#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compiles kernels for the architectures on which no test runs: architectures.py [--all] [--jobs N] [--write] [example or arch]...

Device code only, and nothing is run. Without options what CI compiles: each kernel of attention, softmax and the matrix product once
for each architecture that has a way of its own. --all compiles every example for every architecture, or those that are named;
--write puts the table into docs/architectures.md. A line says how many kernels there are, the most registers of a thread, the
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


def compile_one(job):
    architecture, example = job
    command = [NVCC, "-std=c++20", "-O3", f"-arch=sm_{architecture}", "-cubin", "-Xptxas=-v", "-Wno-deprecated-gpu-targets",
               "-I", ROOT / "include", ROOT / "examples" / f"{example}.cu", "-o"]
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
    right = process.returncode == 0 and bool(registers) and "(C75" not in text
    row = {"right": right, "kernels": len(registers), "registers": max(registers, default=0), "local": local,
           "seconds": usage.ru_utime + usage.ru_stime, "log": text}
    print(f"{'ok    ' if right else 'FAILED'} sm_{architecture:4} {example:22} {row['kernels']:3} kernels, up to "
          f"{row['registers']:3} registers, {local:2} with local memory; {row['seconds']:5.1f} CPU s, "
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
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--write", action="store_true", help="put the table into docs/architectures.md")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    if (arguments.names or arguments.write) and not arguments.all:
        parser.error("names and --write go with --all")
    examples = sorted(path.stem for path in (ROOT / "examples").glob("[0-9][0-9]_*.cu") if "__" not in path.stem)
    # 09 has no kernel.
    examples = [e for e in examples if not e.startswith("09_")]
    jobs = CI
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
        page = ROOT / "docs/architectures.md"
        text, count = re.subn(r"(?<=<!-- begin matrix -->\n).*?(?=<!-- end matrix -->)",
                              lambda _: f"\nCompiled {date.today()}:\n\n{table(rows)}\n\n", page.read_text(), flags=re.S)
        if count != 1:
            sys.exit("architectures: docs/architectures.md has no place for the table")
        page.write_text(text)
    wrong = sum(not row["right"] for row in rows.values())
    print(f"architectures: {len(rows)} compiled, {wrong} failed, {sum(r['seconds'] for r in rows.values()):.0f} CPU seconds")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
