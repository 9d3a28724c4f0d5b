# SPDX-License-Identifier: MIT
"""giwa's attention with its gradients, for PyTorch's autograd.

    from giwa_training import giwa_attention
    o = giwa_attention(q, k, v, causal=True)
    o.sum().backward()

The kernels of a head size are compiled at its first use, as those of giwa_attention.py, which tells more about that.
"""
import torch
from torch.autograd.function import once_differentiable

from giwa_attention import load_library, native_architecture


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, *options):
        o, lse = operators(q).attention_with_lse(q, k, v, *options)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.options = options
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, dout):
        q, k, v, o, lse = ctx.saved_tensors
        dout = dout if dout.stride(-1) == 1 else dout.contiguous()  # that of o.sum() is expanded from one number
        return (*operators(q).attention_gradients(q, k, v, o, lse, dout, ctx.needs_input_grad[:3], *ctx.options),
                *(None for _ in ctx.options))


def operators(q):
    return load_library(q.shape[-1], native_architecture(q.device), kernels="training")


def giwa_attention(q, k, v, causal=False, window=None, softcap=None, scale=None):
    """Computes what giwa_attention.giwa_attention() computes, from the same arguments, and autograd can differentiate it.

    The backward pass is giwa's attention_backward: of q, k and v, only gradients that are needed are computed. It gives the same
    bits in every run. Between the passes o and a float32 number for each query and head are kept. Gradients of gradients are
    refused. A model in float16 needs a scaled loss, as for any attention in float16.
    """
    if q.dim() != 4 or not q.is_cuda or not 1 <= q.shape[-1] <= 256:
        raise ValueError("giwa_attention: q must be (batch, heads, length, head size) in GPU memory, with a head size of 1 to 256; "
                         f"it is {tuple(q.shape)} on {q.device}")
    return Attention.apply(q, k, v, causal, window, softcap, scale)
