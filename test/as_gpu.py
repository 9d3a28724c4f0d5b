#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the GPU tests on this machine's GPU as an older or smaller GPU would run them.

    python3 test/as_gpu.py 8.6                        # builds them in build/as-8.6 and runs them
    python3 test/as_gpu.py 7.5 --tests attention      # those whose names match; --small leaves out what takes long
    python3 test/as_gpu.py 12.0 --build               # no more than the programs, on a machine without a GPU too: for 9.0

The code is PTX of the other architecture, which ptxas compiles for this GPU: of 12.0 that of 9.0 without wgmma, which has the
same instructions of giwa. Its shared memory, resident threads and blocks, multiprocessors and capability are in the place of
this GPU's (support/another_gpu.hpp), and launches beyond them fail, so giwa chooses the kernels and tiles that it chooses there.
Not the same: registers and spills, the speed, the order of blocks. Needs what the preset `test` needs.
"""
import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(*words, **options):
    done = subprocess.run([str(w) for w in words], **options)
    if done.returncode != 0:
        sys.exit(done.returncode)
    return done


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = re.findall(r"^    \{(\d+)(\d),", (ROOT / "test/support/another_gpu.hpp").read_text(), re.M)
    parser.add_argument("gpu", choices=[f"{a}.{b}" for a, b in known], help="the compute capability")
    parser.add_argument("--tests", default="gpu", metavar="REGEX", help="of the tests with the label gpu")
    parser.add_argument("--small", action="store_true", help="GIWA_TEST_SMALL=1")
    parser.add_argument("--build", action="store_true", help="do not run them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--cmake", nargs="+", default=[], metavar="D", help="more of CMake's definitions, as NAME=VALUE")
    options = parser.parse_args()
    folder = ROOT / f"build/as-{options.gpu}"
    run("cmake", "--preset", "test", "-B", folder, f"-DGIWA_TEST_AS={options.gpu}", "-DGIWA_GPU=ON", "-DGIWA_BUILD_BENCH=OFF",
        "-DGIWA_BUILD_EXAMPLES=OFF", *[f"-D{d}" for d in options.cmake], cwd=ROOT)
    listed = run("ctest", "--test-dir", folder, "-N", "-L", "gpu", "-R", options.tests, capture_output=True, text=True).stdout
    tests = re.findall(r"Test +#\d+: (\S+)", listed)
    if not tests:
        sys.exit(f"as_gpu.py: no GPU test matches {options.tests}")
    targets = ["giwa_fuzz_gpu" if t == "fuzz.gpu" else t for t in tests]
    run("cmake", "--build", folder, "-j", options.jobs, "--target", *targets)
    if not options.build:
        environment = {**os.environ, "GIWA_REQUIRE_GPU": "1", **({"GIWA_TEST_SMALL": "1"} if options.small else {})}
        run("ctest", "--test-dir", folder, "-L", "gpu", "-R", options.tests, "--output-on-failure", env=environment)


if __name__ == "__main__":
    main()
