#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times giwa's attention and PyTorch's: cuDNN, FlashAttention-2 and compiled FlexAttention on a GPU, on the CPU
scaled_dot_product_attention and its backward pass.

Builds what it needs next to it (nvcc or g++ in PATH), or takes libraries that are built: --library NAME=PATH, as often as
wanted, to compare them with each other. On a GPU all sides are CUDA graphs of 20 calls that alternate on the same inputs, new
ones each round; a figure is the median of the rounds' ratios. Results are compared with each other before anything is timed.
In fp32 giwa's three accuracies are compared with PyTorch's memory-efficient and unfused attention. Libraries that PyTorch does not
have, such as FlashAttention-3, take part in peers/measure.py. FlexAttention has separate cases, `--only /flex/`: plain, causal, and
scores and masks that both sides compile in. Where a side cannot be captured in a graph, all sides of the case
are timed as plain calls, and the case is named so.

On the CPU (--cpu) a figure is the fastest call, because other processes disturb the others, and a ratio is that of these. With
--alone all rounds of one side come before those of the other, so that its threads find cores that no other's keep busy.
"""
import argparse
import csv
import ctypes
import functools
import itertools
import os
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

HERE = Path(__file__).resolve().parent
INCLUDE = f"-I{HERE.parent.parent}/include"
# (batch, length): 16384 tokens each
SHAPES = ((32, 512), (16, 1024), (8, 2048), (4, 4096), (2, 8192), (1, 16384))
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION, "unfused": SDPBackend.MATH}
FP32_BACKENDS = "efficient,unfused"  # the others do not take fp32
HEADS = {64: 32, 128: 16, 256: 8}
# (batch, queries, keys, heads, kv heads, head size, causal): grouped queries, text-to-image, sizes between the usual ones
OTHERS = ((4, 4096, 4096, 32, 8, 128, True), (8, 4096, 4096, 8, 8, 40, False), (8, 4096, 77, 8, 8, 40, False),
          (8, 1024, 1024, 8, 8, 80, False), (8, 4096, 4096, 16, 16, 96, True), (8, 256, 256, 8, 8, 160, False),
          (4, 4096, 4096, 16, 16, 192, True))
# What giwa and FlexAttention both compile in, in the order of attention_entries.cu: batch, length, heads, head size
VARIANTS = ("plain", "causal", "softcap", "alibi", "window")
VARIANT_SIZES = (4, 4096, 16, 128)
CORES = sorted(os.sched_getaffinity(0))
CAP, WINDOW = 20.0, 1024  # a query's own key is one of the window's


def folder():
    return Path(tempfile.mkdtemp(prefix="giwa_attention_"))


def gpu_library(element, how, architecture):
    if not architecture:
        major, minor = torch.cuda.get_device_capability()
        architecture = f"{major}{minor}" + ("a" if major >= 9 else "")
    built = folder() / "attention.so"
    subprocess.run(["nvcc", "-std=c++20", "-O3", "-shared", "-Xcompiler=-fPIC", INCLUDE,
                    f"-DGIWA_BENCH_HOW=giwa::{how}" if how else f"-DGIWA_BENCH_ELEMENT=giwa::{element}", "-gencode",
                    f"arch=compute_{architecture},code=sm_{architecture}", HERE / "attention_entries.cu", "-o", built],
                   check=True)
    return built


def gpu_libraries(arguments):
    """The builds of giwa to time, by name; the first is the one that the ratios are of."""
    libraries = dict(x.split("=", 1) for x in arguments.libraries)
    if not libraries:
        hows = ("fp32", "tf32", "fp32_exact") if arguments.element == "fp32" else ("",)
        libraries = {how or "giwa": gpu_library(arguments.element, how, arguments.architecture) for how in hows}
    return {name: ctypes.CDLL(str(path)) for name, path in libraries.items()}


@functools.cache
def host_library(flags, given=None):
    if given:
        return ctypes.CDLL(str(Path(given).resolve()))
    cuda = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    built = folder() / "attention_host.so"
    subprocess.run(["g++", "-std=c++20", *flags, "-shared", "-fPIC", INCLUDE, f"-isystem{cuda}/include",
                    HERE / "attention_host_entries.cpp", "-o", built, f"-L{cuda}/lib64", "-lcudart", "-lpthread",
                    f"-Wl,-rpath,{cuda}/lib64"], check=True)
    return ctypes.CDLL(str(built))


def pointer(tensor):
    return ctypes.c_void_p(tensor.data_ptr())


def numbers(*values):
    return [ctypes.c_longlong(x) for x in values]


def flops(batch, queries, keys, heads, size, causal):
    return 4 * batch * heads * queries * keys * size * (0.5 if causal else 1)


def compare(case, ours, theirs, accuracy=""):
    """The largest difference; both have errors of the type's own, and of weights in that type."""
    difference = (ours.float() - theirs.float()).abs().max().item()
    largest = theirs.float().abs().max().item()
    eps = torch.finfo(torch.float16 if accuracy == "tf32" else ours.dtype).eps
    allowed = max(4 * eps, 2e-5) * largest
    assert difference <= allowed, f"{case}: a difference of {difference}, with {largest} the largest number"
    return difference


