#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks giwa_attention on a GPU: python3 test_giwa_attention.py [part of a name...], or pytest.

Prints a line for each check and exits with 1 if one fails. The truth is attention in float64. An error may be twice that of a
plain attention, which rounds scores and weights to the tensors' type, and one unit in the last place.
"""
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import giwa_attention
from giwa_attention import load_library, mask_in_words, register_with_transformers

DEVICE = "cuda"
HEAD_SIZES = (64, 128, 37)  # what the checks need to be compiled
TYPES = (torch.float16, torch.bfloat16, torch.float32)


def attend(*tensors, **options):
    return giwa_attention.giwa_attention(*tensors, **options)


def short(dtype):
    return {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]


def seen(queries, keys, causal, window):
    """Which keys a query sees: the last query's own is the last key."""
    distance = torch.arange(queries, device=DEVICE)[:, None] + (keys - queries) - torch.arange(keys, device=DEVICE)
    kept = torch.ones(queries, keys, dtype=torch.bool, device=DEVICE)
    if causal or window is not None:
        kept &= distance >= 0
    if window is not None:
        kept &= distance < window
    return kept


def by_definition(q, k, v, causal=False, window=None, softcap=None, scale=None, rounded=None):
    """Attention in three steps, in the type of q; `rounded`: scores and weights take that type on their way."""
    through = (lambda x: x.to(rounded).to(x.dtype)) if rounded else (lambda x: x)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = through(q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale))
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen(q.shape[2], k.shape[2], causal, window), float("-inf"))
    return through(scores.softmax(-1).nan_to_num(0)) @ v  # a row without keys: 0


def compare(what, o, q, k, v, **options):
    """Returns the errors of giwa and of unfused attention."""
    exact = by_definition(*(x.double() for x in (q, k, v)), **options)
    plain = by_definition(*(x.float() for x in (q, k, v)), rounded=q.dtype, **options).to(q.dtype)
    assert o.shape == exact.shape and o.dtype == q.dtype, f"{what}: {o.dtype} {tuple(o.shape)}"
    if o.numel() == 0:
        return 0.0, 0.0
    ours, theirs = ((x.double() - exact).abs().max().item() for x in (o, plain))
    allowed = 2 * theirs + torch.finfo(q.dtype).eps * exact.abs().max().item()
    if options.get("softcap"):  # giwa's is right to 7 * 2^-24 of the cap
        allowed += 2 * options["softcap"] * 7 * 2 ** -24 * v.abs().max().item()
    assert ours <= allowed, f"{what}: {ours:.2e} from the truth, allowed are {allowed:.2e}"  # NaN fails too
    return ours, theirs


def random(*shape, dtype=torch.float16):
    return torch.randn(*shape, device=DEVICE).to(dtype)


def tensors(batch, heads, kv_heads, queries, keys, size, dtype):
    return (random(batch, heads, queries, size, dtype=dtype), random(batch, kv_heads, keys, size, dtype=dtype),
            random(batch, kv_heads, keys, size, dtype=dtype))


CASES = {  # batch, heads, kv heads, queries, keys, head size; options
    "full": ((2, 8, 8, 300, 300, 64), {}),
    "causal": ((2, 8, 8, 300, 300, 128), {"causal": True}),
    "grouped queries": ((1, 8, 2, 257, 257, 128), {"causal": True}),
    "one key head": ((2, 6, 1, 65, 129, 64), {}),
    "new tokens": ((2, 4, 4, 5, 333, 64), {"causal": True}),
    "one token": ((3, 8, 2, 1, 1000, 128), {"causal": True}),
    "more queries than keys": ((1, 4, 4, 100, 60, 64), {"causal": True}),
    "window": ((2, 4, 2, 400, 400, 64), {"window": 50}),
    "window, new tokens": ((1, 4, 4, 7, 400, 128), {"window": 50, "causal": True}),
    "window as long as it gets": ((1, 4, 4, 200, 200, 64), {"window": 2 ** 40}),
    "softcap": ((1, 8, 4, 200, 200, 64), {"softcap": 5.0, "scale": 0.5}),
    "softcap, causal": ((1, 8, 8, 200, 220, 128), {"softcap": 20.0, "causal": True}),
    "softcap, window": ((1, 8, 8, 200, 220, 64), {"softcap": 20.0, "window": 33}),
    "scale of 0": ((1, 2, 2, 50, 50, 64), {"scale": 0.0}),
    "head size of 37": ((2, 4, 2, 150, 150, 37), {"causal": True}),
    "no keys": ((1, 2, 2, 10, 0, 64), {}),
    "no batch": ((0, 2, 2, 10, 10, 64), {}),
}


