#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks giwa_torch on the GPU, or on the CPU if there is none: python3 test_giwa_torch.py [part of a name...], or pytest.

The truth is attention in float64, differentiated by autograd. An error may be twice that of a plain attention, which rounds scores and
weights to the tensors' type, and one unit in the last place of the largest number. GIWA_TORCH_DEVICE=cpu chooses the CPU.
"""
import faulthandler
import itertools
import os
import subprocess
import sys
import time
import traceback
import warnings

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention as sdpa

import giwa_torch
from giwa_torch import attention, flash_attn_func, flash_attn_with_kvcache, functional, scaled_dot_product_attention, set_unsupported

DEVICE = os.environ.get("GIWA_TORCH_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
TYPES = (torch.bfloat16, torch.float16, torch.float32) if DEVICE == "cuda" else (torch.float32, torch.bfloat16)


def short(dtype):
    return {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]


def random(*shape, dtype=torch.float32, scale=1.0):
    return (torch.randn(*shape, device=DEVICE) * scale).to(dtype)


def seen(queries, keys, causal=False, window=(-1, -1), top_left=False):
    """Which keys a query sees."""
    ahead = torch.arange(keys, device=DEVICE) - torch.arange(queries, device=DEVICE)[:, None] - (0 if top_left else keys - queries)
    left, right = window[0], 0 if causal else window[1]
    return (ahead >= -left if left >= 0 else ahead == ahead) & (ahead <= right if right >= 0 else ahead == ahead)


def by_definition(q, k, v, *, causal=False, window=(-1, -1), top_left=False, mask=None, bias=None, alibi_slopes=None, sinks=None,
                  softcap=0.0, scale=None, dropped=None, rounded=None):
    """(o, lse) of (batch, heads, length, head size), in the type of q. `rounded`: scores and weights take that type on their way."""
    through = (lambda x: x.to(rounded).to(x.dtype)) if rounded else (lambda x: x)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    queries, keys = q.shape[2], k.shape[2]
    scores = through(q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        offset = 0 if top_left else keys - queries
        far = (torch.arange(queries, device=q.device)[:, None] + offset - torch.arange(keys, device=q.device)).abs()
        scores = scores - alibi_slopes[..., None, None].to(q.dtype) * far
    if bias is not None:
        scores = scores + bias
    kept = seen(queries, keys, causal, window, top_left)
    if mask is not None:
        kept = kept & mask
    scores = scores.masked_fill(~kept, float("-inf"))
    if sinks is not None:
        sink = sinks[:, None, None].expand(q.shape[0], -1, queries, 1).to(q.dtype)
        scores = torch.cat([scores, sink], -1)
    lse = scores.logsumexp(-1) if scores.shape[-1] else scores.new_full(scores.shape[:-1], float("-inf"))
    none = torch.isinf(lse)
    weights = (scores - lse.masked_fill(none, 0)[..., None]).exp()  # a row without keys: 0
    weights = weights[..., :keys] if dropped is None else weights[..., :keys] * dropped
    return through(weights) @ v, lse


def tensors(batch, heads, kv_heads, queries, keys, size, size_v, dtype):
    return (random(batch, heads, queries, size, dtype=dtype), random(batch, kv_heads, keys, size, dtype=dtype),
            random(batch, kv_heads, keys, size_v, dtype=dtype))


def compare(what, found, exact, plain, dtype, times=2.0):
    """Every pair of tensors; returns the largest share of what is allowed."""
    worst = 0.0
    for i, (x, truth, other) in enumerate(zip(found, exact, plain, strict=True)):
        assert x.shape == truth.shape, f"{what}, {i}: {tuple(x.shape)}, not {tuple(truth.shape)}"
        if x.numel() == 0:
            continue
        x, truth, other = (t.double().masked_fill(torch.isinf(truth), 0) for t in (x, truth, other))
        error, of_plain = ((t - truth).abs().max().item() for t in (x, other))
        allowed = times * of_plain + torch.finfo(dtype).eps * max(truth.abs().max().item(), 1e-3)
        assert error <= allowed, f"{what}, {i}: {error:.2e} from the truth, allowed are {allowed:.2e}"  # NaN fails too
        worst = max(worst, error / allowed)
    return worst


SHAPE = (2, 4, 2, 75, 131, 64, 64)  # batch, heads, kv heads, queries, keys, head sizes of k and v
SQUARE = (2, 4, 4, 130, 130, 64, 64)
CASES = {  # shape; arguments, where a function makes a tensor from the shape
    "full": (SHAPE, {}),
    "causal": (SHAPE, {"causal": True}),
    "causal, top left": (SHAPE, {"causal": True, "top_left": True}),
    "causal, more queries than keys": ((1, 2, 2, 100, 60, 64, 64), {"causal": True}),
    "window back": (SHAPE, {"causal": True, "window": (20, 0)}),
    "window of both sides": (SHAPE, {"window": (30, 10)}),
    "window ahead, top left": (SHAPE, {"window": (-1, 3), "top_left": True}),
    "softcap": (SHAPE, {"causal": True, "softcap": 5.0, "scale": 0.5}),
    "alibi": (SHAPE, {"causal": True, "alibi_slopes": lambda b, h, l, s: torch.rand(h)}),
    "alibi of sequences": (SHAPE, {"alibi_slopes": lambda b, h, l, s: torch.rand(b, h)}),
    "softcap, alibi": (SHAPE, {"causal": True, "softcap": 8.0, "alibi_slopes": lambda b, h, l, s: torch.rand(h)}),
    "mask": (SHAPE, {"mask": lambda b, h, l, s: torch.rand(b, 1, l, s) > 0.4}),
    "mask of padding": (SHAPE, {"causal": True, "mask": lambda b, h, l, s: torch.arange(s) < torch.tensor([s, s // 2]).view(b, 1, 1, 1)}),
    "mask that keeps nothing of some rows": (SHAPE, {"mask": lambda b, h, l, s: torch.rand(b, h, l, 1) > 0.5}),
    "bias": (SHAPE, {"bias": lambda b, h, l, s: torch.randn(b, h, l, s)}),
    "bias of heads": (SHAPE, {"bias": lambda b, h, l, s: torch.randn(h, l, s)}),
    "bias of keys": (SHAPE, {"bias": lambda b, h, l, s: torch.randn(b, 1, 1, s)}),
    "bias, mask": (SHAPE, {"bias": lambda b, h, l, s: torch.randn(1, h, l, s), "mask": lambda b, h, l, s: torch.rand(l, s) > 0.4}),
    "sinks": (SHAPE, {"causal": True, "sinks": lambda b, h, l, s: torch.randn(h)}),
    "v of another size": ((2, 4, 2, 75, 131, 64, 32), {"causal": True}),
    "square": (SQUARE, {"causal": True}),
    "no keys": ((1, 2, 2, 10, 0, 64, 64), {}),
    "no keys, bias": ((2, 2, 2, 10, 0, 64, 64), {"bias": lambda b, h, l, s: torch.randn(h, l, 1)}),
    "no queries": ((1, 2, 2, 0, 10, 64, 64), {}),
    "no batch": ((0, 2, 2, 10, 10, 64, 64), {}),
}
FEW = ("full", "causal", "window of both sides", "no keys")  # in the other types


def cases():
    for dtype in TYPES:
        for name, (sizes, options) in CASES.items():
            if dtype == TYPES[0] or name in FEW:
                yield f"{short(dtype)} {name}", dtype, sizes, options


def prepared(dtype, sizes, options):
    """q, k, v, and the arguments with their tensors."""
    batch, heads, _, queries, keys = sizes[:5]
    made = {name: x(batch, heads, queries, keys).to(DEVICE) if callable(x) else x for name, x in options.items()}
    if "bias" in made:
        made["bias"] = made["bias"].to(dtype)
    return tensors(*sizes, dtype), made


def trained(options):
    return [name for name in ("bias", "alibi_slopes", "sinks")
            if name in options and not (name == "alibi_slopes" and options[name].dim() == 2)]


def with_gradients(attend, inputs, options, weights, dtype=None):
    """o, lse, and the gradients of the inputs and of all arguments that have one."""
    cast = (lambda x: x.to(dtype)) if dtype else (lambda x: x)
    leaves = [cast(x.detach()).clone().requires_grad_() for x in inputs]
    made = {name: cast(x.detach()).clone().requires_grad_() if name in trained(options) else
            cast(x) if torch.is_tensor(x) and x.is_floating_point() else x for name, x in options.items()}
    o, lse = attend(*leaves, **made)
    loss = (o * cast(weights[0])).sum() + (lse.masked_fill(torch.isinf(lse), 0) * weights[1]).sum()
    wanted = leaves + [made[name] for name in trained(options)]
    return [o.detach(), lse.detach(), *torch.autograd.grad(loss, wanted)]


def check(what, dtype, inputs, options, attend, weights=None):
    if weights is None:
        q, v = inputs[0], inputs[2]
        weights = random(*q.shape[:3], v.shape[-1], dtype=dtype), random(*q.shape[:3])
    found = with_gradients(attend, inputs, options, weights)
    exact = with_gradients(by_definition, inputs, options, weights, torch.float64)
    plain = with_gradients(lambda *x, **o: by_definition(*x, **o, rounded=dtype), inputs, options, weights, torch.float32)
    plain = [x.to(dtype).float() for x in plain]
    # In fp32, in e^(score - lse), the roundings of both do not cancel, as they do in a softmax.
    return compare(what, found, exact, plain, dtype, 8 if dtype == torch.float32 else 2)


def bhld(q, k, v, **options):
    return attention(q, k, v, heads_first=True, return_lse=True, **options)


def test_cases():
    errors = {name: check(name, dtype, *prepared(dtype, sizes, options), bhld) for name, dtype, sizes, options in cases()}
    name = max(errors, key=errors.get)
    print(f"   {len(errors)} cases with gradients; nearest to its limit: {name}, {errors[name]:.2f} of it")


def test_sequences():
    """Packed sequences, and batches with lengths, are each sequence alone."""
    dtype, heads, kv_heads, size = TYPES[0], 4, 2, 64
    lengths = ((30, 70), (0, 5), (90, 90), (17, 0), (1, 64))
    for options in ({}, {"causal": True}, {"window": (20, 4)}, {"causal": True, "alibi_slopes": torch.rand(heads, device=DEVICE)}):
        q, k, v = (random(sum(n[i] for n in lengths), h, size, dtype=dtype).requires_grad_()
                   for i, h in ((0, heads), (1, kv_heads), (1, kv_heads)))
        offsets = [torch.tensor([0, *torch.tensor([n[i] for n in lengths]).cumsum(0)], dtype=torch.int32, device=DEVICE) for i in (0, 1)]
        o, lse = attention(q, k, v, q_offsets=offsets[0], k_offsets=offsets[1], max_q=90, return_lse=True, **options)
        dout = random(*o.shape, dtype=dtype)
        gradients = torch.autograd.grad(o, (q, k, v), dout)
        most = [max(n[i] for n in lengths) for i in (0, 1)]
        padded = [torch.full((len(lengths), most[i], h, size), 1.0, dtype=dtype, device=DEVICE) for i, h in ((0, heads), (1, kv_heads), (1, kv_heads))]
        at = [[0, 0]]
        for n in lengths:
            at.append([at[-1][0] + n[0], at[-1][1] + n[1]])
        for b, (n, m) in enumerate(lengths):
            rows, keys = slice(at[b][0], at[b + 1][0]), slice(at[b][1], at[b + 1][1])
            own = [x[s].detach().transpose(0, 1)[None] for x, s in ((q, rows), (k, keys), (v, keys))]
            weights = dout[rows].transpose(0, 1)[None], torch.zeros(1, heads, n, device=DEVICE)
            found = [o[rows].transpose(0, 1)[None], lse[None, :, rows],
                     *(x[s].transpose(0, 1)[None] for x, s in zip(gradients, (rows, keys, keys)))]
            compare_sequence(f"sequence {b} {options}", dtype, own, options, weights, found)
            for x, s, to in ((q, rows, padded[0]), (k, keys, padded[1]), (v, keys, padded[2])):
                to[b, :x[s].shape[0]] = x[s].detach()
        counts = [torch.tensor([n[i] for n in lengths], dtype=torch.int32, device=DEVICE) for i in (0, 1)]
        again = attention(*padded, q_lengths=counts[0], k_lengths=counts[1], **options)
        for b, (n, _) in enumerate(lengths):
            torch.testing.assert_close(again[b, :n], o[at[b][0]:at[b + 1][0]].detach())
            assert not again[b, n:].any(), "padding is written"


def compare_sequence(what, dtype, inputs, options, weights, found):
    options = {name: x.detach() if torch.is_tensor(x) else x for name, x in options.items()}
    exact = with_gradients(by_definition, inputs, options, weights, torch.float64)[:5]
    plain = with_gradients(lambda *x, **o: by_definition(*x, **o, rounded=dtype), inputs, options, weights, torch.float32)[:5]
    compare(what, found, exact, [x.to(dtype).float() for x in plain], dtype, 8 if dtype == torch.float32 else 2)


def test_layouts():
    """Outputs and gradients keep the memory order of their inputs, without copies of strided views."""
    dtype = TYPES[0]
    b, l, h, d = 2, 90, 4, 64
    packed = random(b, l, 3, h, d, dtype=dtype)  # as one projection makes them
    rows = [x.transpose(1, 2) for x in packed.unbind(2)]
    heads = [random(b, h, l, d, dtype=dtype) for _ in range(3)]
    one = random(b, 1, l, d, dtype=dtype)
    for name, inputs in (("rows", rows), ("heads", heads), ("expanded", [rows[0], one.expand(b, h, l, d), one.expand(b, h, l, d)]),
                         ("every second sequence", [random(2 * b, h, l, d, dtype=dtype)[::2, :, 3:] for _ in range(3)]),
                         ("transposed heads", [random(b, h, d, l, dtype=dtype).transpose(2, 3) for _ in range(3)])):
        before = [x.clone() for x in inputs]
        check(name, dtype, inputs, {"causal": True}, bhld)
        assert all(torch.equal(x, y) for x, y in zip(before, inputs)), "an input was written"
        o = scaled_dot_product_attention(*inputs)
        assert (o.transpose(1, 2) if inputs[0].stride(2) >= inputs[0].stride(1) else o).is_contiguous()
    shape = (2, 3, 20, 64)  # of different sizes, so that each order has other strides
    for order in itertools.permutations(range(3)):
        back = [order.index(d) for d in range(3)] + [3]
        inputs = [random(*(shape[d] for d in (*order, 3)), dtype=dtype).permute(back) for _ in range(3)]
        leaves = [x.detach().requires_grad_() for x in inputs]
        o = scaled_dot_product_attention(*leaves, is_causal=True)
        gradients = torch.autograd.grad(o, leaves, random(*shape, dtype=dtype))
        assert all(x.permute(*order, 3).is_contiguous() for x in (o, *gradients)), f"the memory order is not {order}"
        check(f"memory order {order}", dtype, inputs, {"causal": True}, bhld)
        fake = torch.empty_strided(o.shape, o.stride(), dtype=dtype, device="meta")
        assert functional.empty_rows(fake, 32).permute(*order, 3).is_contiguous(), "the fake kernel has another order"


def test_sdpa():
    """The arguments of PyTorch's function, against its own."""
    dtype = TYPES[0]
    q, k, v = tensors(2, 4, 4, 60, 60, 64, 64, dtype)
    far = tensors(2, 4, 4, 40, 60, 64, 64, dtype)
    grouped = tensors(2, 4, 2, 60, 60, 64, 64, dtype)
    six, three = (random(2, n, 60, 64, dtype=dtype) for n in (6, 3))
    for name, inputs, options in (
            ("plain", (q, k, v), {}), ("causal", (q, k, v), {"is_causal": True}), ("causal of unequal lengths", far, {"is_causal": True}),
            ("scale", (q, k, v), {"scale": 0.3}), ("grouped", grouped, {"enable_gqa": True, "is_causal": True}),
            ("mask", (q, k, v), {"attn_mask": torch.rand(60, 60, device=DEVICE) > 0.3}),
            ("mask of sequences", (q, k, v), {"attn_mask": torch.rand(2, 1, 60, 60, device=DEVICE) > 0.3}),
            ("bias", (q, k, v), {"attn_mask": random(2, 4, 60, 60, dtype=dtype)}),
            ("bias of float32", (q, k, v), {"attn_mask": random(4, 60, 60)}),
            ("more heads of keys than of values", (q, k[:, :2], v[:, :1]), {"enable_gqa": True}),
            ("more heads of values than of keys", (q, k[:, :2], v), {"enable_gqa": True}),
            ("heads of keys and values that do not divide each other", (six, three, v[:, :2]), {"enable_gqa": True}),
            ("three dimensions", (q[0], k[0], v[0]), {}), ("two dimensions", (q[0, 0], k[0, 0], v[0, 0]), {"is_causal": True}),
            ("one sequence of keys", (q, k[:1], v[:1]), {}), ("one head of keys", (q, k[:, :1], v[:, :1]), {}),
            ("one head of queries", (q[:, :1], k, v), {}), ("one head of queries and of values", (q[:, :1], k, v[:, :1]), {})):
        o = scaled_dot_product_attention(*inputs, **options)
        with sdpa_kernel(SDPBackend.MATH):
            exact = sdpa(*(x.double() for x in inputs), **{n: x.double() if torch.is_tensor(x) and x.is_floating_point() else x
                                                            for n, x in options.items()})
            plain = sdpa(*inputs, **options)
        compare(name, [o], [exact], [plain], dtype, 4 if dtype == torch.float32 else 2)
    for bias, options in ((causal_upper_left(40, 60), {"is_causal": True}), (causal_lower_right(40, 60), {"attn_mask": seen(40, 60, True)})):
        torch.testing.assert_close(scaled_dot_product_attention(*far, bias), scaled_dot_product_attention(*far, **options))
    raises(RuntimeError, "of 40 queries and 50 keys", lambda: scaled_dot_product_attention(*far, causal_lower_right(40, 50)))
    raises(RuntimeError, "elements of type", lambda: scaled_dot_product_attention(q, k.double(), v))
    raises(RuntimeError, "need enable_gqa", lambda: scaled_dot_product_attention(q, k[:, :2], v[:, :2]))
    raises(RuntimeError, "must divide the 1 of query", lambda: scaled_dot_product_attention(q[:, :1], k, v, enable_gqa=True))
    assert scaled_dot_product_attention(q[:, :1], k[:, :0], v[:, :0]).shape == (2, 0, 60, 64)


