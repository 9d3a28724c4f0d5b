#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks giwa_jax on JAX's default device: python3 test_giwa_jax.py [part of a name...], or pytest.

The truth is attention by definition in float64. (jax.nn.dot_product_attention computes its softmax in float32.) An error may be four
times that of the definition in the tensors' type, and one unit in the last place of the largest number.
"""
import functools
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"  # for test_shard_map

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from giwa_jax import dot_product_attention

jax.config.update("jax_enable_x64", True)  # for the truth
jax.config.update("jax_default_matmul_precision", "highest")  # else JAX multiplies fp32 as TF32 on a GPU
SHAPE = (2, 75, 131, 4, 2, 64, 64)  # batch, queries, keys, heads, kv heads, head sizes of k and v
LENGTHS = {"query_seq_lengths": np.array([75, 40], np.int32), "key_value_seq_lengths": np.array([100, 0], np.int32)}
CASES = {  # shape; arguments; types
    "full": (SHAPE, {}, ("float32", "float16", "bfloat16")),
    "causal": (SHAPE, {"is_causal": True}, ("float32", "float16", "bfloat16")),
    "window of both sides": (SHAPE, {"local_window_size": (30, 10)}, ("float32",)),
    "causal window, scale": (SHAPE, {"local_window_size": (20, 20), "is_causal": True, "scale": 0.3}, ("float32",)),
    "softcap": (SHAPE, {"is_causal": True, "softcap": 5.0, "scale": 0.5}, ("float32",)),
    "bottom right": (SHAPE, {"is_causal": True, "bottom_right": True}, ("float32",)),
    "window, bottom right": (SHAPE, {"local_window_size": (30, 10), "bottom_right": True}, ("float32",)),
    "v of another size": ((2, 75, 131, 4, 2, 64, 32), {}, ("float32",)),
    "no keys": ((2, 5, 0, 4, 2, 64, 64), {}, ("float32",)),
    "no batch": ((0, 5, 7, 4, 2, 64, 64), {}, ("float32",)),
}


def tensors(shape, dtype, seed=0):
    batch, queries, keys, heads, kv_heads, size, size_v = shape
    random = np.random.default_rng(seed)
    return tuple(jnp.asarray(random.standard_normal((batch, *x)), dtype)
                 for x in ((queries, heads, size), (keys, kv_heads, size), (keys, kv_heads, size_v)))


def by_definition(q, k, v, *, scale=None, is_causal=False, local_window_size=None, softcap=None, bottom_right=False,
                  return_residual=True):
    assert return_residual
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = jnp.einsum("btnh,bsnh->bnts", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    queries, keys = q.shape[1], k.shape[1]
    ahead = jnp.arange(keys) - jnp.arange(queries)[:, None] - (keys - queries if bottom_right else 0)
    left, right = local_window_size or (keys + queries, keys + queries)
    scores = jnp.where((ahead >= -left) & (ahead <= (0 if is_causal else right)), scores, -jnp.inf)
    weights = jax.nn.softmax(scores, -1).astype(v.dtype)
    return jnp.einsum("bnts,bsnh->btnh", weights, v), jax.nn.logsumexp(scores, -1).swapaxes(1, 2)


def results(function, arrays, arguments):
    """(o, lse, dq, dk, dv) of a loss that o and lse enter."""
    def loss(*arrays):
        wide = {"residual_dtype": jnp.float32} if function is dot_product_attention else {}
        o, lse = function(*arrays, **arguments, **wide, return_residual=True)
        seen = jnp.where(jnp.isinf(lse), 0, lse).astype(jnp.float32)
        weight_o, weight_lse = (jnp.asarray(np.random.default_rng(7).standard_normal(x.shape), jnp.float32) for x in (o, lse))
        return (o * weight_o).sum() + (seen * weight_lse).sum(), (o, lse)
    (_, outputs), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(*arrays)
    return *outputs, *gradients


def compare(what, found, exact, plain, dtype):
    for name, x, truth, other in zip(("o", "lse", "dq", "dk", "dv"), found, exact, plain, strict=True):
        assert x.shape == truth.shape, f"{what}: {name} is {x.shape}, not {truth.shape}"
        if x.size:
            x, truth, other = (np.asarray(t, np.float64) for t in (x, truth, other))
            assert (np.isneginf(x) == np.isneginf(truth)).all(), f"{what}: {name} is infinite elsewhere"
            x, truth, other = (np.where(np.isinf(truth), 0, t) for t in (x, truth, other))
            error, of_plain = (np.abs(t - truth).max() for t in (x, other))
            allowed = 4 * of_plain + float(jnp.finfo(dtype).eps) * max(np.abs(truth).max(), 1e-3)
            assert error <= allowed, f"{what}: {name} is {error:.2e} from the truth, allowed are {allowed:.2e}"  # NaN fails too


def test_cases():
    for name, (shape, arguments, types) in CASES.items():
        for dtype in types:
            arrays = tensors(shape, dtype)
            found = results(dot_product_attention, arrays, arguments)
            if 0 in shape:
                o, lse, *gradients = found
                assert o.shape == arrays[0].shape and np.isneginf(lse).all() and not any(np.any(x) for x in (o, *gradients)), name
                continue
            exact = results(by_definition, [x.astype(jnp.float64) for x in arrays], arguments)
            compare(f"{name}, {dtype}", found, exact, results(by_definition, arrays, arguments), dtype)


def test_as_jax_nn():
    """The same arguments mean the same."""
    arrays = tensors((2, 75, 131, 4, 2, 64, 64), "float32")
    for arguments in ({}, {"is_causal": True}, {"local_window_size": (30, 10)}, {"local_window_size": 20, "is_causal": True, "scale": 0.3},
                      {"query_seq_lengths": LENGTHS["query_seq_lengths"], "key_value_seq_lengths": np.array([100, 40], np.int32)}):
        loss = lambda function: lambda *x: (function(*x, **arguments) ** 2).sum()
        found, exact = (jax.jit(jax.value_and_grad(loss(f), argnums=(0, 1, 2)))(*arrays)
                        for f in (dot_product_attention, jax.nn.dot_product_attention))
        for x, truth in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
            assert np.abs(x - truth).max() < 1e-5 * np.abs(truth).max(), arguments


def test_lengths():
    """What is behind the lengths changes nothing, and gets zeros."""
    q, k, v = tensors(SHAPE, "float32")
    keys, queries = LENGTHS["key_value_seq_lengths"], LENGTHS["query_seq_lengths"]
    behind = (np.arange(k.shape[1]) >= keys[:, None])[..., None, None]
    loss = lambda q, k, v: (dot_product_attention(q, k, v, is_causal=True, **LENGTHS) ** 2).sum()
    clean = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(q, k, v)
    dirty = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(q, jnp.where(behind, jnp.nan, k), jnp.where(behind, jnp.nan, v))
    for x, y in zip(jax.tree.leaves(clean), jax.tree.leaves(dirty), strict=True):
        assert (np.asarray(x) == np.asarray(y)).all()
    for x in clean[1][1:]:
        assert not np.asarray(x)[np.broadcast_to(behind, x.shape)].any()
    one = [x[:1] for x in (q, k, v)]  # the second sequence has no keys, where jax.nn averages and giwa gives zeros
    o = dot_product_attention(q, k, v, is_causal=True, **LENGTHS)
    exact = jax.nn.dot_product_attention(*(x.astype(jnp.float64) for x in one), is_causal=True,
                                         **{name: x[:1] for name, x in LENGTHS.items()})
    assert np.abs(o[:1] - exact).max() < 1e-5 and not np.any(o[1]) and not np.any(o[0, queries[0]:])


def test_jit_and_vmap():
    """The bits are those of a plain call."""
    q, k, v = tensors((6, 20, 30, 4, 2, 64, 64), "float32")
    attend = lambda *x: dot_product_attention(*x, is_causal=True)
    plain = attend(q, k, v)
    gradient = jax.grad(lambda *x: (attend(*x) ** 2).sum(), argnums=(0, 1, 2))
    assert (plain == jax.jit(attend)(q, k, v)).all()
    assert (plain == jax.vmap(attend)(q, k, v)).all()  # of tensors without a batch
    split = [x.reshape(2, 3, *x.shape[1:]) for x in (q, k, v)]
    assert (plain.reshape(split[0].shape) == jax.jit(jax.vmap(attend))(*split)).all()
    for x, y in zip(gradient(q, k, v), jax.vmap(gradient)(*split), strict=True):
        assert (x == y.reshape(x.shape)).all()
    shared = jax.vmap(attend, in_axes=(0, None, None))(split[0], *(x[:3] for x in (k, v)))  # keys that all use
    assert (shared[1] == attend(q[3:], k[:3], v[:3])).all()
    last = jax.vmap(attend, in_axes=3, out_axes=3)(*(jnp.moveaxis(x, 0, 3) for x in split))
    assert (jnp.moveaxis(last, 3, 0).reshape(plain.shape) == plain).all()
    lengths = np.array([[3, 30, 7], [0, 1, 29]], np.int32)
    found = jax.vmap(lambda q, k, v, n: dot_product_attention(q, k, v, key_value_seq_lengths=n))(*split, lengths)
    assert (found.reshape(plain.shape) == dot_product_attention(q, k, v, key_value_seq_lengths=lengths.ravel())).all()


def test_scan_and_checkpoint():
    """Layers in a loop, whose attention is computed again for the gradient."""
    q, k, v = tensors((2, 20, 20, 2, 2, 64, 64), "float32")
    def layers(function):
        step = jax.checkpoint(lambda x, _: (x + function(x, k, v, is_causal=True), None))
        return jax.jit(jax.grad(lambda x: (jax.lax.scan(step, x, None, length=3)[0] ** 2).sum()))(q)
    truth = layers(jax.nn.dot_product_attention)
    assert np.abs(layers(dot_product_attention) - truth).max() < 1e-5 * np.abs(truth).max()


def test_shard_map():
    """The batch over devices, and gradients of what all devices have."""
    devices = np.array(jax.devices())
    q, k, v = tensors((2 * len(devices), 20, 30, 4, 2, 64, 64), "float32")
    batch, same = PartitionSpec("batch"), PartitionSpec()
    attend = lambda *x: dot_product_attention(*x, is_causal=True)
    over_devices = functools.partial(jax.shard_map, mesh=Mesh(devices, ("batch",)))
    shared = jax.jit(over_devices(attend, in_specs=batch, out_specs=batch))
    assert (np.asarray(shared(q, k, v)) == np.asarray(attend(q, k, v))).all()

    weights = jnp.asarray(np.random.default_rng(1).normal(size=64), "float32")
    slopes = jax.grad(lambda w, *x: (attend(*x) @ w).sum(), argnums=(0, 1, 2, 3))
    shared = jax.jit(over_devices(slopes, in_specs=(same, batch, batch, batch), out_specs=(same, batch, batch, batch)))
    for found, truth in zip(shared(weights, q, k, v), slopes(weights, q, k, v)):
        np.testing.assert_allclose(found, truth, rtol=1e-4, atol=1e-4)


def test_rows_behind_lengths():
    """They may hold anything; the diagonal ends at the last row that counts."""
    q, k, v = tensors((2, 9, 13, 4, 2, 64, 64), "float32")
    lengths = {"query_seq_lengths": np.int32([5, 5]), "key_value_seq_lengths": np.int32([7, 7])}

    def loss(*x, **arguments):
        o, residual = dot_product_attention(*x, is_causal=True, bottom_right=True, return_residual=True, **arguments)
        return (o ** 2).sum() + jnp.where(jnp.isinf(residual), 0, residual).sum()

    slopes = jax.grad(loss, argnums=(0, 1, 2))
    expected = slopes(q[:, :5], k[:, :7], v[:, :7])
    for value in (0.5, jnp.nan):
        found = slopes(q.at[:, 5:].set(value), k.at[:, 7:].set(value), v.at[:, 7:].set(value), **lengths)
        for x, y in zip(found, expected):
            rows = y.shape[1]
            np.testing.assert_allclose(x[:, :rows], y, rtol=1e-4, atol=1e-4)
            assert not np.asarray(x[:, rows:]).any()
    residual = dot_product_attention(q, k, v, return_residual=True, **lengths)[1]
    assert np.isneginf(residual[:, 5:]).all() and np.isfinite(residual[:, :5]).all()


def test_residual():
    """Its type and cotangent are those of jax.nn, or what is asked for; its gradient is that of the logarithm of the sum."""
    for dtype in ("bfloat16", "float16", "float32"):
        q, k, v = tensors((2, 20, 30, 4, 2, 64, 64), dtype)
        one = jnp.asarray(np.random.default_rng(7).standard_normal((2, 20, 4)), dtype)
        exact, pullback = jax.vjp(lambda *x: by_definition(*x)[1], *(x.astype(jnp.float64) for x in (q, k, v)))
        slopes = pullback(one.astype(exact.dtype))
        for asked in (None, jnp.float32):
            of = lambda function, **more: lambda *x: function(*x, return_residual=True, **more)
            (o, residual), pullback = jax.vjp(of(dot_product_attention, residual_dtype=asked), q, k, v)
            (_, of_jax), pullback_of_jax = jax.vjp(of(jax.nn.dot_product_attention), q, k, v)
            assert residual.dtype == (asked or of_jax.dtype) and residual.shape == of_jax.shape
            eps = float(jnp.finfo(residual.dtype).eps)
            assert np.abs(residual - exact).max() < (4 * eps + 2e-2 * (dtype != "float32")) * np.abs(exact).max()
            found = pullback((jnp.zeros_like(o), one.astype(residual.dtype)))
            pullback_of_jax((jnp.zeros_like(o), one))  # takes the same
            for x, truth in zip(found, slopes, strict=True):
                assert np.abs(x - truth).max() <= 8 * float(jnp.finfo(dtype).eps) * max(np.abs(truth).max(), 1e-3), dtype


def test_refused():
    q, k, v = tensors((2, 20, 30, 4, 2, 64, 64), "float32")
    lengths = np.array([1, 2], np.int32)
    twice = lambda x: jax.grad(lambda y: (dot_product_attention(y, k, v) ** 2).sum())(x).sum()
    refused = {
        "bias is not supported": (NotImplementedError, lambda: dot_product_attention(q, k, v, jnp.zeros((1, 1, 20, 30)))),
        "mask is not supported": (NotImplementedError, lambda: dot_product_attention(q, k, v, mask=jnp.ones((1, 1, 20, 30), bool))),
        "query must be float32, float16 or bfloat16": (ValueError, lambda: dot_product_attention(*(x.astype(float) for x in (q, k, v)))),
        "as query; it is float16": (ValueError, lambda: dot_product_attention(q, k.astype("float16"), v)),
        "with or without a batch": (ValueError, lambda: dot_product_attention(q, k[0], v)),
        "do not agree: (2, 20, 4, 64), (2, 30, 2, 64), (2, 29, 2, 64)": (ValueError, lambda: dot_product_attention(q, k, v[:, 1:])),
        "a multiple of those of key: 3 and 2": (ValueError, lambda: dot_product_attention(q[:, :, 1:], k, v)),
        "head size of value must be 1 to 512": (ValueError, lambda: dot_product_attention(q, k, jnp.zeros((2, 30, 2, 513), "float32"))),
        "cannot be negative: (1, -1)": (ValueError, lambda: dot_product_attention(q, k, v, local_window_size=(1, -1))),
        "softcap must be a positive number": (ValueError, lambda: dot_product_attention(q, k, v, softcap=0.0)),
        "int32 of shape (2,), not int32 of (1,)": (ValueError, lambda: dot_product_attention(q, k, v, query_seq_lengths=lengths[1:])),
        "scale must be finite": (jax.errors.JaxRuntimeError,  # giwa's text
                                 lambda: dot_product_attention(q, k, v, scale=float("nan")).block_until_ready()),
        "differentiated": (ValueError, lambda: jax.grad(twice)(q)),
    }
    for text, (kind, function) in refused.items():
        try:
            function()
        except kind as error:
            assert text in str(error), f"{text}: {error}"
        else:
            raise AssertionError(f"not refused: {text}")


def compile_all():
    """Compiles the handlers of all cases at once, not each when it is first called."""
    calls = [(tensors(shape, dtype), arguments) for shape, arguments, types in CASES.values() for dtype in types]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda call: jax.eval_shape(lambda *x: results(dot_product_attention, x, call[1]), *call[0]), calls))


if __name__ == "__main__":
    print(f"JAX {jax.__version__}, {jax.devices()[0].device_kind}", flush=True)
    if not sys.argv[1:]:
        compile_all()
    for name, test in [(name, x) for name, x in globals().items() if name.startswith("test_")]:
        if not sys.argv[1:] or any(part in name for part in sys.argv[1:]):
            begin = time.time()
            test()
            print(f"{name}: ok, {time.time() - begin:.1f} s", flush=True)
