#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A kernel in Python, by Numba, that calls giwa's random numbers and softmax state: python3 numba_kernel.py

numba_shim.cu has the device functions; nvcc makes PTX of it, which Numba links. Where Numba is missing or does not work, the
same functions are called from a kernel in CUDA C++, by CuPy, and the output says so. Expected:

    Numba …: a kernel in Python calls giwa
    random numbers: 257 x 1000, the same bits as in NumPy
    softmax of 257 rows: largest error … of a row's largest weight
"""
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import support

ROWS, COLUMNS, SEED, STREAM = 257, 1000, 2 ** 40 + 7, 3

# What a row's thread does below, for the machine without Numba; each function answers 0.
BY_HAND = """
#include "numba_shim.cu"
extern "C" __global__ void rows_of_weights(float* x, float* weights, long long rows, long long columns,
                                           unsigned long long seed, unsigned long long stream) {
  const long long row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  int failed = 0;
  pair s{state{}.max, state{}.sum};  // of nothing
  for (long long i = row * columns; i < (row + 1) * columns; ++i) {
    float u = 0;
    failed |= giwa_uniform(&u, seed, stream, i);
    x[i] = 16 * u - 8;
    pair one{};
    failed |= giwa_softmax_of(&one, x[i]);
    failed |= giwa_softmax_merge(&s, s.max, s.sum, one.max, one.sum);
  }
  for (long long i = row * columns; i < (row + 1) * columns; ++i) {
    failed |= giwa_softmax_weight(&weights[i], s.max, s.sum, x[i]);
    if (failed) weights[i] = -1;
  }
}
"""


def shim_as_ptx(folder, architecture):
    """Numba compiles .cu files itself, as C++17; giwa needs C++20."""
    ptx = Path(folder) / "numba_shim.ptx"
    subprocess.run(["nvcc", "-std=c++20", "-rdc=true", "-ptx", f"-arch={architecture}", f"-I{support.HERE.parent.parent / 'include'}",
                    support.HERE / "numba_shim.cu", "-o", ptx], check=True)
    return str(ptx)


def python_kernel(cuda, types, link):
    """The kernel, not yet compiled."""
    pair = types.UniTuple(types.float32, 2)
    f4, u8 = types.float32, types.uint64
    giwa_uniform = cuda.declare_device("giwa_uniform", f4(u8, u8, u8))
    giwa_softmax_of = cuda.declare_device("giwa_softmax_of", pair(f4))
    giwa_softmax_merge = cuda.declare_device("giwa_softmax_merge", pair(f4, f4, f4, f4))
    giwa_softmax_weight = cuda.declare_device("giwa_softmax_weight", f4(f4, f4, f4))

    def rows_of_weights(x, weights, seed, stream):
        row = cuda.grid(1)
        if row < x.shape[0]:
            state = (np.float32(-np.inf), np.float32(0))
            for column in range(x.shape[1]):
                i = row * x.shape[1] + column
                number = np.float32(16) * giwa_uniform(seed, stream, np.uint64(i)) - np.float32(8)
                x[row, column] = number
                one = giwa_softmax_of(number)
                state = giwa_softmax_merge(state[0], state[1], one[0], one[1])
            for column in range(x.shape[1]):
                weights[row, column] = giwa_softmax_weight(state[0], state[1], x[row, column])

    return cuda.jit(link=[link])(rows_of_weights) if link else rows_of_weights


def by_numba(folder):
    import numba
    from numba import cuda, types
    if not cuda.is_available():
        raise RuntimeError("it finds no GPU")
    major, minor = cuda.get_current_device().compute_capability
    kernel = python_kernel(cuda, types, shim_as_ptx(folder, f"compute_{major}{minor}"))
    x, weights = (cuda.to_device(np.full((ROWS, COLUMNS), np.nan, dtype=np.float32)) for _ in range(2))
    kernel[(ROWS + 127) // 128, 128](x, weights, np.uint64(SEED), np.uint64(STREAM))
    return f"Numba {numba.__version__}: a kernel in Python calls giwa", x.copy_to_host(), weights.copy_to_host()


def by_hand(why):
    import cupy
    kernel = cupy.RawKernel(BY_HAND, "rows_of_weights", backend="nvrtc", options=support.nvrtc_options())
    x, weights = (cupy.full((ROWS, COLUMNS), cupy.nan, dtype=cupy.float32) for _ in range(2))
    kernel(((ROWS + 127) // 128,), (128,), (x, weights, np.int64(ROWS), np.int64(COLUMNS), np.uint64(SEED), np.uint64(STREAM)))
    return f"NOT Numba ({why}): the shim's functions, called from a kernel in CUDA C++", x.get(), weights.get()


def main():
    with tempfile.TemporaryDirectory() as folder:
        try:
            how, x, weights = by_numba(folder)
        except subprocess.CalledProcessError:
            raise  # nvcc does not compile the shim: that is giwa's own
        except Exception as error:  # missing, or its parts do not fit each other or the driver
            how, x, weights = by_hand(f"{type(error).__name__}: {error}".splitlines()[0])
    print(how)
    expected = 16 * support.uniform(SEED, np.arange(ROWS * COLUMNS), STREAM) - 8
    same = np.array_equal(x.ravel(), expected)
    print(f"random numbers: {ROWS} x {COLUMNS}, {'the same bits as in NumPy' if same else 'WRONG'}")
    error = support.softmax_error(weights, x)
    print(f"softmax of {ROWS} rows: largest error {error:.1e} of a row's largest weight")
    return 0 if same and error < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