def test_cases():
    for dtype in TYPES:
        errors = {}
        for name, (sizes, options) in CASES.items():
            inputs = tensors(*sizes, dtype)
            errors[name] = compare(f"{short(dtype)} {name}", attend(*inputs, **options), *inputs, **options)
        ratio, worst = max((ours / theirs if theirs else 0, name) for name, (ours, theirs) in errors.items())
        print(f"   {short(dtype)}: {len(errors)} cases; nearest to its limit: {worst}, {ratio:.2f} of the plain "
              "attention's error")


def test_strides():
    for dtype in TYPES:
        b, l, h, d = 2, 190, 4, 64
        packed = random(b, l, 3, h, d, dtype=dtype)  # as one projection makes them
        parts = [x.transpose(1, 2) for x in packed.unbind(2)]
        rows = [random(b, l, h, d, dtype=dtype).transpose(1, 2) for _ in range(3)]
        one = random(b, 1, l, d, dtype=dtype)
        expanded = [rows[0], one.expand(b, h, l, d), one.expand(b, h, l, d)]
        whole = random(b, h, l, 3 * d + 1, dtype=dtype)  # rows that begin anywhere
        slices = [whole[..., i * d + 1:(i + 1) * d + 1] for i in range(3)]
        backwards = [x[::2, :, 3:] for x in (random(2 * b, h, l, d, dtype=dtype) for _ in range(3))]
        for name, inputs in (("packed", parts), ("rows of all heads", rows), ("expanded", expanded),
                             ("slices", slices), ("every second sequence", backwards)):
            o = attend(*inputs, causal=True)
            compare(f"{short(dtype)} {name}", o, *inputs, causal=True)
            assert o.transpose(1, 2).is_contiguous()
        before = [x.clone() for x in parts]
        attend(*parts)
        assert all(torch.equal(x, y) for x, y in zip(before, parts)), "an input was written"


def test_beside_sdpa():
    from torch.nn.attention.bias import causal_lower_right
    for dtype in TYPES:
        q, k, v = tensors(2, 8, 8, 512, 512, 128, dtype)
        exact = by_definition(*(x.double() for x in (q, k, v)), causal=True)
        ours = (attend(q, k, v, causal=True).double() - exact).abs().max().item()
        theirs = (scaled_dot_product_attention(q, k, v, is_causal=True).double() - exact).abs().max().item()
        print(f"   {short(dtype)}, causal, 512 tokens, from float64: giwa {ours:.2e}, scaled_dot_product_attention {theirs:.2e}")
        assert ours <= 3 * theirs
        q = q[:, :, -20:]
        with sdpa_kernel(SDPBackend.MATH):
            other = scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(20, 512))
            top_left = scaled_dot_product_attention(q, k, v, is_causal=True)
        o = attend(q, k, v, causal=True)
        assert (o - other).abs().max() < 0.05 * (o - top_left).abs().max(), "causal is not PyTorch's causal_lower_right"


def raises(kind, part, call):
    try:
        call()
    except kind as error:
        assert type(error) is kind or kind is not RuntimeError, f"{type(error).__name__} in the place of {kind.__name__}"
        assert part in str(error), f"'{part}' is not in '{error}'"
        return str(error).splitlines()[0]
    raise AssertionError(f"no {kind.__name__} with '{part}'")


def test_errors():
    q, k, v = tensors(2, 4, 2, 10, 20, 64, torch.float16)
    said = []
    for kind, part, call in (
            (ValueError, "cpu", lambda: attend(q.cpu(), k.cpu(), v.cpu())),
            (ValueError, "cpu", lambda: attend(q, k.cpu(), v)),
            (ValueError, "Double", lambda: attend(q.double(), k.double(), v.double())),
            (ValueError, "BFloat16", lambda: attend(q, k.bfloat16(), v)),
            *((ValueError, f"{name} must have four dimensions, (batch, heads, length, head size); it has {x.dim()}",
               lambda name=name, x=x: attend(**{"q": q, "k": k, "v": v, name: x}))
              for name, tensor in (("q", q), ("k", k), ("v", v))
              for x in (tensor[0, 0, 0, 0], tensor[0, 0], tensor[0], tensor[None])),
            (ValueError, "number of sequences", lambda: attend(q, k[:1], v[:1])),
            (ValueError, "another length", lambda: attend(q, k, v[:, :, :19])),
            (ValueError, "head size", lambda: attend(q, k[..., :37], v)),
            (ValueError, "head size", lambda: attend(q, k, v[..., :37])),
            (ValueError, "multiple of the heads", lambda: attend(q[:, :3], k, v)),
            (ValueError, "last stride is 1", lambda: attend(random(2, 4, 64, 10).transpose(2, 3), k, v)),
            (ValueError, "negative", lambda: attend(q, k, v, window=-1)),
            (ValueError, "softcap", lambda: attend(q, k, v, softcap=0.0)),
            (ValueError, "scale", lambda: attend(q, k, v, scale=float("nan"))),
            (ValueError, "1 to 256", lambda: attend(random(1, 1, 4, 257), k, v)),
            (NotImplementedError, "backward", lambda: attend(q.clone().requires_grad_(), k, v)),
            (NotImplementedError, "backward", lambda: attend(q, k, v.clone().requires_grad_()))):
        said.append(raises(kind, part, call))
    with torch.no_grad():
        attend(q.clone().requires_grad_(), k, v)  # no gradient is needed
    with torch.inference_mode():
        compare("inference mode", attend(q, k, v), q, k, v)
    print(f"   {len(said)} refused, as: {said[7]}")


