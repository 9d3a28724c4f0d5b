#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A report of giwa on the GPU of this machine, to paste into an issue: environment, tests, five timings.

    python3 test/gpu_report.py                      # random problems of each call for 20 s each, and five timings: about 5 minutes
    python3 test/gpu_report.py --tests BUILD        # the GPU tests of a CMake build instead of random problems

Needs nvcc, and a g++ or Clang that it takes. Builds in a temporary folder, changes nothing, sends nothing.
"""
import argparse
import concurrent.futures
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from mutate import WRAPPED

ROOT = Path(__file__).resolve().parent.parent
FLAGS = ["-std=c++20", "-O1", "-DNDEBUG", "-w", "-I", ROOT / "include", "-I", ROOT / "test"]
PROGRAMS = [("forward", 0), ("forward", 1), ("forward", 2), ("backward", 0), ("backward", 1), ("backward", 3), ("cached", 0),
            ("cached", 1), ("cached", 2), ("small", None)]
FUZZ = [ROOT / "test/fuzz/main.cpp", ROOT / "test/support/another_gpu.cpp", "-Xlinker", ",".join(f"--wrap={name}" for name in WRAPPED)]


def name_of(program):
    return program[0] if program[1] is None else f"{program[0]}{program[1]}"


def output(*words, seconds=1200):
    """(exit status, what a command printed); 127 where there is none of this name."""
    try:
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True, errors="replace", timeout=seconds)
        return done.returncode, done.stdout + done.stderr
    except FileNotFoundError:
        return 127, f"{words[0]}: not found"
    except subprocess.TimeoutExpired:
        return 124, f"no end after {seconds} s"


def first_line(*words, wanted=r"\S.*"):
    found = re.search(wanted, output(*words)[1])
    return found[0] if found else "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", metavar="BUILD", help="a CMake build whose GPU tests run: ctest -L gpu")
    parser.add_argument("--programs", nargs="+", choices=[name_of(x) for x in PROGRAMS], default=[name_of(x) for x in PROGRAMS],
                        help="the programs of random problems that run")
    parser.add_argument("--seconds", type=float, default=20, help="of random problems, for each program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 8))
    parser.add_argument("--keep", metavar="FOLDER", help="where the programs stay; those that are there are not compiled again")
    parser.add_argument("--build-only", action="store_true", help="compile the programs to --keep, and run none")
    options = parser.parse_args()

    gpus = output("nvidia-smi", "--query-gpu=name,compute_cap,driver_version,memory.total", "--format=csv,noheader")[1].strip()
    capability = re.search(r", (\d+)\.(\d)", gpus)
    if not capability:
        sys.exit(f"nvidia-smi names no GPU: {gpus}")
    number = capability[1] + capability[2]
    arch = "90a" if number == "90" else number
    version = re.search(r"\d+\.\d+\.\d+", (ROOT / "include/giwa/version.hpp").read_text())
    lines = [f"giwa {version[0] if version else 'unknown'}, commit {first_line('git', '-C', ROOT, 'rev-parse', '--short', 'HEAD')}",
             f"GPU: {gpus.splitlines()[0]}" + (f" and {len(gpus.splitlines()) - 1} more" if "\n" in gpus else ""),
             f"system: {platform.system()} {platform.release()} {platform.machine()}",
             f"nvcc: {first_line('nvcc', '--version', wanted='release .*')}; {first_line('g++', '--version')}",
             f"compiled for: compute_{arch}", ""]
    code = ["-gencode", f"arch=compute_{arch},code=sm_{arch}"]
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)

        def build(program):
            source, part = program
            to = folder / name_of(program)
            if to.exists():
                return program, to, (0, "")
            unfinished = to.with_suffix(".part")
            line = [ROOT / "test/gpu_report.cu"] if source == "report" else [
                *([f"-DGIWA_FUZZ_PART={part}"] if part is not None else []), ROOT / f"test/fuzz/gpu_{source}.cu", *FUZZ]
            done = output("nvcc", *FLAGS, *code, *line, "-o", unfinished)
            if done[0] == 0:
                unfinished.rename(to)
            return program, to, done
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            built = list(pool.map(build, [("report", None)] + [x for x in PROGRAMS if not options.tests and name_of(x) in options.programs]))
        if options.build_only:
            failures = [f"{name_of(program)}: {text[-1500:]}" for program, _, (rc, text) in built if rc != 0]
            print("\n".join(failures) or f"compiled {len(built)} programs to {folder}")
            return bool(failures)
        if options.tests:
            rc, text = output("ctest", "--test-dir", options.tests, "-L", "gpu", "--timeout", "600", seconds=7200)
            lines += [line for line in text.splitlines() if re.search(r"tests passed|\*\*\*|\(Failed\)|\(Timeout\)", line)]
            failed = rc != 0
        for (source, part), to, (rc, text) in built[1:]:
            name = name_of((source, part))
            if rc == 0:
                rc, text = output(to, "--minutes", options.seconds / 60, "--seed", options.seed, seconds=options.seconds + 300)
            else:
                text = "does not compile: " + text[-1500:]
            failed = failed or rc != 0
            lines += [f"{name}: {line}" for line in text.strip().splitlines()[-12:]] or [f"{name}: exit status {rc}"]
        rc, text = (built[0][2] if built[0][2][0] != 0 else output(built[0][1]))
        lines += ["", *text.strip().splitlines()[-40:]]
        failed = failed or rc != 0
    print("```text\n" + "\n".join(lines) + "\n" + ("something failed" if failed else "all passed") + "\n```")
    return failed


if __name__ == "__main__":
    sys.exit(main())
