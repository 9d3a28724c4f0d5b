#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks giwa_cache on a GPU: python3 test_giwa_cache.py [part of a name...], or pytest.

The cache of a call is made of pages with NaN wherever no key is. The truth is attention in float64, and errors are bounded as in
test_giwa_attention.py. A model of transformers with random weights generates from giwa's paged cache and from its own: in fp32 the
tokens must be the same. In fp16 and bf16 the logits may not be farther from those in fp32 than with its own cache, and tokens may
differ only where the model's two best tokens are as close as its logits with the two caches are.
"""
import sys
from concurrent.futures import ThreadPoolExecutor

import torch

import giwa_attention
import giwa_cache
import test_giwa_attention as support
from giwa_attention import native_architecture, register_with_transformers
from test_giwa_attention import TYPES, compare, model_of, raises, random, relative, short

DEVICE = "cuda"
HEAD_SIZES = (64, 128)  # what the checks need to be compiled


def load():
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda size: giwa_attention.load_library(size, native_architecture(), kernels="cached"), HEAD_SIZES))


def empty_cache(batch, kv_heads, size, dtype, page, most):
    """k and v full of NaN, and page numbers in random order; without pages if `page` is 0."""
    shape = (batch * most + 3, page, kv_heads, size) if page else (batch, most, kv_heads, size)
    k, v = (torch.full(shape, float("nan"), device=DEVICE, dtype=dtype) for _ in range(2))
    order = torch.randperm(shape[0], device=DEVICE)[:batch * most].to(torch.int32)
    return k, v, order.view(batch, most) if page else None


def keys_of(cache, pages, b, length):
    """(1, kv heads, length, head size) of a sequence."""
    found = cache[b] if pages is None else cache[pages[b].long()].flatten(0, 1)
    return found[None, :length].transpose(1, 2)


def append(k, v, cache, lengths, **options):
    """Appends all keys of a list of sequences, as so many new tokens of each, with padding on the left."""
    n = max(x.shape[2] for x in k)
    pad = lambda x: torch.cat([torch.full_like(x[:, :, :1], 7).expand(-1, -1, n - x.shape[2], -1), x], 2)
    return giwa_cache.append_to_cache(torch.cat([pad(x) for x in k]), torch.cat([pad(x) for x in v]), cache[0], cache[1],
                                      lengths, cache[2], **options)


CASES = {  # heads, kv heads, queries, head size, keys of a page, lengths; options
    "one token": (8, 2, 1, 128, 16, (300, 1, 77), {}),
    "contiguous": (8, 2, 1, 128, 0, (300, 1, 77), {}),
    "four tokens": (8, 2, 4, 64, 16, (300, 4, 77, 150), {}),
    "a chunk": (4, 4, 100, 64, 64, (300, 100), {}),
    "as many heads": (6, 6, 1, 64, 1, (50, 129), {}),
    "window": (8, 1, 3, 64, 16, (400, 20), {"window": 50}),
    "softcap": (8, 4, 2, 64, 7, (200, 90), {"softcap": 5.0, "scale": 0.5}),
    "softcap, window": (8, 4, 2, 128, 16, (200, 90), {"softcap": 20.0, "window": 33}),
}


def test_cases():
    for dtype in TYPES:
        for name, (heads, kv_heads, queries, size, page, lengths, options) in CASES.items():
            k, v = ([random(1, kv_heads, n, size, dtype=dtype) for n in lengths] for _ in range(2))
            most = -(-max(lengths) // page) if page else max(lengths) + 5
            cache = empty_cache(len(lengths), kv_heads, size, dtype, page, most)
            counts = torch.tensor(lengths, device=DEVICE, dtype=torch.int32)
            append(k, v, cache, counts)
            for b, n in enumerate(lengths):
                assert torch.equal(keys_of(cache[0], cache[2], b, n), k[b]) and torch.equal(keys_of(cache[1], cache[2], b, n), v[b]), name
            q = random(len(lengths), heads, queries, size, dtype=dtype)
            o = giwa_cache.attention_cached(q, *cache[:2], counts, cache[2], **options)
            assert o.transpose(1, 2).is_contiguous()
            for b in range(len(lengths)):
                compare(f"{short(dtype)} {name}, sequence {b}", o[b:b + 1], q[b:b + 1], k[b], v[b], causal=True, **options)
        print(f"   {short(dtype)}: {len(CASES)} cases")


def test_rotation():
    for dtype in TYPES:
        heads, kv_heads, size, lengths = 8, 2, 128, (40, 13)
        position = torch.arange(64, device=DEVICE)[:, None]
        angle = position * 10000.0 ** (-torch.arange(size // 2, device=DEVICE) / (size // 2))
        cos, sin = angle.cos(), angle.sin()
        counts = torch.tensor(lengths, device=DEVICE, dtype=torch.int32)
        cache = empty_cache(2, kv_heads, size, dtype, 16, 3)
        k, v = ([random(1, kv_heads, n, size, dtype=dtype) for n in lengths] for _ in range(2))
        q = random(2, heads, max(lengths), size, dtype=dtype)
        rotated = append(k, v, cache, counts, q=q, cos=cos, sin=sin)
        for b, n in enumerate(lengths):
            def turned(x):
                first, second = x.double().chunk(2, -1)
                c, s = cos[:n].double(), sin[:n].double()
                return torch.cat([first * c - second * s, second * c + first * s], -1)
            for found, given in ((keys_of(cache[0], cache[2], b, n), k[b]), (rotated[b:b + 1, :, -n:], q[b:b + 1, :, -n:])):
                error = (found.double() - turned(given)).abs().max().item()
                assert error <= torch.finfo(dtype).eps * turned(given).abs().max().item(), f"{short(dtype)}: off by {error}"
            assert torch.equal(keys_of(cache[1], cache[2], b, n), v[b])


def test_graph():
    """The lengths of the replay count, and tokens are appended in the graph."""
    heads, kv_heads, size = 8, 2, 64
    cache = empty_cache(2, kv_heads, size, torch.float16, 16, 8)
    counts = torch.tensor((50, 9), device=DEVICE, dtype=torch.int32)
    k, v = ([random(1, kv_heads, n, size) for n in (50, 9)] for _ in range(2))
    append(k, v, cache, counts)
    q, new_k, new_v = (random(2, h, 1, size) for h in (heads, kv_heads, kv_heads))
    scratch = [x.clone() for x in cache]  # CUDA loads a kernel when it is first called
    giwa_cache.append_to_cache(new_k, new_v, scratch[0], scratch[1], counts, scratch[2])
    giwa_cache.attention_cached(q, scratch[0], scratch[1], counts, scratch[2])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        counts += 1
        giwa_cache.append_to_cache(new_k, new_v, cache[0], cache[1], counts, cache[2])
        o = giwa_cache.attention_cached(q, cache[0], cache[1], counts, cache[2])
    for step in range(20):
        for x in (q, new_k, new_v):
            x.normal_()
        graph.replay()
        k, v = ([torch.cat([old, new[b:b + 1]], 2) for b, old in enumerate(all_)] for all_, new in ((k, new_k), (v, new_v)))
        for b in range(2):
            compare(f"step {step}", o[b:b + 1], q[b:b + 1], k[b], v[b], causal=True)
    assert counts.tolist() == [70, 29]


def test_errors():
    k, v = random(2, 2, 1, 64), random(2, 2, 1, 64)
    k_cache, v_cache, pages = empty_cache(2, 2, 64, torch.float16, 16, 3)
    lengths = torch.ones(2, device=DEVICE, dtype=torch.int32)
    attend = lambda q=random(2, 4, 1, 64), kc=k_cache, n=lengths, p=pages: giwa_cache.attention_cached(q, kc, v_cache, n, p)
    for part, call in (("four dimensions", lambda: attend(q=k[0])), ("float16", lambda: attend(q=random(2, 4, 1, 64).double())),
                       ("BFloat16", lambda: attend(kc=k_cache.bfloat16())), ("int32", lambda: attend(n=lengths.long())),
                       ("(batch)", lambda: attend(n=lengths[:1])), ("pages of a sequence", lambda: attend(p=pages[:1])),
                       ("int32", lambda: attend(p=pages.float())), ("multiple of the number of heads", lambda: attend(q=random(2, 3, 1, 64))),
                       ("together", lambda: giwa_cache.append_to_cache(k, v, k_cache, v_cache, lengths, pages, cos=k.float()[0, 0]))):
        raises(ValueError, part, call)


# --- Hugging Face transformers ------------------------------------------------------------------------------------------


def prompts(lengths):
    """Tokens with padding on the left, and their mask."""
    n = max(lengths)
    tokens = torch.randint(3, 500, (len(lengths), n), generator=torch.Generator().manual_seed(3))
    mask = torch.tensor([[0] * (n - x) + [1] * x for x in lengths])
    return {"input_ids": (tokens * mask).to(DEVICE), "attention_mask": mask.to(DEVICE)}


def generated(kind, dtype, given, paged, steps, **sizes):
    """The new tokens (batch, steps) of greedy decoding and their logits (batch, steps, vocabulary)."""
    model = model_of(kind, "giwa" if paged else "eager", dtype, **sizes)
    cache = {"past_key_values": giwa_cache.PagedCache(model, given["attention_mask"], capacity=1000)} if paged else {}
    with torch.no_grad():
        out = model.generate(**given, **cache, max_new_tokens=steps, min_new_tokens=steps, do_sample=False, pad_token_id=0,
                             return_dict_in_generate=True, output_logits=True)
    return out.sequences[:, given["input_ids"].shape[1]:], torch.stack(out.logits, 1)


@torch.no_grad()
def logits_in_fp32(kind, dtype, given, tokens, **sizes):
    """Of the model with its weights rounded to dtype, for these tokens."""
    model = model_of(kind, "eager", dtype, **sizes).float()
    mask = torch.cat([given["attention_mask"], torch.ones_like(tokens)], 1)
    ids = torch.cat([given["input_ids"], tokens], 1)
    position = (mask.cumsum(1) - 1).clamp_min(0)
    logits = model(ids, attention_mask=mask, position_ids=position).logits
    return logits[:, given["input_ids"].shape[1] - 1:-1]


def same_generation(kind, dtype, lengths, steps=40, **sizes):
    given = prompts(lengths)
    (ours, our_logits), (own, own_logits) = (generated(kind, dtype, given, paged, steps, **sizes) for paged in (True, False))
    differ = ours != own
    if dtype == torch.float32:
        assert not differ.any(), f"{kind}: other tokens than with its own cache"
    for b in range(len(lengths)):  # up to the first difference both have the same tokens behind them
        first = int(differ[b].int().argmax()) if differ[b].any() else steps - 1
        off = (our_logits[b, :first + 1] - own_logits[b, :first + 1]).abs().max().item()
        gap = (own_logits[b, first].max() - own_logits[b, first, ours[b, first]]).item()
        assert gap <= 2 * off, f"{kind}: token {first} of sequence {b} is another one, and the model was sure"
    same = int((differ.int().cumsum(1) == 0).sum())
    told = ""
    if dtype != torch.float32:
        errors = [relative(x, logits_in_fp32(kind, dtype, given, tokens, **sizes))
                  for x, tokens in ((our_logits, ours), (own_logits, own))]
        told = f"; logits from those in fp32: giwa {errors[0]:.2e}, own cache {errors[1]:.2e}"
        assert errors[0] <= 1.25 * errors[1] + 1e-6, "farther from the truth"
    print(f"   {kind} in {short(dtype)}: {same} of {differ.numel()} tokens before any difference to its own cache{told}")


def test_transformers_tokens():
    register_with_transformers()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        same_generation("Llama", dtype, (60, 17, 1, 33))
    same_generation("Llama", torch.float32, (50,))


def test_transformers_windows_and_softcaps():
    register_with_transformers()
    same_generation("Mistral", torch.float32, (60, 17), sliding_window=40)
    same_generation("Gemma2", torch.float32, (60, 17), sliding_window=40, attn_logit_softcapping=5.0, query_pre_attn_scalar=64)


def test_transformers_refuses():
    register_with_transformers()
    given = prompts((20, 12))
    model = model_of("Llama", "giwa", torch.float16)
    make = lambda mask=given["attention_mask"], capacity=100: giwa_cache.PagedCache(model, mask, capacity)
    run = lambda cache, **inputs: model(**{**given, **inputs}, past_key_values=cache, use_cache=True)
    with torch.no_grad():
        raises(ValueError, "capacity", lambda: run(make(capacity=19)))
        raises(ValueError, "left", lambda: make(given["attention_mask"].flip(1)))
        raises(NotImplementedError, "mask", lambda: run(make(), attention_mask=torch.ones_like(given["attention_mask"])))
        raises(NotImplementedError, "beam", lambda: make().reorder_cache(torch.tensor([0, 1])))
        raises(ValueError, "set_attn_implementation",
               lambda: giwa_cache.PagedCache(model_of("Llama", "eager", torch.float16), given["attention_mask"], 100))


if __name__ == "__main__":
    sys.exit(support.main(globals(), load))
