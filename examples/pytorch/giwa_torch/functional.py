# SPDX-License-Identifier: MIT
"""The operators as functions, and torch.nn.functional.scaled_dot_product_attention by them."""
import os
import warnings

import torch
import torch._functorch.config
import torch.fx.traceback
from torch.nn.attention.bias import CausalBias, CausalVariant
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import scaled_dot_product_attention as pytorchs
from torch.utils.checkpoint import CheckpointPolicy

from .block_mask import inner_of, map_of

operator = torch.ops.giwa.attention.default


def empty_rows(like, columns):
    """As binding.cpp makes an output: in the memory order of `like`."""
    order = list(range(like.dim() - 1))
    for i in range(1, len(order)):
        for j in range(i, 0, -1):
            before, here = like.stride(order[j - 1]), like.stride(order[j])
            if before < here and before != 0:
                order[j - 1:j + 1] = order[j], order[j - 1]
    strides, rows = [1] * like.dim(), columns
    for d in reversed(order):
        strides[d], rows = rows, rows * torch.sym_max(like.shape[d], 1)
    return like.new_empty_strided((*like.shape[:-1], columns), strides)


def empty_lse(q, heads_first):
    sizes = (q.shape[1], q.shape[0]) if q.dim() == 3 else q.shape[:3] if heads_first else (q.shape[0], q.shape[2], q.shape[1])
    return q.new_empty(sizes, dtype=torch.float32)


@torch.library.register_fake("giwa::attention")
def _(q, k, v, *others):
    return empty_rows(q, v.shape[-1]), empty_lse(q, others[15])


@torch.library.register_fake("giwa::attention_backward")
def _(dout, dlse, q, k, v, o, lse, mask, bias, slopes, sinks, *others, wanted):
    like = [x for x, want in zip((q, k, v), wanted) if want]
    return [empty_rows(x, x.shape[-1]) for x in like] + [torch.empty(x.shape, dtype=x.dtype, device=x.device)
                                                        for x, want in zip((bias, slopes, sinks), wanted[3:]) if want]


def is_row_of_656(cache):
    return cache.dtype == torch.uint8 and cache.shape[-1] == 656


@torch.library.register_fake("giwa::attention_cached")
def _(q, k_cache, v_cache, *others):
    size = v_cache.shape[-1] * (2 if v_cache.dtype == torch.uint8 else 1)  # two integers of 4 bits
    size = 512 if is_row_of_656(k_cache) else size
    return empty_rows(q, size), empty_lse(q, others[-1])


@torch.library.register_fake("giwa::append_to_cache")
def _(k, v, k_cache, v_cache, lengths, pages, q, *others):
    return k.new_empty(0) if q is None else empty_rows(q, q.shape[-1])


@torch.library.register_fake("giwa::append_with_scales")
def _(k, v, k_cache, v_cache, k_scales, v_scales, lengths, pages, q, *others):
    return k.new_empty(0) if q is None else empty_rows(q, q.shape[-1])


@torch.library.register_fake("giwa::attention_e4m3")
def _(q, k, v, *others):
    return empty_rows(q, v.shape[-1]).to(torch.bfloat16), empty_lse(q, False)


def draw_seed(q):
    return torch.randint(2 ** 62, (1,), device=q.device)


def draw_saved_seed(q):
    """For torch.compile, which traces this: the number is saved for the backward pass. With less memory than it wants, as with an
    activation_memory_budget, PyTorch would draw another one there, and the gradients would be those of other weights."""
    meta = torch.fx.traceback.current_meta  # of the nodes that are traced
    before = meta.get("recompute")
    meta["recompute"] = CheckpointPolicy.MUST_SAVE
    try:
        return draw_seed(q)
    finally:
        meta.pop("recompute") if before is None else meta.update(recompute=before)


fragment = torch.library.Library("giwa", "FRAGMENT")
fragment.define("dropout_seed(Tensor q) -> Tensor")
fragment.impl("dropout_seed", draw_saved_seed, "CompositeImplicitAutograd")


@torch.compiler.disable
def draw_seed_before_the_graph(q):
    return draw_seed(q)


@torch.compiler.assume_constant_result
def nothing_is_saved():
    """Then PyTorch does not ask what must be saved, so the number has to be an input of the graph."""
    return torch._functorch.config.activation_memory_budget == 0


