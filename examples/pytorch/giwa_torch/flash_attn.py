# SPDX-License-Identifier: MIT
"""The functions of the package flash_attn, version 2, with its arguments and their meaning."""
import torch

from .functional import append_to_cache, attention_cached, operator, seed_of


def refuse(**arguments):
    given = [name for name, value in arguments.items() if value]
    if given:
        raise NotImplementedError(f"giwa_torch: {', '.join(given)}")


def sides(causal, window_size):
    """(left, right) as numbers; a tensor of both is accepted as in flash_attn."""
    left, right = window_size
    if type(left) is not int:
        left, right = int(left), int(right)
    return left, 0 if causal else right


def weights_of(attend, position, keys, v, dropout_p, seed):
    """The weights, (..., keys): normalized, and negative where dropout drops them. For tests: attention runs twice for every
    v.shape[-1] keys, to values that are 1 for one key each. attend(values, dropout_p, seed); position: of v's rows in their sequence."""
    found, columns = [], torch.arange(v.shape[-1], device=v.device)
    with torch.no_grad():
        for first in range(0, keys, v.shape[-1]):
            one = (position[:, None] == first + columns).to(v.dtype)[:, None].expand(-1, v.shape[-2], -1)
            one = one.expand(v.shape)
            whole = attend(one, 0.0, None)[0]
            found.append(torch.where(attend(one, dropout_p, seed)[0] == 0, -whole, whole))
    return torch.cat(found, -1)[..., :keys] if found else v.new_empty(0)


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                    deterministic=False, return_attn_probs=False, q_descale=None, k_descale=None, v_descale=None):
    """q (batch, length, heads, head size), k and v (batch, their length, kv heads, head size). causal and window_size align the last
    query with the last key. With `deterministic` gradients have the same bits in every run. q, k and v of float8_e4m3fn have
    descales, float32, (batch, kv heads), an o of bfloat16 and no gradients. return_attn_probs, for tests:
    (o, lse, weights); weights are (batch, heads, queries, keys), negative where dropped, and empty without dropout."""
    left, right = sides(causal, window_size)
    if q.dtype == torch.float8_e4m3fn:
        return attend_to_e4m3(q, k, v, (q_descale, k_descale, v_descale), alibi_slopes, None, None, 0, left, right, softcap, softmax_scale,
                              dropout_p, return_attn_probs)
    refuse(**{"descales without float8_e4m3fn": any(x is not None for x in (q_descale, k_descale, v_descale))})
    seed = seed_of(dropout_p, q)
    attend = lambda v, p, seed: operator(q, k, v, None, None, alibi_slopes, None, None, None, None, None, None, 0, left, right, True,
                                         softcap, softmax_scale, False, p, seed, deterministic)
    o, lse = attend(v, dropout_p, seed)
    if not return_attn_probs:
        return o
    if not dropout_p:
        return o, lse, q.new_empty(0)
    keys = k.shape[1]
    return o, lse, weights_of(attend, torch.arange(keys, device=q.device), keys, v, dropout_p, seed).transpose(1, 2)


def flash_attn_kvpacked_func(q, kv, *arguments, **keywords):
    """kv (batch, length, 2, kv heads, head size); the other arguments are those of flash_attn_func."""
    return flash_attn_func(q, *kv.unbind(2), *arguments, **keywords)


