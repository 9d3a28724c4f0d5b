#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Errors of giwa's attention in fp32, in each of its accuracies, against float64, compared with PyTorch's unfused and memory-efficient
fp32 (TF32 off).

Inputs come in families: `random` (normal), `sharp` (queries 8 times as large), `wide` (each element times 2^-10 to 2^10),
`rows` (each key and each value times 2^-5 to 2^5), `hot` (a column of v times 10^6, one of k times 100), `offset` (v lies around
10). For each there is the relative error in the 2-norm: of all of the output, of its worst row, of its worst column.

Libraries are built next to it (nvcc in PATH), or given: --library NAME=PATH with the names fp32, fp32_exact, tf32 and fp16.
"""
import argparse
import csv
import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

HERE = Path(__file__).resolve().parent
NAMES = ("fp32", "fp32_exact", "tf32", "fp16")
FAMILIES = ("random", "sharp", "wide", "rows", "hot", "offset")
LENGTHS = (1024, 4096, 16384, 65536)
QUERIES, HEADS = 1024, 2


def library(name):
    major, minor = torch.cuda.get_device_capability()
    architecture = f"{major}{minor}" + ("a" if major >= 9 else "")
    built = Path(tempfile.mkdtemp(prefix="giwa_accuracy_")) / f"{name}.so"
    how = ["-DGIWA_BENCH_ELEMENT=giwa::fp16"] if name == "fp16" else [f"-DGIWA_BENCH_HOW=giwa::{name}"]
    subprocess.run(["nvcc", "-std=c++20", "-O3", "-shared", "-Xcompiler=-fPIC", f"-I{HERE.parent.parent}/include", *how,
                    "-gencode", f"arch=compute_{architecture},code=sm_{architecture}", HERE / "attention_entries.cu",
                    "-o", built], check=True)
    return built


def inputs(family, keys, size):
    """q (1, QUERIES, HEADS, size), k and v (1, keys, HEADS, size) in fp32."""
    q = torch.randn(1, QUERIES, HEADS, size, device="cuda")
    k, v = (torch.randn(1, keys, HEADS, size, device="cuda") for _ in range(2))
    power = lambda x, most: torch.exp2((torch.rand_like(x) * 2 - 1) * most)
    if family == "sharp":
        q *= 8
    elif family == "wide":
        q, k, v = q * power(q, 10) / 64, k * power(k, 10) / 64, v * power(v, 10)
    elif family == "rows":
        k, v = k * power(k[..., :1], 5) / 8, v * power(v[..., :1], 5)
    elif family == "hot":
        k[..., 3] *= 100
        q[..., 3] /= 100
        v[..., 5] *= 1e6
        v[..., 7] *= 1e-3
    elif family == "offset":
        v += 10
    return q, k, v


def exact(q, k, v, causal):
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    out = []
    for first in range(0, QUERIES, 128):
        scores = q[:, :, first:first + 128] @ k.transpose(2, 3) / q.shape[3] ** 0.5
        if causal:
            rows = torch.arange(first, first + 128, device="cuda")[:, None] + k.shape[2] - QUERIES
            scores.masked_fill_(torch.arange(k.shape[2], device="cuda")[None, :] > rows, float("-inf"))
        out.append(torch.softmax(scores, -1) @ v)
    return torch.cat(out, 2).transpose(1, 2)


def torch_attention(backend, q, k, v, causal):
    mask = None
    if causal:
        rows = torch.arange(QUERIES, device="cuda")[:, None] + k.shape[1] - QUERIES
        mask = torch.arange(k.shape[1], device="cuda")[None, :] <= rows
    with sdpa_kernel(backend):
        o = scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), attn_mask=mask)
    return o.transpose(1, 2)


def giwa(name, entries, q, k, v, causal):
    kind = torch.float16 if name == "fp16" else torch.float32
    q, k, v = (x.to(kind).contiguous() for x in (q, k, v))
    o = torch.full_like(q, float("nan"))
    sizes = [ctypes.c_longlong(x) for x in (1, QUERIES, k.shape[1], HEADS, HEADS, q.shape[3])]
    entries.giwa_workspace_bytes.restype = ctypes.c_longlong
    workspace = torch.full((entries.giwa_workspace_bytes(*sizes),), 255, device="cuda", dtype=torch.uint8)
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in (q, k, v, o)]
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    code = entries.giwa_attention(int(causal), *pointers, *sizes, ctypes.c_void_p(workspace.data_ptr()), stream)
    assert code == 0, f"{name} answers {code}"
    return o


def errors(o, truth):
    """Of all, of the worst row, of the worst column."""
    off = o.double() - truth
    norm = lambda x, dims: torch.linalg.vector_norm(x, dim=dims)
    ratio = lambda dims: (norm(off, dims) / norm(truth, dims)).max().item()
    return ratio((0, 1, 2, 3)), ratio((3,)), ratio((1,))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", default="accuracy.csv", help="where the figures go")
    parser.add_argument("--library", dest="libraries", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--sizes", default="64,128,256", help="head sizes")
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)), help="of keys")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    given = dict(x.split("=", 1) for x in arguments.libraries)
    libraries = {name: ctypes.CDLL(str(given[name] if given else library(name))) for name in given or NAMES}
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}; 10^-7 of all / worst row / worst column")
    rows = []
    for size in map(int, arguments.sizes.split(",")):
        for causal in (False, True):
            for family in FAMILIES:
                for keys in map(int, arguments.lengths.split(",")):
                    torch.manual_seed(keys + size)
                    q, k, v = inputs(family, keys, size)
                    truth = exact(q, k, v, causal)
                    found = {name: errors(giwa(name, entries, q, k, v, causal), truth) for name, entries in libraries.items()}
                    found["unfused"] = errors(torch_attention(SDPBackend.MATH, q, k, v, causal), truth)
                    try:
                        found["efficient"] = errors(torch_attention(SDPBackend.EFFICIENT_ATTENTION, q, k, v, causal), truth)
                    except RuntimeError as error:  # it does not take these
                        print(f"# efficient has no answer: {str(error).splitlines()[0]}")
                    case = f"{family}/{'causal' if causal else 'full'}/D{size}/{keys}"
                    row = {"case": case}
                    for name, of in found.items():
                        row.update({f"{name}_{what}": f"{x:.3e}" for what, x in zip(("all", "row", "column"), of, strict=True)})
                    rows.append(row)
                    print(f"{case:<26}" + "".join(f" {n} " + "/".join(f"{x * 1e7:.3g}" for x in e) for n, e in found.items()),
                          flush=True)
    with open(arguments.csv, "w", encoding="utf-8", newline="") as file:
        columns = dict.fromkeys(key for row in rows for key in row)  # not every case has every backend
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