def test_no_elements():
    """Head sizes of 0, with gradients."""
    mask, bias = torch.rand(30, 40, device=DEVICE) > 0.3, random(4, 30, 40, dtype=TYPES[0])
    for size, size_v, options in ((0, 0, {}), (64, 0, {"is_causal": True}), (0, 5, {"scale": 0.5}), (0, 5, {"attn_mask": mask}),
                                  (0, 5, {"attn_mask": bias})):
        inputs, results = tensors(2, 4, 2, 30, 40, size, size_v, TYPES[0]), []
        for attend, dtype in ((scaled_dot_product_attention, TYPES[0]), (sdpa, torch.float64), (sdpa, TYPES[0])):
            leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
            made = {n: x.detach().to(dtype).requires_grad_() if x is bias else x for n, x in options.items()}
            with sdpa_kernel(SDPBackend.MATH):
                o = attend(*leaves, **made, enable_gqa=True)
            wanted = leaves + [x for x in made.values() if torch.is_tensor(x) and x.is_floating_point()]
            results.append([o.detach(), *torch.autograd.grad(o.sum(), wanted)])
        compare(f"head sizes {size} and {size_v}, {options.keys()}", *results, TYPES[0], 8 if TYPES[0] == torch.float32 else 2)
    assert scaled_dot_product_attention(*(x[0, 0] for x in inputs)).shape == (30, 5)
    assert scaled_dot_product_attention(*(x[:, :2] for x in inputs), dropout_p=0.5).shape == (2, 2, 30, 5)
    q, k, v = tensors(2, 4, 4, 30, 40, 1, 5, TYPES[0])
    for bad in ((q, k[..., :0], v), (q[..., :0], k, v)):
        raises(RuntimeError, "", lambda: scaled_dot_product_attention(*bad))


