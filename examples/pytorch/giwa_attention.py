# SPDX-License-Identifier: MIT
"""giwa's attention for PyTorch tensors and for the models of Hugging Face transformers.

    from giwa_attention import giwa_attention
    o = giwa_attention(q, k, v, causal=True)

The kernels of a head size are compiled at its first use, which takes a minute or two, and cached where PyTorch caches its
extensions (TORCH_EXTENSIONS_DIR). load_library(128) compiles ahead of time. nvcc 13 and ninja are needed.
"""
import functools
from pathlib import Path

import torch
from torch.utils import cpp_extension

HERE = Path(__file__).resolve().parent
ENDINGS = (".cpp", "_fp16.cu", "_bf16.cu", "_fp32.cu")  # of the sources


def native_architecture(device=None):
    """Returns the architecture for nvcc. Hopper's tensor cores need the a of 90a."""
    major, minor = torch.cuda.get_device_capability(device)
    return "90a" if (major, minor) == (9, 0) else f"{major}{minor}"


@functools.cache
def load_library(head_size, architecture=None, verbose=False, kernels="attention"):
    """Returns the operators of one head size, compiled if necessary. On a machine without a GPU name an architecture, as "80".
    `kernels` is "attention", or "cached" for those of giwa_cache.py."""
    target = architecture or native_architecture()
    name = f"giwa_{kernels}_{head_size}_sm_{target}"
    cpp_extension.load(
        name, [str(HERE / f"{kernels}{ending}") for ending in ENDINGS],
        extra_cflags=["-std=c++20", "-O3"],
        extra_cuda_cflags=["-std=c++20", "-O3", f"-gencode=arch=compute_{target},code=sm_{target}",
                           f"-DGIWA_TORCH_HEAD_SIZE={head_size}"],
        extra_include_paths=[str(HERE.parent.parent / "include")], is_python_module=False, verbose=verbose)
    return getattr(torch.ops, name)


def giwa_attention(q, k, v, causal=False, window=None, softcap=None, scale=None):
    """Computes softmax(mask(softcap(scale q kᵀ))) v for every head.

    q (batch, heads, length, head size), k and v (batch, kv heads, their length, head size), as for PyTorch's
    scaled_dot_product_attention; kv heads divide heads, head sizes are 1 to 256. float16, bfloat16 or float32 on one GPU. Any
    strides without a copy, if the last is 1. Returns a tensor like q, whose memory order is (batch, length, heads, head size).
    Runs on PyTorch's current stream and can be captured in a CUDA graph.

    causal   a query sees the keys up to its own. The last query's own key is the last key (bottom-right), as for the new tokens
             of a cache, and in FlashAttention. PyTorch's is_causal counts from the first key (top-left) if lengths differ.
    window   a query sees this number of keys up to and including its own; causal is implied.
    softcap  scores become softcap * tanh(score / softcap), before the mask.
    scale    factor of the scores; None is 1 / sqrt(head size).

    A query that sees no key gets zeros. There is no backward pass. Raises ValueError, NotImplementedError (also for a tensor
    that requires a gradient) or torch.OutOfMemoryError, with the argument and the limit.
    """
    if q.dim() == 0:
        raise ValueError("giwa_attention: q must have four dimensions, (batch, heads, length, head size); it has 0")
    if not 1 <= q.shape[-1] <= 256:
        raise ValueError(f"giwa_attention: the head size must be 1 to 256, got {q.shape[-1]}")
    if not q.is_cuda:
        raise ValueError(f"giwa_attention: q must be a tensor in GPU memory; it is on {q.device}")
    return load_library(q.shape[-1], native_architecture(q.device)).attention(q, k, v, causal, window, softcap, scale)


def mask_in_words(mask, queries, keys):
    """The arguments of giwa_attention that say what a mask of transformers says: (batch or 1, heads or 1, queries, keys), of
    bool or added to the scores. NotImplementedError for any other mask than full, causal and a window, as one with padding."""
    if mask.numel() == 0 or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise NotImplementedError(f"giwa: a mask of {mask.dtype} and {tuple(mask.shape)}")
    if mask.shape[-2:] != (queries, keys):
        raise NotImplementedError(f"giwa: the mask is for {tuple(mask.shape[-2:])} queries and keys, not {queries, keys}")
    kept = mask if mask.dtype == torch.bool else mask == 0
    last_row = int(kept[(0,) * (kept.dim() - 2)][-1].sum())  # keys that the last query sees
    diagonal = torch.arange(queries, device=mask.device)[:, None] + (keys - queries)
    key = torch.arange(keys, device=mask.device)[None, :]
    causal = key <= diagonal
    for words, meant in (({}, torch.ones_like(causal)), ({"causal": True}, causal),
                         ({"window": last_row}, causal & (key > diagonal - last_row))):
        if bool((kept == meant).all()) and (mask.dtype == torch.bool or hidden(mask, meant)):
            return words
    raise NotImplementedError("giwa: this mask is neither full, nor causal, nor a causal window with the last query at the last "
                              "key. Padding, packed sequences and caches of a fixed length make such masks; take "
                              "attn_implementation='sdpa' for them")


def hidden(mask, meant):
    """Whether a mask that is added to the scores hides altogether what is not meant to be seen."""
    return bool((mask.masked_fill(meant, float("-inf")) <= torch.finfo(mask.dtype).min).all())


def transformers_attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, softcap=None, **others):
    """What a model of transformers calls for each layer. Its masks are looked at, not trusted: see mask_in_words."""
    unknown = [name for name in ("s_aux", "head_mask", "position_bias", "cu_seq_lens_q", "cu_seqlens")
               if others.get(name) is not None]
    if dropout or unknown:
        raise NotImplementedError(f"giwa: no {', '.join(unknown) or 'dropout'} in this attention")
    layer = getattr(key, "of_giwas_cache", None)
    if layer is not None:  # the keys are in a giwa_cache.PagedCache
        window = others.get("sliding_window")
        return layer.attend(query, attention_mask, window, scale=scaling, softcap=softcap).transpose(1, 2), None
    queries, keys = query.shape[2], key.shape[2]
    if attention_mask is not None:
        # All layers get the same tensor: looked at once for each of its contents. Inference tensors do not count changes.
        version = None if attention_mask.is_inference() else attention_mask._version
        words = getattr(attention_mask, "in_giwas_words", None)
        if version is None or words is None or words[:3] != (queries, keys, version):
            words = attention_mask.in_giwas_words = (queries, keys, version, mask_in_words(attention_mask, queries, keys))
        words = words[3]
    else:
        causal = others.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        if others.get("sliding_window") is not None or (causal and queries not in (1, keys)):
            raise NotImplementedError("giwa: without a mask it is not known which keys these queries see")
        words = {"causal": causal and queries > 1}
    return giwa_attention(query, key, value, scale=scaling, softcap=softcap, **words).transpose(1, 2), None


def register_with_transformers(name="giwa"):
    """After it, AutoModelForCausalLM.from_pretrained(…, attn_implementation="giwa") and model.set_attn_implementation("giwa").
    Needs transformers 4.53 or newer."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    def whole_mask(*arguments, **keywords):
        # Never None, in which padding or packing would go unseen. Costs queries x keys bytes, once for a forward pass.
        return sdpa_mask(*arguments, **{**keywords, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})

    AttentionInterface.register(name, transformers_attention)
    AttentionMaskInterface.register(name, whole_mask)
