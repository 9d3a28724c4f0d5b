#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times giwa's attention beside PyTorch's: FlashAttention-2 on a GPU, scaled_dot_product_attention on the CPU.

Builds what it needs next to it (nvcc or g++ in PATH), or takes a library that is built: GIWA_ATTENTION_ENTRIES. On a GPU both
sides are CUDA graphs of 20 calls that take turns on the same inputs, new ones each round; the figure is the median of the
rounds' ratios. Results are compared with each other before anything is timed.
"""
import argparse
import csv
import ctypes
import os
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

HERE = Path(__file__).resolve().parent
INCLUDE = f"-I{HERE.parent.parent}/include"
# (batch, length): 16384 tokens each
SHAPES = ((16, 1024), (8, 2048), (4, 4096), (2, 8192))
HEADS = {64: 32, 128: 16, 256: 8}


def folder():
    return Path(tempfile.mkdtemp(prefix="giwa_attention_"))


def gpu_library(element):
    built = os.environ.get("GIWA_ATTENTION_ENTRIES")
    if not built:
        built = folder() / "attention.so"
        major, minor = torch.cuda.get_device_capability()
        arch = f"{major}{minor}" + ("a" if major >= 9 else "")
        subprocess.run(["nvcc", "-std=c++20", "-O3", "-shared", "-Xcompiler=-fPIC", INCLUDE,
                        f"-DGIWA_BENCH_ELEMENT=giwa::{element}", "-gencode", f"arch=compute_{arch},code=sm_{arch}",
                        HERE / "attention_entries.cu", "-o", built], check=True)
    return ctypes.CDLL(str(built)).giwa_attention


def host_library(flags):
    cuda = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    built = folder() / "attention_host.so"
    subprocess.run(["g++", "-std=c++20", *flags, "-shared", "-fPIC", INCLUDE, f"-isystem{cuda}/include",
                    HERE / "attention_host_entries.cpp", "-o", built, f"-L{cuda}/lib64", "-lcudart", "-lpthread",
                    f"-Wl,-rpath,{cuda}/lib64"], check=True)
    return ctypes.CDLL(str(built)).giwa_attention_host


def pointer(tensor):
    return ctypes.c_void_p(tensor.data_ptr())


def numbers(*values):
    return [ctypes.c_longlong(x) for x in values]


def flops(batch, length, heads, size, causal):
    return 4 * batch * heads * length * length * size * (0.5 if causal else 1)


def compare(case, ours, theirs):
    """The largest difference; both have errors of the type's own, and of weights in that type."""
    apart = (ours.float() - theirs.float()).abs().max().item()
    largest = theirs.float().abs().max().item()
    allowed = max(4 * torch.finfo(ours.dtype).eps, 2e-5) * largest
    assert apart <= allowed, f"{case}: {apart} apart, with {largest} the largest"
    return apart


class Gpu:
    """One case on the GPU: tensors (batch, length, heads, head size), which FlashAttention-2 takes without a copy."""

    def __init__(self, entry, element, batch, length, heads, size, causal):
        self.entry, self.causal = entry, causal
        self.case = f"{element}/{'causal' if causal else 'full'}/D{size}/{batch}x{heads}x{length}"
        self.flops = flops(batch, length, heads, size, causal)
        kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[element]
        self.q, self.k, self.v, self.o = (torch.empty(batch, length, heads, size, device="cuda", dtype=kind)
                                          for _ in range(4))
        self.sizes = numbers(batch, length, heads, heads, size)
        self.theirs = None

    def renew(self):
        for x in (self.q, self.k, self.v):
            x.normal_()

    def giwa(self):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        code = self.entry(int(self.causal), *map(pointer, (self.q, self.k, self.v, self.o)), *self.sizes, stream)
        assert code == 0, f"{self.case}: giwa answers {code}"

    def torch(self):
        # The backend is chosen here, at capture; replaying a graph asks nobody.
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            self.theirs = scaled_dot_product_attention(*(x.transpose(1, 2) for x in (self.q, self.k, self.v)),
                                                       is_causal=self.causal)

    def graph(self, call, calls):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                call()
        return graph

    def measure(self, rounds, calls):
        self.renew()
        graphs = {name: self.graph(getattr(self, name), calls) for name in ("torch", "giwa")}
        self.o.fill_(float("nan"))
        for graph in graphs.values():
            graph.replay()
        torch.cuda.synchronize()
        apart = compare(self.case, self.o, self.theirs.transpose(1, 2))
        spent = {name: [] for name in graphs}
        for round_ in range(rounds + 1):  # one to warm up
            self.renew()
            order = list(graphs) if round_ % 2 else list(graphs)[::-1]
            for name in order:
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                graphs[name].replay()
                end.record()
                end.synchronize()
                if round_ > 0:
                    spent[name].append(begin.elapsed_time(end) * 1e-3 / calls)
        return apart, spent