def test_dimensions_of_masks():
    """A mask has two dimensions at least, and none that the tensors do not have; where PyTorch takes it, the result is PyTorch's."""
    q, k, v = tensors(2, 4, 4, 30, 40, 64, 64, torch.float32)
    for mask in (torch.rand(40, device=DEVICE) > 0.3, torch.tensor(True, device=DEVICE), random(40), random(1)):
        raises(IndexError, f"at least two dimensions, (queries, keys); it has {mask.dim()}",
               lambda: scaled_dot_product_attention(q, k, v, mask))
        for fewer in ((q[0], k[0], v[0]), (q[0, 0], k[0, 0], v[0, 0])):
            torch.testing.assert_close(scaled_dot_product_attention(*fewer, mask), sdpa(*fewer, mask))
    # The first is refused by PyTorch 2.11, and taken by 2.15 on the CPU.
    for fewer, shape in (((q[0], k[0], v[0]), (1, 4, 30, 40)), ((q[0, 0], k[0, 0], v[0, 0]), (1, 30, 40)), ((q, k, v), (1, 2, 4, 30, 40))):
        for attend in (scaled_dot_product_attention, sdpa)[:1 if len(shape) == 4 else 2]:
            raises(RuntimeError, "", lambda: attend(*fewer, torch.ones(shape, dtype=torch.bool, device=DEVICE)))


