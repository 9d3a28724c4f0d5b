#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times giwa's block_sparse, forward and backward, compared with its own dense call and with compiled FlexAttention of the same blocks.

Builds block_sparse_entries.cu (nvcc in PATH), or takes a library that is built: --library giwa=PATH. fp16, head size 128. Each row of
blocks sees as many random blocks, another draw for each head. The sides alternate in one process; results are compared with each
other before anything is timed. TFLOP/s are those of visible blocks. A ratio to giwa_dense is the share of density times dense speed:
1 means that a call takes the dense time times the density. A figure is the median of the rounds, a ratio the median of the rounds'
ratios. Cases of maps time make_block_map in CUDA graphs; a map of booleans is compared with a sum that reads them. Cases vsa/ are
lists of 64 x 64 blocks as in video models, in bf16, where the tokens of a head are contiguous: with --flashinfer compared with the
Hopper kernel of FlashInfer's VariableBlockSparseAttentionWrapper (0.7.4), whose plan on the CPU is not timed. --cudnn: with
block_sparse_attention of nvidia-cudnn-frontend 1.32, forward in all cases of attention; it needs nvidia-cutlass-dsl.
"""
import argparse
import ctypes
import importlib
import re
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from attention import HERE, INCLUDE, compare, folder

sys.path.append(str(HERE.parent))  # last: its folder torch is not PyTorch
import report_rows  # noqa: E402

SIZE = 128
# (tokens, heads, block, density or blocks of a row): the densities of long contexts, then lists of VSA
POINTS = (*((n, h, 128, d) for n, h in ((16384, 16), (65536, 4), (131072, 2)) for d in (0.05, 0.1, 0.3, 0.5)),
          (16384, 16, 64, 0.1), (65536, 4, 64, 0.1), (109632, 7, 64, 64))
WITH_FLEX = ((16384, 0.1), (16384, 0.3), (65536, 0.1))  # of blocks of 128: each compiles again
# (tokens, heads, blocks of a row, of which so many are common to 16 rows that follow each other)
VSA = ((109632, 7, 64, 0), (109632, 7, 64, 48), (32768, 12, 64, 0), (32768, 12, 64, 48))
MAPS = (("lists", 32768, 8, 128, 26), ("lists", 109632, 7, 64, 64), ("bools", 16384, 4, 128, 0), ("bools", 16384, 4, 64, 0))
LONGS, POINTERS = ctypes.c_longlong, ctypes.c_void_p


class Call(ctypes.Structure):
    """sparse_call of block_sparse_entries.cu."""
    _fields_ = ([(name, LONGS) for name in ("queries", "keys", "heads", "block_queries", "block_keys", "order",
                                          "heads_first")]
                + [(name, POINTERS) for name in ("q", "k", "v", "dout", "o", "dq", "dk", "dv", "lse", "words", "workspace")]
                + [("workspace_bytes", LONGS), ("counts", POINTERS), ("indices", POINTERS), ("capacity", LONGS),
                   ("visible", POINTERS), ("stream", POINTERS)])


def gpu_library(architecture):
    if not architecture:
        major, minor = torch.cuda.get_device_capability()
        architecture = f"{major}{minor}" + ("a" if major >= 9 else "")
    built = folder() / "block_sparse.so"
    subprocess.run(["nvcc", "-std=c++20", "-O3", "-shared", "-Xcompiler=-fPIC", INCLUDE, "-gencode",
                    f"arch=compute_{architecture},code=sm_{architecture}", HERE / "block_sparse_entries.cu", "-o", built],
                   check=True)
    return built


def case_of(tokens, heads, block, blocks):
    rows = -(-tokens // block)
    count = max(1, round(blocks * rows)) if blocks < 1 else blocks
    return f"fp16/blocks_{block}/D{SIZE}/1x{heads}x{tokens}/{count / rows:.3f}", count


class Point:
    """Tensors (1, tokens, heads, head size), and a map of random blocks: `count` of each row."""

    def __init__(self, library, tokens, heads, block, count, grads=True, dtype=torch.float16, heads_first=False):
        self.library, self.heads, self.block, self.count = library, heads, block, count
        self.rows = -(-tokens // block)
        self.call, self.tensors = Call(), {}
        c = self.call
        c.queries = c.keys = tokens
        c.heads, c.block_queries, c.block_keys, c.heads_first = heads, block, block, heads_first
        shape = (1, heads, tokens, SIZE) if heads_first else (1, tokens, heads, SIZE)
        for name in ("q", "k", "v", *(("dout",) if grads else ())):
            made = torch.randn(shape, device="cuda", dtype=dtype)
            self.put(name, made.transpose(1, 2) if heads_first else made)
        for name in ("o", *(("dq", "dk", "dv") if grads else ())):
            self.put(name, torch.full_like(self.tensors["q"], float("nan")))
        self.put("lse", torch.empty(1, heads, tokens, device="cuda"))
        size = self.ask("giwa_sparse_workspace")
        if grads:
            size = max(size, self.ask("giwa_sparse_backward_workspace"))
        self.put("workspace", torch.zeros(size, device="cuda", dtype=torch.uint8))
        c.workspace_bytes = size

    def put(self, name, tensor):
        self.tensors[name] = tensor
        setattr(self.call, name, tensor.data_ptr())

    def ask(self, name):
        function = getattr(self.library, name)
        function.restype = LONGS
        return function(ctypes.byref(self.call))

    def run(self, name):
        self.call.stream = torch.cuda.current_stream().cuda_stream
        assert (code := self.ask(name)) == 0, f"{name} answers {code}"

    def dense(self, name):
        words, self.call.words = self.call.words, None
        self.run(name)
        self.call.words = words

    def draw(self, common=0):
        """Lists of blocks, and the map of them; so many blocks are common to 16 rows that follow each other."""
        scores = torch.rand(self.heads, self.rows, self.rows, device="cuda")
        of_group = scores[:, ::16].topk(common, 2).indices.repeat_interleave(16, 1)[:, :self.rows]
        self.indices = scores.scatter_(2, of_group, 2.0).topk(self.count, 2).indices.int().contiguous()
        self.put("indices", self.indices)
        self.put("counts", torch.full((self.heads, self.rows), self.count, device="cuda", dtype=torch.int32))
        self.call.capacity = self.count
        self.put("words", torch.full((self.ask("giwa_map_bytes"),), 255, device="cuda", dtype=torch.uint8))
        self.run("giwa_map_of_lists")

    def block_mask(self, mask_mod=None):
        """FlexAttention's mask of the same blocks, all full."""
        seen = torch.zeros(1, self.heads, self.rows, self.rows, device="cuda", dtype=torch.int32).scatter_(3, self.indices[None].long(), 1)
        order = torch.argsort(seen, dim=-1, descending=True, stable=True).int()
        counts = self.tensors["counts"][None]
        n = self.call.queries
        return BlockMask.from_kv_blocks(torch.zeros_like(counts), order, counts, order, BLOCK_SIZE=self.block, mask_mod=mask_mod,
                                       seq_lengths=(n, n))

    def flops(self):
        return 4 * self.call.queries * self.block * self.count * SIZE * self.heads

    def check(self, case):
        """The rows of some blocks, against PyTorch in fp32."""
        o = self.tensors["o"]
        for row in {0, self.rows // 2, self.rows - 1}:
            for h in {0, self.heads - 1}:
                at = torch.arange(row * self.block, min((row + 1) * self.block, self.call.queries), device="cuda")
                keys = (self.indices[h, row].long()[:, None] * self.block + torch.arange(self.block, device="cuda")).flatten()
                keys = keys[keys < self.call.keys]
                q, k, v = (self.tensors[x][0, i, h].float() for x, i in (("q", at), ("k", keys), ("v", keys)))
                compare(case, o[0, at, h], (((q @ k.T) * SIZE ** -0.5).softmax(-1) @ v).to(o.dtype))


def flex_sides(point, backend):
    """Forward and backward of FlexAttention by Triton, or FLASH: by FlashAttention-4, where it is installed."""
    flex = partial(torch.compile(flex_attention, dynamic=False), kernel_options={"BACKEND": backend})
    # With the default mask of blocks in part, of which there are none, the FLASH backend of PyTorch 2.11 ignores the blocks.
    mask = point.block_mask((lambda b, h, query, key: key >= 0) if backend == "FLASH" else None)
    q, k, v = (point.tensors[x].transpose(1, 2).contiguous().requires_grad_() for x in "qkv")
    dout = point.tensors["dout"].transpose(1, 2).contiguous()
    o = flex(q, k, v, block_mask=mask)

    def forward():
        with torch.no_grad():
            return flex(q, k, v, block_mask=mask).transpose(1, 2)
    return forward, lambda: tuple(x.transpose(1, 2) for x in torch.autograd.grad(o, (q, k, v), dout, retain_graph=True))


def cudnn_side(point):
    """The kernel for Hopper of cuDNN's frontend, with the lists of the point. Its tensors are those of the point as they lie."""
    forward = importlib.import_module("cudnn.block_sparse_attention.api").block_sparse_attention_forward
    heads_first = point.call.heads_first != 0
    q, k, v = (point.tensors[x].transpose(1, 2) if heads_first else point.tensors[x] for x in "qkv")
    indices = point.indices[None].sort(-1).values.contiguous()

    def run():
        o = forward(q, k, v, indices, point.count, sparse_block_size=point.block, layout="bhsd" if heads_first else "bshd")["o_tensor"]
        return o.transpose(1, 2) if heads_first else o
    return run


def seconds_of(run, calls):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / calls


def calls_of(run):
    """As many as take 20 ms, so that the host is ahead of the GPU, but for a call or two."""
    return max(2, min(50, round(0.02 / seconds_of(run, 3))))


def alternate(sides, rounds, calls):
    spent = {name: [] for name in sides}
    for round_ in range(rounds + 1):  # one to warm up
        for name in (list(sides) if round_ % 2 else list(sides)[::-1]):
            seconds = seconds_of(sides[name], calls)
            if round_ > 0:
                spent[name].append(seconds)
    return spent


def graph_of(run, calls):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    return graph.replay


def rows_of(case, spent, work, unit, scale_of={}):
    """A row of each side; those of giwa compared with the others. scale_of[peer]: what its time is multiplied by."""
    for name, times in spent.items():
        us = statistics.median(times) * 1e6
        compared = [{}]
        if name == "giwa" and len(spent) > 1:
            ratios = {p: [scale_of.get(p, 1) * t / x for t, x in zip(spent[p], times, strict=True)] for p in spent if p != name}
            compared = [{"ratio_to": p, "ratio": statistics.median(r), "lowest": min(r), "highest": max(r)} for p, r in ratios.items()]
        for more in compared:
            value = {"metric": "speed", "value": work * scale_of.get(name, 1) ** -1 / us * 1e-6, "unit": unit} if unit == "TFLOP/s" else {
                "metric": "speed", "value": work / us * 1e-3, "unit": unit} if unit else {"metric": "time", "value": us, "unit": "us"}
            yield report_rows.row("block_sparse", case, name, us=us, **value, **more)


def attention_rows(library, sizes, rounds, flex, cudnn):
    tokens, heads, block, blocks = sizes
    case, count = case_of(*sizes)
    point = Point(library, tokens, heads, block, count)
    point.draw()
    density = count / point.rows
    backwards = {"giwa": lambda: point.run("giwa_sparse_backward"), "giwa_dense": lambda: point.dense("giwa_sparse_backward")}
    forwards = {"giwa": lambda: point.run("giwa_sparse_forward"), "giwa_dense": lambda: point.dense("giwa_sparse_forward")}
    point.run("giwa_sparse_forward")
    point.run("giwa_sparse_backward")
    torch.cuda.synchronize()
    point.check(case)
    for name, backend in flex:
        forwards[name], backwards[name] = flex_sides(point, backend)
        compare(case, point.tensors["o"], forwards[name]())
        for tensor, gradient in zip(("dq", "dk", "dv"), backwards[name]()):
            compare(f"{case} {tensor}", point.tensors[tensor], gradient)
    if cudnn:
        forwards["cudnn"] = cudnn_side(point)
        compare(case, point.tensors["o"], forwards["cudnn"]())
    scale = {"giwa_dense": density}
    calls = calls_of(forwards["giwa"])
    yield from rows_of(f"{case}/forward", alternate(forwards, rounds, calls), point.flops(), "TFLOP/s", scale)
    point.run("giwa_sparse_forward")  # the dense side wrote its o and lse
    yield from rows_of(f"{case}/backward", alternate(backwards, rounds, 2), 2.5 * point.flops(), "TFLOP/s", scale)


def flashinfer_side(point, o):
    """FlashInfer's kernel for Hopper, with the tensors of the point."""
    module = importlib.import_module("flashinfer.cake_vsa_sm90_backend")
    seen = torch.zeros(point.heads, point.rows, point.rows, dtype=torch.bool).scatter_(2, point.indices.long().cpu(), True)
    sizes = torch.full((point.heads, point.rows), point.block)
    plan = module.create_plan("cuda", seen, sizes, sizes, point.heads, point.heads, SIZE)
    q, k, v = (point.tensors[x][0].transpose(0, 1) for x in "qkv")
    return lambda: plan.run(q, k, v, out=o)


def vsa_rows(library, tokens, heads, count, common, rounds, flashinfer, cudnn):
    case = f"vsa/bf16/D{SIZE}/1x{heads}x{tokens}/{count}_{common}"
    point = Point(library, tokens, heads, 64, count, grads=False, dtype=torch.bfloat16, heads_first=True)
    point.draw(common)
    point.call.lse = None  # FlashInfer has none
    point.run("giwa_sparse_forward_bf16")
    torch.cuda.synchronize()
    point.check(case)
    sides = {"giwa": lambda: point.run("giwa_sparse_forward_bf16")}
    if flashinfer:
        o = torch.full((heads * tokens, 1, SIZE), float("nan"), device="cuda", dtype=torch.bfloat16)
        sides["flashinfer"] = flashinfer_side(point, o)
        sides["flashinfer"]()
        compare(case, point.tensors["o"], o.view(1, heads, tokens, SIZE).transpose(1, 2))
    if cudnn:
        sides["cudnn"] = cudnn_side(point)
        compare(case, point.tensors["o"], sides["cudnn"]())
    yield from rows_of(case, alternate(sides, rounds, calls_of(sides["giwa"])), point.flops(), "TFLOP/s")


def map_rows(library, kind, tokens, heads, block, count, rounds):
    case = f"maps/{kind}/blocks_{block}/1x{heads}x{tokens}"
    point = Point(library, tokens, heads, block, max(1, count), grads=False)
    if kind == "lists":
        point.draw()
        spent = alternate({"giwa": graph_of(lambda: point.run("giwa_map_of_lists"), 20)}, rounds, 1)
        yield from rows_of(case, {"giwa": [x / 20 for x in spent["giwa"]]}, 0, "")
        return
    point.put("visible", torch.rand(1, heads, tokens, tokens, device="cuda") < 0.5)
    point.put("words", torch.full((point.ask("giwa_map_bytes"),), 255, device="cuda", dtype=torch.uint8))
    visible = point.tensors["visible"]
    as_words = visible.view(torch.int64)
    sides = {"giwa": graph_of(lambda: point.run("giwa_map_of_bools"), 1), "sum": graph_of(lambda: as_words.sum(), 1)}
    yield from rows_of(case, alternate(sides, rounds, 1), visible.numel(), "GB/s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", default="block_sparse.csv", help="where the figures go, in the columns of a report")
    parser.add_argument("--only", default="", help="regular expression: which cases, as 'maps/' or '/0.1'")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--flex", action="store_true", help="FlexAttention takes part in some cases; it compiles for each")
    parser.add_argument("--flash", action="store_true", help="with --flex: FlexAttention by FlashAttention-4 too")
    parser.add_argument("--cudnn", action="store_true", help="cuDNN's block-sparse kernel takes part; it compiles for each block size")
    parser.add_argument("--flashinfer", action="store_true", help="FlashInfer takes part in the cases vsa/")
    parser.add_argument("--library", dest="entries", default="", metavar="giwa=PATH", help="built from block_sparse_entries.cu")
    parser.add_argument("--architecture", default="", help="what to build for, as 90a or 80; default: the GPU's")
    arguments = parser.parse_args()
    library = ctypes.CDLL(str(arguments.entries.split("=", 1)[-1] or gpu_library(arguments.architecture)))
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, {arguments.rounds} rounds; how many times as fast giwa is, and of "
          "density times dense speed")
    flex = (("flex", "TRITON"), ("flex_flash", "FLASH"))[:arguments.flex + arguments.flash]
    cases = [(case_of(*p)[0], attention_rows, (p, arguments.rounds, flex if p[2] == 128 and (p[0], p[3]) in WITH_FLEX else (), arguments.cudnn))
             for p in POINTS]
    cases += [(f"vsa/{p[0]}/{p[2]}_{p[3]}", vsa_rows, (*p, arguments.rounds, arguments.flashinfer, arguments.cudnn)) for p in VSA]
    cases += [(f"maps/{m[0]}/blocks_{m[3]}", map_rows, (*m, arguments.rounds)) for m in MAPS]
    rows = []
    for case, measure, given in cases:
        if not re.search(arguments.only, case):
            continue
        found = list(measure(library, *given))
        rows += found
        for name in dict.fromkeys(r["case"] for r in found):
            of_case = [r for r in found if r["case"] == name]
            shown = {r["contender"]: f"{r['contender']} {r['us']:.1f} us" + (f" ({r['value']:.0f} {r['unit']})" if r["unit"] != "us" else "")
                     for r in of_case}
            print(f"{name:<58}" + "  ".join(shown.values()) + "".join(
                f"  giwa/{r['ratio_to']} {r['ratio']:.3f}" for r in of_case if r["ratio"]), flush=True)
        Path(arguments.csv).write_text(report_rows.csv_text(rows), encoding="utf-8")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
