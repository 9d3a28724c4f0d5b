# SPDX-License-Identifier: MIT
"""The functions of FlashMLA's flash_mla that decode latent attention, with their arguments: on Hopper by giwa's kernels for latent rows."""
import math

import torch

from .functional import attention_cached


def get_mla_metadata(*args, **kwargs):
    """There is nothing to prepare: returns two None in the places of tile_scheduler_metadata and num_splits."""
    return None, None


def flash_mla_with_kvcache(q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata=None, num_splits=None,
                           softmax_scale=None, causal=False, is_fp8_kvcache=False, indices=None):
    """q (batch, queries, heads, 576), k_cache (blocks, keys of a block, 1, 576), or with is_fp8_kvcache rows of 656 bytes; indices
    (batch, queries, top k), int32, block * keys of a block + row, others are none. Returns o (batch, queries, heads, 512) and lse (batch,
    heads, queries), natural logarithms, -inf without keys. q may have any number of heads, a block any number of keys."""
    if head_dim_v != 512:
        raise NotImplementedError("giwa_torch: flash_mla_with_kvcache with head_dim_v other than 512")
    if indices is not None and causal:
        raise NotImplementedError("giwa_torch: flash_mla_with_kvcache with indices and causal")
    size = 656 if is_fp8_kvcache else 576
    if q.dim() != 4 or q.shape[-1] != 576:
        raise ValueError(f"giwa_torch: q must be (batch, queries, heads, 576), of head size 576; it is {tuple(q.shape)}")
    if k_cache.dim() != 4 or k_cache.shape[2:] != (1, size) or (is_fp8_kvcache and k_cache.element_size() != 1):
        raise ValueError(f"giwa_torch: k_cache must be (blocks, keys of a block, 1, {size}){' of one byte each' * is_fp8_kvcache} "
                         f"with is_fp8_kvcache={is_fp8_kvcache}; it is {tuple(k_cache.shape)} of {k_cache.dtype}")
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    if is_fp8_kvcache:
        k_cache = v_cache = k_cache.view(torch.uint8)
    else:
        v_cache = k_cache[..., :head_dim_v]
    if indices is not None:
        return attention_cached(q, k_cache, v_cache, None, None, causal=False, scale=scale, return_lse=True, indices=indices.contiguous())
    return attention_cached(q, k_cache, v_cache, cache_seqlens, block_table, causal=causal, scale=scale, return_lse=True)


def flash_mla_sparse_fwd(q, kv, indices, sm_scale, d_v=512):
    """q (queries, heads, 576), kv (keys, 1, 576), indices (queries, 1, top k), int32: rows of kv, others are none. Returns o (queries,
    heads, 512), None in the place of the largest scores, and lse (queries, heads) in base 2, -inf without keys. vLLM calls it
    flash_mla_sparse_prefill."""
    if d_v != 512:
        raise NotImplementedError("giwa_torch: flash_mla_sparse_fwd with d_v other than 512")
    if q.dim() != 3 or kv.dim() != 3 or kv.shape[1:] != (1, 576) or indices.dim() != 3 or indices.shape[1] != 1:
        raise ValueError("giwa_torch: q must be (queries, heads, 576), kv (keys, 1, 576) and indices (queries, 1, top k); they are "
                         f"{tuple(q.shape)}, {tuple(kv.shape)} and {tuple(indices.shape)}")
    o, lse = flash_mla_with_kvcache(q[None], kv[None], None, None, d_v, softmax_scale=sm_scale, indices=indices.transpose(0, 1))
    return o[0], None, lse[0].T / math.log(2)
