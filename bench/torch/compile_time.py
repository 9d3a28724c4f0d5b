#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What it takes until an attention kernel runs: nvcc's time for giwa, which compiles ahead, compared with what compiles at its first use.

Each figure, in seconds of a wall clock, one thing at a time on a quiet machine, contains just this:

  nvcc, giwa_nvcc        nvcc -std=c++20 -O3 -c for one architecture: of an empty kernel, and of what the case says
  X_first_call           the first call in a fresh process, to its end on the GPU; the process has PyTorch imported, the inputs made
                         and a kernel run. For giwa: loading its built library, too. For flex: torch.compile(dynamic=False) of
                         flex_attention with the caches of Inductor and Triton empty; the block mask is made before
  flex_first_call_cached the same in the next process, with the caches that the one before filled
  X_new_length           in the same process the first call with another number of tokens

The cases: one mask (causal), and a score modifier (softcap), fp16, head size 128; and a whole program, examples/11_attention.cu.
Without PyTorch there are nvcc's alone.
"""
import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.append(str(HERE.parent))  # last: its folder torch is not PyTorch
import report_rows  # noqa: E402

CALLS = {"causal": "giwa::causal{}", "softcap": "giwa::full{}, giwa::softcap{20.0f}"}
ONE_CALL = """#include <giwa/attention.cuh>
using input = giwa::tensor_view<const __half, 4>;
giwa::status attend(cudaStream_t stream, input q, input k, input v, giwa::tensor_view<__half, 4> o) {
  return giwa::attention_forward<128>(stream, q, k, v, o, %s);
}
"""
EMPTY = "__global__ void nothing() {}\nvoid run() { nothing<<<1, 1>>>(); }\n"
# Which contenders have a first call in which case, and whether they start with the caches of the one before.
FIRST_CALLS = (("causal", "giwa", False), ("causal", "cudnn", False), ("causal", "flash", False), ("causal", "flex", False),
               ("causal", "flex", True), ("softcap", "giwa", False), ("softcap", "flex", False))


def nvcc_seconds(source, folder, architecture):
    command = ["nvcc", "-std=c++20", "-O3", "-I", ROOT / "include", "-gencode",
               f"arch=compute_{architecture},code=sm_{architecture}", "-c", source, "-o", folder / "out.o"]
    begin = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - begin


def first_call(case, contender, library):
    """In a fresh process: seconds of the first call, and of the first with another length."""
    import ctypes

    import attention
    import torch

    def made(length):
        attention.VARIANT_SIZES = (4, length, 16, 128)
        begin = time.perf_counter()
        libraries = {"giwa": ctypes.CDLL(library)} if contender == "giwa" else {}
        loading = time.perf_counter() - begin
        it = (attention.Flex(libraries, "fp16", case, True) if contender in ("giwa", "flex") else
              attention.Gpu({}, (contender,), "fp16", 4, length, length, 16, 16, 128, True, True))
        it.renew()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        it.calls[contender]()
        torch.cuda.synchronize()
        return loading + time.perf_counter() - begin

    print(json.dumps({"first_call": made(4096), "new_length": made(3072)}))


def first_calls(library):
    """Yields (case, figure's name, seconds)."""
    with tempfile.TemporaryDirectory(prefix="giwa_caches_") as folder:
        for i, (case, contender, cached) in enumerate(FIRST_CALLS):
            if contender == "giwa" and not library:
                continue
            caches = Path(folder) / str(i - 1 if cached else i)
            environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
                           "TRITON_CACHE_DIR": str(caches / "triton")}
            run = subprocess.run([sys.executable, __file__, "--first-call", case, contender, "--library", library],
                                 env=environment, stdout=subprocess.PIPE, text=True)
            if run.returncode != 0 and contender == "giwa":
                sys.exit(f"{case}: giwa has no first call")
            if run.returncode != 0:
                print(f"# {case}: {contender} has no first call", flush=True)
                continue
            seconds = json.loads(run.stdout.strip().split("\n")[-1])
            yield case, f"{contender}_first_call" + ("_cached" if cached else ""), seconds["first_call"]
            if not cached:
                yield case, f"{contender}_new_length", seconds["new_length"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", default="compile_time.csv", help="where the figures go")
    parser.add_argument("--architecture", default="90a", help="what nvcc compiles for")
    parser.add_argument("--library", dest="entries", default="",
                        help="built from attention_entries.cu, with head size 128; without it giwa has no first call")
    parser.add_argument("--first-call", nargs=2, metavar=("CASE", "CONTENDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.first_call:
        first_call(*arguments.first_call, arguments.entries)
        return
    rows = []

    def add(case, contender, seconds):
        rows.append(report_rows.row("compile_time", case, contender, "time", seconds, "s"))
        print(f"{case:<24}{contender:<24}{seconds:8.2f} s", flush=True)

    with tempfile.TemporaryDirectory(prefix="giwa_compile_") as name:
        folder = Path(name)
        source = folder / "one.cu"
        source.write_text(EMPTY, encoding="utf-8")
        nvcc_seconds(source, folder, arguments.architecture)  # the first finds the compiler on the disk
        for case, contender, text in (("empty kernel", "nvcc", EMPTY),
                                      *((f"attention/{c}/D128", "giwa_nvcc", ONE_CALL % call) for c, call in CALLS.items())):
            source.write_text(text, encoding="utf-8")
            add(case, contender, nvcc_seconds(source, folder, arguments.architecture))
        add("examples/11_attention", "giwa_nvcc",
            nvcc_seconds(ROOT / "examples" / "11_attention.cu", folder, arguments.architecture))
    try:
        import torch.nn.attention  # noqa: F401
    except ImportError:
        print("# no PyTorch: no first calls", flush=True)
    else:
        for case, contender, seconds in first_calls(arguments.entries):
            add(f"attention/{case}/D128", contender, seconds)
    with open(arguments.csv, "w", encoding="utf-8", newline="") as file:
        file.write(report_rows.csv_text(rows))


if __name__ == "__main__":
    main()