class Cpu:
    """One case on the CPU, fp32."""

    def __init__(self, entry, name, batch, length, heads, size, causal):
        self.entry, self.causal = entry, causal
        self.case = f"cpu {name}/{'causal' if causal else 'full'}/D{size}/{batch}x{heads}x{length}"
        self.flops = flops(batch, length, heads, size, causal)
        self.q, self.k, self.v = (torch.randn(batch, length, heads, size) for _ in range(3))
        self.o = torch.full_like(self.q, float("nan"))
        self.sizes = numbers(batch, length, heads, size)
        self.theirs = None

    def giwa(self):
        code = self.entry(int(self.causal), *map(pointer, (self.q, self.k, self.v, self.o)), *self.sizes)
        assert code == 0, f"{self.case}: giwa answers {code}"

    def torch(self):
        self.theirs = scaled_dot_product_attention(*(x.transpose(1, 2) for x in (self.q, self.k, self.v)),
                                                   is_causal=self.causal)

    def measure(self, rounds, _):
        self.giwa()
        self.torch()
        apart = compare(self.case, self.o, self.theirs.transpose(1, 2))
        spent = {"torch": [], "giwa": []}
        for round_ in range(rounds):
            for x in (self.q, self.k, self.v):
                x.normal_()
            for name in (spent if round_ % 2 else list(spent)[::-1]):
                begin = time.perf_counter()
                getattr(self, name)()
                spent[name].append(time.perf_counter() - begin)
        return apart, spent


def cases(arguments):
    if arguments.cpu:
        for name, flags in (("-O3 -march=native", ["-O3", "-march=native"]), ("-O2", ["-O2"])):
            entry = host_library(flags)
            for causal in (False, True):
                for size in (64, 128):
                    for length in (1024, 4096):
                        yield lambda e=entry, n=name, l=length, d=size, c=causal: Cpu(e, n, 1, l, 8, d, c)
    else:
        entry = gpu_library(arguments.element)
        for causal in (False, True):
            for size, heads in HEADS.items():
                for batch, length in SHAPES:
                    yield lambda b=batch, l=length, h=heads, d=size, c=causal: Gpu(entry, arguments.element, b, l, h, d, c)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", default="attention.csv", help="where the figures go")
    parser.add_argument("--only", default="", help="regular expression: which cases, as 'causal/D128'")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=20, help="calls in a graph")
    parser.add_argument("--element", choices=("fp16", "bf16"), default="fp16")
    parser.add_argument("--cpu", action="store_true", help="giwa::host in fp32 against PyTorch on the CPU")
    arguments = parser.parse_args()
    where = f"CPU, {torch.get_num_threads()} threads" if arguments.cpu else torch.cuda.get_device_name()
    print(f"# {where}, torch {torch.__version__}, {arguments.rounds} rounds")
    rows = []
    for make in cases(arguments):
        case = make()
        if not re.search(arguments.only, case.case):
            continue
        apart, spent = case.measure(arguments.rounds, arguments.calls)
        ratios = [t / g for t, g in zip(spent["torch"], spent["giwa"])]
        row = {"case": case.case}
        for name, times in spent.items():
            row[f"{name}_us"] = f"{statistics.median(times) * 1e6:.1f}"
            row[f"{name}_tflops"] = f"{case.flops / statistics.median(times) * 1e-12:.3f}"
        row.update(speed_of_torch=f"{statistics.median(ratios):.3f}", lowest=f"{min(ratios):.3f}",
                   highest=f"{max(ratios):.3f}", apart=f"{apart:.3g}")
        rows.append(row)
        print(f"  {case.case} done", flush=True)
        del case
    with open(arguments.csv, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys() if rows else ["case"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{'case':<44}{'giwa us':>10}{'torch us':>10}{'TFLOP/s':>9}{'torch':>9}{'ratio':>8}{'lowest':>8}{'highest':>8}")
    for row in rows:
        print(f"{row['case']:<44}{row['giwa_us']:>10}{row['torch_us']:>10}{row['giwa_tflops']:>9}{row['torch_tflops']:>9}"
              f"{row['speed_of_torch']:>8}{row['lowest']:>8}{row['highest']:>8}")


if __name__ == "__main__":
    main()