def seed_of(dropout_p, q):
    """A number from PyTorch's generator of the device, in its memory: no synchronization, and another one in each replay of a graph."""
    if not dropout_p:
        return None
    if not torch.compiler.is_compiling():
        return draw_seed(q)
    return draw_seed_before_the_graph(q) if nothing_is_saved() else torch.ops.giwa.dropout_seed.default(q)


def attention(q, k, v, *, causal=False, window=(-1, -1), top_left=False, mask=None, bias=None, alibi_slopes=None, sinks=None,
              softcap=0.0, scale=None, q_offsets=None, k_offsets=None, max_q=0, q_lengths=None, k_lengths=None, k_batch_index=None,
              dropout_p=0.0, heads_first=False, return_lse=False, inner=None, mask_offsets=None):
    """Computes softmax(mask(bias + alibi + softcap(scale q kᵀ))) v for every head, on a GPU or the CPU.

    q (batch, length, heads, head size), k and v (batch, their length, kv heads, head size); v's head size may differ, kv heads divide
    heads, head sizes are 1 to 512. heads_first: (batch, heads, length, head size). float16, bfloat16 or float32. Any strides without a
    copy, if the last is 1. Returns o, in the memory order of q, and with return_lse the logarithm of the sum of e^score, float32,
    (batch, heads, length). Autograd gets the gradients of q, k, v, bias, alibi_slopes and sinks, also from lse.

    causal         a query sees the keys up to its diagonal. The last query's diagonal is the last key; with top_left, the first
                   query's is the first key
    window         a query sees so many keys before its diagonal and after it; -1: any number
    mask           of bool, broadcasts to (batch, heads, queries, keys): True keeps a score. Or FlexAttention's BlockMask, with `inner`.
                   Or uint8: FlashInfer's packed custom mask, a bit for each query and key, lowest bit first
    inner          what the mask_mod of a BlockMask computes, in a dict: causal, window, top_left (here True if it is not there) and mask,
                   as above, and segment_ids, int32, (length) or (batch, length), or one of queries and one of keys: a query sees the
                   keys of its id. None: no mask_mod
    mask_offsets   (sequences) or one more, int32: the byte of a packed mask with which each sequence begins, FlashInfer's
                   mask_indptr. A sequence has bits for its queries and keys alone. None: all sequences have the same bits
    bias           of the type of q or float32, broadcasts to (batch, heads, queries, keys), and is added to the scores
    alibi_slopes   (heads) or (batch, heads): minus slope times the distance from the diagonal is added to the scores
    sinks          (heads): scores of a further key of each head, whose value is 0
    softcap        scores become softcap * tanh(score / softcap); 0: they do not
    scale          factor of the scores; None is 1 / sqrt(head size)
    q_offsets, k_offsets   (sequences + 1), int32: q, k and v are packed, (rows of all sequences, heads, head size), and these are the
                   first rows; lse is (heads, rows). max_q, the longest length, is a hint
    q_lengths, k_lengths, k_batch_index   (batch), int32: rows that each sequence has, and whose keys and values it reads
    dropout_p      weights are dropped with this probability, rounded to a multiple of 1/256; which ones follows from torch.manual_seed

    A query that sees no key gets zeros, and an lse of -inf; so do rows that belong to no sequence. With
    torch.use_deterministic_algorithms(True) gradients have the same bits in every run; otherwise, on Hopper, those of q may not.
    """
    segments, blocks = (None, None), (None, ())
    if isinstance(mask, BlockMask):
        if causal or top_left or tuple(window) != (-1, -1):
            raise ValueError("giwa_torch: with a BlockMask causal, window and top_left are given in inner")
        if q.dim() != 4 or k.dim() != 4:
            raise NotImplementedError("giwa_torch: a BlockMask with packed sequences")
        gradients = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, bias, alibi_slopes, sinks))
        length = 2 if heads_first else 1
        block_mask = mask
        causal, window, top_left, mask, *segments = inner_of(block_mask, inner)
        blocks = map_of(block_mask, q.shape[length], k.shape[length], gradients)
    elif inner is not None:
        raise ValueError("giwa_torch: inner is for a BlockMask, and mask is none")
    o, lse = operator(q, k, v, mask, bias, alibi_slopes, sinks, q_offsets, k_offsets, q_lengths, k_lengths, k_batch_index, max_q,
                      window[0], 0 if causal else window[1], not top_left, softcap, scale, heads_first, dropout_p,
                      seed_of(dropout_p, q), False, mask_offsets, *segments, *blocks)
    return (o, lse) if return_lse else o


