# SPDX-License-Identifier: MIT
"""jax.nn.dot_product_attention by giwa, through JAX's FFI: from giwa_jax import dot_product_attention.

A handler is compiled when a function is traced that needs it first: one for each pass, element type, pair of head sizes and kind of
mask, with or without a softcap. They are kept under GIWA_JAX_CACHE, or ~/.cache/giwa_jax.
"""
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

HERE = Path(__file__).resolve().parent
ELEMENTS = {"float32": "float", "float16": "giwa::fp16", "bfloat16": "giwa::bf16"}
FULL, CAUSAL, BAND = range(3)
WHOLE = 2**31 - 1  # of a window: no limit
locks = defaultdict(threading.Lock)


class Settings(NamedTuple):
    """What is static in a compiled function."""
    mask: int
    scale: float
    left: int
    right: int
    softcap: float
    bottom_right: bool

    def attributes(self):
        return {"scale": np.float64(self.scale), "left": np.int32(self.left), "right": np.int32(self.right),
                "softcap": np.float32(self.softcap), "bottom_right": self.bottom_right}


# --- Compiling -----------------------------------------------------------------------------------------------------------


def include_folder():
    in_checkout = HERE.parents[1] / "include"
    if (in_checkout / "giwa" / "version.hpp").exists():
        return in_checkout
    import giwa  # the wheel with the headers
    return Path(giwa.include())


def toolkit():
    nvcc = shutil.which("nvcc")
    found = Path(os.environ.get("CUDA_HOME") or (Path(nvcc).resolve().parents[1] if nvcc else "/usr/local/cuda"))
    if not (found / "include" / "cuda_runtime_api.h").exists():
        raise NotImplementedError("giwa_jax: there is no CUDA toolkit to compile with: set CUDA_HOME")
    return found


@functools.cache
def digest_of_sources():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next((x for x in lines if x.startswith(("flags", "Features"))), platform.node())  # -march=native is of this machine
    digest = hashlib.sha256((jax.__version__ + processor).encode())
    for path in [*sorted(include_folder().rglob("*.*h*")), HERE / "giwa_jax.cu", HERE / "giwa_jax.py"]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def compiled(name, architecture, definitions):
    """The path of a handler's library. `architecture` is None for the CPU, else as "90a" or "80"."""
    flags = ["-std=c++20", "-O3", "-shared", f"-I{include_folder()}", "-isystem", jax.ffi.include_dir(),
             *(f"-DGIWA_JAX_{k}={v}" for k, v in definitions.items()), HERE / "giwa_jax.cu"]
    if architecture is None:
        command = [os.environ.get("CXX", "g++"), "-x", "c++", "-march=native", "-fPIC", "-fvisibility=hidden",
                   "-isystem", toolkit() / "include", *flags]
    else:
        command = [toolkit() / "bin" / "nvcc", "-Xcompiler=-fPIC,-fvisibility=hidden",
                   f"-gencode=arch=compute_{architecture},code=sm_{architecture}", *flags]
    folder = Path(os.environ.get("GIWA_JAX_CACHE") or Path.home() / ".cache" / "giwa_jax") / digest_of_sources()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}_{architecture or 'cpu'}.so"
    if not path.exists():
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".so", delete=False) as file:
            done = subprocess.run([*map(str, command), "-o", file.name], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            os.unlink(file.name)
            raise RuntimeError(f"giwa_jax: {name} does not compile:\n{' '.join(map(str, command))}\n{done.stderr[-3000:]}")
        os.replace(file.name, path)  # whole, whoever else compiles it
    return path


@functools.cache
def registered(backward, element, head_size, head_size_v, mask, softcap):
    """Compiles and registers a handler, for the CPU, and for the GPU if JAX has one. Returns its name."""
    backend = jax.default_backend()
    if backend not in ("cpu", "gpu"):
        raise NotImplementedError(f"giwa_jax: runs on CPUs and NVIDIA GPUs, not on {backend}")
    architectures = {"cpu": None}
    if backend == "gpu":
        capability = jax.devices()[0].compute_capability
        architectures["CUDA"] = "90a" if capability == "9.0" else capability.replace(".", "")  # wgmma needs the a
    definitions = {"BACKWARD": int(backward), "ELEMENT": ELEMENTS[element], "HEAD_SIZE": head_size,
                   "HEAD_SIZE_V": head_size_v, "MASK": mask, "SOFTCAP": int(softcap)}
    name = f"giwa_{'backward' if backward else 'forward'}_{element}_{head_size}_{head_size_v}_{mask}_{int(softcap)}"
    with ThreadPoolExecutor() as pool:
        paths = pool.map(lambda architecture: compiled(name, architecture, definitions), architectures.values())
        for where, path in zip(architectures, paths):
            handler = ctypes.CDLL(str(path)).giwa_jax_handler
            jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform=where)
    return name


