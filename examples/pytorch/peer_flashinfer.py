# SPDX-License-Identifier: MIT
"""The part of FlashInfer's interface that giwa_torch serves, under FlashInfer's name, for its tests of attention (peer_tests.py).

The wrappers of batches are giwa_torch's. Functions of single requests, with which the tests of batches compare, are PyTorch's
products and softmax in float32, but giwa_torch's in the tests that compare them with a reference. All else is refused.
"""
import contextlib
import importlib.abc
import importlib.machinery
import math
import sys
import types

import giwa_torch
import torch

FILES = ("test_batch_decode_kernels.py", "test_batch_prefill_kernels.py", "test_sliding_window.py", "test_logits_cap.py",
         "test_non_contiguous_decode.py", "test_non_contiguous_prefill.py", "test_decode_prefill_lse.py")
OF_SINGLES = ("test_logits_cap.py", "test_non_contiguous_prefill.py")
LOG2_E = math.log2(math.e)  # lse of FlashInfer has base 2
singles_are_tested = False


def refused(**arguments):
    given = [name for name, value in arguments.items() if value]
    if given:
        raise NotImplementedError(f"giwa_torch: {', '.join(given)}")


def rotation(mode):
    return {f"pos_encoding_mode {mode}": mode != "NONE"}


def packed_bits(mask, q_offsets, k_offsets):
    """The bits of each sequence from a whole byte on, lowest first, and where each begins."""
    sizes = ((q_offsets[1:] - q_offsets[:-1]) * (k_offsets[1:] - k_offsets[:-1])).tolist()
    powers = 2 ** torch.arange(8, device=mask.device, dtype=torch.int32)
    parts, begins, at = [], [0], 0
    for size in sizes:
        bits = torch.nn.functional.pad(mask[at:at + size].to(torch.int32), (0, -size % 8)).view(-1, 8)
        parts.append((bits * powers).sum(1).to(torch.uint8))
        begins.append(begins[-1] + len(bits))
        at += size
    return torch.cat(parts), torch.tensor(begins, dtype=torch.int32, device=mask.device)


def single(q, k, v, causal, kv_layout, pos_encoding_mode, window_left, logits_soft_cap, sm_scale, mask, return_lse):
    """Of (queries, heads, head size) and keys of one sequence."""
    refused(**rotation(pos_encoding_mode))
    if kv_layout == "HND":
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    scale = 1 / math.sqrt(q.shape[-1]) if sm_scale is None else sm_scale
    if singles_are_tested:
        o, lse = giwa_torch.attention(q[None], k[None], v[None], window=(window_left, 0 if causal else -1), softcap=logits_soft_cap or 0.0,
                                      scale=scale, mask=None if mask is None else mask[None, None], return_lse=True)
        o, lse = o[0], lse[0].T
    else:
        group = q.shape[1] // k.shape[1]
        x, y, z = q.float().transpose(0, 1), k.float().transpose(0, 1), v.float().transpose(0, 1)
        scores = torch.einsum("hgqd,hkd->hgqk", x.reshape(-1, group, *x.shape[1:]), y).reshape(q.shape[1], q.shape[0], -1) * scale
        if logits_soft_cap:
            scores = logits_soft_cap * torch.tanh(scores / logits_soft_cap)
        ahead = torch.arange(k.shape[0], device=q.device) - (torch.arange(q.shape[0], device=q.device)[:, None] + k.shape[0] - q.shape[0])
        keep = torch.ones_like(ahead, dtype=torch.bool) if mask is None else mask
        keep = keep & (ahead <= 0) if causal else keep
        keep = keep & (ahead >= -window_left) if window_left >= 0 else keep
        scores = scores.masked_fill(~keep, -math.inf)
        lse = torch.logsumexp(scores, -1)
        weights = torch.exp(scores - lse.masked_fill(lse == -math.inf, 0)[..., None])
        o = torch.einsum("hgqk,hkd->hgqd", weights.reshape(-1, group, *weights.shape[1:]), z).reshape(q.shape[1], q.shape[0], -1)
        o, lse = o.transpose(0, 1).to(q.dtype), lse.T
    return (o, lse * LOG2_E) if return_lse else o