def attention_cached(q, k_cache, v_cache, lengths, pages=None, *, causal=True, window=(-1, -1), alibi_slopes=None, sinks=None,
                     softcap=0.0, scale=None, q_offsets=None, max_q=0, heads_first=False, return_lse=False, k_scales=None, v_scales=None,
                     indices=None, counts=None, of_sequences=False):
    """Computes attention of the newest tokens to a cache, which contains their keys and values already. The last query's diagonal is
    key lengths[b] - 1.

    k_cache  (pages, keys of a page, kv heads, head size), with pages; or (batch, keys, kv heads, head size). v_cache likewise, or the first
             columns of k_cache: in latent attention k_cache[..., :512] of head size 576
    lengths  (batch), int32: keys of each sequence
    pages    (batch, pages of a sequence), int32: which pages a sequence has, in the order of its keys
    k_scales, v_scales   float32, (pages or batch, keys, kv heads), or 1 for any of these: an element of a cache of float8_e4m3fn or int8
             stands for its value times the scale, and of uint8, (…, head size / 2), for two integers of 4 bits, the first in the low
             bits, times the scale. None: 1. q is not rounded
    indices  (batch, queries, n), int32: the keys that each query sees, page * page size + row, or keys of its sequence if of_sequences;
             others are none. counts, (batch, queries), int32: how many of them count. Without causal, window, softcap and alibi_slopes

    A cache of uint8, (pages, keys of a page, kv heads, 656), has latent rows of FlashMLA's FP8 format, and is k_cache and v_cache.

    The other arguments are those of attention(); q may be packed. There are no gradients. Lengths and pages are read when the
    kernels run, so a CUDA graph may be replayed with others in the same tensors.
    """
    if indices is None and (counts is not None or of_sequences):
        raise ValueError("giwa_torch: counts and of_sequences belong to indices")
    if indices is not None and k_cache.dtype != q.dtype and not (k_cache.dtype == torch.uint8 and k_cache.shape[-1] == 656):
        raise NotImplementedError(f"giwa_torch: indices with a cache of {k_cache.dtype}")
    o, lse = torch.ops.giwa.attention_cached.default(q, k_cache, v_cache, lengths, pages, q_offsets, alibi_slopes, sinks, k_scales,
                                                     v_scales, max_q, window[0], 0 if causal and indices is None else window[1], True,
                                                     softcap, scale, indices, None if counts is None else counts.reshape(-1), of_sequences,
                                                     heads_first)
    return (o, lse) if return_lse else o


def append_to_cache(k, v, k_cache, v_cache, lengths, pages=None, *, q=None, cos=None, sin=None, interleaved=False, positions=None,
                    slots=None, heads_first=False, k_scales=None, v_scales=None, find_scales=False):
    """Writes keys and values of new tokens into a cache. Returns q, rotated, or an empty tensor if q is None.

    k, v      (batch, new tokens, kv heads, head size). Token i of n of a sequence becomes key lengths[b] - n + i; it is not written
              if that is negative, so that padding on the left of a prompt takes no place.
    lengths   (batch), int32: keys that each sequence has, the new ones included
    q         (batch, new tokens, heads, head size); rotated as k is
    cos, sin  (positions, pairs), float32 or of the type of k: the rotary embedding; element i of a head is paired with i + pairs, or
              if `interleaved` 2 i with 2 i + 1. None: no rotation
    positions, slots   (batch * new tokens), int32: the position of each token, and the row of the cache, page * page size + row, that
              it is written to; none if negative

    The cache, pages and scales are those of attention_cached(). What is written to a cache of float8_e4m3fn, int8 or uint8 is divided by
    the scale, rounded to nearest even, and limited to 448, 127 or 7. With find_scales the call finds the scale of each new token and
    head, its largest magnitude over 448, 127 or 7, and writes it to k_scales and v_scales, (pages or batch, keys, kv heads).
    v None    only keys are written, as those of latent attention; v_cache may be k_cache, and with find_scales v_scales is None. For
              rows of 656 bytes k has 576 elements: scales are found, and the last elements are rotated
    """
    v = k[..., :0] if v is None else v
    if find_scales:
        if k_scales is None:
            raise ValueError("giwa_torch: find_scales needs k_scales, and v_scales if there is a v")
        return torch.ops.giwa.append_with_scales.default(k, v, k_cache, v_cache, k_scales, v_scales, lengths, pages, q, cos, sin,
                                                         interleaved, positions, slots, heads_first)
    return torch.ops.giwa.append_to_cache.default(k, v, k_cache, v_cache, lengths, pages, q, cos, sin, interleaved, positions, slots,
                                                  heads_first, k_scales, v_scales)


