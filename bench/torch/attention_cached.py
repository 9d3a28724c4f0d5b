#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times giwa's attention_cached and PyTorch's scaled_dot_product_attention (cuDNN, FlashAttention-2) with one query a sequence.

Builds attention_cached_entries.cu (nvcc in PATH), or takes a library that is built: --library giwa=PATH. All sides are CUDA
graphs that alternate in one process. A side cudnn_page_N is cuDNN with pages of N keys, if its frontend is installed
(pip install nvidia-cudnn-frontend). The caches of a graph alternate and are together more than 400 MB, so no call finds its
keys in the L2 cache; every side reads the same ones. Results are compared with each other before anything is timed. fp16;
GB/s are those of keys and values. A figure is the median of the rounds, a ratio the median of the rounds' ratios.
"""
import argparse
import ctypes
import re
import statistics
import subprocess
import sys
from pathlib import Path

import torch
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attention import BACKENDS, HERE, INCLUDE, compare, folder, numbers, pointer

sys.path.append(str(HERE.parent))  # last: its folder torch is not PyTorch
import report_rows  # noqa: E402

# (sequences, heads, kv heads, keys, head size[, queries]): the points of docs/notes/decode_hopper.md, then more of them
POINTS = ((1, 32, 8, 1024, 128), (1, 32, 8, 8192, 128), (1, 32, 8, 32768, 128), (1, 32, 8, 131072, 128),
          (1, 64, 8, 32768, 128), (4, 128, 8, 16384, 128), (8, 32, 32, 8192, 128), (32, 32, 8, 8192, 128),
          (32, 32, 8, 32768, 128), (128, 32, 8, 1024, 128), (256, 32, 8, 512, 128),
          (4, 32, 8, 8192, 128), (8, 32, 8, 8192, 128), (1, 32, 32, 8192, 128), (1, 8, 1, 32768, 128),
          (32, 32, 4, 4096, 128), (128, 32, 8, 8192, 128), (32, 32, 8, 8192, 64), (32, 32, 8, 8192, 256),
          (1, 32, 8, 8192, 64), (1, 32, 8, 8192, 256),
          (1, 32, 8, 32768, 128, 64), (1, 32, 8, 8192, 128, 1024), (4, 32, 8, 8192, 128, 512))
ALTERNATING = 400 << 20  # bytes of keys and values that the caches of a graph have together, at least
GIWA = re.compile(r"giwa(?:_page_(\d+))?")
CUDNN_PAGES = re.compile(r"cudnn_page_(\d+)")


def gpu_library(architecture):
    if not architecture:
        major, minor = torch.cuda.get_device_capability()
        architecture = f"{major}{minor}" + ("a" if major >= 9 else "")
    built = folder() / "attention_cached.so"
    subprocess.run(["nvcc", "-std=c++20", "-O3", "-shared", "-Xcompiler=-fPIC", INCLUDE, "-gencode",
                    f"arch=compute_{architecture},code=sm_{architecture}", HERE / "attention_cached_entries.cu", "-o",
                    built], check=True)
    return built


def case_of(sequences, heads, kv_heads, keys, size, queries=1, element="fp16"):
    return f"{element}/D{size}/{sequences}x{heads}({kv_heads})x{keys}" + (f"/{queries}_queries" if queries > 1 else "")


class Point:
    """One point: caches (sequences, keys, kv heads, head size), which all sides take without a copy. element: of the caches."""

    def __init__(self, library, names, sequences, heads, kv_heads, keys, size, queries=1, element="fp16"):
        self.grouped = heads != kv_heads
        self.case = case_of(sequences, heads, kv_heads, keys, size, queries, element)
        kind = {"fp16": torch.float16, "e4m3": torch.float8_e4m3fn}[element]
        self.bytes = 2 * kind.itemsize * sequences * keys * kv_heads * size
        self.sets = max(2, -(-ALTERNATING // self.bytes))
        self.sizes = (sequences, queries, keys, heads, kv_heads, size)
        make = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.float16)
        self.q = make(sequences, queries, heads, size)
        self.caches = [tuple(make(sequences, keys, kv_heads, size).to(kind) for _ in range(2)) for _ in range(self.sets)]
        self.lengths = torch.full((sequences,), keys, device="cuda", dtype=torch.int32)
        self.results, self.tables, self.scratch, self.calls = {}, {}, {}, {}
        for name in names:
            match = GIWA.fullmatch(name) or CUDNN_PAGES.fullmatch(name)
            page = int(match[1] or 0) if match else 0
            if page and keys % page:
                continue
            if CUDNN_PAGES.fullmatch(name):
                self.calls[name] = self.cudnn_pages(name, page)
            elif match:
                self.add(name, library, page)
            else:
                self.calls[name] = lambda s, name=name: self.torch(name, s)

    def table(self, page):
        """The same memory in pages; sequences have them in random order, each its own."""
        if page not in self.tables:
            sequences, pages = self.sizes[0], self.sizes[2] // page
            order = torch.argsort(torch.rand(sequences, pages, device="cuda"), dim=1)
            self.tables[page] = (torch.arange(sequences, device="cuda")[:, None] * pages + order).to(torch.int32)
        return self.tables[page]

    def add(self, name, library, page):
        """A side of giwa, of this library."""
        processors = torch.cuda.get_device_properties(0).multi_processor_count
        bytes_ = library.giwa_cached_workspace_bytes(*numbers(*self.sizes, page), ctypes.c_int(processors))
        self.scratch[name] = torch.empty(bytes_, device="cuda", dtype=torch.uint8)
        self.results[name] = torch.full_like(self.q, float("nan"))
        self.calls[name] = lambda s: self.giwa(name, library, page, s)

    def giwa(self, name, library, page, s):
        k, v = self.caches[s]
        table = pointer(self.table(page)) if page else None
        code = library.giwa_attention_cached(
            pointer(self.q), pointer(k), pointer(v), table, pointer(self.lengths) if page else None,
            pointer(self.results[name]), *numbers(*self.sizes, page), pointer(self.scratch[name]),
            *numbers(self.scratch[name].numel()), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        assert code == 0, f"{self.case}: {name} answers {code}"

    def cudnn_pages(self, name, page):
        """A call of cuDNN with pages. Its graph is built at the first call, outside of capture."""
        sequences, queries, keys, heads, kv_heads, size = self.sizes
        made = {}

        def call(s):
            import cudnn
            pages = [x.view(-1, page, kv_heads, size).transpose(1, 2) for x in self.caches[s]]
            if not made:
                made["handle"] = cudnn.create_handle()
                count = lambda n: torch.full((sequences, 1, 1, 1), n, device="cuda", dtype=torch.int32)
                table = self.table(page).view(sequences, 1, keys // page, 1)
                q = self.q.transpose(1, 2)
                o = self.results[name] = torch.full_like(self.q, float("nan"))
                made["given"] = [q, None, None, table, table, count(queries), count(keys), o.transpose(1, 2)]
                graph = cudnn.pygraph(io_data_type=cudnn.data_type.HALF, intermediate_data_type=cudnn.data_type.FLOAT,
                                      compute_data_type=cudnn.data_type.FLOAT, handle=made["handle"])
                like = [graph.tensor_like(x) for x in (q, *pages, *made["given"][3:7])]
                output, _ = graph.sdpa(
                    name="sdpa", q=like[0], k=like[1], v=like[2], is_inference=True, attn_scale=size ** -0.5,
                    use_padding_mask=True, seq_len_q=like[5], seq_len_kv=like[6], paged_attention_k_table=like[3],
                    paged_attention_v_table=like[4], paged_attention_max_seq_len_kv=keys)
                output.set_output(True).set_dim(list(made["given"][7].shape)).set_stride(list(made["given"][7].stride()))
                graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
                made["graph"], made["names"] = graph, [*like, output]
                made["workspace"] = torch.empty(max(1, graph.get_workspace_size()), device="cuda", dtype=torch.uint8)
            cudnn.set_stream(handle=made["handle"], stream=torch.cuda.current_stream().cuda_stream)
            given = dict(zip(made["names"], [made["given"][0], *pages, *made["given"][3:]], strict=True))
            made["graph"].execute(given, made["workspace"], handle=made["handle"])

        return call

    def torch(self, name, s):
        # The backend is chosen here, at capture; replaying a graph does not choose again.
        with sdpa_kernel(BACKENDS[name]):
            o = scaled_dot_product_attention(*(x.transpose(1, 2) for x in (self.q, *self.caches[s])),
                                             enable_gqa=self.grouped)
        self.results[name] = o.transpose(1, 2)

    def check(self):
        """Runs every side once; those that do not take these sizes are left out. The keys of all sides are the same, and a
        softmax does not depend on their order, so pages in another order give other roundings only."""
        for name, call in list(self.calls.items()):
            try:
                call(0)
            except (RuntimeError, ImportError) as error:
                print(f"# {self.case}: {name} has no answer: {str(error).splitlines()[0]}")
                del self.calls[name]
        torch.cuda.synchronize()
        last = list(self.calls)[-1]
        for name in self.calls:
            compare(self.case, self.results[name], self.results[last])

    def measure(self, rounds):
        """Seconds of a call, round by round, of each side."""
        self.check()
        calls = self.sets * -(-max(1, min(20, (8 << 30) // self.bytes)) // self.sets)
        graphs = {}
        for name, call in self.calls.items():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                call(0)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph):
                    for i in range(calls):
                        call(i % self.sets)
            except RuntimeError as error:
                print(f"# {self.case}: {name} was not captured: {str(error).splitlines()[0]}")
                continue
            graphs[name] = graph
        spent = {name: [] for name in graphs}
        for round_ in range(rounds + 1):  # one to warm up
            for name in (list(graphs) if round_ % 2 else list(graphs)[::-1]):
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                graphs[name].replay()  # the first event then follows work
                begin.record()
                graphs[name].replay()
                end.record()
                end.synchronize()
                if round_ > 0:
                    spent[name].append(begin.elapsed_time(end) * 1e-3 / calls)
        return spent


def rows_of(point, spent):
    """A row for each side: those of giwa compared with each of PyTorch's, or if there is none by themselves."""
    peers = [name for name in spent if not GIWA.fullmatch(name)]
    for name, times in spent.items():
        us = statistics.median(times) * 1e6
        figure = {"value": point.bytes / us * 1e-3, "unit": "GB/s", "us": us}
        compared = []
        for peer in peers if GIWA.fullmatch(name) else ():
            ratios = [theirs / ours for theirs, ours in zip(spent[peer], times, strict=True)]
            compared.append({"ratio_to": peer, "ratio": statistics.median(ratios), "lowest": min(ratios),
                             "highest": max(ratios)})
        for more in compared or [{}]:
            yield report_rows.row("attention_cached", point.case, name, "speed", **figure, **more)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", default="attention_cached.csv", help="where the figures go, in the columns of a report")
    parser.add_argument("--only", default="", help="regular expression: which points, as '/1x'")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--library", dest="entries", default="", metavar="giwa=PATH", help="built from attention_cached_entries.cu")
    parser.add_argument("--architecture", default="", help="what to build for, as 90a or 80; default: the GPU's")
    parser.add_argument("--sides", default="giwa,cudnn,flash", help="giwa, giwa_page_N, cudnn, cudnn_page_N, flash; default: %(default)s")
    arguments = parser.parse_args()
    library = ctypes.CDLL(str(arguments.entries.split("=", 1)[-1] or gpu_library(arguments.architecture)))
    library.giwa_cached_workspace_bytes.restype = ctypes.c_longlong
    names = [x for x in arguments.sides.split(",") if x]
    if unknown := [x for x in names if not (GIWA.fullmatch(x) or CUDNN_PAGES.fullmatch(x) or x in ("cudnn", "flash"))]:
        parser.error(f"no side {', '.join(unknown)}")
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, "
          f"{arguments.rounds} rounds; us, and how many times as fast giwa is")
    rows = []
    for sizes in POINTS:
        if not re.search(arguments.only, case_of(*sizes)):
            continue
        point = Point(library, names, *sizes)
        spent = point.measure(arguments.rounds)
        found = list(rows_of(point, spent))
        rows += found
        shown = {r["contender"]: f"{r['contender']} {r['us']:.1f} ({r['value']:.0f} GB/s)" for r in found}
        print(f"{point.case:<28}" + "  ".join(shown.values()) + "".join(
            f"  {r['contender']}/{r['ratio_to']} {r['ratio']:.3f}" for r in found if r["ratio"]), flush=True)
        Path(arguments.csv).write_text(report_rows.csv_text(rows), encoding="utf-8")
        del point
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
