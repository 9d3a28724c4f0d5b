# SPDX-License-Identifier: MIT
"""giwa's attention for the models of Hugging Face transformers, and a paged cache of keys and values for them.

    from giwa_torch.transformers import PagedCache, register
    register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="giwa")
    model.generate(**prompts, past_key_values=PagedCache(model, prompts["attention_mask"], capacity=4096))   # or without a PagedCache

DecodeGraph is a step of decoding from a PagedCache in one CUDA graph. continuous_batching() serves requests through the paged cache of
transformers' continuous batching.
"""
import contextlib
import copy
import sys

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.masking_utils import sdpa_mask

from .functional import append_to_cache, attention, attention_cached


def attention_forward(module, query, key, value, attention_mask, scaling=None, dropout=0.0, softcap=None, is_causal=None, s_aux=None,
                      position_bias=None, **others):
    """What a model of transformers calls for each layer, with masks as for its attention "sdpa": none, of bool, or added to scores."""
    unknown = [name for name in ("head_mask", "cu_seq_lens_q", "cu_seqlens", "cache") if others.get(name) is not None]
    if unknown:
        raise NotImplementedError(f"giwa_torch: {', '.join(unknown)}")
    layer = getattr(key, "of_giwas_cache", None)
    if layer is not None:  # the keys are in a PagedCache
        if position_bias is not None or dropout:
            raise NotImplementedError(f"giwa_torch: {'dropout' if dropout else 'position_bias'} with a PagedCache")
        return layer.attend(query, attention_mask, others.get("sliding_window"), scaling, softcap, s_aux).transpose(1, 2), None
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = query.shape[2] > 1 and attention_mask is None and causal
    mask, bias = attention_mask, position_bias
    if mask is not None and mask.dtype != torch.bool:
        mask, bias = None, mask if bias is None else mask + bias
    if bias is not None and bias.dtype not in (query.dtype, torch.float32):
        bias = bias.to(query.dtype)
    o = attention(query, key, value, causal=causal, top_left=True, mask=mask, bias=bias,
                  sinks=s_aux, softcap=softcap or 0.0, scale=scaling, dropout_p=dropout, heads_first=True)
    return o.transpose(1, 2).contiguous(), None