class InvalidArgument(ValueError, RuntimeError):
    """As PyTorch's function, scaled_dot_product_attention raises a RuntimeError; the operators raise a ValueError."""


class InvalidMask(InvalidArgument, IndexError):
    """PyTorch raises an IndexError for a mask of fewer than two dimensions."""


TYPES = (torch.float16, torch.bfloat16, torch.float32)
passed_on = set()  # the reasons that were told


def set_unsupported(what):
    """Says what scaled_dot_product_attention does with a call that giwa does not serve, as of nested tensors or float64. "pytorch":
    PyTorch's function computes it, and the first such call for each reason warns. "raise": NotImplementedError with the reason. Until
    this is called, the environment variable GIWA_TORCH_UNSUPPORTED says it; without that it is "pytorch"."""
    global policy
    if what not in ("pytorch", "raise"):
        raise ValueError(f'giwa_torch: set_unsupported takes "pytorch" or "raise", not {what!r}')
    policy = what


set_unsupported(os.environ.get("GIWA_TORCH_UNSUPPORTED") or "pytorch")


def _why_not(query, key, value, dropout_p):
    """Why giwa does not serve a call, or None."""
    if query.is_nested or key.is_nested or value.is_nested:
        return "nested tensors; flash_attn_varlen_func takes packed sequences"
    if query.dtype not in TYPES:
        return f"elements of {query.dtype}"
    if not (query.is_cuda or query.is_cpu or query.is_meta):
        return f"tensors on {query.device.type}"
    return "dropout of all weights" if dropout_p == 1 else None


@torch.compiler.assume_constant_result  # torch.compile warns when it traces
def _tell(reason):
    if reason not in passed_on:
        passed_on.add(reason)
        warnings.warn(f"giwa_torch: {reason}. PyTorch's scaled_dot_product_attention computes such calls; set_unsupported(\"raise\") "
                      "makes them an error", stacklevel=4)


