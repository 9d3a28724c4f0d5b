# SPDX-License-Identifier: MIT
"""What the scripts share: how NVRTC finds the headers, and what giwa's results are compared with."""
import os
import shutil
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent


def nvrtc_options():
    """What CuPy passes to NVRTC: C++20, giwa's headers and the toolkit's."""
    nvcc = shutil.which("nvcc")
    roots = [os.environ.get("CUDA_HOME"), nvcc and Path(nvcc).resolve().parent.parent, "/usr/local/cuda"]
    include = next(Path(root) / "include" for root in roots if root and (Path(root) / "include/cuda_fp16.h").exists())
    return ("-std=c++20", f"-I{HERE}", f"-I{HERE.parent.parent / 'include'}", f"-I{include}", f"-I{include / 'cccl'}")


def uniform(seed, elements, stream=0):
    """giwa::philox{seed, stream}.uniform<float>(i) for each i of `elements`, float32 in [0, 1): Philox4x32-10 as published
    (Salmon et al., SC 2011)."""
    low32, i = np.uint64(0xffffffff), np.asarray(elements, dtype=np.uint64)
    half = np.uint64(32)
    c = [i & low32, i >> half, np.full_like(i, stream & 0xffffffff), np.full_like(i, stream >> 32)]
    key = [seed & 0xffffffff, seed >> 32]
    for _ in range(10):
        first, second = np.uint64(0xd2511f53) * c[0], np.uint64(0xcd9e8d57) * c[2]  # 32 x 32 bits: no overflow
        c = [(second >> half) ^ c[1] ^ np.uint64(key[0]), second & low32,
             (first >> half) ^ c[3] ^ np.uint64(key[1]), first & low32]
        key = [(key[0] + 0x9e3779b9) & 0xffffffff, (key[1] + 0xbb67ae85) & 0xffffffff]
    return (c[0] >> np.uint64(8)).astype(np.float32) * np.float32(2 ** -24)


def softmax_error(weights, x):
    """Returns the error of a row softmax against float64, relative to the largest probability of each row."""
    x = np.asarray(x, dtype=np.float64)
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    exact = e / e.sum(axis=-1, keepdims=True)
    return (np.abs(weights - exact) / exact.max(axis=-1, keepdims=True)).max()