def test_masks_of_float32():
    """A mask of float32 keeps its values, whatever the type of query: large ones too, and those that are -inf in that type."""
    for dtype in TYPES:
        inputs = tensors(2, 4, 4, 20, 30, 64, 64, dtype)
        for scale in (30, 300):
            bias = random(4, 20, 30, scale=scale)
            with sdpa_kernel(SDPBackend.MATH):
                exact, plain = sdpa(*(x.double() for x in inputs), bias.double()), sdpa(*inputs, bias)
            o = scaled_dot_product_attention(*inputs, bias)
            compare(f"{short(dtype)}, scale {scale}", [o], [exact], [plain], dtype, 8 if dtype == torch.float32 else 2)
        leaves, mean = [x.requires_grad_() for x in inputs], inputs[2].mean(2, keepdim=True)
        for value in (-1e9, torch.finfo(torch.float32).min):  # rows whose scores are all alike have no gradient, and harm no other
            o = scaled_dot_product_attention(*leaves, torch.full((20, 30), value, device=DEVICE))
            torch.testing.assert_close(o, mean.expand_as(o), atol=4 * torch.finfo(dtype).eps, rtol=0)
            assert not any(x.any() for x in torch.autograd.grad(o.square().sum(), leaves))
        bias = torch.zeros(20, 30, device=DEVICE).requires_grad_()
        gradient, = torch.autograd.grad(scaled_dot_product_attention(*leaves, bias)[..., 0].sum(), bias)
        leaf = bias.detach().double().requires_grad_()
        exact, = torch.autograd.grad(sdpa(*(x.detach().double() for x in inputs), leaf)[..., 0].sum(), leaf)
        torch.testing.assert_close(gradient, exact.float(), atol=8 * torch.finfo(dtype).eps, rtol=0)


def test_passed_on():
    """What giwa does not serve has the result and gradients of PyTorch's function, and a warning; or it raises."""
    q, k, v = (random(2, 4, n, 64) for n in (10, 20, 20))
    rows = [random(n, 4, 64) for n in (5, 9)]
    nested = torch.nested.nested_tensor([x.cpu() for x in rows], layout=torch.jagged).to(DEVICE).transpose(1, 2)
    wide = [random(1, 1, n, 520) for n in (10, 20, 20)]
    gradient = lambda f: lambda *x: torch.func.grad(lambda q: f(q, *x[1:]).sum())(x[0])
    same = lambda f: f
    for reason, inputs, options, through in (
            ("float64", [x.double() for x in (q, k, v)], {"is_causal": True}, same), ("nested", [nested] * 3, {}, same),
            ("four dimensions", [x[None] for x in (q, k, v)], {}, same), ("above 512", wide, {}, same),
            ("all weights", (q, k, v), {"dropout_p": 1.0}, same), ("torch.func", (q, k, v), {}, gradient)):
        def attend(function):
            return through(lambda *x: function(*x, **options))(*inputs)
        functional.passed_on.clear()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = [attend(scaled_dot_product_attention) for _ in range(2)]
        told = [str(x.message) for x in told if "giwa_torch" in str(x.message)]
        assert len(told) == 1 and reason in told[0], f"{reason}: {told}"
        expected = attend(sdpa)
        for x in found:
            unpacked = zip(x.unbind(), expected.unbind()) if x.is_nested else [(x, expected)]
            for a, b in unpacked:
                torch.testing.assert_close(a, b, equal_nan=options.get("dropout_p") == 1.0)  # 0 times infinity in a kernel of PyTorch
        set_unsupported("raise")
        try:
            raises(NotImplementedError, reason, lambda: attend(scaled_dot_product_attention))
        finally:
            set_unsupported("pytorch")
    functional.passed_on.clear()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        compiled = torch.compile(lambda *x: scaled_dot_product_attention(*x, is_causal=True), fullgraph=True)
        inputs = [x.double().requires_grad_() for x in (q, k, v)]
        found, expected = compiled(*inputs), sdpa(*inputs, is_causal=True)
    assert any("float64" in str(x.message) for x in told), "torch.compile does not warn"
    for x, y in zip((found, *torch.autograd.grad(found.sum(), inputs)), (expected, *torch.autograd.grad(expected.sum(), inputs))):
        torch.testing.assert_close(x, y)
    raises(ValueError, "not 'ignore'", lambda: set_unsupported("ignore"))
    environment = {**os.environ, "GIWA_TORCH_UNSUPPORTED": "RAISE"}
    told = subprocess.run([sys.executable, "-c", "import giwa_torch"], cwd=os.path.dirname(os.path.abspath(__file__)), env=environment,
                          capture_output=True, text=True, check=False).stderr
    assert "not 'RAISE'" in told, told
    with torch.autograd.forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dual = torch.autograd.forward_ad.make_dual(q.clone().requires_grad_(), torch.ones_like(q))
        found, expected = (torch.autograd.forward_ad.unpack_dual(f(dual, k, v)).tangent for f in (scaled_dot_product_attention, sdpa))
        torch.testing.assert_close(found, expected)


def test_threads():
    """On the CPU a call has at most as many threads as PyTorch, and keeps them."""
    program = """
import os, torch, giwa_torch
q = torch.randn(1, 8, 256, 64)
for threads in (1, 2):
    torch.set_num_threads(threads)
    giwa_torch.scaled_dot_product_attention(q, q, q)
    print(len(os.listdir("/proc/self/task")))
"""
    told = subprocess.run([sys.executable, "-c", program], cwd=os.path.dirname(os.path.abspath(__file__)), capture_output=True, text=True,
                          check=True).stdout
    first, second = map(int, told.split())
    assert second - first == (1 if giwa_torch.build.openmp() and len(os.sched_getaffinity(0)) > 1 else 0), told


def test_dropout():
    """What is dropped is seen in an o whose values are a unit matrix; the gradients are those of the same factors."""
    dtype, keys, p = TYPES[0], 64, 0.25
    q, k, v = tensors(2, 4, 2, 200, keys, 64, 64, dtype)
    for options in ({}, {"causal": True, "softcap": 5.0}):
        torch.manual_seed(7)
        unit = torch.eye(keys, dtype=dtype, device=DEVICE).expand_as(k)
        o, lse = bhld(q, k, unit, dropout_p=p, **options)
        weights, exact = by_definition(q.double(), k.double(), unit.double(), **options)
        factors = o.double() / weights.masked_fill(weights == 0, 1)
        dropped = torch.where(factors > 0.5, 1 / (1 - p), 0.0)
        assert (factors - dropped)[weights > 1e-4].abs().max() < 0.05, "weights are neither dropped nor divided by 1 - p"
        share = (dropped[weights > 0] == 0).double().mean().item()
        assert abs(share - p) < 0.02, f"{share} are dropped"
        assert (lse - exact).abs()[~torch.isinf(exact)].max() < 0.05, "lse is that of all weights"
        attend = lambda *x, dropped=None, **o: bhld(*x, dropout_p=p, **o) if dropped is not None else bhld(*x, **o)
        weights = random(2, 4, 200, 64, dtype=dtype), torch.zeros(2, 4, 200, device=DEVICE)
        torch.manual_seed(7)
        found = with_gradients(attend, (q, k, v), {**options, "dropped": dropped}, weights)
        exact = with_gradients(by_definition, (q, k, v), {**options, "dropped": dropped}, weights, torch.float64)
        plain = with_gradients(lambda *x, **o: by_definition(*x, **o, rounded=dtype), (q, k, v), {**options, "dropped": dropped}, weights, torch.float32)
        compare(f"dropout {options}", found, exact, [x.to(dtype).float() for x in plain], dtype, 8 if dtype == torch.float32 else 2)
    assert not torch.equal(*(scaled_dot_product_attention(q, q, q, dropout_p=0.5) for _ in range(2))), "the same weights twice"