def case_of(element, batch, queries, keys, heads, kv_heads, size, causal):
    return (f"{element}/{'causal' if causal else 'full'}/D{size}/{batch}x{heads}" + (f"({kv_heads})" if heads != kv_heads else "")
            + f"x{queries}" + (f"x{keys}" if keys != queries else ""))


class Gpu:
    """One case on the GPU: tensors (batch, length, heads, head size), which the backends take without a copy."""

    def __init__(self, libraries, backends, element, batch, queries, keys, heads, kv_heads, size, causal, workspace):
        self.causal, self.grouped = causal, heads != kv_heads
        self.case = case_of(element, batch, queries, keys, heads, kv_heads, size, causal)
        self.flops = flops(batch, queries, keys, heads, size, causal)
        kind = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[element]
        self.q, self.k, self.v = (torch.empty(batch, length, h, size, device="cuda", dtype=kind)
                                  for length, h in ((queries, heads), (keys, kv_heads), (keys, kv_heads)))
        self.sizes = numbers(batch, queries, keys, heads, kv_heads, size)
        self.results = {name: torch.full_like(self.q, float("nan")) for name in libraries}
        self.scratch = {}
        for name, library in libraries.items():
            library.giwa_workspace_bytes.restype = ctypes.c_longlong
            self.scratch[name] = torch.zeros(library.giwa_workspace_bytes(*self.sizes), device="cuda", dtype=torch.uint8)
        self.calls = {}
        for name, library in libraries.items():
            self.calls[name] = lambda name=name, library=library: self.giwa(name, library, workspace)
        for name in backends:
            self.calls[name] = lambda name=name: self.torch(name)

    def renew(self):
        for x in (self.q, self.k, self.v):
            x.normal_()

    def giwa(self, name, library, workspace):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        scratch = pointer(self.scratch[name]) if workspace else None
        code = self.entry(library, *map(pointer, (self.q, self.k, self.v, self.results[name])), *self.sizes, scratch,
                          stream)
        assert code == 0, f"{self.case}: {name} answers {code}"

    def entry(self, library, *call):
        return library.giwa_attention(int(self.causal), *call)

    def torch(self, name):
        # The backend is chosen here, at capture; replaying a graph does not choose again.
        with sdpa_kernel(BACKENDS[name]):
            o = scaled_dot_product_attention(*(x.transpose(1, 2) for x in (self.q, self.k, self.v)),
                                             is_causal=self.causal, enable_gqa=self.grouped)
        self.results[name] = o.transpose(1, 2)

    def warm_up(self, call):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream().wait_stream(side)

    def graph(self, call, calls):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                call()
        return graph

    def runs(self, calls):
        """What does so many calls of each side: its graph, or plain calls on all sides where one cannot be captured."""
        plain, graphs = {}, {}
        for name, call in self.calls.items():
            try:
                self.warm_up(call)
            except RuntimeError as error:  # a backend that does not take these sizes
                print(f"# {self.case}: {name} has no answer: {str(error).splitlines()[0]}")
                continue
            plain[name] = lambda call=call: [call() for _ in range(calls)]
            try:
                graphs[name] = self.graph(call, calls)
            except RuntimeError as error:
                print(f"# {self.case}: {name} cannot be captured: {str(error).splitlines()[0]}")
        if len(graphs) == len(plain):
            return {name: graph.replay for name, graph in graphs.items()}
        self.case += " (plain calls)"
        return plain

    def measure(self, rounds, calls):
        self.renew()
        runs = self.runs(calls)
        for run in runs.values():
            run()
        torch.cuda.synchronize()
        last = list(self.results)[-1]  # a backend's, where there is one
        difference = max((compare(self.case, o, self.results[last], name) for name, o in self.results.items() if name != last),
                    default=0)
        spent = {name: [] for name in runs}
        for round_ in range(rounds + 1):  # one to warm up
            self.renew()
            order = list(runs) if round_ % 2 else list(runs)[::-1]
            for name in order:
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                runs[name]()
                end.record()
                end.synchronize()
                if round_ > 0:
                    spent[name].append(begin.elapsed_time(end) * 1e-3 / calls)
        return difference, spent


