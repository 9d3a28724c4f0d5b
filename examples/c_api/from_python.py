#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Calls giwa from Python by ctypes, without NumPy or PyTorch, and checks attention and its gradients against loops: from_python.py LIBRARY

LIBRARY is what giwa_c.cu is compiled to. It runs on a GPU if there is one, in managed memory; a second argument, cpu or gpu, chooses.
"""
import ctypes
import math
import random
import struct
import sys

GPU, CPU = 0, 1
FP16 = 0
INVALID_ARGUMENT = 1


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("sizes", ctypes.c_int64 * 4), ("strides", ctypes.c_int64 * 4)]


class Attention(ctypes.Structure):
    """giwa_attention of giwa_c.h."""
    _fields_ = [("place", ctypes.c_int32), ("dtype", ctypes.c_int32), ("stream", ctypes.c_void_p),
                *((name, Tensor) for name in ("q", "k", "v", "o")), ("lse", ctypes.c_void_p), ("scale", ctypes.POINTER(ctypes.c_float)),
                *((name, ctypes.c_int32) for name in ("causal", "window", "top_left")),
                ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_int64), ("q_offsets", ctypes.c_void_p),
                ("k_offsets", ctypes.c_void_p), ("sequences", ctypes.c_int64), ("max_q", ctypes.c_int64),
                *((name, Tensor) for name in ("dout", "dq", "dk", "dv")), ("non_deterministic", ctypes.c_int32),
                ("lengths", ctypes.c_void_p), ("pages", ctypes.c_void_p), ("pages_per_sequence", ctypes.c_int64)]


class Driver:
    """What the check needs of CUDA's driver: memory that the CPU and the GPU reach, and waiting."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)  # the runtime's context
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        code = getattr(self.cuda, name)(*arguments)
        if code != 0:
            raise OSError(f"{name} returned {code}")

    def memory(self, size):
        data = ctypes.c_uint64()
        self.call("cuMemAllocManaged", ctypes.byref(data), ctypes.c_size_t(size), ctypes.c_uint(1))
        return data.value


def main(path, place=None):
    driver = None
    if place != "cpu":
        try:
            driver = Driver()
        except OSError as error:
            print("no GPU:", error)
            if place == "gpu":
                return 1
    library, message, kept = ctypes.CDLL(path), ctypes.create_string_buffer(512), []

    def memory(size):
        if driver is not None:
            return driver.memory(size)
        kept.append(ctypes.create_string_buffer(size + 16))
        return (ctypes.addressof(kept[-1]) + 15) // 16 * 16

    def tensor(rows, heads, size, numbers=None):
        t = Tensor(memory(2 * rows * heads * size), (1, rows, heads, size), (rows * heads * size, heads * size, size, 1))
        if numbers is not None:
            ctypes.memmove(t.data, struct.pack(f"{len(numbers)}e", *numbers), 2 * len(numbers))
        return t

    def numbers_of(t):
        count = math.prod(t.sizes)
        return struct.unpack(f"{count}e", ctypes.string_at(t.data, 2 * count))

    def run(name, call, number):
        size = ctypes.c_int64()
        code = library.giwa_attention_workspace_bytes(number, ctypes.byref(call), ctypes.byref(size), message, ctypes.c_size_t(512))
        if code == 0:
            call.workspace, call.workspace_bytes = memory(size.value) if size.value else None, size.value
            code = getattr(library, f"giwa_attention_{name}")(ctypes.byref(call), message, ctypes.c_size_t(512))
        if driver is not None:
            driver.call("cuCtxSynchronize")
        return code

    random.seed(2026)
    queries, keys, heads, kv_heads, size = 21, 30, 4, 2, 128
    shapes = {"q": (queries, heads), "k": (keys, kv_heads), "v": (keys, kv_heads), "dout": (queries, heads)}
    given = {name: [random.randrange(-128, 128) / 64 for _ in range(rows * count * size)] for name, (rows, count) in shapes.items()}
    call = Attention(CPU if driver is None else GPU, FP16, causal=1, lse=memory(4 * heads * queries))
    for name, (rows, count) in shapes.items():
        setattr(call, name, tensor(rows, count, size, given[name]))
    for name, like in (("o", "q"), ("dq", "q"), ("dk", "k"), ("dv", "v")):
        setattr(call, name, tensor(*shapes[like], size))
    for number, name in enumerate(("forward", "backward")):
        if run(name, call, number) != 0:
            sys.exit(f"{name}: {message.value.decode()}")

    # The same by loops.
    def row(name, i, head):
        begin = (i * shapes[name][1] + head) * size
        return given[name][begin:begin + size]

    def dot(x, y):
        return sum(a * b for a, b in zip(x, y))

    exact = {name: [0.0] * math.prod(getattr(call, name).sizes) for name in ("o", "dq", "dk", "dv")}

    def add(name, count, i, head, factor, x):
        begin = (i * count + head) * size
        for d in range(size):
            exact[name][begin + d] += factor * x[d]

    for h in range(heads):
        for i in range(queries):
            g, seen = h // (heads // kv_heads), i + 1 + keys - queries
            scores = [dot(row("q", i, h), row("k", j, g)) / math.sqrt(size) for j in range(seen)]
            total = sum(map(math.exp, scores))
            p = [math.exp(x) / total for x in scores]
            slopes = [dot(row("dout", i, h), row("v", j, g)) for j in range(seen)]
            mean = dot(p, slopes)
            for j in range(seen):
                ds = p[j] * (slopes[j] - mean) / math.sqrt(size)
                add("o", heads, i, h, p[j], row("v", j, g))
                add("dv", kv_heads, j, g, p[j], row("dout", i, h))
                add("dq", heads, i, h, ds, row("k", j, g))
                add("dk", kv_heads, j, g, ds, row("q", i, h))
    wrong = False
    for name, expected in exact.items():
        error = max(abs(x - y) for x, y in zip(numbers_of(getattr(call, name)), expected)) / max(map(abs, expected))
        wrong |= not error <= 3 * 2**-11
        print(f"{name}: {error:.1e} of the largest element away")

    call.k.strides[3] = 2
    code = run("forward", call, 0)
    print("a call with another last stride:", message.value.decode())
    wrong |= code != INVALID_ARGUMENT or b"stride" not in message.value
    print(f"from Python, on the {'CPU' if driver is None else 'GPU'}:", "FAILED" if wrong else "right")
    return int(wrong)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:3]))