def _pass_on(reason, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    if policy == "raise":
        raise NotImplementedError(f"giwa_torch: {reason}")
    _tell(reason)
    return pytorchs(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """Computes what torch.nn.functional.scaled_dot_product_attention computes, from the same arguments. A CausalBias as attn_mask costs
    no more than is_causal. set_unsupported() says what happens to calls that giwa does not serve."""
    others = attn_mask, dropout_p, is_causal, scale, enable_gqa
    if (query.is_nested or key.is_nested or value.is_nested or query.dtype not in TYPES or not query.is_cuda or dropout_p == 1) and (
            reason := _why_not(query, key, value, dropout_p)):
        return _pass_on(reason, query, key, value, *others)
    if attn_mask is not None and is_causal:
        raise InvalidArgument(f"giwa_torch: attn_mask and is_causal exclude each other; {type(attn_mask).__name__} should not be used with "
                              "causal=True")
    of_query, of_key, of_value = query.shape, key.shape, value.shape
    if len(of_query) != 4 or of_key[:2] != of_value[:2] or of_key[0] != of_query[0] or of_query[1] == 1 != of_key[1]:
        return _broadcast(query, key, value, *others)
    if not (0 < of_query[3] <= 512 and 0 < of_value[3] <= 512):
        if of_query[3] > 512 or of_value[3] > 512:
            return _pass_on("head sizes above 512", query, key, value, *others)
        if of_query[3] == of_key[3]:
            return _without_elements(query, key, value, *others)
    if of_key[1] != of_query[1] and not enable_gqa and of_key[1] != 1:
        raise RuntimeError(f"giwa_torch: {of_query[1]} heads of query and {of_key[1]} of key need enable_gqa=True")
    mask, bias, top_left = None, None, True
    if attn_mask is not None:
        if isinstance(attn_mask, CausalBias):
            is_causal, top_left = True, attn_mask.variant == CausalVariant.UPPER_LEFT
            if not top_left and (attn_mask.seq_len_q, attn_mask.seq_len_kv) != (of_query[2], of_key[2]):
                raise InvalidArgument(f"giwa_torch: attn_mask is a CausalBias of {attn_mask.seq_len_q} queries and "
                                      f"{attn_mask.seq_len_kv} keys, query and key have {of_query[2]} and {of_key[2]}")
        elif attn_mask.dim() < 2:  # with query, key and value of fewer dimensions PyTorch takes it, and so does _broadcast()
            raise InvalidMask(f"giwa_torch: attn_mask must have at least two dimensions, (queries, keys); it has {attn_mask.dim()}")
        elif attn_mask.dtype == torch.bool:
            mask = attn_mask
        else:
            bias = attn_mask
    try:
        return operator(query, key, value, mask, bias, None, None, None, None, None, None, None, 0, -1, 0 if is_causal else -1,
                        not top_left, 0.0, scale, True, dropout_p, seed_of(dropout_p, query))[0]
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    except RuntimeError as error:
        text = str(error)
        if "functorch transforms" in text:  # of torch.func, which the operator's gradients do not know
            text = "giwa_torch: gradients by torch.func"
        elif not isinstance(error, NotImplementedError) or "to be compiled" in text:
            raise
        return _pass_on(text.removeprefix("giwa_torch: "), query, key, value, *others)


def _without_elements(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    """Head sizes of 0: of query and key all scores are 0, of value the result has no elements. Computed with an element of 0."""
    size = value.shape[3]
    scale = scale if query.shape[3] else 1.0  # not 1 / sqrt(0)
    query, key, value = (x if x.shape[3] else torch.nn.functional.pad(x, (0, 1)) for x in (query, key, value))
    return scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)[..., :size]


def _broadcast(query, key, value, *others):
    """Other numbers of dimensions than four, and dimensions of size 1 that are to be repeated."""
    attn_mask, dropout_p, is_causal, scale, enable_gqa = others
    if min(x.dim() for x in (query, key, value)) < 2:
        raise RuntimeError("giwa_torch: query, key and value must have at least two dimensions")
    dimensions = max(x.dim() for x in (query, key, value))
    if dimensions > 4:
        return _pass_on("more than four dimensions", query, key, value, *others)
    if attn_mask is not None and not isinstance(attn_mask, CausalBias):
        if attn_mask.dim() > dimensions:
            raise InvalidArgument(f"giwa_torch: attn_mask has {attn_mask.dim()} dimensions, query, key and value have at most {dimensions}")
        attn_mask = attn_mask[(None,) * (2 - attn_mask.dim())] if attn_mask.dim() < 2 else attn_mask
    widened = [x[(None,) * (4 - x.dim())] for x in (query, key, value)]
    batch = torch.broadcast_shapes(*(x.shape[:1] for x in widened))
    q, k, v = (x.expand(*batch, -1, -1, -1) for x in widened)
    if enable_gqa:
        heads, fewest, most = q.shape[1], min(k.shape[1], v.shape[1]), max(k.shape[1], v.shape[1])
        if fewest == 0 or heads % fewest or heads % most:
            raise InvalidArgument(f"giwa_torch: the {k.shape[1]} heads of key and {v.shape[1]} of value must divide the {heads} of query")
        if fewest != most:  # one head of the fewer serves several of the other, or each of both has a copy for its queries
            heads = heads if most % fewest else most
            k, v = (x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    else:
        k, v = k.expand(-1, v.shape[1] if k.shape[1] == 1 else -1, -1, -1), v.expand(-1, k.shape[1] if v.shape[1] == 1 else -1, -1, -1)
        q = q.expand(-1, k.shape[1] if q.shape[1] == 1 else -1, -1, -1)
        if k.shape[1] != v.shape[1]:
            raise InvalidArgument(f"giwa_torch: {k.shape[1]} heads of key and {v.shape[1]} of value need enable_gqa=True")
    o = scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    return o if dimensions == 4 else o[(0,) * (4 - dimensions)]
