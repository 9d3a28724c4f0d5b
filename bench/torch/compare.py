#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times giwa and PyTorch on this machine's GPU: compare.py [out.csv] [filter]

Builds entries.cu next to it (nvcc in PATH) unless GIWA_ENTRIES names a built library, checks each result against float64,
then lets the contenders alternate on fresh random inputs; medians of events, several calls between two.
"""
import csv
import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
ROUNDS, CALLS, SETS = 21, 4, 2
ELEMENTS = {"fp32": (0, torch.float32), "fp16": (1, torch.float16), "bf16": (2, torch.bfloat16)}


def library():
    built = os.environ.get("GIWA_ENTRIES")
    if not built:
        built = Path(tempfile.mkdtemp()) / "entries.so"
        major, minor = torch.cuda.get_device_capability()
        arch = f"{major}{minor}" + ("a" if major >= 9 else "")
        subprocess.run(["nvcc", "-std=c++20", "-O3", "-shared", "-Xcompiler=-fPIC", f"-I{HERE.parent.parent}/include", f"-I{HERE.parent.parent}/examples",
                        "-gencode", f"arch=compute_{arch},code=sm_{arch}", HERE / "entries.cu", "-o", built], check=True)
    return ctypes.CDLL(str(built))


def pointer(tensor):
    return ctypes.c_void_p(tensor.data_ptr())


def stream():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


class Softmax:
    """softmax over the last of two dimensions, 1 GiB read a call."""
    name = "softmax"

    def __init__(self, entries, element, columns):
        self.element, kind = ELEMENTS[element]
        self.rows, self.columns = (1 << 30) // (columns * kind.itemsize), columns
        self.case = f"softmax/{element}/{self.rows}x{columns}"
        self.inputs = [torch.randn(self.rows, columns, device="cuda").mul_(4).to(kind) for _ in range(SETS)]
        self.outputs = [torch.full_like(x, float("nan")) for x in self.inputs]
        self.bytes = 2 * self.inputs[0].nbytes
        self.entry = entries.giwa_softmax
        self.contenders = {"copy": self.copy, "torch": self.torch, "giwa": self.giwa}

    def copy(self, s):
        self.outputs[s].copy_(self.inputs[s])

    def torch(self, s):
        torch.softmax(self.inputs[s], dim=-1, out=self.outputs[s])

    def giwa(self, s):
        code = self.entry(self.element, pointer(self.inputs[s]), pointer(self.outputs[s]), ctypes.c_longlong(self.rows),
                          ctypes.c_longlong(self.columns), stream())
        assert code == 0, code

    def check(self):
        """Some rows against float64, and that all was written; the error compared with half a unit of the type."""
        out = self.outputs[0].fill_(float("nan"))
        self.giwa(0)
        assert not torch.isnan(out).any(), f"{self.case}: not all was written"
        some = torch.tensor(sorted({0, 1, self.rows // 3, self.rows - 1}), device="cuda")
        truth = torch.softmax(self.inputs[0][some].double(), dim=-1)
        error = ((out[some].double() - truth).abs() / (truth + 1e-4)).max().item()
        assert error < 0.51 * torch.finfo(out.dtype).eps + 4e-6, f"{self.case}: off by {error}"


class Transpose:
    """A copy of the transposed matrix."""
    name = "transpose"

    def __init__(self, entries, element, rows, columns):
        self.element, kind = ELEMENTS[element]
        self.rows, self.columns = rows, columns
        self.case = f"transpose/{element}/{rows}x{columns}"
        self.inputs = [torch.randn(rows, columns, device="cuda").to(kind) for _ in range(SETS)]
        self.outputs = [torch.full((columns, rows), float("nan"), device="cuda", dtype=kind) for _ in range(SETS)]
        self.bytes = 2 * self.inputs[0].nbytes
        self.entry = entries.giwa_transpose
        self.contenders = {"copy": self.copy, "torch": self.torch, "giwa": self.giwa}

    def copy(self, s):
        self.outputs[s].view(self.rows, self.columns).copy_(self.inputs[s])

    def torch(self, s):
        self.outputs[s].copy_(self.inputs[s].t())

    def giwa(self, s):
        code = self.entry(self.element, pointer(self.inputs[s]), pointer(self.outputs[s]), ctypes.c_longlong(self.rows),
                          ctypes.c_longlong(self.columns), stream())
        assert code == 0, code

    def check(self):
        out = self.outputs[0].fill_(float("nan"))
        self.giwa(0)
        assert torch.equal(out, self.inputs[0].t()), f"{self.case}: wrong"


# The cases, by what they are: another entry is a class like the one above, and a line here.
CASES = [(Softmax, (element, columns)) for element in ELEMENTS
         for columns in (256, 512, 1000, 1001, 1024, 2048, 4096, 8192, 16384, 32768, 50257, 131072)]
CASES += [(Transpose, (element, *shape)) for element in ("fp32", "fp16") for shape in ((32768, 32768), (30011, 29989))]


def seconds(call, first_set):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    call(first_set % SETS)  # the first event then follows work
    begin.record()
    for i in range(CALLS):
        call((first_set + i) % SETS)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / CALLS


def median(values):
    return sorted(values)[len(values) // 2]


def main(out="torch.csv", wanted=""):
    entries, rows = library(), []
    print("#", torch.cuda.get_device_name(), "torch", torch.__version__)
    for make, arguments in CASES:
        if wanted and wanted not in "/".join([make.name, *map(str, arguments)]):
            continue
        case = make(entries, *arguments)
        case.check()
        times = {name: [] for name in case.contenders}
        for round_ in range(ROUNDS + 2):
            for name, call in case.contenders.items():
                spent = seconds(call, round_)
                if round_ >= 2:  # two rounds to warm up
                    times[name].append(spent)
        ratio = {name: median([t / g for t, g in zip(times[name], times["giwa"])]) for name in times}
        row = {"case": case.case}
        for name in times:
            row[f"{name}_us"] = f"{median(times[name]) * 1e6:.2f}"
            row[f"{name}_gbs"] = f"{case.bytes / median(times[name]) * 1e-9:.0f}"
        row.update(speed_of_copy=f"{ratio['copy']:.3f}", speed_of_torch=f"{ratio['torch']:.3f}")
        rows.append(row)
        case.contenders.clear()  # its bound methods keep the case, and some GiB, alive in a cycle
        print(f"{row['case']:<34}giwa {row['giwa_gbs']:>5} GB/s  torch {row['torch_gbs']:>5}  copy {row['copy_gbs']:>5}  "
              f"{row['speed_of_torch']} x torch  {row['speed_of_copy']} x copy", flush=True)
        del case
        torch.cuda.empty_cache()
    with open(out, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