def drawn_blocks(batch, heads, queries, keys, block, mask_mod=None):
    """A BlockMask of lists that are drawn, some rows of them empty, and which blocks are full and which are partial, of all scores."""
    rows, columns = (-(-n // b) for n, b in zip((queries, keys), block))
    kinds = torch.randint(3, (batch, heads, rows, columns), device=DEVICE) * (torch.rand(batch, heads, rows, 1, device=DEVICE) > 0.25)
    lists = [((kinds == kind).sum(-1, dtype=torch.int32), (kinds == kind).int().argsort(dim=-1, descending=True, stable=True).int()) for kind in (1, 2)]
    made = BlockMask.from_kv_blocks(*lists[0], *lists[1], BLOCK_SIZE=block, mask_mod=mask_mod, seq_lengths=(queries, keys))
    scores = kinds.repeat_interleave(block[0], 2).repeat_interleave(block[1], 3)[..., :queries, :keys]
    return made, scores == 2, scores == 1


def packed(mask):
    """FlashInfer's packed custom mask: a bit for each score, the lowest first."""
    bits = torch.nn.functional.pad(mask.flatten(), (0, -mask.numel() % 8)).view(-1, 8)
    return (bits * 2 ** torch.arange(8, device=mask.device)).sum(-1).to(torch.uint8)


def test_block_mask():
    """Lists that FlexAttention makes and lists that are drawn, against a mask of all scores."""
    sizes = 2, 4, 2, 150, 333, 64, 64
    batch, heads, _, queries, keys, *_ = sizes
    ids = [torch.randint(4, (batch, n), dtype=torch.int32, device=DEVICE).sort(-1).values for n in (queries, keys)]
    mods = {"causal": (lambda b, h, q, k: q >= k, {"causal": True}), "bottom right": (lambda b, h, q, k: q + 183 >= k, {"causal": True, "top_left": False}),
            "window": (lambda b, h, q, k: (q >= k) & (q - k <= 40), {"causal": True, "window": (40, 0)}),
            "documents": (lambda b, h, q, k: ids[0][b, q] == ids[1][b, k], {"segment_ids": ids}),
            "heads": (lambda b, h, q, k: (q + 5 * h) % 7 != k % 7, None)}
    at = [torch.arange(n, device=DEVICE).view([-1 if i == d else 1 for i in range(4)]) for d, n in enumerate((batch, heads, queries, keys))]
    cases = []
    for (name, (mod, inner)), (b, h) in zip(mods.items(), ((None, None), (1, 1), (2, None), (2, 4), (None, 4))):
        dense = mod(*at).expand(batch, heads, queries, keys)
        made = create_block_mask(mod, b, h, queries, keys, device=DEVICE, BLOCK_SIZE=32)
        cases.append((TYPES[0], name, made, dense, inner or {"mask": dense[:1]}))
    causal = at[2] >= at[3]
    for dtype, b, h, block, inner, kept in ((TYPES[0], 2, 4, (64, 128), None, causal == causal), (TYPES[0], 1, 4, (16, 32), {"causal": True}, causal),
                                            (TYPES[0], 2, 1, 128, {"mask": packed(causal)}, causal), (TYPES[1], 1, 1, (32, 16), {"causal": True}, causal)):
        block = (block, block) if isinstance(block, int) else block
        made, full, partial = drawn_blocks(b, h, queries, keys, block, inner and (lambda b, h, q, k: q >= k))
        cases.append((dtype, f"drawn, {block}", made, (full | partial & kept).expand(batch, heads, -1, -1), inner))
    for dtype, name, made, dense, inner in cases:
        inputs = tensors(*sizes, dtype)
        check(f"{short(dtype)} {name}", dtype, inputs, {"mask": dense},
              lambda q, k, v, mask, made=made, inner=inner: bhld(q, k, v, mask=made, inner=inner))
        if dtype != TYPES[0]:
            continue
        o, rows = attention(*inputs, mask=made, inner=inner, heads_first=True), dense.any(-1)
        torch.testing.assert_close(o[rows], sdpa(*inputs, dense, enable_gqa=True)[rows], atol=2e-5 if dtype == torch.float32 else 2e-2, rtol=2e-2)
        assert not o[~rows].any(), f"{name}: rows without keys are not 0"
        if DEVICE == "cpu" and "drawn" not in name:  # without torch.compile FlexAttention asks only the mask_mod
            torch.testing.assert_close(o[rows], flex_attention(*inputs, block_mask=made, enable_gqa=True)[rows], atol=2e-5, rtol=2e-2)


def test_block_map():
    """The map of a BlockMask is made once, and anew when a list has changed; gradients have the map of their forward pass."""
    inputs = [x.requires_grad_() for x in tensors(2, 4, 4, 150, 150, 64, 64, torch.float32)]
    made, full, partial = drawn_blocks(2, 4, 150, 150, (32, 32))
    attend = lambda: attention(*inputs, mask=made, heads_first=True)
    dense = lambda mask: attention(*inputs, mask=mask, heads_first=True)
    map_of = lambda: next(iter(made._giwa_maps[2].values()))[0]
    with torch.no_grad():
        attend()
        by_rows = map_of()
        attend()
    assert map_of() is by_rows, "made twice"
    o = attend()
    by_keys = map_of()
    assert by_keys.numel() > by_rows.numel(), "without gradients it has the columns too"
    with torch.no_grad():
        attend()
    assert map_of() is by_keys and attend() is not None and map_of() is by_keys, "made twice"
    torch.testing.assert_close(o, dense(full | partial))
    made.full_kv_num_blocks.zero_()
    torch.testing.assert_close(attend(), dense(partial))
    dout = torch.randn_like(o)
    for x, y in zip(torch.autograd.grad(o, inputs, dout), torch.autograd.grad(dense(full | partial), inputs, dout)):
        torch.testing.assert_close(x, y, atol=1e-4, rtol=1e-4)
    made.kv_num_blocks = torch.zeros_like(made.kv_num_blocks)
    assert not attend().any(), "an old list is used"
    made.kv_num_blocks.data = (partial | full)[:, :, ::32, ::32].sum(-1, dtype=torch.int32)
    made.kv_indices = (partial | full)[:, :, ::32, ::32].int().argsort(dim=-1, descending=True, stable=True).int()
    torch.testing.assert_close(attend(), dense(full | partial))
    lengths = torch.tensor([150, 70], dtype=torch.int32, device=DEVICE)
    torch.testing.assert_close(*(attention(*inputs, mask=mask, k_lengths=lengths, heads_first=True) for mask in (made, full | partial)))
    with torch.inference_mode():
        other, full, partial = drawn_blocks(1, 1, 150, 150, (64, 64))
        for _ in range(2):
            torch.testing.assert_close(attention(*inputs, mask=other, heads_first=True), dense(full | partial))
            other.kv_num_blocks.zero_(), partial.zero_()
    lists = [x.clone() for x in (made.kv_num_blocks, made.kv_indices, made.full_kv_num_blocks, made.full_kv_indices)]
    for by_keys in (0, 1):
        blocks = [2, 4, 150, 150, 32, 32, by_keys]
        torch.library.opcheck(torch.ops.giwa.make_block_map.default, (*lists, blocks))
    words = torch.ops.giwa.make_block_map.default(*lists, blocks)
    torch.library.opcheck(torch.ops.giwa.attention.default, (*inputs, *(None,) * 9, 0, -1, -1, False, 0.0, None, True, 0.0, None, False,
                                                             None, None, None, words, blocks))
    model = lambda q, k, v, mask: (attention(q, k, v, mask=mask, heads_first=True) ** 2).sum()
    compiled = torch.compile(model, fullgraph=True, backend="inductor" if DEVICE == "cuda" else "aot_eager")
    for x, y in zip(*(torch.autograd.grad(f(*inputs, made), inputs) for f in (model, compiled))):
        torch.testing.assert_close(x, y)


def test_packed_bits():
    """FlashInfer's custom masks: of all sequences, and of each from its byte on."""
    dtype, heads, kv_heads, size = TYPES[0], 4, 2, 64
    mask = torch.rand(75, 131, device=DEVICE) > 0.5
    inputs = tensors(2, heads, kv_heads, 75, 131, size, size, dtype)
    check("bits of all sequences", dtype, inputs, {"mask": mask, "causal": True},
          lambda q, k, v, mask, causal: bhld(q, k, v, mask=packed(mask), causal=causal))
    lengths = ((30, 70), (1, 50), (90, 90), (17, 33))
    masks = [torch.rand(n, m, device=DEVICE) > 0.5 for n, m in lengths]
    bits = [packed(x) for x in masks]
    starts = [torch.tensor([0, *torch.tensor(n).cumsum(0)], dtype=torch.int32, device=DEVICE)
              for n in ([n for n, _ in lengths], [m for _, m in lengths], [x.numel() for x in bits])]
    q, k, v = (random(sum(n[i] for n in lengths), h, size, dtype=dtype).requires_grad_() for i, h in ((0, heads), (1, kv_heads), (1, kv_heads)))
    for offsets in (starts[2], starts[2][:-1].contiguous()):
        o, lse = attention(q, k, v, mask=torch.cat(bits), mask_offsets=offsets, q_offsets=starts[0], k_offsets=starts[1], max_q=90, return_lse=True)
        dout = random(*o.shape, dtype=dtype)
        gradients = torch.autograd.grad(o, (q, k, v), dout)
        for b, (n, m) in enumerate(lengths):
            rows, columns = (slice(int(x[b]), int(x[b + 1])) for x in starts[:2])
            own = [x[s].detach().transpose(0, 1)[None] for x, s in ((q, rows), (k, columns), (v, columns))]
            weights = dout[rows].transpose(0, 1)[None], torch.zeros(1, heads, n, device=DEVICE)
            compare_sequence(f"bits of sequence {b}", dtype, own, {"mask": masks[b]}, weights, [
                o[rows].transpose(0, 1)[None], lse[None, :, rows], *(x[s].transpose(0, 1)[None] for x, s in zip(gradients, (rows, columns, columns)))])


def test_block_mask_refused():
    q, k, v = tensors(2, 4, 2, 150, 300, 64, 64, TYPES[0])
    attend = lambda mask, q=q, **o: attention(q, k, v, mask=mask, heads_first=True, **o)
    made = drawn_blocks(1, 1, 150, 300, (64, 64))[0]

    def documents(b, h, q, k):
        return q // 50 == k // 50

    unknown = create_block_mask(documents, None, None, 150, 300, device=DEVICE)
    wide = drawn_blocks(1, 1, 150, 300, (64, 64))[0]
    wide.kv_num_blocks = wide.kv_num_blocks.long()
    ids = torch.zeros(150, dtype=torch.int32, device=DEVICE)
    rows = [x.transpose(1, 2)[0] for x in (q, k, v)]
    offsets = [torch.tensor([0, n], dtype=torch.int32, device=DEVICE) for n in (150, 300)]
    for kind, part, call in (
            (NotImplementedError, "mask_mod documents is Python code", lambda: attend(unknown)),
            (NotImplementedError, "inner={'causal': True}", lambda: attend(unknown)),
            (ValueError, "block_queries and block_keys must be powers of two", lambda: attend(drawn_blocks(1, 1, 150, 300, (96, 64))[0])),
            (ValueError, "given in inner", lambda: attend(made, causal=True)),
            (ValueError, "inner has causal", lambda: attend(made, inner={"windows": 3})),
            (ValueError, "inner is for a BlockMask", lambda: attend(None, inner={})),
            (ValueError, "150 queries and 301 keys, q and k have 150 and 300",
             lambda: attend(drawn_blocks(1, 1, 150, 301, (1, 1))[0])),
            (ValueError, "200 queries and 300 keys", lambda: attend(drawn_blocks(1, 1, 200, 300, (64, 64))[0])),
            (ValueError, "the batch of q, or 1", lambda: attend(drawn_blocks(3, 1, 150, 300, (64, 64))[0])),
            (ValueError, "the heads of q, or 1", lambda: attend(drawn_blocks(1, 2, 150, 300, (64, 64))[0])),
            (ValueError, "lists of a BlockMask must be int32", lambda: attend(wide)),
            (ValueError, "segment_ids of keys must be int32", lambda: attend(made, inner={"segment_ids": ids})),
            (NotImplementedError, "packed sequences",
             lambda: attention(*rows, mask=made, q_offsets=offsets[0], k_offsets=offsets[1])),
            (ValueError, "here 5625 bytes", lambda: attend(torch.zeros(5624, dtype=torch.uint8, device=DEVICE))),
            (ValueError, "of one dimension", lambda: attend(torch.zeros(150, 300, dtype=torch.uint8, device=DEVICE)))):
        raises(kind, part, call)


def raises(kind, part, call):
    try:
        call()
    except kind as error:
        assert part in str(error), f"'{part}' is not in '{error}'"
        return
    raise AssertionError(f"no {kind.__name__} with '{part}'")


def test_refused():
    q, k, v = tensors(2, 4, 2, 10, 20, 64, 64, TYPES[0])
    attend = lambda *x, **o: attention(*x, heads_first=True, **o)
    offsets = torch.tensor([0, 10], dtype=torch.int32, device=DEVICE)
    for kind, part, call in (
            (NotImplementedError, "Double", lambda: attend(q.double(), k.double(), v.double())),
            (ValueError, "k has elements", lambda: attend(q, k.double(), v)),
            (ValueError, "4 dimensions; it has 3", lambda: attend(q, k[0], v)),
            (ValueError, "as many sequences", lambda: attend(q, k[:1], v[:1])),
            (ValueError, "head size", lambda: attend(q, k[..., :37], v)),
            (ValueError, "multiple of", lambda: attend(q[:, :3], k, v)),
            (ValueError, "softcap", lambda: attend(q, k, v, softcap=-1.0)),
            (ValueError, "scale", lambda: attend(q, k, v, scale=float("nan"))),
            (ValueError, "mask must be of bool", lambda: attend(q, k, v, mask=torch.ones(10, 20, device=DEVICE))),
            (ValueError, "mask must broadcast", lambda: attend(q, k, v, mask=torch.ones(10, 19, device=DEVICE, dtype=torch.bool))),
            (ValueError, "bias must have the type", lambda: attend(q, k, v, bias=torch.ones(10, 20, device=DEVICE).double())),
            (ValueError, "sinks must be (heads)", lambda: attend(q, k, v, sinks=torch.ones(2, 4, device=DEVICE))),
            (ValueError, "with 2 sequences and 4 heads", lambda: attend(q, k, v, alibi_slopes=torch.ones(1, 4, device=DEVICE))),
            (ValueError, "int32", lambda: attend(q, k, v, k_lengths=torch.ones(2, device=DEVICE))),
            (ValueError, "go together", lambda: attention(q[0].transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1), q_offsets=offsets)),
            (NotImplementedError, "slopes (batch, heads)",
             lambda: attend(q.requires_grad_(), k, v, alibi_slopes=torch.ones(2, 4, device=DEVICE, requires_grad=True)).sum().backward()),
            (ValueError, "probability of dropout", lambda: scaled_dot_product_attention(q, q, q, dropout_p=1.5)),
            (RuntimeError, "enable_gqa", lambda: scaled_dot_product_attention(q, k, v)),
            (RuntimeError, "is_causal", lambda: scaled_dot_product_attention(q, q, q, torch.ones(10, 10, device=DEVICE).bool(), is_causal=True))):
        raises(kind, part, call)
    bias = torch.zeros(10, 20, dtype=q.dtype, device=DEVICE)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(bias, torch.ones_like(bias))
        raises(NotImplementedError, "forward-mode", lambda: attend(q.detach(), k, v, bias=dual))
    offsets = [torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in ((0, 5, 10), (0, 9, 18, 20))]
    raises(ValueError, "k_offsets must be contiguous, of shape (3,)",
           lambda: attention(*(x[0].transpose(0, 1) for x in (q, k, v)), q_offsets=offsets[0], k_offsets=offsets[1]))
    cache, factor = random(2, 20, 2, 64), random(2, 20, 2, 64).requires_grad_()
    loss = (cache * factor).sum()
    giwa_torch.append_to_cache(cache[:, :1].clone(), cache[:, :1].clone(), cache, cache.clone(), offsets[0][1:])
    raises(RuntimeError, "modified by an inplace operation", loss.backward)
    leaf = q.detach().requires_grad_()
    once = torch.autograd.grad((attend(leaf, q, q) ** 2).sum(), leaf, create_graph=True)[0]
    raises(RuntimeError, "not implemented", lambda: once.sum().backward())  # PyTorch's words: there is no second derivative


def test_autocast():
    q, k, v = tensors(2, 4, 4, 40, 40, 64, 64, torch.float32)
    leaf = q.clone().requires_grad_()
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        o = scaled_dot_product_attention(leaf, k, v)
        assert o.dtype == torch.bfloat16
        assert torch.equal(o, scaled_dot_product_attention(*(x.bfloat16() for x in (q, k, v))))
    o.sum().backward()
    assert leaf.grad.dtype == torch.float32


def test_compile():
    backend = "inductor" if DEVICE == "cuda" else "aot_eager"
    inputs = [x.requires_grad_() for x in tensors(2, 4, 2, 75, 131, 64, 64, TYPES[0])]
    mask, slopes = torch.rand(75, 131, device=DEVICE) > 0.3, torch.rand(4, device=DEVICE, requires_grad=True)

    def model(q, k, v, mask, slopes):
        a = scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        b = giwa_torch.flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=True, alibi_slopes=slopes)
        return (a * 2).sum() + (b * b).sum()

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for _ in range(2):
        eager, found = ([f.detach() for f in torch.autograd.grad(m(*inputs, mask, slopes), (*inputs, slopes))] for m in (model, compiled))
        for x, y in zip(eager, found):
            torch.testing.assert_close(x, y)
        inputs = [x.requires_grad_() for x in tensors(2, 4, 2, 75, 131, 64, 64, TYPES[0])]