class Flex(Gpu):
    """A variant compared with FlexAttention: its score modifier and its mask are compiled into both."""

    def __init__(self, libraries, element, variant, workspace):
        batch, length, heads, size = VARIANT_SIZES
        causal = variant in ("causal", "alibi")
        super().__init__(libraries, ("flex",), element, batch, length, length, heads, heads, size, causal, workspace)
        self.case = f"{element}/flex/{variant}/D{size}/{batch}x{heads}x{length}"
        if variant == "window":
            self.flops = 4 * batch * heads * size * sum(min(query + 1, WINDOW) for query in range(length))
        self.kind = VARIANTS.index(variant)
        self.slopes = slopes = torch.tensor([2 ** (-8 * (h + 1) / heads) for h in range(heads)], device="cuda")
        self.score = {"softcap": lambda score, b, h, q, k: CAP * torch.tanh(score / CAP),
                      "alibi": lambda score, b, h, q, k: score - slopes[h] * (q - k)}.get(variant)
        mask = (lambda b, h, q, k: q >= k) if causal else (lambda b, h, q, k: (q >= k) & (q - k < WINDOW))
        masked = causal or variant == "window"
        self.mask = create_block_mask(mask, None, None, length, length, device="cuda") if masked else None
        self.compiled = torch.compile(flex_attention, dynamic=False)

    def entry(self, library, *call):
        return library.giwa_attention_variant(self.kind, ctypes.c_float(CAP), pointer(self.slopes), WINDOW, *call)

    def torch(self, name):
        o = self.compiled(*(x.transpose(1, 2) for x in (self.q, self.k, self.v)), score_mod=self.score,
                          block_mask=self.mask)
        self.results[name] = o.transpose(1, 2)


class Cpu:
    """One case on the CPU, fp32, on so many threads."""
    backward = alone = False

    def __init__(self, library, name, threads, batch, length, heads, size, causal):
        self.entries, self.threads, self.causal = library, threads, causal
        self.case = f"cpu {name}{'/backward' if self.backward else ''}/{'causal' if causal else 'full'}/D{size}/{batch}x{heads}x{length}"
        self.flops = flops(batch, length, length, heads, size, causal)
        self.q, self.k, self.v = (torch.randn(batch, length, heads, size) for _ in range(3))
        self.o = torch.full_like(self.q, float("nan"))
        self.sizes = numbers(batch, length, heads, size)
        self.theirs = None

    def call(self, entry, *tensors):
        code = entry(int(self.causal), *(pointer(x) if x is not None else None for x in tensors), *self.sizes)
        assert code == 0, f"{self.case}: giwa answers {code}"

    def giwa(self):
        self.call(self.entries.giwa_attention_host, self.q, self.k, self.v, self.o, None)

    def torch(self):
        self.theirs = scaled_dot_product_attention(*(x.transpose(1, 2) for x in (self.q, self.k, self.v)),
                                                   is_causal=self.causal)

    def renew(self):
        for x in (self.q, self.k, self.v):
            x.normal_()

    def difference(self):
        return compare(self.case, self.o, self.theirs.transpose(1, 2))

    def measure(self, rounds, _):
        # giwa takes the cores that its thread may run on. Started threads keep theirs: fewer come first.
        os.sched_setaffinity(0, CORES[:self.threads])
        torch.set_num_threads(self.threads)
        self.renew()
        self.giwa()
        self.torch()
        difference = self.difference()
        spent = {"giwa": [], "torch": []}
        turns = [[name] for name in spent for _ in range(rounds)] if self.alone else [
            list(spent) if i % 2 else list(spent)[::-1] for i in range(rounds)]
        for i, turn in enumerate(turns):
            self.renew()
            if self.alone and i % rounds == 0:
                time.sleep(0.1)  # until the other's threads sleep
            for name in turn:
                # Three in a row: the threads of either side keep their cores busy for a while after a call.
                took = []
                for _ in range(3):
                    begin = time.perf_counter()
                    getattr(self, name)()
                    took.append(time.perf_counter() - begin)
                spent[name].append(min(took))
        return difference, spent


class CpuBackward(Cpu):
    """Its backward pass alone; PyTorch's through autograd. Counted as 2.5 times the forward pass."""
    backward = True

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.flops *= 2.5
        batch, length, heads, _ = self.q.shape
        self.lse, self.dout = torch.empty(batch, heads, length), torch.empty_like(self.q)
        self.gradients = [torch.full_like(self.q, float("nan")) for _ in range(3)]
        self.leaves = [x.detach().requires_grad_() for x in (self.q, self.k, self.v)]  # the same memory

    def renew(self):
        super().renew()
        self.dout.normal_()
        self.call(self.entries.giwa_attention_host, self.q, self.k, self.v, self.o, self.lse)
        o = scaled_dot_product_attention(*(x.transpose(1, 2) for x in self.leaves), is_causal=self.causal)
        self.their_o = o.transpose(1, 2)

    def giwa(self):
        self.call(self.entries.giwa_attention_host_backward, self.q, self.k, self.v, self.o, self.lse, self.dout,
                  *self.gradients)

    def torch(self):
        self.theirs = torch.autograd.grad(self.their_o, self.leaves, self.dout, retain_graph=True)

    def difference(self):
        return max(compare(self.case, *x) for x in zip(self.gradients, self.theirs))