def flash_attn_qkvpacked_func(qkv, *arguments, **keywords):
    """qkv (batch, length, 3, heads, head size); the other arguments are those of flash_attn_func."""
    return flash_attn_func(*qkv.unbind(2), *arguments, **keywords)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
                           causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
                           return_attn_probs=False, block_table=None, q_descale=None, k_descale=None, v_descale=None):
    """q (all rows, heads, head size), k and v (all rows, kv heads, head size); with a block_table, k and v are pages (pages, keys of
    a page, kv heads, head size), and there are no gradients. max_seqlen_q is a hint, and max_seqlen_k is not used, but for the size of
    the weights of return_attn_probs, (sequences, heads, max_seqlen_q, max_seqlen_k)."""
    refuse(**{"block_table with dropout_p": dropout_p and block_table is not None})
    left, right = sides(causal, window_size)
    if block_table is not None:
        o, lse = attention_cached(q, k, v, cu_seqlens_k[1:] - cu_seqlens_k[:-1], block_table, causal=False, window=(left, right),
                                  alibi_slopes=alibi_slopes, softcap=softcap, scale=softmax_scale, q_offsets=cu_seqlens_q,
                                  max_q=max_seqlen_q, return_lse=True)
        return (o, lse, q.new_empty(0)) if return_attn_probs else o
    if q.dtype == torch.float8_e4m3fn:
        return attend_to_e4m3(q, k, v, (q_descale, k_descale, v_descale), alibi_slopes, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, left,
                              right, softcap, softmax_scale, dropout_p, return_attn_probs)
    refuse(**{"descales without float8_e4m3fn": any(x is not None for x in (q_descale, k_descale, v_descale))})
    seed = seed_of(dropout_p, q)
    attend = lambda v, p, seed: operator(q, k, v, None, None, alibi_slopes, None, cu_seqlens_q, cu_seqlens_k, None, None, None,
                                         max_seqlen_q, left, right, True, softcap, softmax_scale, False, p, seed, deterministic)
    o, lse = attend(v, dropout_p, seed)
    if not return_attn_probs:
        return o
    if not dropout_p:
        return o, lse, q.new_empty(0)
    found = q.new_zeros(len(cu_seqlens_q) - 1, q.shape[1], max_seqlen_q, max_seqlen_k)
    query, of_query = place(cu_seqlens_q, q)
    row, of_row = (x[query < len(found)] for x in (torch.arange(len(q), device=q.device), of_query))
    found[query[row], :, of_row] = weights_of(attend, place(cu_seqlens_k, k)[1], max_seqlen_k, v, dropout_p, seed)[row]
    return o, lse, found


def place(offsets, rows):
    """Of each row: its sequence, and its place in it."""
    row = torch.arange(len(rows), device=rows.device)
    sequence = torch.searchsorted(offsets[1:], row, right=True)
    return sequence, row - offsets[sequence]


def flash_attn_varlen_kvpacked_func(q, kv, *arguments, **keywords):
    """kv (all rows, 2, kv heads, head size); the other arguments are those of flash_attn_varlen_func."""
    return flash_attn_varlen_func(q, *kv.unbind(1), *arguments, **keywords)


def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, *arguments, **keywords):
    """qkv (all rows, 3, heads, head size); the other arguments are those of flash_attn_varlen_func."""
    return flash_attn_varlen_func(*qkv.unbind(1), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *arguments, **keywords)


