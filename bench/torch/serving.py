#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tokens a second of transformers' continuous batching with giwa's attention and with transformers' own, in one process.

A Llama-like model with random weights answers requests of ragged lengths, greedily: prefill chunks and decoding steps are mixed as
transformers schedules them, and with few blocks it preempts requests. Each side has its own cache and CUDA graphs. One load before the
rounds captures the graphs; then the sides alternate. Prints the tokens a second of each round, and how the tokens of the sides
compare: where a request's tokens differ first, by how much the logit of either choice is below the other's in a plain forward pass.

FlashAttention-3 takes part if peers/unpack.py restored it. Without a GPU the sizes must be small: --small.
"""
import argparse
import importlib.machinery
import random
import statistics
import sys
import time
import types
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "peers"), str(HERE.parents[1] / "examples" / "pytorch")]

import torch
import transformers.utils.import_utils
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation.continuous_batching.utils import WorkloadHints


def offer_flash3(fwd):
    """Makes transformers' flash_attention_3 call `fwd`, FlashAttention-3's operator, as the package flash_attn_interface does."""
    def varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False, window_size=(-1, -1),
               deterministic=False):
        return fwd(q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
                   softmax_scale=softmax_scale, is_causal=causal, window_size_left=window_size[0], window_size_right=window_size[1],
                   num_splits=1)[0]

    def with_kvcache(q, k_cache, v_cache, k=None, v=None, cache_seqlens=None, page_table=None, softmax_scale=None, causal=False,
                     window_size=(-1, -1)):
        return fwd(q, k_cache, v_cache, k_new=k, v_new=v, seqused_k=cache_seqlens, page_table=page_table, softmax_scale=softmax_scale,
                   is_causal=causal, window_size_left=window_size[0], window_size_right=window_size[1])[0]

    module = types.ModuleType("flash_attn_interface")
    module.__spec__ = importlib.machinery.ModuleSpec("flash_attn_interface", None)
    module.flash_attn_func, module.flash_attn_varlen_func, module.flash_attn_with_kvcache = None, varlen, with_kvcache
    sys.modules["flash_attn_interface"] = module
    transformers.utils.import_utils.PACKAGE_DISTRIBUTION_MAPPING["flash_attn_interface"] = ["flash-attn-3"]
    transformers.utils.import_utils.is_flash_attn_3_available.cache_clear()


class Side:
    """A manager of continuous batching with its cache and graphs."""

    def __init__(self, name, attention, page, table, model, load):
        self.name, self.attention, self.model, self.load = name, attention, model, load
        model.set_attn_implementation(attention)
        longest = max(len(x) for x in load.prompts) + max(load.new)
        tokens = load.tokens if load.tokens else sum(len(x) for x in load.prompts) + sum(load.new) + len(load.new) * page
        config = ContinuousBatchingConfig(block_size=page, max_batch_tokens=load.batch_tokens, num_blocks=-(-tokens // page),
                                          allow_block_sharing=False)
        on_gpu = model.device.type == "cuda"
        if table:  # what transformers chooses by itself for flash_attention_3
            config.use_cuda_graph = config.use_async_batching = on_gpu
        generation = GenerationConfig(do_sample=False, max_new_tokens=max(load.new), eos_token_id=-1, pad_token_id=0)
        hints = WorkloadHints(max(len(x) for x in load.prompts), max(load.new), len(load.prompts))
        model.__dict__.pop("_cached_continuous_batching_manager", None)
        self.manager = model.init_continuous_batching(generation, config, hints)
        if table:
            self.manager.continuous_batching_config.max_blocks_per_request = -(-longest // page) + 1
        self.manager.warmup()
        self.preempted, manager = 0, self.manager.batch_processor.offloading_manager
        offload = manager.offload_requests

        def counted():
            count = offload()
            self.preempted += count
            return count
        manager.offload_requests = counted

    def run(self):
        """Tokens a second, and the tokens of each request."""
        self.model.set_attn_implementation(self.attention)
        self.preempted, manager, found = 0, self.manager, {}
        manager.start()
        begin = time.perf_counter()
        ids = [manager.add_request(p, max_new_tokens=n) for p, n in zip(self.load.prompts, self.load.new)]
        while len(found) < len(ids):
            result = manager.get_result(timeout=60)
            if result is None or result.error is not None:
                raise RuntimeError(f"{self.name}: {result and result.error}")
            found[result.request_id] = result.generated_tokens
        seconds = time.perf_counter() - begin
        manager.stop(block=True, keep_for_next_session=True)
        self.model.__dict__.pop("_cached_continuous_batching_manager", None)
        return sum(self.load.new) / seconds, [found[x] for x in ids]

    def close(self):
        if self.model.device.type == "cuda":
            torch.cuda.synchronize()
        self.manager.batch_processor = None
        self.manager.destroy()


@torch.no_grad()
def compare(model, load, ours, theirs):
    """Tokens before the first difference of a request, and the largest gap of logits there, of a plain pass over the common tokens."""
    model.set_attn_implementation("sdpa")
    same, worst, scale = 0, 0.0, 0.0
    for prompt, a, b in zip(load.prompts, ours, theirs):
        first = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), len(a))
        same += first
        if first < len(a):
            tokens = torch.tensor([prompt + a[:first]], device=model.device)
            logits = model(tokens, logits_to_keep=1).logits[0, -1].float()
            worst, scale = max(worst, logits.max().item() - min(logits[a[first]], logits[b[first]]).item()), logits.std().item()
    return same, worst, scale


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", nargs="+", default=["giwa:256", "giwa:64", "giwa:16", "flash_attention_3:256", "sdpa:256"],
                        metavar="ATTENTION:PAGE")
    parser.add_argument("--small", action="store_true", help="a model and requests for a CPU")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prompts", type=int, nargs=2, default=(100, 4000), metavar=("FEWEST", "MOST"), help="tokens")
    parser.add_argument("--new", type=int, nargs=2, default=(64, 256), metavar=("FEWEST", "MOST"), help="tokens")
    parser.add_argument("--tokens", type=int, default=0, help="of the cache; few of them make it preempt. Default: enough for all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no side and no load after so many")
    arguments, start = parser.parse_args(), time.perf_counter()
    device, draw = "cuda" if torch.cuda.is_available() else "cpu", random.Random(1)
    size = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=500) \
        if arguments.small else dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=arguments.layers, num_attention_heads=32,
                                     num_key_value_heads=8, vocab_size=32000)
    load = types.SimpleNamespace(tokens=arguments.tokens, batch_tokens=64 if arguments.small else 2048)
    load.prompts = [[draw.randrange(3, size["vocab_size"]) for _ in range(draw.randint(*arguments.prompts))] for _ in range(arguments.requests)]
    load.new = [draw.randint(*arguments.new) for _ in range(arguments.requests)]

    sides = [x.split(":") for x in arguments.sides]
    if any(x[0] == "flash_attention_3" for x in sides):
        from sides import Peers
        from tables import PEERS
        peers = Peers(PEERS, print, ["fa3"])
        if peers.fa3:
            offer_flash3(peers.fa3.fwd)
        else:
            sides = [x for x in sides if x[0] != "flash_attention_3"]

    from giwa_torch.transformers import register
    register()
    config = LlamaConfig(**size, max_position_embeddings=16384, rope_theta=500000.0)
    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, arguments.dtype))
    with torch.device(device):
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    print(f"{torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}, torch {torch.__version__}, transformers {transformers.__version__}: "
          f"{sum(x.numel() for x in model.parameters()) / 1e9:.2f} G parameters, {len(load.prompts)} requests, "
          f"{sum(map(len, load.prompts))} tokens of prompts, {sum(load.new)} new, cache {load.tokens or 'for all'}", flush=True)

    made, results = [], {}
    for attention, page in sides:
        if made and time.perf_counter() - start > arguments.seconds / 2:
            print(f"{attention}, pages of {page}: no time")
            continue
        try:
            begin = time.perf_counter()
            side = Side(f"{attention}, pages of {page}", f"paged|{attention}", int(page), attention != "sdpa" and attention != "eager", model, load)
            first, tokens = side.run()
            made.append(side)
            results[side.name] = ([], tokens)
            print(f"{side.name}: ready, {time.perf_counter() - begin:.1f} s, first load {first:.0f} tokens/s, {side.preempted} preempted",
                  flush=True)
        except Exception as error:  # the others go on
            print(f"{attention}, pages of {page}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    for _ in range(arguments.rounds):
        for side in made:
            if time.perf_counter() - start > arguments.seconds:
                continue
            speed, tokens = side.run()
            results[side.name][0].append(speed)
            print(f"{side.name}: {speed:.0f} tokens/s, {side.preempted} preempted", flush=True)
    base = made[-1].name
    print("| side | tokens/s | tokens of prompts and new ones /s | tokens as of the last side | largest gap of logits |\n|---|---|---|---|---|")
    total = 1 + sum(map(len, load.prompts)) / sum(load.new)
    for side in made:
        speed = statistics.median(results[side.name][0] or [0])
        same, gap, scale = compare(model, load, results[side.name][1], results[base][1])
        print(f"| {side.name} | {speed:.0f} | {speed * total:.0f} | {same} of {sum(load.new)} | {gap:.3f} (std of logits {scale:.2f}) |", flush=True)
    for side in made:
        side.close()


if __name__ == "__main__":
    main()