def cases(arguments):
    if arguments.cpu:
        for threads in sorted(int(n) for n in arguments.threads.split(",")) if arguments.threads else [len(CORES)]:
            for flags in ("-O3 -fopenmp", "-O3"):
                library = host_library(tuple(flags.split()), dict(x.rsplit("=", 1) for x in arguments.libraries).get(flags))
                name = (flags + (f", {threads} thread{'s' if threads > 1 else ''}" if arguments.threads else "")
                        + (", alone" if arguments.alone else ""))
                Cpu.alone = arguments.alone
                for kind, lengths in ((Cpu, (512, 1024, 4096)), (CpuBackward, (512, 1024, 2048))):
                    for causal, size, length in itertools.product((False, True), (64, 128), lengths):
                        yield functools.partial(kind, library, name, threads, 1, length, 8, size, causal)
    else:
        fp32 = arguments.element == "fp32"
        chosen = arguments.backends if arguments.backends is not None else FP32_BACKENDS if fp32 else "cudnn,flash,flex"
        ours, backends = gpu_libraries(arguments), [x for x in chosen.split(",") if x]
        workspace = not arguments.no_workspace
        usual = [(batch, length, length, heads, heads, size, causal) for causal in (False, True)
                 for size, heads in HEADS.items() for batch, length in SHAPES]
        for sizes in (usual if fp32 else (*usual, *OTHERS)):
            yield lambda sizes=sizes: Gpu(ours, [x for x in backends if x != "flex"], arguments.element, *sizes, workspace)
        for variant in VARIANTS if "flex" in backends else ():
            yield lambda variant=variant: Flex(ours, arguments.element, variant, workspace)


def save(path, rows):
    with open(path, "w", encoding="utf-8", newline="") as file:
        columns = dict.fromkeys(key for row in rows for key in row)  # not every case has every backend
        writer = csv.DictWriter(file, columns or ["case"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", default="attention.csv", help="where the figures go")
    parser.add_argument("--only", default="", help="regular expression: which cases, as 'causal/D128'")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=20, help="calls in a graph")
    parser.add_argument("--element", choices=("fp16", "bf16", "fp32"), default="fp16")
    parser.add_argument("--library", dest="libraries", action="append", default=[], metavar="NAME=PATH",
                        help="a library built from attention_entries.cu; with --cpu from attention_host_entries.cpp, NAME its flags")
    parser.add_argument("--architecture", default="", help="what to build for, as 90a or 80; default: the GPU's")
    parser.add_argument("--backends", help="PyTorch's: cudnn,flash,flex, or in fp32 efficient,unfused")
    parser.add_argument("--no-workspace", action="store_true", help="giwa without its counter")
    parser.add_argument("--cpu", action="store_true", help="giwa::host in fp32 against PyTorch on the CPU")
    parser.add_argument("--alone", action="store_true", help="with --cpu: the sides one after the other instead of alternating")
    parser.add_argument("--threads", default="", help="with --cpu, as 1,2: on so many threads; default: one for each core")
    arguments = parser.parse_args()
    typical = min if arguments.cpu else statistics.median
    where = f"CPU, {arguments.threads or len(CORES)} threads" if arguments.cpu else torch.cuda.get_device_name()
    print(f"# {where}, torch {torch.__version__}, {arguments.rounds} rounds")
    rows = []
    save(arguments.csv, rows)
    for make in cases(arguments):
        case = make()
        if not re.search(arguments.only, case.case):
            continue
        difference, spent = case.measure(arguments.rounds, arguments.calls)
        first, *others = spent
        row = {"case": case.case}
        for name, times in spent.items():
            row[f"{name}_us"] = f"{typical(times) * 1e6:.1f}"
            row[f"{name}_tflops"] = f"{case.flops / typical(times) * 1e-12:.{5 if arguments.cpu else 3}f}"
        for name in others:
            ratios = [t / g for t, g in zip(spent[name], spent[first], strict=True)]
            ratio = typical(spent[name]) / typical(spent[first]) if arguments.cpu else statistics.median(ratios)
            row.update({f"speed_of_{name}": f"{ratio:.3f}", f"lowest_{name}": f"{min(ratios):.3f}",
                        f"highest_{name}": f"{max(ratios):.3f}"})
        row["apart"] = f"{difference:.3g}"
        rows.append(row)
        save(arguments.csv, rows)
        print(f"{case.case:<32}" + "".join(f" {n} {float(row[f'{n}_tflops']):.4g}" for n in spent)
              + " |" + "".join(f" /{n} {row[f'speed_of_{n}']}" for n in others), flush=True)
        del case


if __name__ == "__main__":
    main()
