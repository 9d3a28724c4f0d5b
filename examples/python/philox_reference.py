# SPDX-License-Identifier: MIT
"""giwa::philox in NumPy, from its published definition (Salmon et al., SC 2011, Philox4x32-10): what the scripts compare with."""
import numpy as np


def uniform(seed, elements, stream=0):
    """giwa::philox{seed, stream}.uniform<float>(i) for each i of `elements`: float32 in [0, 1)."""
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


def softmax(x):
    """The softmax of rows in float64."""
    x = np.asarray(x, dtype=np.float64)
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