def register(name="giwa"):
    """After it, a model takes attn_implementation="giwa", and model.set_attn_implementation("giwa"); and "paged|giwa", which is for
    continuous batching. Needs transformers 5."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, sdpa_mask)
    AttentionInterface.register(f"paged|{name}", batched_forward)  # without a mask: sequences and causality are giwa's


class PagedCache(Cache):
    """Keys and values of a model of transformers (5 or newer) in pages, for its attention "giwa".

    attention_mask  (batch, tokens) of the prompts: 1 for tokens, 0 for padding on the left. Padding is not stored.
    capacity        tokens of one sequence, at most: of its prompt and of what is generated
    page_size       tokens of a page

    Sequences take a page when their last one is full. All layers have the same page numbers, each its own pool. Beam search,
    cropping and reuse are not supported.
    """

    def __init__(self, model, attention_mask, capacity, page_size=16):
        if model.config._attn_implementation != "giwa":  # another one would see the new keys only
            raise ValueError("giwa_torch: PagedCache needs model.set_attn_implementation(\"giwa\")")
        padding = attention_mask.shape[1] - attention_mask.sum(1)
        if not torch.equal(attention_mask.bool(), torch.arange(attention_mask.shape[1], device=padding.device) >= padding[:, None]):
            raise ValueError("giwa_torch: attention_mask must be 0 for padding on the left, and else 1")
        super().__init__(layers=[PagedLayer(self) for _ in range(model.config.get_text_config().num_hidden_layers)])
        batch, most = len(padding), -(-capacity // page_size)
        self.page_size, self.capacity = page_size, capacity
        self.padding, self.on_host = padding.to(torch.int32), padding.tolist()
        self.seen = 0  # tokens of a sequence with its padding
        self.lengths = -self.padding
        self.pages = torch.zeros(batch, most, dtype=torch.int32, device=padding.device)
        self.table, self.free = self.pages.cpu(), list(range(batch * most))
        self.taken = [0] * batch
        self.in_graph = False

    def grow(self, seen):
        """Makes room for the tokens up to `seen`."""
        if seen > self.seen:
            if not self.in_graph:
                self.take_pages(seen)
            self.lengths += seen - self.seen
            self.seen = seen

    def take_pages(self, seen):
        most = seen - min(self.on_host)
        if most > self.capacity:
            raise ValueError(f"giwa_torch: a sequence has {most} tokens, more than the capacity of {self.capacity}")
        left = len(self.free)
        for b, padding in enumerate(self.on_host):
            while self.taken[b] * self.page_size < seen - padding:
                self.table[b, self.taken[b]] = self.free.pop()
                self.taken[b] += 1
        if len(self.free) < left:
            # Pinned, the copy does not wait; the memory is used again once the copy has ended.
            self.pages.copy_(self.table.pin_memory() if self.pages.is_cuda else self.table, non_blocking=True)

    def count(self, seen):
        """Says that all layers have the tokens up to `seen`."""
        self.seen = seen
        for layer in self.layers:
            layer.seen = seen

    def reorder_cache(self, beam_idx):
        raise NotImplementedError("giwa_torch: no beam search with PagedCache")

    def reset(self):
        raise NotImplementedError("giwa_torch: make a new PagedCache")


class PagedLayer(CacheLayerMixin):
    """The keys and values of one layer: (pages, page size, kv heads, head size)."""
    is_sliding = False

    def __init__(self, cache):
        super().__init__()
        self.cache, self.seen = cache, 0

    def lazy_initialization(self, key_states, value_states):
        sizes = lambda x: (self.cache.pages.numel(), self.cache.page_size, x.shape[1], x.shape[3])
        self.keys = key_states.new_empty(sizes(key_states))
        self.values = value_states.new_empty(sizes(value_states))
        self.is_initialized = True

    def update(self, key_states, value_states, *arguments, **keywords):
        """Appends; what it returns are the new keys and values, and transformers_attention finds the others by them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.seen += key_states.shape[2]
        self.cache.grow(self.seen)
        append_to_cache(key_states, value_states, self.keys, self.values, self.cache.lengths, self.cache.pages, heads_first=True)
        key_states.of_giwas_cache = self
        return key_states, value_states

    def attend(self, query, mask, window, scale, softcap, sinks):
        if not self.cache.in_graph:  # DecodeGraph gives no mask
            self.require_known(mask, query.shape[2], window)
        left = -1 if window is None else window - 1  # its own key counts in transformers
        return attention_cached(query, self.keys, self.values, self.cache.lengths, self.cache.pages, window=(left, 0), scale=scale,
                                softcap=softcap or 0.0, sinks=sinks, heads_first=True)

    def require_known(self, mask, queries, window):
        """Raises NotImplementedError unless the mask is the one that the cache computes: causal, or a window, and no padding."""
        if mask is None and not any(self.cache.on_host):
            return  # transformers makes none for causal attention without padding
        told = (queries, self.seen, window)
        if mask is not None and getattr(mask, "known_to_giwa", None) == told:
            return  # all layers get the same tensor
        key = torch.arange(self.seen, device=self.keys.device)
        own = key[self.seen - queries:, None]
        kept = (key <= own) & (key >= self.cache.padding[:, None, None, None])
        if window is not None:
            kept &= key > own - window
        real = own >= self.cache.padding[:, None, None, None]  # what rows of padding see does not matter
        if mask is None or mask.dtype != torch.bool or mask.shape[-2:] != kept.shape[-2:] or bool(((mask != kept) & real).any()):
            raise NotImplementedError("giwa_torch: this mask is neither causal nor a causal window over the tokens that PagedCache was "
                                      "told of")
        mask.known_to_giwa = told

    def get_seq_length(self, cache_position=None):
        return self.seen

    def get_mask_sizes(self, query_length):
        return self.seen + query_length, 0

    def get_max_length(self):
        return -1  # padding counts for transformers, and not here


class DecodeGraph:
    """One step of decoding in a CUDA graph: embedding, all layers, their appends to the cache, the logits, and the next tokens.

        cache = PagedCache(model, prompts["attention_mask"], capacity=4096)
        logits = model(**prompts, position_ids=..., past_key_values=cache).logits
        step = DecodeGraph(model, cache, logits[:, -1].argmax(-1, keepdim=True))
        new = [step().clone() for _ in range(100)]

    tokens  (batch, 1), the first input; the following ones are what the step before chose
    choose  makes tokens (batch, 1) of the logits (batch, vocabulary); it is part of the graph

    A call takes pages for one more token, replays the graph and returns the tokens, which the next call overwrites, as it does
    `logits`. Nothing in it waits for the GPU, but the end of the object does. The model must take position_ids, and no mask but that of its tokens.
    """

    def __init__(self, model, cache, tokens, choose=lambda logits: logits.argmax(-1, keepdim=True)):
        self.model, self.cache, self.choose, self.tokens = model, cache, choose, tokens.clone()
        self.stream = None  # of the last call
        seen, lengths = cache.seen, cache.lengths.clone()
        cache.take_pages(seen + 1)
        cache.in_graph = True
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.no_grad(), torch.cuda.stream(stream):
                for _ in range(2):  # kernels and libraries are loaded before the capture
                    self.step()
                    cache.count(seen)
                    cache.lengths.copy_(lengths)
                    self.tokens.copy_(tokens)
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            with torch.no_grad(), torch.cuda.graph(self.graph):
                self.logits = self.step()
        finally:
            cache.count(seen)
            cache.in_graph = False

    def step(self):
        logits = self.model(input_ids=self.tokens, position_ids=self.cache.lengths[:, None].long(), past_key_values=self.cache,
                            use_cache=True).logits[:, -1]
        self.tokens.copy_(self.choose(logits))
        return logits

    def __del__(self):
        # A graph of dependent launches that is destroyed while it runs can stop the GPU (docs/conventions.md, Graph capture).
        if getattr(self, "stream", None) is not None and not sys.is_finalizing():
            self.stream.synchronize()

    def __call__(self):
        self.cache.take_pages(self.cache.seen + 1)
        self.cache.count(self.cache.seen + 1)
        self.stream = torch.cuda.current_stream()
        self.graph.replay()
        return self.tokens