def single_decode_with_kv_cache(q, k, v, kv_layout="NHD", pos_encoding_mode="NONE", use_tensor_cores=False, q_scale=None, k_scale=None,
                                v_scale=None, window_left=-1, logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None,
                                return_lse=False):
    refused(scales=q_scale is not None or k_scale is not None or v_scale is not None)
    told = single(q[None], k, v, True, kv_layout, pos_encoding_mode, window_left, logits_soft_cap, sm_scale, None, return_lse)
    return (told[0][0], told[1][0]) if return_lse else told[0]


def single_prefill_with_kv_cache(q, k, v, scale_q=None, scale_k=None, scale_v=None, o_dtype=None, custom_mask=None,
                                 packed_custom_mask=None, causal=False, kv_layout="NHD", pos_encoding_mode="NONE",
                                 use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, logits_soft_cap=None, rope_scale=None,
                                 rope_theta=None, backend="auto", return_lse=False, **others):
    refused(scales=scale_q is not None or scale_k is not None or scale_v is not None, packed_custom_mask=packed_custom_mask is not None,
            **{name: value is not None for name, value in others.items()})
    return single(q, k, v, causal, kv_layout, pos_encoding_mode, window_left, logits_soft_cap, sm_scale, custom_mask, return_lse)


class Wrapper:
    def __init__(self, workspace, kv_layout="NHD", use_cuda_graph=False, *_, **__):
        refused(use_cuda_graph=use_cuda_graph)
        self.heads_first = kv_layout == "HND"

    def __getattr__(self, name):
        raise NotImplementedError(f"giwa_torch: {name} of a wrapper")

    def remember(self, causal, pos_encoding_mode="NONE", window_left=-1, logits_soft_cap=None, sm_scale=None, **others):
        ignored = {"data_type", "q_data_type", "kv_data_type", "o_data_type", "non_blocking", "use_fp16_qk_reduction", "rope_scale",
                   "rope_theta", "max_token_per_sequence", "max_sequence_kv", "fixed_split_size", "disable_split_kv", "seq_lens"}
        refused(**rotation(pos_encoding_mode), **{name: value is not None for name, value in others.items() if name not in ignored})
        self.options = {"window": (window_left, 0 if causal else -1), "softcap": logits_soft_cap or 0.0, "scale": sm_scale}

    def keep_pages(self, indptr, indices, last_page_len, page_size):
        indptr, indices, last = (x.to("cuda", torch.int32) for x in (indptr, indices, last_page_len))
        counts = indptr[1:] - indptr[:-1]
        self.lengths = torch.where(counts > 0, (counts - 1) * page_size + last, 0).to(torch.int32)
        number = torch.arange(max(1, int(counts.max())), device="cuda")
        at = (indptr[:-1, None] + number).clamp(max=max(0, len(indices) - 1))
        self.pages = torch.where(number < counts[:, None], indices[at.long()], 0).to(torch.int32)

    def caches(self, kv):
        k, v = kv if isinstance(kv, (tuple, list)) else (kv[:, 0], kv[:, 1])
        refused(**{f"a cache of {k.dtype}": k.dtype in (torch.float8_e5m2, torch.uint8)})
        return (k.transpose(1, 2), v.transpose(1, 2)) if self.heads_first else (k, v)

    @staticmethod
    def give(o, lse, out, out_lse, return_lse):
        o = o if out is None else out.copy_(o)
        lse = lse * LOG2_E if out_lse is None else out_lse.copy_(lse * LOG2_E)
        return (o, lse) if return_lse else o

    def run_return_lse(self, *arguments, **keywords):
        return self.run(*arguments, return_lse=True, **keywords)