def test_streams():
    side = torch.cuda.Stream()
    inputs = tensors(2, 8, 8, 300, 300, 64, torch.float16)
    work = [torch.zeros_like(x) for x in inputs]
    attend(*work, causal=True)  # CUDA loads a kernel when it is first called, and may wait for that
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # a tenth of a second: whoever does not wait reads zeros
        for x, y in zip(work, inputs):
            x.copy_(y)
        o = attend(*work, causal=True)
        busy = not side.query()
    side.synchronize()
    compare("side stream", o, *inputs, causal=True)
    assert busy, "the call waited for the stream"


def test_graph():
    for dtype in TYPES:
        inputs = tensors(2, 8, 2, 300, 300, 64, dtype)
        attend(*inputs, causal=True)  # compiled and loaded before
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = attend(*inputs, causal=True)
        for _ in range(3):
            for x in inputs:
                x.normal_()
            o.fill_(float("nan"))
            graph.replay()
            compare(f"{short(dtype)} graph", o, *inputs, causal=True)


def test_memory():
    inputs = tensors(1, 8, 8, 512, 512, 64, torch.float32)
    held = torch.cuda.memory_allocated()
    o = attend(*inputs)
    assert torch.cuda.memory_allocated() - held == o.numel() * o.element_size(), "more than the output is still allocated"


# --- Hugging Face transformers ------------------------------------------------------------------------------------------


def model_of(kind, implementation, dtype, **sizes):
    """A small model of random weights, the same for every implementation, rounded to fp16 or bf16 first if that is the type."""
    import transformers
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=500, hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=2048, initializer_range=0.08, **sizes)
    config._attn_implementation = implementation
    torch.manual_seed(1)
    return getattr(transformers, f"{kind}ForCausalLM")(config).to(dtype).to(DEVICE).eval()


def relative(x, exact):
    return ((x.double() - exact.double()).norm() / exact.double().norm()).item()


@torch.no_grad()
def logits_of(model, tokens, steps, **inputs):
    """The logits of a prefill of all but the last tokens, and of the rest in steps of so many, with a cache."""
    begin = tokens.shape[1] - sum(steps)
    out = model(tokens[:, :begin], use_cache=True, **inputs)
    found = [out.logits]
    for step in steps:
        out = model(tokens[:, begin:begin + step], past_key_values=out.past_key_values, use_cache=True)
        found.append(out.logits)
        begin += step
    return torch.cat(found, 1)


def swap(kind, yardstick, dtypes, **sizes):
    tokens = torch.randint(0, 500, (2, 300), device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(2))
    steps = (1, 1, 5, 1)  # a token, a token, five at once, a token
    real, calls = giwa_attention.giwa_attention, []
    giwa_attention.giwa_attention = lambda *a, **k: (calls.append(1), real(*a, **k))[1]
    for dtype in dtypes:
        exact_model = model_of(kind, "eager", dtype, **sizes).float()
        exact = logits_of(exact_model, tokens, steps)
        found = {name: logits_of(model_of(kind, name, dtype, **sizes), tokens, steps) for name in ("giwa", yardstick)}
        error = {name: relative(x, exact) for name, x in found.items()}
        step = {name: relative(x[:, -sum(steps):], exact[:, -sum(steps):]) for name, x in found.items()}
        print(f"   {kind} in {short(dtype)}, from eager in fp32: giwa {error['giwa']:.2e}, {yardstick} {error[yardstick]:.2e}; "
              f"with a cache: giwa {step['giwa']:.2e}, {yardstick} {step[yardstick]:.2e}")
        for errors in (error, step):
            assert errors["giwa"] <= 1.25 * errors[yardstick] + 1e-6, "farther from the truth"
    giwa_attention.giwa_attention = real
    assert calls, "transformers did not call giwa"


