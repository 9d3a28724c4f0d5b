#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Errors of attention in e4m3 on Hopper against float64, by what shares a scale, compared with FlashAttention-3's e4m3.

Inputs of head size 128 come in families: `normal`; `shifted`, whose k and v have a mean of their deviation in each channel;
`outlier`, of which one element in a thousand is 10 times as large. Scales: `tensor`, `head`, `blocks` (64 rows of q and k, a head of
v), `rows` (each row of q, 64 rows of k, each channel of v). An error is that of all of o in the 2-norm, relative to o.
`kernel` compares with the numbers that e4m3 has, `whole` with those before they were rounded.

`needle`: each query has a key with a given share of its weight among 131072, and the value of that key is one of 64 codes, which are
shifted as all values are. Told is how many of 1024 codes are found in o.

`model` trains a small language model of bytes on the sources of giwa, and tells its perplexity on others with each attention.

Libraries are built next to it (nvcc in PATH), or given: --library e4m3=PATH --library fp16=PATH. Without --peers (the folder of
peers/unpack.py) FlashAttention-3 is left out.
"""
import argparse
import csv
import ctypes
import math
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

HERE = Path(__file__).resolve().parent
FAMILIES = ("normal", "shifted", "outlier")
SCALES = ("tensor", "head", "blocks", "rows")
LENGTHS = (1024, 4096, 16384, 65536, 131072)
QUERIES, HEADS, SIZE, LARGEST, BLOCK = 1024, 4, 128, 448.0, 64
WEIGHTS = (0.3, 0.1, 0.05, 0.02, 0.01)
NAMES = ("fp16", "e4m3")


def library(name):
    built = Path(tempfile.mkdtemp(prefix="giwa_accuracy_")) / f"{name}.so"
    how = ["-DGIWA_BENCH_E4M3"] if name == "e4m3" else ["-DGIWA_BENCH_NO_VARIANTS", "-DGIWA_BENCH_USUAL_SIZES"]
    subprocess.run(["nvcc", "-std=c++20", "-O3", "-shared", "-Xcompiler=-fPIC", f"-I{HERE.parent.parent}/include", *how,
                    "-gencode", "arch=compute_90a,code=sm_90a", HERE / "attention_entries.cu",
                    "-o", built], check=True)
    return built


def pointer(tensor):
    return None if tensor is None else ctypes.c_void_p(tensor.data_ptr())


def rounded(x, rows, columns=False):
    """x (batch, rows, heads, size) in e4m3, and scales (batch, groups, heads) of groups of `rows` rows, 0 for all; of columns
    (heads, size); for rows < 0 of all of x."""
    b, n, h, d = x.shape
    if columns:
        scale = x.abs().amax((0, 1)) / LARGEST
        of_each = scale[None, None]
    else:
        group = n if rows <= 0 else rows
        padded = torch.nn.functional.pad(x.abs(), (0, 0, 0, 0, 0, -n % group))
        scale = padded.reshape(b, -1, group, h, d).amax((2, 4)) / LARGEST
        if rows < 0:
            scale = torch.full_like(scale, scale.max().item())
        of_each = scale.repeat_interleave(group, 1)[:, :n, :, None]
    return (x / of_each).to(torch.float8_e4m3fn), scale.contiguous(), of_each


def quantized(q, k, v, scales):
    """[(codes, scales, scale of each element)] of q, k, v, and the rows of a group of q and of k."""
    q_rows, k_rows = {"tensor": (-1, -1), "head": (0, 0), "blocks": (BLOCK, BLOCK), "rows": (1, BLOCK)}[scales]
    of_v = rounded(v, 0, True) if scales == "rows" else rounded(v, -1 if scales == "tensor" else 0)
    return [rounded(q, q_rows), rounded(k, k_rows), of_v], max(q_rows, 0), max(k_rows, 0)


class Sides:
    def __init__(self, arguments):
        given = dict(x.split("=", 1) for x in arguments.libraries)
        self.giwa = {name: ctypes.CDLL(str(Path(given[name]).resolve() if name in given else library(name))) for name in NAMES}
        self.fa3 = None
        if arguments.peers:
            sys.path.append(str(HERE / "peers"))
            sys.path.append(str(HERE.parent))
            import tables
            tables.activate(arguments.peers)
            import sides
            self.fa3 = sides.Peers(arguments.peers, print, ["fa3", "fa3_e4m3"])

    def call(self, name, q, k, v, causal, *more):
        entry = self.giwa[name].giwa_attention_scaled if more else self.giwa[name].giwa_attention
        inputs = [x.contiguous() for x in (q, k, v)]
        o = torch.full(q.shape, float("nan"), device="cuda", dtype=torch.float16)
        sizes = [ctypes.c_longlong(x) for x in (q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3])]
        self.giwa[name].giwa_workspace_bytes.restype = ctypes.c_longlong
        space = torch.zeros(self.giwa[name].giwa_workspace_bytes(*sizes), device="cuda", dtype=torch.uint8)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        code = entry(int(causal), *map(pointer, (*inputs, o)), *sizes, pointer(space), *more, stream)
        assert code == 0, f"giwa answers {code}"
        return o

    def fp16(self, q, k, v, causal=False):
        return self.call("fp16", *(x.half() for x in (q, k, v)), causal)

    def e4m3(self, q, k, v, scales, causal=False):
        """o, and the numbers that the codes stand for."""
        parts, q_rows, k_rows = quantized(q, k, v, scales)
        (q8, of_q, _), (k8, of_k, _), (v8, of_v, _) = parts
        if scales == "tensor":
            q_rows = k_rows = 0
        by_channel = scales == "rows"
        o = self.call("e4m3", q8, k8, v8, causal, pointer(of_q), ctypes.c_int(q_rows), pointer(of_k), ctypes.c_int(k_rows),
                      pointer(None if by_channel else of_v), pointer(of_v if by_channel else None))
        return o, [x.double() * s.double() for x, _, s in parts]

    def flash(self, q, k, v, scales, causal=False):
        parts, *_ = quantized(q, k, v, scales)
        return self.fa3.forward_e4m3(*(x for x, _, _ in parts), causal=causal, scales=[s[:, 0] for _, s, _ in parts])


def exact(q, k, v):
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    out = []
    for first in range(0, q.shape[2], 128):
        out.append(torch.softmax(q[:, :, first:first + 128] @ k.transpose(2, 3) / q.shape[3] ** 0.5, -1) @ v)
    return torch.cat(out, 2).transpose(1, 2)


def error(o, truth):
    return ((o.double() - truth).norm() / truth.norm()).item()


def inputs(family, keys, size=SIZE, heads=HEADS):
    q = torch.randn(1, QUERIES, heads, size, device="cuda")
    k, v = (torch.randn(1, keys, heads, size, device="cuda") for _ in range(2))
    if family == "shifted":
        k, v = k + torch.randn(1, 1, heads, size, device="cuda"), v + torch.randn(1, 1, heads, size, device="cuda")
    if family == "outlier":
        q, k, v = (x * (1 + 9 * (torch.rand_like(x) < 1e-3)) for x in (q, k, v))
    return [x.half().float() for x in (q, k, v)]


def errors(sides, lengths):
    rows = []

    def tell(case, side, o, of_codes, truth):
        rows.append({"case": case, "side": side, "kernel": f"{error(o, of_codes):.3e}" if of_codes is not None else "",
                     "whole": f"{error(o, truth):.3e}"})
        print(case, side, rows[-1]["kernel"], rows[-1]["whole"], flush=True)
    for family in FAMILIES:
        for keys in lengths:
            torch.manual_seed(keys)
            q, k, v = inputs(family, keys)
            truth = exact(q, k, v)
            tell(f"{family}/{keys}", "giwa fp16", sides.fp16(q, k, v), None, truth)
            for scales in SCALES:
                o, numbers = sides.e4m3(q, k, v, scales)
                of_codes = exact(*numbers)
                tell(f"{family}/{keys}/{scales}", "giwa e4m3", o, of_codes, truth)
                if sides.fa3 and scales in ("tensor", "head"):
                    tell(f"{family}/{keys}/{scales}", "fa3 e4m3", sides.flash(q, k, v, scales), of_codes, truth)
    for size in (64, 256):  # the bar of long sums: values whose mean is their deviation
        torch.manual_seed(size)
        q, k, v = inputs("normal", 65536, size, 2)
        o, numbers = sides.e4m3(q, k, v + 1, "head")
        tell(f"mean 1/65536/D{size}", "giwa e4m3", o, exact(*numbers), exact(q, k, v + 1))
    q, k, v = inputs("normal", 65536)
    o, numbers = sides.e4m3(q, k, v + 1, "head")
    of_codes, truth = exact(*numbers), exact(q, k, v + 1)
    tell("mean 1/65536/D128", "giwa e4m3", o, of_codes, truth)
    if sides.fa3:
        tell("mean 1/65536/D128", "fa3 e4m3", sides.flash(q, k, v + 1, "head"), of_codes, truth)
    return rows


def needle(sides, keys=131072, codes=64):
    """A head for each share of WEIGHTS."""
    torch.manual_seed(1)
    heads = len(WEIGHTS)
    k = torch.randn(1, keys, heads, SIZE, device="cuda")
    mean = torch.randn(SIZE, device="cuda")
    code = torch.randn(codes, SIZE, device="cuda")
    v = torch.randn(1, keys, heads, SIZE, device="cuda") + mean
    place = torch.randperm(keys, device="cuda")[:QUERIES]
    chosen = torch.randint(codes, (QUERIES,), device="cuda")
    v[:, place] = (mean + code[chosen])[None, :, None]
    q = torch.empty(1, QUERIES, heads, SIZE, device="cuda")
    for h, weight in enumerate(WEIGHTS):
        # A query is a k of its needle: that score is a |k|^2 / sqrt(size), the others have the deviation a |k| / sqrt(size).
        found, norm = k[0, place, h], k[0, place, h].norm(dim=1) / SIZE ** 0.5
        wanted, low, high = math.log(keys) + math.log(weight / (1 - weight)), torch.zeros_like(norm), torch.full_like(norm, 3)
        for _ in range(40):
            a = (low + high) / 2
            less = a * norm ** 2 * SIZE ** 0.5 - (a * norm) ** 2 / 2 < wanted
            low, high = torch.where(less, a, low), torch.where(less, high, a)
        q[0, :, h] = found * a[:, None]
    q, k, v = (x.half().float() for x in (q, k, v))
    mean, code = mean.double(), code.double()
    found = {"fp64": exact(q, k, v), "giwa fp16": sides.fp16(q, k, v), "giwa e4m3": sides.e4m3(q, k, v, "head")[0]}
    if sides.fa3:
        found["fa3 e4m3"] = sides.flash(q, k, v, "head")
    rows = []
    for side, o in found.items():
        for h, weight in enumerate(WEIGHTS):
            distance = torch.cdist(o[0, :, h].double(), mean + weight * code)
            share = (distance.argmin(1) == chosen).double().mean().item()
            rows.append({"case": f"needle/{weight:g}", "side": side, "kernel": "", "whole": f"{share:.4f}"})
        print("needle", side, *(x["whole"] for x in rows[-len(WEIGHTS):]), flush=True)
    return rows


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(width) for _ in range(2))
        self.qkv, self.out = torch.nn.Linear(width, 3 * width, bias=False), torch.nn.Linear(width, width, bias=False)
        self.up, self.down = torch.nn.Linear(width, 4 * width, bias=False), torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x, turn, attend):
        b, n, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, n, 3, width // SIZE, SIZE).unbind(2)
        rotate = lambda y: torch.view_as_real(torch.view_as_complex(y.float().reshape(*y.shape[:-1], -1, 2)) * turn).flatten(3).to(y.dtype)
        x = x + self.out(attend(rotate(q), rotate(k), v).reshape(b, n, width).to(x.dtype))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norms[1](x))))


class Model(torch.nn.Module):
    def __init__(self, width=512, layers=6):
        super().__init__()
        self.embedding = torch.nn.Embedding(256, width)
        self.blocks, self.norm = torch.nn.ModuleList(Block(width) for _ in range(layers)), torch.nn.RMSNorm(width)

    def forward(self, ids, attend):
        angles = torch.arange(ids.shape[1], device="cuda")[:, None] * 10000 ** (-torch.arange(0, SIZE, 2, device="cuda") / SIZE)
        turn = torch.polar(torch.ones_like(angles), angles)[None, :, None]
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, turn, attend)
        return self.norm(x) @ self.embedding.weight.T / x.shape[-1] ** 0.5


def model(sides, seconds, length=4096, batch=8):
    files = sorted(x for x in HERE.parent.parent.rglob("*") if x.suffix in (".hpp", ".cuh", ".cu", ".cpp", ".py") and "build" not in x.parts)
    random.Random(1).shuffle(files)
    held = files[:len(files) // 20]
    text = lambda some: torch.frombuffer(bytearray(b"".join(x.read_bytes() for x in some)), dtype=torch.uint8).cuda().long()
    train, test = text(files[len(held):]), text(held)
    print(f"model: {len(train)} and {len(test)} bytes", flush=True)
    torch.manual_seed(1)
    net = Model().cuda()
    torch.nn.init.normal_(net.embedding.weight, std=1)
    best = torch.optim.AdamW(net.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)
    fused = lambda q, k, v: scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)
    begin, step = time.time(), 0
    while (part := (time.time() - begin) / seconds) < 1:
        for group in best.param_groups:
            group["lr"] = 1e-3 * min(1, (step + 1) / 50) * (1 - 0.95 * part)
        first = torch.randint(len(train) - length - 1, (batch,), device="cuda")
        ids = train[first[:, None] + torch.arange(length + 1, device="cuda")]
        with torch.autocast("cuda", torch.bfloat16):
            scores = net(ids[:, :-1], fused)
        loss = cross_entropy(scores.float().flatten(0, 1), ids[:, 1:].flatten())
        best.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        best.step()
        step += 1
        if step % 20 == 0:
            torch.cuda.synchronize()
    print(f"model: {step} steps, loss {loss.item():.4f}", flush=True)
    attends = {"fp32": lambda q, k, v: fused(q.float(), k.float(), v.float()), "giwa fp16": lambda q, k, v: sides.fp16(q, k, v, True)}
    for scales in SCALES:
        attends[f"giwa e4m3, {scales}"] = lambda q, k, v, scales=scales: sides.e4m3(q.float(), k.float(), v.float(), scales, True)[0]
    if sides.fa3:
        attends["fa3 e4m3, head"] = lambda q, k, v: sides.flash(q.float(), k.float(), v.float(), "head", True)
    rows, count = [], min(16, (len(test) - 1) // length)
    for side, attend in attends.items():
        total = 0.0
        with torch.no_grad():
            for i in range(count):
                ids = test[i * length:(i + 1) * length + 1][None]
                total += cross_entropy(net(ids[:, :-1], attend).float()[0], ids[0, 1:]).item()
        rows.append({"case": f"model/{count * length}", "side": side, "kernel": "", "whole": f"{math.exp(total / count):.5f}"})
        print("model", side, rows[-1]["whole"], flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", dest="libraries", action="append", default=[], metavar="NAME=PATH", help=", ".join(NAMES))
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="of peers/unpack.py")
    parser.add_argument("--lengths", type=lambda x: [int(y) for y in x.split(",")], default=LENGTHS, metavar="1024,4096")
    parser.add_argument("--train", type=float, default=20, metavar="SECONDS", help="of training; default: %(default)s")
    parser.add_argument("--csv", type=Path, required=True)
    arguments = parser.parse_args()
    sides, rows = Sides(arguments), []
    for part in (lambda: errors(sides, arguments.lengths), lambda: needle(sides), lambda: model(sides, arguments.train)):
        try:
            rows += part()
        except Exception as failure:  # the other parts are told
            print(f"# {type(failure).__name__}: {failure}", flush=True)
        with open(arguments.csv, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ("case", "side", "kernel", "whole"), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