class Batch:
    """What the layers of a group have in common in a step of continuous batching, computed by the first of them."""

    def __init__(self, cache, group, q_offsets, k_offsets, longest, read_index, write_index, block_table):
        self.lengths = k_offsets[1:] - k_offsets[:-1]
        if block_table is not None:  # each sequence has one query
            self.slots, self.pages = None, block_table[group]
            return
        self.slots = write_index[group].to(torch.int32)
        # Rows of the cache, sequence by sequence, of which transformers tells the new ones only if there are no others.
        rows, offsets = (read_index[group], k_offsets) if read_index[group].numel() else (write_index[group], q_offsets)
        first = offsets[:-1, None] + torch.arange(0, longest, cache.block_size, device=rows.device)
        self.pages = (rows[first.clamp_(max=len(rows) - 1)] // cache.block_size).to(torch.int32)


def batched_forward(module, query, key, value, attention_mask, scaling=None, dropout=0.0, softcap=None, s_aux=None, cache=None,
                    cu_seq_lens_q=None, cu_seq_lens_k=None, max_seqlen_q=None, max_seqlen_k=None, read_index=None, write_index=None,
                    block_table=None, **others):
    """What a model calls for each layer in transformers' continuous batching: query (1, heads, tokens of all requests, head size)."""
    if cache is None or dropout:
        raise NotImplementedError(f"giwa_torch: {'dropout' if dropout else 'paged|giwa without continuous batching'}")
    group, layer = cache.layer_index_to_group_indices[module.layer_idx]
    window = cache.sliding_windows[module.layer_idx]  # its own key counts; 1: none
    if isinstance(cu_seq_lens_k, dict):
        kind = "full_attention" if window == 1 else "sliding_attention"
        cu_seq_lens_k, max_seqlen_k = cu_seq_lens_k[kind], max_seqlen_k[kind]
    options = {"scale": scaling, "softcap": softcap or 0.0, "sinks": s_aux}
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # (tokens, heads, head size)
    if window != 1:  # the cache is a ring of the last keys
        k, v = cache.update(key, value, module.layer_idx, read_index, write_index)
        return attention(q, k, v, causal=True, window=(window - 1, 0), q_offsets=cu_seq_lens_q, k_offsets=cu_seq_lens_k,
                         max_q=max_seqlen_q, **options)[None], None
    if layer == 0:
        cache.of_giwa = getattr(cache, "of_giwa", {})
        cache.of_giwa[group] = Batch(cache, group, cu_seq_lens_q, cu_seq_lens_k, max_seqlen_k, read_index, write_index, block_table)
    batch = cache.of_giwa[group]
    keys, values = (x[layer].view(-1, cache.block_size, *x[layer].shape[1:]) for x in (cache.key_cache, cache.value_cache))
    if batch.slots is None:
        append_to_cache(k[:, None], v[:, None], keys, values, batch.lengths, batch.pages)
        return attention_cached(q[:, None], keys, values, batch.lengths, batch.pages, **options).transpose(0, 1), None
    append_to_cache(k[None], v[None], keys, values, None, slots=batch.slots)
    return attention_cached(q, keys, values, batch.lengths, batch.pages, q_offsets=cu_seq_lens_q, max_q=max_seqlen_q, **options)[None], None


@contextlib.contextmanager
def continuous_batching(model, generation_config=None, config=None, longest=8192):
    """transformers' ContinuousBatchingManager, started, for a model whose attention is "paged|giwa":

        with continuous_batching(model, generation_config) as manager:
            ids = manager.add_requests(prompts, max_new_tokens=100)   # lists of tokens
            results = [manager.get_result() for _ in ids]             # as they are finished

    config    a ContinuousBatchingConfig, of which use_cuda_graph and use_async_batching are True on a GPU if they are None
    longest   tokens of a request, at most, for which steps of one token a request take the faster path: with a page table, and in
              CUDA graphs that are captured before the first request

    model.generate_batch() works too, but takes that path for the attention of flash_attn alone.
    """
    from transformers import ContinuousBatchingConfig  # newer than what the rest needs
    model.set_attn_implementation("paged|giwa")
    config = copy.copy(config or ContinuousBatchingConfig())
    on_gpu = model.device.type == "cuda"
    for name in ("use_cuda_graph", "use_async_batching"):
        if getattr(config, name) is None:
            setattr(config, name, on_gpu)
    manager = model.init_continuous_batching(generation_config=generation_config, continuous_batching_config=config)
    manager.continuous_batching_config.max_blocks_per_request = -(-longest // config.block_size)
    try:
        manager.warmup()
        manager.start()
        yield manager
    finally:
        manager.stop(block=True)
        if on_gpu:
            torch.cuda.synchronize()  # see DecodeGraph.__del__
        manager.destroy()