def test_compile_with_changing_lengths():
    backend = "inductor" if DEVICE == "cuda" else "aot_eager"

    def model(q, k, v, offsets, most):
        packed = giwa_torch.flash_attn_varlen_func(q, k, v, offsets, offsets, most, most, causal=True)
        dropped = scaled_dot_product_attention(*(x.detach()[None] for x in (q, k, v)), dropout_p=0.25)
        fewer = scaled_dot_product_attention(*(x[:, :n].transpose(0, 1)[None] for x, n in ((q, 4), (k, 2), (v, 1))), enable_gqa=True)
        return packed.sum() + 0 * dropped.sum() + fewer.square().sum()

    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=True)
    for rows in (40, 64, 90):
        inputs = [random(rows, 4, 64, dtype=TYPES[0]).requires_grad_() for _ in range(3)]
        offsets = torch.tensor([0, 10, rows], dtype=torch.int32, device=DEVICE)
        for eager, found in zip(*(torch.autograd.grad(m(*inputs, offsets, rows - 10), inputs) for m in (model, compiled))):
            torch.testing.assert_close(eager, found, atol=2**-6, rtol=2**-6)  # sums of gradients are rounded twice, compiled once


def test_compile_with_recomputed_activations():
    """The backward pass has the weights that the forward pass has kept, whatever memory PyTorch may save activations in. o is linear in
    v: its product with any numbers is that of v with its gradient."""
    def model(q, k, v):
        return scaled_dot_product_attention(q.tanh(), k.tanh(), 2 * v, dropout_p=0.5).mul(3)

    def again(q, k, v):
        return torch.utils.checkpoint.checkpoint(model, q, k, v, use_reentrant=False)

    inputs = [x.requires_grad_() for x in tensors(2, 4, 4, 75, 131, 64, 64, torch.float32)]
    dout = random(2, 4, 75, 64)
    backends = ("inductor",) if DEVICE == "cuda" else ("aot_eager_decomp_partition", "inductor")
    for backend, budget, function in ((b, n, f) for b in (None, *backends) for n in ((1.0, 0.5, 0.1, 0.0) if b else (1.0,))
                                      for f in (model, again) if b != "inductor" or n in (0.1, 0.0)):
        torch.compiler.reset()
        attend = torch.compile(function, backend=backend, fullgraph=budget > 0) if backend else function
        with torch._functorch.config.patch(activation_memory_budget=budget):
            draws = [attend(*inputs) for _ in range(2)]
            assert not torch.equal(*draws), f"{backend}: the same weights twice"
            for o in draws:
                dv, = torch.autograd.grad(o, inputs[2], dout)
                forward, backward = (o * dout).sum().item(), (inputs[2] * dv).sum().item()
                assert abs(forward - backward) < 1e-3 * (o * dout).norm().item(), (
                    f"{backend}, {function.__name__}, budget {budget}: other weights in the backward pass, {forward} and {backward}")