def test_transformers_llama():
    register_with_transformers()
    swap("Llama", "sdpa", (torch.float16, torch.bfloat16))


def test_transformers_windows_and_softcaps():
    register_with_transformers()
    swap("Mistral", "sdpa", (torch.float16, torch.bfloat16), sliding_window=40)
    # Windows in every second layer. sdpa omits the softcap, so giwa is compared with eager.
    swap("Gemma2", "eager", (torch.float16, torch.bfloat16), sliding_window=40, attn_logit_softcapping=5.0,
         query_pre_attn_scalar=64)


def test_transformers_generate():
    register_with_transformers()
    tokens = torch.randint(3, 500, (1, 50), device=DEVICE)
    said = [model_of("Llama", name, torch.float32).generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=20, do_sample=False, pad_token_id=0)
            for name in ("eager", "giwa")]
    assert torch.equal(*said), "other tokens than eager attention generates"


def test_transformers_masks():
    register_with_transformers()
    model = model_of("Llama", "giwa", torch.float16)
    tokens = torch.randint(0, 500, (2, 60), device=DEVICE)
    with torch.no_grad():
        whole = torch.ones_like(tokens)
        assert torch.equal(model(tokens, attention_mask=whole).logits, model(tokens).logits)  # padding of nothing
        for side in (slice(0, 7), slice(-7, None)):
            padded = whole.clone()
            padded[1, side] = 0
            said = raises(NotImplementedError, "mask", lambda: model(tokens, attention_mask=padded))
        packed = torch.cat([torch.arange(20), torch.arange(40)])[None].expand(2, -1).to(DEVICE)
        raises(NotImplementedError, "mask", lambda: model(tokens, position_ids=packed, use_cache=False))
        raises(NotImplementedError, "dropout",
               lambda: giwa_attention.transformers_attention(model, *tensors(1, 2, 2, 4, 4, 64, torch.float16), None, dropout=0.1))
    print(f"   padding and packing refused, as: {said}")


def test_masks_in_words():
    for queries, keys in ((6, 6), (1, 9), (3, 9), (9, 3)):
        for causal, window in ((False, None), (True, None), (False, 1), (False, 2), (False, 4)):
            kept = seen(queries, keys, causal, window)[None, None].expand(2, 1, -1, -1)
            for mask in (kept, torch.zeros(kept.shape, device=DEVICE).masked_fill(~kept, torch.finfo(torch.float32).min)):
                words = mask_in_words(mask, queries, keys)
                again = seen(queries, keys, words.get("causal", False), words.get("window"))
                assert torch.equal(again.expand_as(kept), kept), (queries, keys, causal, window, words)
    causal = seen(6, 6, True, None)[None, None]
    for kept in (causal & (torch.arange(6, device=DEVICE) > 0), causal.flip(3), seen(6, 9, True, None)[None, None, :, :6]):
        raises(NotImplementedError, "mask", lambda: mask_in_words(kept, 6, 6))
    mask, inputs = causal.clone(), tensors(1, 2, 2, 6, 6, 64, torch.float16)
    for change in (lambda: None, lambda: mask.fill_(True)):  # a mask whose contents change is looked at again
        change()
        o = giwa_attention.transformers_attention(torch.nn.Module(), *inputs, mask)[0].transpose(1, 2)
        compare("a mask that changes", o, *inputs, causal=not bool(mask.all()))
    raises(NotImplementedError, "mask", lambda: mask_in_words(causal.int(), 6, 6))
    biased = torch.zeros(1, 1, 6, 6, device=DEVICE).masked_fill(~causal, -3.0)  # a bias, not a mask
    raises(NotImplementedError, "mask", lambda: mask_in_words(biased, 6, 6))


def load():
    with ThreadPoolExecutor() as pool:
        list(pool.map(load_library, HEAD_SIZES))


def main(checks, load_libraries):
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    if not torch.cuda.is_available():
        print("there is no GPU that PyTorch sees")
        return 1
    begin = time.perf_counter()
    load_libraries()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; head sizes {checks['HEAD_SIZES']} compiled or loaded in "
          f"{time.perf_counter() - begin:.0f} s", flush=True)
    failed = 0
    for name, check in list(checks.items()):
        if not name.startswith("test_") or not any(part in name for part in sys.argv[1:] or [""]):
            continue
        try:
            check()
            print(f"ok     {name}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc(limit=-4)}", flush=True)
    print(f"{failed} failed" if failed else "all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(globals(), load))