def target(*handler):
    with locks[handler]:  # JAX traces in several threads, and refuses to register another function of the same name
        return registered(*handler)


# --- Attention and its gradients -----------------------------------------------------------------------------------------


def call(backward, results, q, k, v, *others, settings):
    name = target(backward, str(q.dtype), q.shape[-1], v.shape[-1], settings.mask, settings.softcap > 0)
    # A dimension of vmap becomes the first of all tensors: the handler takes it as more sequences.
    found = jax.ffi.ffi_call(name, results, vmap_method="broadcast_all")(q, k, v, *others, **settings.attributes())
    return [varying(x, axes_of(q)) for x in found]  # else JAX takes them for equal on all devices of a jax.shard_map


def axes_of(x):
    """The axes of a mesh that x varies over, in jax.shard_map that checks this; JAX has called it vma and mat.varying."""
    kind = jax.typeof(x)
    return kind.mat.varying if hasattr(kind, "mat") else getattr(kind, "vma", frozenset())


def varying(x, axes):
    missing = tuple(axes - axes_of(x))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def varying_alike(*arrays):
    """All vary over the axes that one of them varies over."""
    axes = frozenset().union(*map(axes_of, arrays))
    return [varying(x, axes) for x in arrays]


def zero_behind(lengths, x, other=0):
    """`x` of (batch, rows, ...), with `other` in rows behind the lengths, which giwa does not write."""
    if not lengths.size:
        return x
    within = jnp.arange(x.shape[1])[None] < lengths[:, None]
    return jnp.where(within.reshape(within.shape + (1,) * (x.ndim - 2)), x, other)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def attention(q, k, v, q_lengths, k_lengths, settings):
    """(o, lse) of (batch, length, heads, head size); lse is (batch, heads, length). Lengths: (batch), or (0): all rows."""
    batch, length, heads, _ = q.shape
    o, lse = call(False, [jax.ShapeDtypeStruct((batch, length, heads, v.shape[-1]), q.dtype),
                         jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)],
                  q, k, v, q_lengths, k_lengths, settings=settings)
    lse = zero_behind(q_lengths, lse.swapaxes(1, 2), -jnp.inf).swapaxes(1, 2)
    return zero_behind(q_lengths, o), lse


def attention_and_residuals(q, k, v, q_lengths, k_lengths, settings):
    o, lse = attention(q, k, v, q_lengths, k_lengths, settings)
    return (o, lse), (q, k, v, q_lengths, k_lengths, o, lse)


def gradients(settings, residuals, cotangents):
    q, k, v, q_lengths, k_lengths, o, lse = residuals
    dq, dk, dv = call(True, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v)],
                      *varying_alike(*residuals, *cotangents), settings=settings)
    return zero_behind(q_lengths, dq), zero_behind(k_lengths, dk), zero_behind(k_lengths, dv), None, None


attention.defvjp(attention_and_residuals, gradients)


# --- The function of JAX -------------------------------------------------------------------------------------------------