def test_opcheck():
    q, k, v = (x.transpose(1, 2) for x in tensors(2, 4, 2, 40, 50, 64, 64, TYPES[0]))
    ops, none = torch.ops.giwa, (None,) * 5
    rest = (0, -1, 0, True, 0.0, None, False)
    bias = random(2, 1, 40, 50, dtype=TYPES[0])
    for grad in (False, True):
        inputs = [x.detach().requires_grad_(grad) for x in (q, k, v)]
        torch.library.opcheck(ops.attention.default, (*inputs, None, None, None, None, *none, *rest))
        torch.library.opcheck(ops.attention.default, (*inputs, None, bias.requires_grad_(grad), None, None, *none, *rest))
    offsets = torch.tensor([0, 15, 40], dtype=torch.int32, device=DEVICE)
    torch.library.opcheck(ops.attention.default, (q[0].requires_grad_(), q[0], q[0], None, None, None, None, offsets, offsets, None, None, None, *rest))
    o, lse = ops.attention.default(q, k, v, None, None, None, None, *none, *rest)
    torch.library.opcheck(ops.attention_backward.default, (o, None, q, k, v, o, lse, None, None, None, None, *none, *rest),
                            {"wanted": [True, False, True, False, False, False]})
    lengths = torch.tensor([50, 40], dtype=torch.int32, device=DEVICE)
    torch.library.opcheck(ops.attention_cached.default, (q, k, v, lengths, None, None, None, None, None, None, 0, -1, 0, True, 0.0, None, False))
    torch.library.opcheck(ops.append_to_cache.default, (k[:, :3], v[:, :3], k.clone(), v.clone(), lengths, None, q[:, :3], None, None, False,
                                                        None, None, False, None, None))
    caches, scales = [torch.zeros_like(x, dtype=torch.int8) for x in (k, v)], torch.ones(2, 1, 2, device=DEVICE)
    torch.library.opcheck(ops.append_to_cache.default, (k[:, :3], v[:, :3], *caches, lengths, None, None, None, None, False, None, None, False,
                                                        scales, scales))
    torch.library.opcheck(ops.attention_cached.default, (q, *caches, lengths, None, None, None, None, scales, scales, 0, -1, 0, True, 0.0, None,
                                                         False))


