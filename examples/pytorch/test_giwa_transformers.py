#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks giwa_torch.transformers with small models of random weights, as test_giwa_torch.py checks the operators: python3
test_giwa_transformers.py [part of a name...], or pytest. Logits may not be farther from those of eager attention in fp32 than with
transformers' own attention in the same type. From giwa's paged cache a model generates the tokens that it generates from its own."""
import random
import sys

import torch
import transformers

from giwa_torch.transformers import DecodeGraph, PagedCache, attention_forward, continuous_batching, register
from test_giwa_torch import DEVICE, TYPES, by_definition, compare, main, raises, short, tensors

register()
SIZES = dict(vocab_size=500, hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4, initializer_range=0.08)


def model_of(kind, implementation, dtype, **sizes):
    """The same weights for every implementation, rounded to fp16 or bf16 first if that is the type."""
    if kind.startswith("GPT2"):
        config = transformers.GPT2Config(vocab_size=500, n_embd=256, n_layer=3, n_head=4, initializer_range=0.08, **sizes)
    elif kind.startswith("Whisper"):
        config = transformers.WhisperConfig(
            vocab_size=500, d_model=256, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=512, decoder_ffn_dim=512, max_source_positions=60, max_target_positions=128, init_std=0.08, pad_token_id=0,
            bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, **sizes)
    elif kind.startswith("Bert"):
        config = transformers.BertConfig(**SIZES, **sizes)
    else:
        config = getattr(transformers, kind.replace("ForCausalLM", "Config"))(
            **SIZES, num_key_value_heads=2, head_dim=64, max_position_embeddings=2048, **sizes)
    config._attn_implementation = implementation
    torch.manual_seed(1)
    return getattr(transformers, kind)(config).to(dtype).to(DEVICE).eval()


def relative(x, exact):
    return ((x.double() - exact.double()).norm() / exact.double().norm()).item()


def prompts(lengths, left=True):
    """Tokens with padding, and their mask."""
    n = max(lengths)
    tokens = torch.randint(3, 500, (len(lengths), n), generator=torch.Generator().manual_seed(3))
    mask = torch.tensor([[0] * (n - x) + [1] * x if left else [1] * x + [0] * (n - x) for x in lengths])
    return {"input_ids": (tokens * mask).to(DEVICE), "attention_mask": mask.to(DEVICE)}


@torch.no_grad()
def logits_of(model, given, steps=()):
    """The logits of tokens that are no padding: of a prefill, and of the last tokens in steps of so many, with a cache."""
    ids, mask = given["input_ids"], given["attention_mask"].bool()
    begin = ids.shape[1] - sum(steps)
    options = {"use_cache": True} if steps else {}
    out = model(ids[:, :begin], attention_mask=mask[:, :begin].long(), **options)
    found = [out.logits]
    for step in steps:
        out = model(ids[:, begin:begin + step], attention_mask=mask[:, :begin + step].long(), past_key_values=out.past_key_values, **options)
        found.append(out.logits)
        begin += step
    return torch.cat(found, 1)[mask]


def swap(kind, yardstick, given, steps=(), **sizes):
    for dtype in TYPES:
        exact = logits_of(model_of(kind, "eager", dtype, **sizes).float(), given, steps)
        found = {name: logits_of(model_of(kind, name, dtype, **sizes), given, steps) for name in ("giwa", yardstick)}
        error = {name: relative(x, exact) for name, x in found.items()}
        print(f"   {kind} in {short(dtype)}, from eager in fp32: giwa {error['giwa']:.2e}, {yardstick} {error[yardstick]:.2e}")
        assert error["giwa"] <= 1.25 * error[yardstick] + 2e-6, "farther from the truth"


def test_llama():
    for lengths, left in (((120, 120), True), ((120, 71), True), ((120, 71), False)):
        swap("LlamaForCausalLM", "sdpa", prompts(lengths, left), (1, 5, 1) if left else ())


def test_windows_and_softcaps():
    swap("MistralForCausalLM", "sdpa", prompts((120, 90)), (1, 5, 1), sliding_window=40)
    # Windows in every second layer. sdpa refuses a softcap, so giwa is compared with eager attention.
    swap("Gemma2ForCausalLM", "eager", prompts((120, 120)), (1, 5), sliding_window=40, attn_logit_softcapping=5.0, query_pre_attn_scalar=64)


def test_gpt2_and_bert():
    swap("GPT2LMHeadModel", "sdpa", prompts((120, 120)), (1, 1))
    swap("BertForMaskedLM", "sdpa", prompts((120, 71), left=False))


def test_whisper():
    """The encoder, the decoder and what it sees of the encoder."""
    given = {"input_features": torch.randn(2, 80, 120, generator=torch.Generator().manual_seed(3)).to(DEVICE),
             "decoder_input_ids": prompts((70, 70))["input_ids"]}
    for dtype in TYPES:
        run = lambda name, to: model_of("WhisperForConditionalGeneration", name, dtype).to(to)(
            given["input_features"].to(to), decoder_input_ids=given["decoder_input_ids"]).logits
        with torch.no_grad():
            exact = run("eager", torch.float32)
            error = {name: relative(run(name, dtype), exact) for name in ("giwa", "sdpa")}
        print(f"   Whisper in {short(dtype)}, from eager in fp32: giwa {error['giwa']:.2e}, sdpa {error['sdpa']:.2e}")
        assert error["giwa"] <= 1.25 * error["sdpa"] + 2e-6, "farther from the truth"


def test_training():
    """The gradients of a model, with padding."""
    given, found = prompts((60, 41), left=False), {}
    for name in ("sdpa", "giwa"):
        model = model_of("LlamaForCausalLM", name, torch.float32).train()
        model(**given, labels=given["input_ids"].masked_fill(given["attention_mask"] == 0, -100)).loss.backward()
        found[name] = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert relative(found["giwa"], found["sdpa"]) < 1e-4


def test_arguments():
    """What some models pass: sinks, a bias by position with a mask, dropout. The mask may be of bool or added to the scores."""
    q, k, v = tensors(2, 4, 2, 40, 40, 64, 64, TYPES[0])
    sinks, bias = torch.randn(4, device=DEVICE), torch.randn(1, 4, 40, 40, device=DEVICE, dtype=q.dtype)
    mask = torch.rand(2, 1, 40, 40, device=DEVICE) > 0.3
    added = torch.zeros(mask.shape, device=DEVICE, dtype=q.dtype).masked_fill(~mask, torch.finfo(q.dtype).min)
    module = torch.nn.Module()
    attend = lambda *x, **o: attention_forward(module, q, k, v, *x, **o)[0].transpose(1, 2)
    for name, found, options in (("sinks", attend(None, s_aux=sinks), {"causal": True, "sinks": sinks}),
                                 ("bias", attend(mask, position_bias=bias), {"mask": mask, "bias": bias}),
                                 ("added mask", attend(added, position_bias=bias), {"mask": mask, "bias": bias}),
                                 ("softcap", attend(None, softcap=3.0, is_causal=False), {"softcap": 3.0})):
        exact, plain = (by_definition(*(x.to(dtype) for x in (q, k, v)), **{n: x.to(dtype) if torch.is_tensor(x) and x.is_floating_point()
                                                                             else x for n, x in options.items()}, rounded=rounded)[0]
                        for dtype, rounded in ((torch.float64, None), (torch.float32, q.dtype)))
        compare(name, [found], [exact], [plain], q.dtype, 4)
    torch.manual_seed(3)
    assert not torch.equal(*(attend(None, dropout=0.5) for _ in range(2)))


def generated(kind, dtype, given, paged, steps, **sizes):
    """The new tokens (batch, steps) of greedy decoding and their logits (batch, steps, vocabulary)."""
    model = model_of(kind, "giwa" if paged else "eager", dtype, **sizes)
    cache = {"past_key_values": PagedCache(model, given["attention_mask"], capacity=1000)} if paged else {}
    with torch.no_grad():
        out = model.generate(**given, **cache, max_new_tokens=steps, min_new_tokens=steps, do_sample=False, pad_token_id=0,
                             return_dict_in_generate=True, output_logits=True)
    return out.sequences[:, given["input_ids"].shape[1]:], torch.stack(out.logits, 1)


def same_generation(kind, dtype, lengths, steps=20, **sizes):
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
    print(f"   {kind} in {short(dtype)}: {same} of {differ.numel()} tokens before any difference to its own cache")


def test_paged_cache():
    for dtype in TYPES:
        same_generation("LlamaForCausalLM", dtype, (60, 17, 1, 33))
    same_generation("LlamaForCausalLM", torch.float32, (50,))
    same_generation("MistralForCausalLM", torch.float32, (60, 17), sliding_window=40)
    same_generation("Gemma2ForCausalLM", torch.float32, (60, 17), sliding_window=40, attn_logit_softcapping=5.0, query_pre_attn_scalar=64)


def test_decode_graph():
    """Steps in one CUDA graph generate what generate() does from a PagedCache, while sequences take pages."""
    if DEVICE != "cuda":
        return
    for kind, dtype, lengths, sizes in (("LlamaForCausalLM", torch.bfloat16, (60, 17, 1, 33), {}), ("LlamaForCausalLM", torch.float32, (50,), {}),
                                        ("Gemma2ForCausalLM", torch.float32, (60, 17), dict(sliding_window=40, attn_logit_softcapping=5.0))):
        given, steps = prompts(lengths), 40
        expected, _ = generated(kind, dtype, given, True, steps, **sizes)
        model = model_of(kind, "giwa", dtype, **sizes)
        cache = PagedCache(model, given["attention_mask"], capacity=200)
        with torch.no_grad():
            position = (given["attention_mask"].cumsum(1) - 1).clamp(min=0)
            found = [model(**given, position_ids=position, past_key_values=cache).logits[:, -1].argmax(-1, keepdim=True)]
            assert found[0].ne(model.config.eos_token_id).all()
        # generate() was told how many tokens to make, so it never chooses the end.
        end = torch.tensor([model.config.eos_token_id], device=DEVICE)
        step = DecodeGraph(model, cache, found[0], lambda logits: logits.index_fill(-1, end, float("-inf")).argmax(-1, keepdim=True))
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            found += [step().clone() for _ in range(steps - 1)]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        same = (torch.cat(found, 1) == expected).int().cumprod(1).sum().item()
        print(f"   {kind} in {short(dtype)}: {same} of {expected.numel()} tokens before any difference to generate()")
        assert same == expected.numel()


def served(kind, dtype, prompts, new, how, **sizes):
    """The tokens of each request, of how many it makes new[i], and how often a request was preempted. 24 blocks are too few for all."""
    model = model_of(kind, "giwa", dtype, **sizes)
    config = transformers.ContinuousBatchingConfig(block_size=16, max_batch_tokens=64, num_blocks=24)
    greedy = transformers.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    if how != "continuous_batching":
        model.set_attn_implementation(how)
        of = lambda: model.continuous_batching_context_manager(greedy, continuous_batching_config=config)
    else:
        of = lambda: continuous_batching(model, greedy, config, longest=160)
    found, preempted = {}, []
    with of() as manager:
        while manager.batch_processor is None:
            pass  # its thread makes one
        offloading = manager.batch_processor.offloading_manager
        offload = offloading.offload_requests
        offloading.offload_requests = lambda: (lambda n: preempted.append(n) or n)(offload())
        ids = [manager.add_request(x, max_new_tokens=n) for x, n in zip(prompts, new)]
        while len(found) < len(ids):
            result = manager.get_result(timeout=60)
            assert result is not None and result.error is None, result
            found[result.request_id] = result.generated_tokens
    return [found[x] for x in ids], sum(preempted)


def test_continuous_batching():
    """64 requests of ragged lengths in few pages: prefill chunks mixed with decoding, and preemption. The tokens are those of transformers'
    own paged attention; in 16 bits, up to a choice that rounding decides."""
    draw = random.Random(5)
    prompts = [[draw.randrange(3, 500) for _ in range(draw.choice((1, 15, 16, 17, 40, 64, 100)))] for _ in range(64)]
    new = [draw.randint(1, 40) for _ in prompts]
    for kind, dtype, sizes in [("LlamaForCausalLM", x, {}) for x in TYPES] + [("MistralForCausalLM", torch.float32, dict(sliding_window=40))]:
        own, _ = served(kind, dtype, prompts, new, "paged|sdpa", **sizes)
        for how in ("continuous_batching", "paged|giwa"):
            ours, preempted = served(kind, dtype, prompts, new, how, **sizes)
            assert (preempted or sizes) and [len(x) for x in ours] == new  # a window needs few pages
            differ = [(a, b, i, next((j for j, pair in enumerate(zip(a, b)) if len(set(pair)) > 1), len(a)))
                      for i, (a, b) in enumerate(zip(ours, own))]
            same = sum(x[3] for x in differ)
            print(f"   {kind} in {short(dtype)}, {how}: {same} of {sum(new)} tokens before any difference, {preempted} times preempted")
            if dtype == torch.float32:
                assert same == sum(new), "other tokens than with transformers' own attention"
            rounded, exact = (model_of(kind, "eager", dtype, **sizes).to(x) for x in (dtype, torch.float32))
            for a, b, i, first in differ:
                if first < len(a):
                    tokens = torch.tensor([prompts[i] + a[:first]], device=DEVICE)
                    with torch.no_grad():
                        logits, exactly = (x(tokens).logits[0, -1].float() for x in (rounded, exact))
                    gap, off = (exactly[a[first]] - exactly[b[first]]).abs().item(), (logits - exactly).abs().max().item()
                    assert gap <= 4 * off, f"token {first} of request {i} is another one, and the model was sure"


def test_refused():
    given = prompts((20, 12))
    model = model_of("LlamaForCausalLM", "giwa", TYPES[0])
    make = lambda mask=given["attention_mask"], capacity=100: PagedCache(model, mask, capacity)
    run = lambda cache, **inputs: model(**{**given, **inputs}, past_key_values=cache, use_cache=True)
    with torch.no_grad():
        raises(ValueError, "capacity", lambda: run(make(capacity=19)))
        raises(ValueError, "left", lambda: make(given["attention_mask"].flip(1)))
        raises(NotImplementedError, "mask", lambda: run(make(), attention_mask=torch.ones_like(given["attention_mask"])))
        raises(NotImplementedError, "beam", lambda: make().reorder_cache(torch.tensor([0, 1])))
        raises(ValueError, "set_attn_implementation",
               lambda: PagedCache(model_of("LlamaForCausalLM", "eager", TYPES[0]), given["attention_mask"], 100))
        raises(NotImplementedError, "head_mask", lambda: attention_forward(model, *tensors(1, 2, 2, 4, 4, 64, 64, TYPES[0]), None, head_mask=1))


if __name__ == "__main__":
    sys.exit(main(globals(), ()))
