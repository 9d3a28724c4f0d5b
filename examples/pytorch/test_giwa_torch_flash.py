#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks the functions of flash_attn in giwa_torch, as test_giwa_torch.py checks the operators: python3 test_giwa_torch_flash.py [part
of a name...], or pytest. peer_tests.py runs the tests of flash_attn itself."""
import itertools
import math
import sys

import torch

import giwa_torch
from giwa_torch import (flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func, flash_attn_varlen_func,
                        flash_attn_varlen_kvpacked_func, flash_attn_varlen_qkvpacked_func, flash_attn_with_kvcache,
                        flash_mla_sparse_fwd, flash_mla_with_kvcache, get_mla_metadata)
from test_giwa_torch import DEVICE, TYPES, by_definition, compare, main, raises, random, seen

SIZE = 64


def as_heads(*tensors):
    return [x.transpose(1, 2) for x in tensors]


def definition(q, k, v, dtype, **options):
    """(o, lse) in float64 and of a plain attention, of tensors (batch, length, heads, head size)."""
    wide = {n: x.double() if torch.is_tensor(x) else x for n, x in options.items()}
    o, lse = by_definition(*as_heads(*(x.double() for x in (q, k, v))), **wide)
    narrow = {n: x.float() if torch.is_tensor(x) else x for n, x in options.items()}
    plain, plain_lse = by_definition(*as_heads(*(x.float() for x in (q, k, v))), rounded=dtype, **narrow)
    return (o.transpose(1, 2), lse), (plain.transpose(1, 2).to(dtype), plain_lse)


def test_functions():
    dtype = TYPES[0]
    q, kv = random(2, 50, 4, SIZE, dtype=dtype), random(2, 70, 2, 2, SIZE, dtype=dtype)
    k, v = kv.unbind(2)
    slopes = torch.rand(4, device=DEVICE)
    for theirs, ours in (({"causal": True}, {"causal": True}), ({"window_size": (20, 5)}, {"window": (20, 5)}),
                         ({"causal": True, "alibi_slopes": slopes}, {"causal": True, "alibi_slopes": slopes}),
                         ({"causal": True, "softcap": 5.0, "softmax_scale": 0.4}, {"causal": True, "softcap": 5.0, "scale": 0.4})):
        exact, plain = definition(q, k, v, dtype, **ours)
        found = flash_attn_func(q, k, v, return_attn_probs=True, **theirs)
        assert len(found) == 3 and found[2].numel() == 0
        compare(str(theirs), found[:2], exact, plain, dtype, 4)
        packed = flash_attn_kvpacked_func(q, kv, **theirs)
        assert torch.equal(packed, found[0]) and packed.is_contiguous()
        offsets = [torch.arange(3, dtype=torch.int32, device=DEVICE) * n for n in (50, 70)]
        options = {**theirs, "return_attn_probs": True}
        o, lse, _ = flash_attn_varlen_func(*(x.flatten(0, 1) for x in (q, k, v)), *offsets, 50, 70, **options)
        compare(f"packed {theirs}", [o.view(2, 50, 4, SIZE), lse.view(4, 2, 50).transpose(0, 1)], exact, plain, dtype, 4)
        assert torch.equal(flash_attn_varlen_kvpacked_func(q.flatten(0, 1), kv.flatten(0, 1), *offsets, 50, 70, **options)[0], o)
    qkv = random(2, 60, 3, 4, SIZE, dtype=dtype).requires_grad_()
    o = flash_attn_qkvpacked_func(qkv, causal=True)
    exact, plain = definition(*qkv.detach().unbind(2), dtype, causal=True)
    compare("qkv", [o.detach()], exact[:1], plain[:1], dtype, 4)
    offsets = torch.arange(3, dtype=torch.int32, device=DEVICE) * 60
    packed = flash_attn_varlen_qkvpacked_func(qkv.flatten(0, 1), offsets, 60, causal=True)
    torch.testing.assert_close(packed.view_as(o), o)
    for x in (o, packed):
        gradient, = torch.autograd.grad(x.float().square().sum(), qkv)
        assert gradient.shape == qkv.shape and gradient.abs().max() > 0


def turned(x, cos, sin, position, interleaved):
    """Rotated x (length, heads, head size); cos and sin (positions, pairs), position (length)."""
    pairs = cos.shape[1]
    c, s = (t[position].double()[:, None] for t in (cos, sin))
    head, rest = x[..., :2 * pairs].double(), x[..., 2 * pairs:].double()
    a, b = (head[..., 0::2], head[..., 1::2]) if interleaved else head.chunk(2, -1)
    a, b = a * c - b * s, b * c + a * s
    both = torch.stack((a, b), -1).flatten(-2) if interleaved else torch.cat((a, b), -1)
    return torch.cat((both, rest), -1).to(x.dtype)


def grid():
    """queries, new keys, page (0: none), batch index, (causal, window), rotary: None or interleaved"""
    for page, index in ((0, False), (16, False), (0, True)):
        for queries, new in ((1, 1), (5, 5), (3, 0), (4, 7)):
            for causal, window in ((True, (-1, -1)), (False, (-1, -1)), (True, (20, 0))):
                for rotary in (None,) if new == 0 else (None, True, False):
                    yield queries, new, page, index, causal, window, rotary


def one_cache(dtype, queries, new, page, index, causal, window, rotary, **options):
    batch, heads, kv_heads, most = 3, 4, 2, 80
    begin = torch.tensor([40, 0, 61], dtype=torch.int32, device=DEVICE)
    if new == 0:
        begin[1] = 9
    k_keys, v_keys = (random(batch, most, kv_heads, SIZE, dtype=dtype) for _ in range(2))
    q, k, v = random(batch, queries, heads, SIZE, dtype=dtype), *(random(batch, new, kv_heads, SIZE, dtype=dtype) for _ in range(2))
    keywords = {"cache_seqlens": begin, "causal": causal, "window_size": window, **options}
    caches = [k_keys.clone(), v_keys.clone()]
    if page:
        table = torch.randperm(batch * most // page + 2, device=DEVICE)[:batch * most // page].to(torch.int32).view(batch, -1)
        keywords["block_table"] = table
        pools = [random(batch * most // page + 2, page, kv_heads, SIZE, dtype=dtype) for _ in range(2)]
        for pool, x in zip(pools, caches):
            pool[table.long()] = x.view(batch, -1, page, kv_heads, SIZE)
        caches = pools
    if index:
        order = torch.tensor([4, 0, 2], dtype=torch.int32, device=DEVICE)
        keywords["cache_batch_idx"] = order
        pools = [random(5, most, kv_heads, SIZE, dtype=dtype) for _ in range(2)]
        for pool, x in zip(pools, caches):
            pool[order.long()] = x
        caches = pools
    if rotary is not None:
        angle = torch.rand(most + 10, SIZE // 4, device=DEVICE) * 6.28
        keywords.update(rotary_cos=angle.cos().to(dtype), rotary_sin=angle.sin().to(dtype), rotary_interleaved=rotary)
    if new:
        keywords.update(k=k, v=v)
    o, lse = flash_attn_with_kvcache(q, *caches, return_softmax_lse=True, **keywords)
    what = f"{queries} queries, {new} new, page {page}, index {index}, causal {causal}, {window}, rotary {rotary}, {list(options)}"
    ours = {"causal": causal, "window": window, **{{"softmax_scale": "scale"}.get(n, n): x for n, x in options.items()}}
    for b in range(batch):
        length, own_q, own_k = int(begin[b]), q[b], k[b]
        if rotary is not None:
            cos, sin = keywords["rotary_cos"], keywords["rotary_sin"]
            local = causal or window != (-1, -1)
            at = torch.arange(queries, device=DEVICE) + length if local else torch.full((queries,), length, device=DEVICE)
            own_q = turned(own_q, cos, sin, at, rotary)
            own_k = turned(own_k, cos, sin, torch.arange(new, device=DEVICE) + length, rotary)
        keys, values = (torch.cat((x[b, :length], y)) for x, y in ((k_keys, own_k), (v_keys, v[b])))
        if page:
            stored = [pool[table[b].long()].flatten(0, 1) for pool in caches]
        else:
            stored = [pool[order[b]] if index else pool[b] for pool in caches]
        torch.testing.assert_close(stored[0][:length + new], keys, atol=torch.finfo(dtype).eps * 4, rtol=torch.finfo(dtype).eps)
        assert torch.equal(stored[1][:length + new], values), f"{what}: the cache of v"
        exact, plain = definition(own_q[None], stored[0][None, :length + new], values[None], dtype, **ours)
        times = 2.0 if rotary is None else 6.0  # q is rounded after it is rotated, in another precision here
        compare(f"{what}, sequence {b}", [o[b:b + 1], lse[b:b + 1]], exact, plain, dtype, times * (4 if dtype == torch.float32 else 1))


def test_caches():
    for case in grid():
        one_cache(TYPES[0], *case)
    slopes = torch.rand(4, device=DEVICE)
    for options in ({"alibi_slopes": slopes}, {"softcap": 4.0, "softmax_scale": 0.3}):
        one_cache(TYPES[0], 2, 2, 16, False, True, (-1, -1), None, **options)


def test_cache_arguments():
    dtype = TYPES[0]
    q, cache = random(2, 1, 4, SIZE, dtype=dtype), [random(2, 32, 2, SIZE, dtype=dtype) for _ in range(2)]
    exact, plain = definition(q, *(x[:, :20] for x in cache), dtype)
    compare("an int", [flash_attn_with_kvcache(q, *cache, cache_seqlens=20)], exact[:1], plain[:1], dtype, 4)
    exact, plain = definition(q, *cache, dtype)
    compare("no lengths", [flash_attn_with_kvcache(q, *cache)], exact[:1], plain[:1], dtype, 4)
    left, order = (torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in ((5, 20), (1, 0)))
    for index in (None, order):
        o, lse = flash_attn_with_kvcache(q, *cache, cache_seqlens=20, cache_leftpad=left, cache_batch_idx=index, return_softmax_lse=True)
        own = [x[:1, 5:20] if index is None else x[1:, 5:20] for x in cache]
        exact, plain = definition(q[:1], *own, dtype)
        compare("left padding", [o[:1], lse[:1]], exact, plain, dtype, 4)
        assert not o[1].any() and torch.isinf(lse[1]).all(), "a sequence without keys"
    padded = [flash_attn_with_kvcache(q, *cache, cache_seqlens=20, cache_leftpad=torch.tensor([first, 25], dtype=torch.int32, device=DEVICE))
              for first in (-7, 0)]
    assert torch.equal(*padded) and not padded[0][1].any(), "padding below 0 counts as 0, and beyond the keys there are none"
    assert torch.equal(*(flash_attn_with_kvcache(q, *cache, cache_seqlens=20, cache_leftpad=x) for x in (left, left.long())))
    raises(ValueError, "lengths must be contiguous, of shape (2,)", lambda: flash_attn_with_kvcache(q, *cache, cache_seqlens=torch.cat((left, left))))
    raises(ValueError, "cache_leftpad must be of shape (2,)", lambda: flash_attn_with_kvcache(q, *cache, cache_seqlens=20, cache_leftpad=left[:1]))
    raises(NotImplementedError, "block_table with cache_leftpad",
           lambda: flash_attn_with_kvcache(q, *cache, cache_seqlens=20, cache_leftpad=left, block_table=order[:, None]))
    raises(ValueError, "together", lambda: flash_attn_with_kvcache(q, *cache, k=cache[0][:, :1], cache_seqlens=3))
    raises(ValueError, "rotary_cos needs k", lambda: flash_attn_with_kvcache(q, *cache, rotary_cos=q, rotary_sin=q))
    attend = lambda **o: giwa_torch.attention_cached(q, *cache, torch.tensor([20, 3], dtype=torch.int32, device=DEVICE), **o)
    raises(ValueError, "with 2 sequences and 4 heads", lambda: attend(alibi_slopes=torch.ones(1, 4, device=DEVICE)))
    raises(ValueError, "sinks must be (heads)", lambda: attend(sinks=torch.ones(2, 4, device=DEVICE)))
    raises(ValueError, "pages must be", lambda: attend(pages=torch.zeros(2, 0, dtype=torch.int32, device=DEVICE)))
    table = torch.zeros(0, 3, dtype=torch.int32, device=DEVICE)  # of no sequences, while the cache has pages
    new = cache[0][:0, :1].clone()
    o = flash_attn_with_kvcache(q[:0], *cache, k=new, v=new, cache_seqlens=table[:, 0], block_table=table)
    assert o.shape == q[:0].shape


def eight_bits(x, kind):
    """x as a cache of 8 or 4 bits holds it, rounded to nearest even."""
    if kind == torch.uint8:
        return x.round().clamp(-7, 7)
    return x.clamp(-448, 448).to(kind) if kind.is_floating_point else x.round().clamp(-127, 127).to(kind)


def numbers_of(cache):
    """The numbers of a cache, of which uint8 has two integers of 4 bits."""
    if cache.dtype != torch.uint8:
        return cache
    return (torch.stack((cache & 15, cache >> 4), -1).int().bitwise_xor(8) - 8).flatten(-2)


def one_cache_of_8_bits(dtype, kind, page, shape):
    """Rows are appended to a cache of 8 bits and read again. The scales have as many sequences or pages, keys and heads as `shape` says,
    False for 1; they are powers of two, so that PyTorch divides exactly too."""
    batch, keys, heads = 2, 48, 2
    lengths = torch.tensor([48, 29], dtype=torch.int32, device=DEVICE)
    pages = torch.randperm(batch * keys // page, device=DEVICE).to(torch.int32).view(batch, -1) if page else None
    places = (batch * keys // page, page) if page else (batch, keys)
    q, k, v = random(batch, 2, 4, SIZE, dtype=dtype), *(random(batch, keys, heads, SIZE, dtype=dtype, scale=s) for s in (1.0, 3.0))
    sizes = [n if whole else 1 for n, whole in zip((*places, heads), shape)]
    scales = [torch.exp2(torch.randint(low, low + 3, sizes, device=DEVICE).float()) for low in (-6, -4)]
    caches = [torch.zeros(*places, heads, SIZE // (1 + (kind == torch.uint8)), device=DEVICE).to(kind) for _ in range(2)]
    none = torch.zeros(0, dtype=dtype, device=DEVICE)
    assert giwa_torch.append_to_cache(k, v, *caches, torch.full_like(lengths, keys), pages, k_scales=scales[0], v_scales=scales[1]).equal(none)
    o, lse = giwa_torch.attention_cached(q, *caches, lengths, pages, k_scales=scales[0], v_scales=scales[1], return_lse=True)
    for b in range(batch):
        stored = []
        for cache, scale, x in zip(map(numbers_of, caches), scales, (k, v)):
            codes, wide = (y[pages[b].long()].flatten(0, 1) if page else y[b] for y in (cache, scale.expand(*places, heads)))
            assert torch.equal(codes.float(), eight_bits(x[b].float() / wide[..., None], kind).float()), f"{kind}, page {page}, {shape}: codes"
            stored.append((codes.float() * wide[..., None])[None, :int(lengths[b])])
        exact, plain = definition(q[b:b + 1], *stored, dtype, causal=True)
        compare(f"{kind}, page {page}, scales {shape}, sequence {b}", [o[b:b + 1], lse[b:b + 1]], exact, plain, dtype,
                2 * (4 if dtype == torch.float32 else 1))


def test_scales_that_append_finds():
    for kind, most, page in ((torch.int8, 127, 0), (torch.float8_e4m3fn, 448, 16), (torch.uint8, 7, 16)):
        dtype, batch, keys, heads = TYPES[0], 2, 32, 2
        places = (batch * keys // page, page) if page else (batch, keys)
        pages = torch.arange(batch * keys // page, device=DEVICE).to(torch.int32).view(batch, -1) if page else None
        k, v = (random(batch, keys, heads, SIZE, dtype=dtype) for _ in range(2))
        caches = [torch.zeros(*places, heads, SIZE // (1 + (kind == torch.uint8)), device=DEVICE).to(kind) for _ in range(2)]
        scales = [torch.zeros(*places, heads, device=DEVICE) for _ in range(2)]
        lengths = torch.full((batch,), keys, dtype=torch.int32, device=DEVICE)
        giwa_torch.append_to_cache(k, v, *caches, lengths, pages, k_scales=scales[0], v_scales=scales[1], find_scales=True)
        for x, cache, scale in zip((k, v), caches, scales):
            largest = x.float().abs().amax(-1).view(*places, heads)
            assert torch.allclose(scale, largest / most, rtol=1e-6, atol=0), f"{kind}: scales"
            codes, exact = numbers_of(cache).float(), x.float().view(*places, heads, SIZE) / scale[..., None]
            wide = 0.5 if not kind.is_floating_point or kind == torch.uint8 else exact.abs().clamp(min=2 ** -6) * 2 ** -4
            assert ((codes - exact).abs() <= wide + 1e-4).all(), f"{kind}: codes"
        q = random(batch, 2, 4, SIZE, dtype=dtype)
        o = giwa_torch.attention_cached(q, *caches, lengths, pages, k_scales=scales[0], v_scales=scales[1])
        stored = [(numbers_of(c).float() * s[..., None]).view(batch, keys, heads, SIZE) for c, s in zip(caches, scales)]
        exact, plain = definition(q, *stored, dtype, causal=True)
        compare(f"{kind}, found scales", [o], exact[:1], plain[:1], dtype, 4)


def test_keys_without_values():
    """v None: only keys are written, also in a compiled step that names their cache twice."""
    dtype, lengths = TYPES[0], torch.tensor([20, 32], dtype=torch.int32, device=DEVICE)
    k, latent = random(2, 5, 1, SIZE, dtype=dtype), random(2, 5, 1, 576, dtype=torch.bfloat16)
    for kind, size, new, names in ((torch.int8, SIZE, k, True), (torch.uint8, 656, latent, False)):
        def append(k, cache, scales):
            options = {"k_scales": scales, "find_scales": True} if names else {}
            giwa_torch.append_to_cache(k, None, cache, cache, lengths, **options)
            return cache.float().sum()
        caches = [torch.zeros(2, 32, 1, size, dtype=kind, device=DEVICE) for _ in range(2)]
        scales = [torch.zeros(2, 32, 1, device=DEVICE) for _ in range(2)]
        compiled = torch.compile(append, fullgraph=True, backend="inductor" if DEVICE == "cuda" else "aot_eager")
        sums = [f(new, *where) for f, *where in zip((append, compiled), caches, scales)]
        assert sums[0] == sums[1] and torch.equal(*caches) and torch.equal(*scales), f"{kind}: compiled"
        for b, n in enumerate(lengths.tolist()):
            assert caches[0][b, n - 5:n].any(-1).all() and not caches[0][b, :n - 5].any() and not caches[0][b, n:].any(), f"{kind}: rows"
            if names:
                largest = k[b].float().abs().amax(-1)
                assert torch.allclose(scales[0][b, n - 5:n], largest / 127, rtol=1e-6, atol=0), "scales"
    cache, scale = torch.zeros(2, 32, 1, SIZE, dtype=torch.int8, device=DEVICE), torch.zeros(2, 32, 1, device=DEVICE)
    find = lambda v=None, **o: giwa_torch.append_to_cache(k, v, cache, cache, lengths, find_scales=True, **o)
    raises(ValueError, "find_scales needs k_scales", find)
    raises(ValueError, "v_scales", lambda: find(k_scales=scale, v_scales=scale))
    raises(ValueError, "v_scales", lambda: find(k, k_scales=scale))
    raises(ValueError, "k_scales", lambda: find(k_scales=scale[:, :1]))
    raises(ValueError, "k_scales", lambda: find(k_scales=scale[:, :1].expand(2, 32, 1)))


def test_e4m3():
    """The functions of flash_attn with float8_e4m3fn and descales, as FlashAttention-3 has them: o is bfloat16."""
    bytes_of = lambda *sizes: random(*sizes, dtype=torch.float32).to(torch.float8_e4m3fn)
    q, k, v = bytes_of(2, 70, 4, SIZE), bytes_of(2, 90, 2, SIZE), bytes_of(2, 90, 2, SIZE)
    own = [0.5 + torch.rand(2, 2, device=DEVICE) for _ in range(3)]
    names = ("q_descale", "k_descale", "v_descale")
    near = lambda a, b: ((a.float() - b.float()).norm() <= 0.06 * b.float().norm()).item()
    for descales, causal in ((own, True), ([x[:1] for x in own], False), ([None] * 3, True)):
        o, lse, _ = flash_attn_func(q, k, v, causal=causal, return_attn_probs=True, **dict(zip(names, descales)))
        assert o.dtype == torch.bfloat16 and lse.dtype == torch.float32
        scaled = [x.float() * (1 if d is None else d.repeat_interleave(x.shape[2] // 2, 1)[:, None, :, None]) for x, d in zip((q, k, v), descales)]
        exact, _ = definition(*scaled, torch.float32, causal=causal)
        assert near(o, exact[0]), "e4m3"
        for keys in (90, 96):  # v K-major: the strides of its columns are multiples of 16 bytes, or it is copied
            columns = torch.zeros(2, 2, SIZE, keys, device=DEVICE).to(v.dtype)
            columns[..., :90] = v.permute(0, 2, 3, 1)
            k_major = columns[..., :90].permute(0, 3, 1, 2)
            assert k_major.stride(1) == 1
            o = flash_attn_func(q, k, k_major, causal=causal, **dict(zip(names, descales)))
            assert near(o, exact[0]), "e4m3, v K-major"
    offsets = torch.tensor([0, 30, 70], dtype=torch.int32, device=DEVICE), torch.tensor([0, 40, 90], dtype=torch.int32, device=DEVICE)
    o = flash_attn_varlen_func(q[0], k[0], v[0], *offsets, 40, 50, causal=True, **dict(zip(names, (x[:1] for x in own))))
    scaled = [x[:1].float() * d[:1].repeat_interleave(x.shape[2] // 2, 1)[:, None, :, None] for x, d in zip((q, k, v), own)]
    for (a, b), (c, d) in (((0, 30), (0, 40)), ((30, 70), (40, 90))):
        exact, _ = definition(scaled[0][:, a:b], *(x[:, c:d] for x in scaled[1:]), torch.float32, causal=True)
        assert near(o[a:b], exact[0][0]), "packed e4m3"
    raises(NotImplementedError, "a descale for each sequence",
           lambda: flash_attn_varlen_func(q[0], k[0], v[0], *offsets, 40, 50, q_descale=own[0]))
    raises(NotImplementedError, "dropout_p with float8", lambda: flash_attn_func(q, k, v, dropout_p=0.1))
    half = [x.to(TYPES[0]) for x in (q, k, v)]
    raises(NotImplementedError, "descales without float8", lambda: flash_attn_func(*half, k_descale=own[0]))


def test_caches_of_8_bits():
    for kind, page, shape in itertools.product((torch.int8, torch.float8_e4m3fn, torch.uint8), (0, 16), ((0, 0, 0), (1, 0, 1), (1, 1, 1))):
        one_cache_of_8_bits(TYPES[0], kind, page, shape)
    dtype, lengths = TYPES[0], torch.tensor([20, 20], dtype=torch.int32, device=DEVICE)
    q, cache = random(2, 1, 4, SIZE, dtype=dtype), [random(2, 32, 2, SIZE, scale=30).to(torch.int8) for _ in range(2)]
    own, same = torch.rand(2, 2, device=DEVICE), torch.rand(1, 2, device=DEVICE)
    table = torch.tensor([[1], [0]], dtype=torch.int32, device=DEVICE)
    for scales, named in ((own, {}), (same, {"block_table": table}), (same.expand(2, 2), {"cache_batch_idx": table[:, 0]})):
        o = flash_attn_with_kvcache(q, *cache, cache_seqlens=20, k_descale=scales, v_descale=scales, **named)
        numbers = [x[:, :20].float() * scales[:, None, :, None] for x in cache]
        exact, plain = definition(q, *(x.flip(0) if named else x for x in numbers), dtype)
        compare(f"descales, {list(named)}", [o], exact[:1], plain[:1], dtype, 4)
    attend = lambda k=cache[0], v=cache[1], **o: giwa_torch.attention_cached(q, k, v, lengths, **o)
    raises(NotImplementedError, "a descale for each sequence",
           lambda: flash_attn_with_kvcache(q, *cache, cache_seqlens=20, k_descale=own, block_table=table))
    raises(ValueError, "a descale must be (batch, kv heads)", lambda: flash_attn_with_kvcache(q, *cache, cache_seqlens=20, k_descale=own[0]))
    raises(ValueError, "float8_e4m3fn, int8 or uint8", lambda: attend(*(x.int() for x in cache)))
    raises(ValueError, "k_cache of type", lambda: attend(v=cache[1].to(dtype)))
    raises(ValueError, "are of a cache of", lambda: attend(*(x.to(dtype) for x in cache), k_scales=own[:, None]))
    for wrong in (own, own[:, None].double(), own[:, None, :, None][:, :, :1, 0].expand(2, 3, 1)):
        raises(ValueError, "v_scales must be float32", lambda x=wrong: attend(v_scales=x))


def test_rotary_with_another_size_of_v():
    """Queries that are not the new keys are rotated by themselves."""
    dtype = TYPES[0]
    q, k, v = random(2, 3, 4, SIZE, dtype=dtype), random(2, 1, 2, SIZE, dtype=dtype), random(2, 1, 2, 32, dtype=dtype)
    caches = [random(2, 40, 2, size, dtype=dtype) for size in (SIZE, 32)]
    angle = torch.rand(50, SIZE // 4, device=DEVICE) * 6.28
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    before = [x.clone() for x in caches]
    o = flash_attn_with_kvcache(q, *caches, k, v, cos, sin, cache_seqlens=30, causal=True)
    for x, y in zip(caches, before):
        assert torch.equal(x[:, :30], y[:, :30]) and torch.equal(x[:, 31:], y[:, 31:]), "other keys are written"
    rotated = torch.stack([turned(x, cos, sin, torch.arange(30, 33, device=DEVICE), True) for x in q])
    exact, plain = definition(rotated, *(x[:, :31] for x in caches), dtype, causal=True)
    compare("rotated queries", [o], exact[:1], plain[:1], dtype, 6 * (4 if dtype == torch.float32 else 1))


def test_weights_with_dropout():
    """return_attn_probs: the weights are those of attention without dropout, and those that are not negative make the output."""
    dtype, p = TYPES[0], 0.25
    wide = 40 if dtype == torch.float32 else 8  # in fp32, scores and sums have larger errors than the rounding of the result
    q, k, v = (random(2, n, h, SIZE, dtype=dtype) for n, h in ((40, 4), (90, 2), (90, 2)))
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    offsets = [torch.tensor([0, n, 2 * n], dtype=torch.int32, device=DEVICE) for n in (40, 90)]
    for o, _, weights in (flash_attn_func(q, k, v, p, causal=True, return_attn_probs=True),
                          flash_attn_varlen_func(*packed, *offsets, 40, 90, p, causal=True, return_attn_probs=True)):
        keys, values = (x.double().transpose(1, 2).repeat_interleave(2, 1) for x in (k, v))
        scores = (q.double().transpose(1, 2) @ keys.transpose(-1, -2) * SIZE ** -0.5).masked_fill(~seen(40, 90, True), float("-inf"))
        torch.testing.assert_close(weights.double().abs(), scores.softmax(-1), atol=wide / 4 * torch.finfo(dtype).eps, rtol=0)
        made = (weights.double().clamp(min=0) / (1 - p)) @ values
        torch.testing.assert_close(o.double().view_as(q).transpose(1, 2), made, atol=wide * torch.finfo(dtype).eps, rtol=0)
        share = (weights < 0).double().sum() / (weights != 0).double().sum()
        assert abs(share - p) < 0.02, f"{share} are dropped"


def test_deterministic():
    """With `deterministic`, or PyTorch's own setting, gradients have the same bits in every run; else those of k and v have them.
    These are the same with and without, unless blocks share the query heads of a kv head."""
    dtype, length, heads = TYPES[0], *((2048, 8) if DEVICE == "cuda" else (80, 2))
    dout = random(2, length, heads, SIZE, dtype=dtype)
    for kv_heads in (heads, heads // 2):
        inputs = [random(2, length, h, SIZE, dtype=dtype).requires_grad_() for h in (heads, kv_heads, kv_heads)]
        gradients = lambda **options: torch.autograd.grad(flash_attn_func(*inputs, causal=True, **options), inputs, dout)
        fixed, first = gradients(deterministic=True), gradients()
        for _ in range(3):
            assert all(torch.equal(x, y) for x, y in zip(fixed, gradients(deterministic=True)))
            found = gradients()
            for x, y in zip(found, fixed):
                torch.testing.assert_close(x, y)
            assert all(torch.equal(x, y) for x, y in zip(first[1:], found[1:]))
            if kv_heads == heads:
                assert all(torch.equal(x, y) for x, y in zip(fixed[1:], found[1:]))
        torch.use_deterministic_algorithms(True)
        try:
            assert all(torch.equal(x, y) for x, y in zip(fixed, gradients()))
        finally:
            torch.use_deterministic_algorithms(False)


def test_pages_of_packed_queries():
    dtype, page = TYPES[0], 16
    lengths, keys = (1, 12, 3), (30, 12, 64)
    q = random(sum(lengths), 4, SIZE, dtype=dtype)
    pools = [random(14, page, 2, SIZE, dtype=dtype) for _ in range(2)]
    table = torch.randperm(14, device=DEVICE)[:12].to(torch.int32).view(3, 4)
    offsets = [torch.tensor([0, *itertools.accumulate(n)], dtype=torch.int32, device=DEVICE) for n in (lengths, keys)]
    o, lse, _ = flash_attn_varlen_func(q, *pools, *offsets, 12, 64, causal=True, block_table=table, return_attn_probs=True)
    for b in range(3):
        rows = slice(sum(lengths[:b]), sum(lengths[:b + 1]))
        own = [pool[table[b].long()].flatten(0, 1)[None, :keys[b]] for pool in pools]
        exact, plain = definition(q[None, rows], *own, dtype, causal=True)
        compare(f"sequence {b}", [o[None, rows], lse[None, :, rows]], exact, plain, dtype, 4)


def rows_of_656(rows):
    """Latent rows of FlashMLA's FP8 format, and their numbers. On Hopper up to 32 queries times heads multiply these, more of them
    what is rounded to bfloat16."""
    groups = rows[..., :512].float().unflatten(-1, (4, 128))
    scales = groups.abs().amax(-1, keepdim=True) / 448
    codes = (groups / scales).to(torch.float8_e4m3fn)
    parts = [codes.flatten(-2), scales.flatten(-2), rows[..., 512:].to(torch.bfloat16)]
    numbers = (codes.float() * scales).flatten(-2)
    return torch.cat([x.contiguous().view(torch.uint8) for x in parts], -1), torch.cat([numbers, parts[2].float()], -1)


def test_flash_mla():
    pages, page, heads = 8, 16, 16
    rows = random(pages, page, 1, 576, dtype=torch.bfloat16)
    q = random(2, 2, heads, 576, dtype=torch.bfloat16)
    table = torch.randperm(pages, device=DEVICE).to(torch.int32).view(2, 4)
    lengths = torch.tensor([64, 37], dtype=torch.int32, device=DEVICE)
    indices = torch.randint(-3, pages * page + 3, (2, 2, 40), dtype=torch.int32, device=DEVICE)
    indices[1, 1] = -1
    seen_by_table = torch.full((2, 2, 64), -1, dtype=torch.int32, device=DEVICE)
    for b, i in itertools.product(range(2), range(2)):
        keys = torch.arange(int(lengths[b]) - 1 + i, device=DEVICE)
        seen_by_table[b, i, :len(keys)] = table[b, keys // page] * page + keys.to(torch.int32) % page
    packed, numbers = rows_of_656(rows)
    o, lse = flash_mla_with_kvcache(q, rows, None, None, 512, indices=indices)
    of_rows = flash_mla_sparse_fwd(q.flatten(0, 1), rows.view(-1, 1, 576), indices.view(4, 1, 40), 1 / 24)
    torch.testing.assert_close(of_rows[0], o.flatten(0, 1))
    torch.testing.assert_close(of_rows[2], lse.transpose(1, 2).flatten(0, 1) / math.log(2))
    for cache, values in ((rows, rows.float()), (packed, numbers)):
        options = {"is_fp8_kvcache": cache is packed}
        found = [(indices, flash_mla_with_kvcache(q, cache, None, None, 512, indices=indices, **options)),
                 (seen_by_table, flash_mla_with_kvcache(q, cache, table, lengths, 512, *get_mla_metadata(), causal=True, **options))]
        for lists, (o, lse) in found:
            for b, i in itertools.product(range(2), range(2)):
                keys = lists[b, i][(lists[b, i] >= 0) & (lists[b, i] < pages * page)].long()
                own = values.view(-1, 576)[keys].double()
                scores = q[b, i].double() @ own.T / 24
                far = (lse[b, :, i] - scores.logsumexp(-1)).nan_to_num(0).abs().max().item()
                assert far < 1e-4, f"lse of {len(keys)} keys of {cache.shape[-1]} elements is {far:.1e} from the definition"
                assert len(keys) > 0 or (lse[b, :, i] == -torch.inf).all()
                torch.testing.assert_close(o[b, i].double(), scores.softmax(-1) @ own[:, :512], atol=0.03, rtol=0.02)


def test_flash_mla_arguments():
    rows = random(4, 16, 1, 576, dtype=torch.bfloat16)
    packed, q = rows_of_656(rows)[0], random(2, 2, 16, 576, dtype=torch.bfloat16)
    table, lengths = (torch.ones(x, dtype=torch.int32, device=DEVICE) for x in ((2, 2), (2,)))
    indices = torch.ones(2, 2, 40, dtype=torch.int32, device=DEVICE)
    raises(ValueError, "(blocks, keys of a block, 1, 576)", lambda: flash_mla_with_kvcache(q, packed, table, lengths, 512))
    raises(ValueError, "656", lambda: flash_mla_with_kvcache(q, rows, table, lengths, 512, is_fp8_kvcache=True))
    raises(ValueError, "head size 576", lambda: flash_mla_with_kvcache(q[..., :512], rows, table, lengths, 512))
    for wrong in (indices.view(4, 1, 40), indices.view(1, 4, 40), indices.view(2, 40, 2), indices[:1], indices.view(-1)):
        raises(ValueError, "indices must be int32", lambda wrong=wrong: flash_mla_with_kvcache(q, rows, None, None, 512, indices=wrong))


def test_append_of_latent_rows():
    rows = random(2, 64, 1, 576, dtype=torch.bfloat16)
    table = torch.randperm(8, device=DEVICE).to(torch.int32).view(2, 4)
    packed, new = rows_of_656(rows)[0], torch.zeros(8, 16, 1, 656, dtype=torch.uint8, device=DEVICE)
    giwa_torch.append_to_cache(rows, None, new, new, torch.full((2,), 64, dtype=torch.int32, device=DEVICE), table)
    back = new[table.flatten().long()].view(2, 64, 1, 656)
    assert (back != packed).float().mean() < 0.02  # scales differ in the last digit


def calls():
    yield from (test_functions, test_flash_mla, test_caches, test_pages_of_packed_queries, test_cache_arguments, test_caches_of_8_bits,
                test_scales_that_append_finds, test_keys_without_values, test_e4m3)
    for case in grid():
        if case[0] == 5:
            yield lambda c=case: one_cache(TYPES[0], *c)


if __name__ == "__main__":
    sys.exit(main(globals(), calls(), "test_caches"))
