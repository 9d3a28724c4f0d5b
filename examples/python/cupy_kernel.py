#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""giwa's headers in kernels that CuPy compiles when the program runs (NVRTC): python3 cupy_kernel.py

Only the headers of giwa and of the toolkit are needed, no nvcc. Expected output, with the times of your machine:

    compiled by NVRTC in … s
    fill:    1000003 random numbers, the same bits as in NumPy
    softmax: 4096 rows of 5000, … GB/s, largest error … of a row's largest weight
"""
import sys
import time

import cupy
import numpy as np

import support

SEED = 2 ** 40 + 7


def main():
    begin = time.perf_counter()
    kernels = cupy.RawModule(code=(support.HERE / "softmax_kernels.cuh").read_text(encoding="utf-8"), backend="nvrtc",
                             options=support.nvrtc_options())
    fill, row_softmax = kernels.get_function("fill"), kernels.get_function("row_softmax")
    print(f"compiled by NVRTC in {time.perf_counter() - begin:.1f} s")

    numbers = cupy.full(1000003, cupy.nan, dtype=cupy.float32)
    fill((100,), (256,), (numbers, np.int64(numbers.size), np.uint64(SEED)))
    expected = 16 * support.uniform(SEED, np.arange(numbers.size)) - 8
    same = np.array_equal(numbers.get(), expected)
    print(f"fill:    {numbers.size} random numbers, {'the same bits as in NumPy' if same else 'WRONG'}")

    rows, columns = 4096, 5000
    x = cupy.empty((rows, columns), dtype=cupy.float32)
    y = cupy.full_like(x, cupy.nan)
    fill((1000,), (256,), (x, np.int64(x.size), np.uint64(SEED)))
    x[1, 10:] = -cupy.inf  # rows as masks leave them
    call = (x, y, np.int64(rows), np.int64(columns))
    row_softmax((rows,), (256,), call)
    first, last = cupy.cuda.Event(), cupy.cuda.Event()
    first.record()
    for _ in range(20):
        row_softmax((rows,), (256,), call)
    last.record()
    last.synchronize()
    speed = 20 * 2 * x.nbytes / cupy.cuda.get_elapsed_time(first, last) * 1e-6
    error = support.softmax_error(y.get(), x.get())
    print(f"softmax: {rows} rows of {columns}, {speed:.0f} GB/s, largest error {error:.1e} of a row's largest weight")
    return 0 if same and error < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