class BatchDecodeWithPagedKVCacheWrapper(Wrapper):
    def plan(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, **options):
        self.keep_pages(indptr, indices, last_page_len, page_size)
        self.remember(True, **options)

    def run(self, q, paged_kv_cache, *others, out=None, lse=None, return_lse=False, **scales):
        refused(others=others, **{name: value is not None for name, value in scales.items() if name != "enable_pdl"})
        o, found = giwa_torch.attention_cached(q[:, None], *self.caches(paged_kv_cache), self.lengths, self.pages, causal=False,
                                               return_lse=True, **self.options)
        return self.give(o[:, 0], found[:, :, 0], out, lse, return_lse)


class BatchPrefillWithPagedKVCacheWrapper(Wrapper):
    def plan(self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads, head_dim_qk,
             page_size, head_dim_vo=None, custom_mask=None, packed_custom_mask=None, causal=False, **options):
        refused(**{"a custom mask of a cache": custom_mask is not None or packed_custom_mask is not None})
        self.keep_pages(paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size)
        self.q_offsets = qo_indptr.to("cuda", torch.int32)
        self.remember(causal, **options)

    def run(self, q, paged_kv_cache, *others, out=None, lse=None, return_lse=False, **scales):
        refused(others=others, **{name: value is not None for name, value in scales.items() if name != "enable_pdl"})
        o, found = giwa_torch.attention_cached(q, *self.caches(paged_kv_cache), self.lengths, self.pages, q_offsets=self.q_offsets,
                                               causal=False, return_lse=True, **self.options)
        return self.give(o, found.T, out, lse, return_lse)


class BatchPrefillWithRaggedKVCacheWrapper(Wrapper):
    def plan(self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo=None, custom_mask=None,
             packed_custom_mask=None, causal=False, **options):
        refused(packed_custom_mask=packed_custom_mask is not None)
        self.offsets = tuple(x.to("cuda", torch.int32) for x in (qo_indptr, kv_indptr))
        self.mask, self.mask_offsets = (None, None) if custom_mask is None else packed_bits(custom_mask, *self.offsets)
        self.remember(causal and custom_mask is None, **options)

    def run(self, q, k, v, *others, out=None, lse=None, return_lse=False, **scales):
        refused(others=others, **{name: value is not None for name, value in scales.items() if name != "enable_pdl"})
        if self.heads_first:
            k, v = k.transpose(0, 1), v.transpose(0, 1)
        o, found = giwa_torch.attention(q, k, v, q_offsets=self.offsets[0], k_offsets=self.offsets[1], mask=self.mask,
                                        mask_offsets=self.mask_offsets, return_lse=True, **self.options)
        return self.give(o, found.T, out, lse, return_lse)


class Refused(type):
    """Of names that tests import and do not need, or are refused for."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return refusing(f"{cls.__name__}.{name}")

    def __call__(cls, *_, **__):
        raise NotImplementedError(f"giwa_torch: {cls.__name__}")


def refusing(name):
    return Refused(name, (), {})


class Anything(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return refusing(f"{self.__name__}.{name}")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "flashinfer" else None

    def create_module(self, spec):
        return Anything(spec.name)

    def exec_module(self, module):
        pass


def pretend(checkout):
    sys.meta_path.insert(0, Finder())
    sys.path.insert(0, str(checkout))  # the tests import helpers as tests.test_helpers
    import flashinfer
    import flashinfer.decode
    import flashinfer.jit
    import flashinfer.prefill
    import flashinfer.utils
    served = (single_decode_with_kv_cache, single_prefill_with_kv_cache, BatchDecodeWithPagedKVCacheWrapper,
              BatchPrefillWithPagedKVCacheWrapper, BatchPrefillWithRaggedKVCacheWrapper)
    for module in (flashinfer, flashinfer.decode, flashinfer.prefill):
        for x in served:
            setattr(module, x.__name__, x)
    flashinfer.utils.has_flashinfer_jit_cache = lambda: True  # else the tests compile FlashInfer's kernels first
    flashinfer.utils.get_compute_capability = lambda device: torch.cuda.get_device_capability(device)


@contextlib.contextmanager
def singles_of(item):
    global singles_are_tested
    singles_are_tested = item.path.name in OF_SINGLES
    yield