def attend_to_e4m3(q, k, v, scales, alibi_slopes, q_offsets, k_offsets, max_q, left, right, softcap, scale, dropout_p, return_lse):
    """o is bfloat16, as FlashAttention-3's. q_descale is (batch, kv heads): heads of q share that of their head of k."""
    refuse(**{"dropout_p with float8_e4m3fn": dropout_p})
    scales = [descales(x, q_offsets is None) for x in scales]
    if scales[0] is not None and scales[0].shape[2] > 1:
        scales[0] = scales[0].repeat_interleave(q.shape[-2] // scales[0].shape[2], 2)
    o, lse = torch.ops.giwa.attention_e4m3.default(q, k, v, *scales, alibi_slopes, None, q_offsets, k_offsets, max_q, left, right, True,
                                                   softcap, scale)
    return (o, lse, o.new_empty(0)) if return_lse else o


def descales(x, by_sequence):
    """Scales of a cache, (batch, 1, kv heads) with a batch of 1 where all sequences have the same, from (batch, kv heads)."""
    if x is None:
        return None
    if x.dim() != 2:
        raise ValueError(f"giwa_torch: a descale must be (batch, kv heads), it is {tuple(x.shape)}")
    if x.shape[0] == 1 or x.stride(0) == 0:
        return x[:1, None]
    refuse(**{"a descale for each sequence with block_table, cache_batch_idx, cache_leftpad or cu_seqlens_q": not by_sequence})
    return x[:, None]


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
                            cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
                            window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
                            return_softmax_lse=False, k_descale=None, v_descale=None):
    """q (batch, queries, heads, head size); the cache is (batch of the cache, keys, kv heads, head size), or with a block_table (pages,
    keys of a page, kv heads, head size). k and v (batch, new keys, kv heads, head size) are written to the cache after the
    cache_seqlens[b] keys that are there. cache_seqlens is not changed. num_splits is not used: any division of the keys gives the
    same bits. With cache_leftpad, the first key of each sequence (below 0 counts as 0), the kernel reads the cache as pages of one key.
    k_descale and v_descale, float32, (batch, kv heads), are the scales of a cache of float8_e4m3fn or int8. With block_table, cache_batch_idx
    or cache_leftpad all sequences must have the same: a batch of 1, or an expanded one."""
    scales = [descales(x, block_table is None and cache_batch_idx is None and cache_leftpad is None) for x in (k_descale, v_descale)]
    refuse(**{"block_table with cache_batch_idx": block_table is not None and cache_batch_idx is not None,
              "block_table with cache_leftpad": block_table is not None and cache_leftpad is not None})
    if (k is None) != (v is None) or (rotary_cos is None) != (rotary_sin is None):
        raise ValueError("giwa_torch: k and v, and rotary_cos and rotary_sin, must be given together")
    if rotary_cos is not None and k is None:
        raise ValueError("giwa_torch: rotary_cos needs k and v")
    left, right = sides(causal, window_size)
    batch, queries = q.shape[:2]
    pages = block_table
    if cache_batch_idx is not None:  # a cache whose pages are its sequences
        pages = cache_batch_idx[:, None]
    if isinstance(cache_seqlens, int):
        lengths = torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)
    elif cache_seqlens is not None:
        lengths = cache_seqlens
    else:
        if k is not None:
            raise ValueError("giwa_torch: k needs cache_seqlens")
        keys = k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
        lengths = torch.full((batch,), keys, dtype=torch.int32, device=q.device)
    if k is not None:
        new, begin = k.shape[1], lengths
        lengths = begin + new
        local = left >= 0 or right >= 0
        # One launch rotates q too, where query i has the position of new key i.
        together = rotary_cos is not None and new == queries and (local or queries == 1)
        rotated = append_to_cache(k, v, k_cache, v_cache, lengths, pages, q=q if together else None, cos=rotary_cos, sin=rotary_sin,
                                  interleaved=rotary_interleaved, k_scales=scales[0], v_scales=scales[1])
        if together:
            q = rotated
        elif rotary_cos is not None:
            at = torch.arange(queries, dtype=torch.int32, device=q.device) if local else torch.zeros(queries, dtype=torch.int32,
                                                                                                     device=q.device)
            positions = (begin[:, None] + at).flatten()
            heads = k_cache.shape[2]
            keys = q[:, :, :heads]  # nothing is written, so only the shapes of these matter
            values = keys if v_cache.shape[3] == q.shape[3] else keys[..., :1].expand(-1, -1, -1, v_cache.shape[3])
            q = append_to_cache(keys, values, k_cache, v_cache, lengths, pages, q=q, cos=rotary_cos, sin=rotary_sin,
                                interleaved=rotary_interleaved, positions=positions, slots=torch.full_like(positions, -1))
    if cache_leftpad is not None:
        if cache_leftpad.shape != (batch,):
            raise ValueError(f"giwa_torch: cache_leftpad must be of shape ({batch},), it is {tuple(cache_leftpad.shape)}")
        cache_leftpad = cache_leftpad.clamp(min=0).to(torch.int32)  # a look at it would wait for the GPU
        of_cache = torch.arange(batch, device=q.device) if cache_batch_idx is None else cache_batch_idx
        keys = k_cache.shape[1]
        at = cache_leftpad[:, None] + torch.arange(keys, device=q.device)
        pages = (of_cache[:, None] * keys + at.clamp(max=keys - 1)).to(torch.int32)
        k_cache, v_cache = (x.flatten(0, 1)[:, None] for x in (k_cache, v_cache))
        lengths = lengths - cache_leftpad
    o, lse = attention_cached(q, k_cache, v_cache, lengths, pages, causal=False, window=(left, right), alibi_slopes=alibi_slopes,
                              softcap=softcap, scale=softmax_scale, return_lse=True, k_scales=scales[0], v_scales=scales[1])
    return (o, lse) if return_softmax_lse else o