def check_tensors(query, key, value):
    tensors = {"query": query, "key": key, "value": value}
    for name, x in tensors.items():
        if x.ndim not in (3, 4) or x.ndim != query.ndim:
            raise ValueError(f"giwa_jax: {name} must be (length, heads, head size) with or without a batch before it, as query; "
                             f"its shape is {x.shape}, that of query {query.shape}")
        if str(x.dtype) not in ELEMENTS or x.dtype != query.dtype:
            raise ValueError(f"giwa_jax: {name} must be float32, float16 or bfloat16, as query; it is {x.dtype}, query {query.dtype}")
    if query.shape[:-3] != key.shape[:-3] or key.shape[:-1] != value.shape[:-1] or query.shape[-1] != key.shape[-1]:
        raise ValueError("giwa_jax: query (batch, T, N, H), key (batch, S, K, H) and value (batch, S, K, V) do not agree: "
                         f"{query.shape}, {key.shape}, {value.shape}")
    if key.shape[-2] == 0 or query.shape[-2] % key.shape[-2]:
        raise ValueError(f"giwa_jax: the heads of query must be a multiple of those of key: {query.shape[-2]} and {key.shape[-2]}")
    for name, x in (("query", query), ("value", value)):
        if not 1 <= x.shape[-1] <= 512:
            raise ValueError(f"giwa_jax: the head size of {name} must be 1 to 512, not {x.shape[-1]}")


def lengths_of(name, lengths, batch):
    lengths = jnp.asarray(lengths)
    if lengths.shape != (batch,) or lengths.dtype != jnp.int32:
        raise ValueError(f"giwa_jax: {name} must be int32 of shape ({batch},), not {lengths.dtype} of {lengths.shape}")
    return lengths


def dot_product_attention(query, key, value, bias=None, mask=None, *, scale=None, is_causal=False, query_seq_lengths=None,
                          key_value_seq_lengths=None, local_window_size=None, return_residual=False, softcap=None,
                          bottom_right=False, residual_dtype=None):
    """jax.nn.dot_product_attention, with the arguments and shapes of that function, and three more.

    `softcap`: scores become softcap * tanh(score / softcap). `bottom_right`: the diagonal of is_causal and local_window_size ends at
    the last query and key; it begins at the first without. value may have its own head size. The residual, and so
    its cotangent, has the type of key, or `residual_dtype`, as float32 to merge results. It has a gradient. bias and mask are refused.
    """
    for name, x in (("bias", bias), ("mask", mask)):
        if x is not None:
            raise NotImplementedError(f"giwa_jax: {name} is not supported; is_causal, local_window_size, the lengths and softcap are")
    query, key, value = map(jnp.asarray, (query, key, value))
    check_tensors(query, key, value)
    q, k, v = (x if x.ndim == 4 else x[None] for x in (query, key, value))
    if isinstance(local_window_size, int):
        local_window_size = (local_window_size, local_window_size)
    left, right = local_window_size or (WHOLE, WHOLE)
    if left < 0 or right < 0:
        raise ValueError(f"giwa_jax: local_window_size counts keys on both sides and cannot be negative: {(left, right)}")
    if softcap is not None and not 0 < softcap < float("inf"):
        raise ValueError(f"giwa_jax: softcap must be a positive number, not {softcap}")
    settings = Settings(mask=BAND if local_window_size else CAUSAL if is_causal else FULL,
                        scale=float(q.shape[-1] ** -0.5 if scale is None else scale), left=left,
                        right=0 if is_causal else right, softcap=float(softcap or 0), bottom_right=bool(bottom_right))
    q_lengths, k_lengths = (jnp.zeros(0, jnp.int32) if x is None else lengths_of(name, x, q.shape[0]) for name, x in (
        ("query_seq_lengths", query_seq_lengths), ("key_value_seq_lengths", key_value_seq_lengths)))
    o, lse = attention(*varying_alike(q, k, v, q_lengths, k_lengths), settings)
    residual = lse.swapaxes(1, 2).astype(residual_dtype or key.dtype)
    o, residual = (x if query.ndim == 4 else x[0] for x in (o, residual))
    return (o, residual) if return_residual else o