def test_gradcheck():
    """Central differences in float32 on small numbers of keys, with steps that fp32 resolves."""
    inputs = [random(1, 2, n, 64, scale=0.5).requires_grad_() for n in (3, 4, 4)]
    bias, sinks = random(2, 3, 4).requires_grad_(), random(2).requires_grad_()
    attend = lambda q, k, v, bias, sinks: attention(q, k, v, bias=bias, sinks=sinks, causal=True, softcap=3.0, heads_first=True)
    assert torch.autograd.gradcheck(attend, (*inputs, bias, sinks), eps=1e-2, atol=2e-3, rtol=2e-2)


def test_reused_workspace():
    """PyTorch gives the few bytes of a call's workspace to the next small tensors, and then to a call again: no row may get lost."""
    if DEVICE != "cuda":
        return
    for dtype in (torch.bool, torch.int8, torch.float16, torch.bfloat16, torch.float32, torch.int64):
        for size in (64, 128):
            q, k, v = (random(1, 3579, heads, size, dtype=torch.float16) for heads in (8, 4, 4))
            first = attention(q, k, v, causal=True)
            for _ in range(4):
                small = [torch.ones(1, dtype=dtype, device=DEVICE) for _ in range(256)]
                del small
                unwritten = torch.full_like(first, float("nan"))  # what a lost row would hold
                del unwritten
                assert torch.equal(attention(q, k, v, causal=True), first), f"{dtype} of {size}: other bits"


def test_no_synchronization():
    if DEVICE != "cuda":
        return
    inputs = [x.requires_grad_() for x in tensors(2, 4, 4, 130, 130, 64, 64, torch.bfloat16)]
    mask = torch.rand(130, 130, device=DEVICE) > 0.3
    blocks, bits = drawn_blocks(1, 1, 130, 130, (32, 32))[0], packed(mask)
    calls = [lambda: scaled_dot_product_attention(*inputs, is_causal=True).sum().backward(),
             lambda: attention(*inputs, mask=blocks, heads_first=True).sum().backward(),
             lambda: attention(*inputs, mask=bits, heads_first=True).sum().backward(),
             lambda: scaled_dot_product_attention(*inputs, mask).sum().backward()]
    for call in calls:
        call()  # compiled and loaded before
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for call in calls:
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with torch.no_grad():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = scaled_dot_product_attention(*inputs, is_causal=True)
            of_blocks = attention(*inputs, mask=blocks, heads_first=True)
        inputs[0].normal_(), blocks.full_kv_num_blocks.zero_()
        graph.replay()
        assert torch.equal(o, scaled_dot_product_attention(*inputs, is_causal=True))
        assert torch.equal(of_blocks, attention(*inputs, mask=blocks, heads_first=True)), "an old list is used"


def test_build_ahead():
    """What `python3 -m giwa_torch build` compiles is what the calls look for."""
    from giwa_torch import __main__ as command
    common = ["--head-size", "40:24", "--architecture", giwa_torch.build.architecture_of(0) if DEVICE == "cuda" else "cpu"]
    command.main(["build", *common, "--mask", "causal", "--pass", "forward", "backward", "cached"])
    command.main(["build", *common, "--mask", "band", "--pass", "forward", "append", "--score", "softcap"])
    command.main(["build", *common, "--mask", "blocks", "--pass", "forward", "block_map"])
    command.main(["build", *common, "--mask", "causal", "--pass", "cached", "append", "--cache", "int8"])
    q, k, v = (x.transpose(1, 2).requires_grad_() for x in tensors(2, 4, 4, 30, 30, 40, 24, torch.bfloat16))
    k_cache, v_cache = (x.detach().clone() for x in (k, v))
    with giwa_torch.build.collecting() as missing:
        flash_attn_func(q, k, v, causal=True).sum().backward()
        flash_attn_func(q, k, v, window_size=(5, 5), softcap=20.0)
        attention(q, k, v, mask=drawn_blocks(1, 1, 30, 30, (16, 16))[0])
        flash_attn_with_kvcache(q[:, :1].detach(), k_cache, v_cache, k[:, :1].detach(), v[:, :1].detach(), cache_seqlens=20, causal=True)
        flash_attn_with_kvcache(q[:, :1].detach(), k_cache.to(torch.int8), v_cache.to(torch.int8), k[:, :1].detach(), v[:, :1].detach(),
                                cache_seqlens=20, causal=True)
    assert not missing, missing
    raises(SystemExit, "", lambda: command.main(["build", "--head-size", "513"]))
    assert command.main(["check"]) == 0


def main(checks, calls, of=None):
    """Runs the checks that the command line names. `calls` are those whose kernels are compiled first, in parallel, if the check `of` is
    among them."""
    faulthandler.enable()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_num_threads(1)  # the tensors are small
    chosen = [(name, check) for name, check in checks.items()
              if name.startswith("test_") and any(part in name for part in sys.argv[1:] or [""])]
    begin = time.perf_counter()
    if of in dict(chosen):
        giwa_torch.precompile(*calls)
    print(f"{torch.cuda.get_device_name() if DEVICE == 'cuda' else 'CPU'}, torch {torch.__version__}; kernels compiled or loaded in "
          f"{time.perf_counter() - begin:.0f} s", flush=True)
    failed = 0
    for name, check_ in chosen:
        begin = time.perf_counter()
        try:
            check_()
            print(f"ok     {name} ({time.perf_counter() - begin:.1f} s)", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc(limit=-4)}", flush=True)
    print(f"{failed} failed" if failed else "all passed")
    return 1 if failed else 0


def calls():
    for _, dtype, sizes, options in cases():
        shape = sizes[0], sizes[1], sizes[3]
        weights = random(*shape, sizes[6], dtype=dtype), random(*shape)
        yield lambda d=dtype, s=sizes, o=options, w=weights: with_gradients(bhld, *prepared(d, s, o), w)


if __name__ == "__main__":
    sys.exit(main(globals(), calls(), "test_cases"))
