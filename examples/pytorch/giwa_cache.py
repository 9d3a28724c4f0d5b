# SPDX-License-Identifier: MIT
"""giwa's cache of keys and values for PyTorch tensors, and a paged cache for the models of Hugging Face transformers.

    from giwa_cache import PagedCache, append_to_cache, attention_cached
    append_to_cache(k, v, k_cache, v_cache, lengths, pages)
    o = attention_cached(q, k_cache, v_cache, lengths, pages)

    register_with_transformers()                                   # of giwa_attention
    model.set_attn_implementation("giwa")
    model.generate(**prompts, past_key_values=PagedCache(model, prompts["attention_mask"], capacity=4096))

The kernels of a head size are compiled at its first use, which takes a minute or two; giwa_attention.py says more.
"""
import torch

import giwa_attention

try:
    from transformers.cache_utils import Cache, CacheLayerMixin
except ImportError:  # the functions do not need it
    Cache = CacheLayerMixin = object


def _library(tensor):
    if tensor.dim() != 4 or not tensor.is_cuda:
        raise ValueError("giwa: q, k and v must be tensors in GPU memory with four dimensions, (batch, heads, length, head size)")
    return giwa_attention.load_library(tensor.shape[-1], giwa_attention.native_architecture(tensor.device), kernels="cached")


def append_to_cache(k, v, k_cache, v_cache, lengths, pages=None, q=None, cos=None, sin=None):
    """Writes keys and values of new tokens into a cache. Returns q, rotated, or an empty tensor if q is None.

    k, v     (batch, kv heads, new tokens, head size). Token i of n of a sequence becomes key lengths[b] - n + i; it is not
             written if that is negative, so that padding on the left of a prompt takes no place.
    k_cache  (pages, keys of a page, kv heads, head size), with pages; or (batch, keys, kv heads, head size). Any strides, if the
             last is 1. v_cache likewise. Both are written.
    lengths  (batch), int32, on the GPU: keys that each sequence has, the new ones included.
    pages    (batch, pages of a sequence), int32, on the GPU: which pages a sequence has, in the order of its keys.
    q        (batch, heads, new tokens, head size); rotated as k is.
    cos, sin (positions, pairs), float32: the rotary embedding; element i of a head is paired with i + pairs. None: no rotation.
    """
    return _library(k).append_to_cache(k, v, k_cache, v_cache, lengths, pages, q, cos, sin)


def attention_cached(q, k_cache, v_cache, lengths, pages=None, window=None, softcap=None, scale=None):
    """Computes attention of the newest tokens to a cache, which contains their keys and values already. A query sees the keys up
    to its own, and the last query's own is key lengths[b] - 1.

    q (batch, heads, new tokens, head size); the other tensors are those of append_to_cache, the other arguments those of
    giwa_attention. float16, bfloat16 or float32. Returns a tensor like q. Lengths and pages are read when the kernels run, so a
    CUDA graph may be replayed with others in the same tensors.
    """
    return _library(q).attention_cached(q, k_cache, v_cache, lengths, pages, window, softcap, scale)


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
            raise ValueError("giwa: PagedCache needs model.set_attn_implementation(\"giwa\")")
        padding = attention_mask.shape[1] - attention_mask.sum(1)
        if not torch.equal(attention_mask.bool(), torch.arange(attention_mask.shape[1], device=padding.device) >= padding[:, None]):
            raise ValueError("giwa: attention_mask must be 0 for padding on the left, and else 1")
        super().__init__(layers=[PagedLayer(self) for _ in range(model.config.get_text_config().num_hidden_layers)])
        batch, most = len(padding), -(-capacity // page_size)
        self.page_size, self.capacity = page_size, capacity
        self.padding, self.on_host = padding.to(torch.int32), padding.tolist()
        self.seen = 0  # tokens of a sequence with its padding
        self.lengths = -self.padding
        self.pages = torch.zeros(batch, most, dtype=torch.int32, device=padding.device)
        self.table, self.free = self.pages.cpu(), list(range(batch * most))
        self.taken = [0] * batch

    def grow(self, seen):
        """Makes room for the tokens up to `seen`."""
        if seen <= self.seen:
            return
        most = seen - min(self.on_host)
        if most > self.capacity:
            raise ValueError(f"giwa: a sequence has {most} tokens, more than the capacity of {self.capacity}")
        self.lengths += seen - self.seen
        self.seen = seen
        left = len(self.free)
        for b, padding in enumerate(self.on_host):
            while self.taken[b] * self.page_size < seen - padding:
                self.table[b, self.taken[b]] = self.free.pop()
                self.taken[b] += 1
        if len(self.free) < left:
            self.pages.copy_(self.table)

    def reorder_cache(self, beam_idx):
        raise NotImplementedError("giwa: no beam search with PagedCache")

    def reset(self):
        raise NotImplementedError("giwa: make a new PagedCache")


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
        append_to_cache(key_states, value_states, self.keys, self.values, self.cache.lengths, self.cache.pages)
        key_states.of_giwas_cache = self
        return key_states, value_states

    def attend(self, query, mask, window, scale, softcap):
        self.require_known(mask, query.shape[2], window)
        return attention_cached(query, self.keys, self.values, self.cache.lengths, self.cache.pages, window=window, scale=scale,
                                softcap=softcap)

    def require_known(self, mask, queries, window):
        """Raises NotImplementedError unless the mask is the one that the cache computes: causal, or a window, and no padding."""
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
            raise NotImplementedError("giwa: this mask is neither causal nor a causal window over the tokens that PagedCache was "
                                      "told of")
        mask.known_to_giwa = told

    def get_seq_length(self, cache_position=None):
        return self.seen

    def get_mask_sizes(self, query_length):
        return self.seen + query_length, 0

    def get_max_length(self):
        return -1  # padding counts for transformers, and not here
