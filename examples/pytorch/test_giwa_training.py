#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks giwa_training on a GPU: python3 test_giwa_training.py [part of a name...], or pytest.

The truth is autograd through attention in float64. An error may be twice that of autograd through a plain attention, which rounds
scores and weights to the tensors' type, and one unit in the last place.
"""
import sys

import torch
from torch.nn.functional import scaled_dot_product_attention

import test_giwa_attention as plain
from giwa_attention import load_library
from giwa_training import giwa_attention

HEAD_SIZES = (64,)  # what the checks need to be compiled
CASES = {  # batch, heads, kv heads, queries, keys, head size; options
    "full": ((2, 4, 4, 300, 300, 64), {}),
    "grouped queries": ((1, 8, 2, 257, 257, 64), {"causal": True}),
    "fewer queries": ((2, 6, 1, 65, 129, 64), {"causal": True}),
    "more queries than keys": ((1, 4, 4, 100, 60, 64), {"causal": True}),
    "window": ((2, 4, 2, 400, 400, 64), {"window": 50}),
    "softcap": ((1, 8, 4, 200, 200, 64), {"softcap": 5.0, "scale": 0.5}),
    "no keys": ((1, 2, 2, 10, 0, 64), {}),
}


def gradients(attend, inputs, dout, **options):
    leaves = [x.detach().requires_grad_() for x in inputs]
    return torch.autograd.grad(attend(*leaves, **options), leaves, dout)


def compare(what, found, inputs, dout, **options):
    exact = gradients(plain.by_definition, [x.double() for x in inputs], dout.double(), **options)
    rounded = gradients(plain.by_definition, [x.float() for x in inputs], dout.float(), rounded=dout.dtype, **options)
    worst = 0.0
    for name, ours, theirs, truth in zip(("dq", "dk", "dv"), found, rounded, exact):
        assert ours.shape == truth.shape and ours.dtype == dout.dtype, f"{what} {name}: {ours.dtype} {tuple(ours.shape)}"
        if ours.numel() == 0:
            continue
        error, other = ((x.double() - truth).abs().max().item() for x in (ours, theirs.to(dout.dtype)))
        allowed = 2 * other + torch.finfo(dout.dtype).eps * truth.abs().max().item()
        if dout.dtype == torch.float32:  # in e^(score - lse) the roundings of both do not cancel, as they do in a softmax
            allowed *= 4
        assert error <= allowed, f"{what} {name}: {error:.2e} from the truth, allowed are {allowed:.2e}"  # NaN fails too
        worst = max(worst, error / allowed if allowed else 0)
    return worst


def test_cases():
    for dtype in plain.TYPES:
        for name, (sizes, options) in CASES.items():
            inputs = plain.tensors(*sizes, dtype)
            dout = plain.random(*inputs[0].shape, dtype=dtype)
            found = gradients(giwa_attention, inputs, dout, **options)
            compare(f"{plain.short(dtype)} {name}", found, inputs, dout, **options)
            again = gradients(giwa_attention, inputs, dout, **options)
            assert all(torch.equal(x, y) for x, y in zip(found, again)), f"{name}: other bits in a second run"


def test_compared_with_sdpa():
    inputs = plain.tensors(2, 8, 8, 512, 512, 64, torch.float16)
    dout = plain.random(*inputs[0].shape)
    theirs = gradients(lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True), inputs, dout)
    ours = gradients(giwa_attention, inputs, dout, causal=True)
    far = [((x.float() - y.float()).norm() / y.float().norm()).item() for x, y in zip(ours, theirs)]
    print(f"   causal, 512 tokens, relative difference from PyTorch's: dq {far[0]:.1e}, dk {far[1]:.1e}, dv {far[2]:.1e}")
    assert max(far) < 4e-3


def test_strides_and_what_is_needed():
    packed = plain.random(2, 190, 3, 4, 64).requires_grad_()  # as one projection makes them
    q, k, v = (x.transpose(1, 2) for x in packed.unbind(2))
    giwa_attention(q, k, v, causal=True).sum().backward()  # whose gradient is one number, expanded
    found = [x.transpose(1, 2) for x in packed.grad.unbind(2)]
    inputs = [x.detach() for x in (q, k, v)]
    compare("packed", found, inputs, torch.ones_like(inputs[0]), causal=True)
    frozen = [x.detach().clone() for x in inputs]
    frozen[1].requires_grad_()
    giwa_attention(*frozen, causal=True).sum().backward()
    assert torch.equal(frozen[1].grad, found[1]) and frozen[0].grad is None and frozen[2].grad is None
    with torch.no_grad():
        assert not giwa_attention(*frozen).requires_grad
    o = giwa_attention(*frozen, causal=True)
    once = torch.autograd.grad((o * o).sum(), frozen[1], create_graph=True)[0]
    plain.raises(RuntimeError, "once_differentiable", lambda: once.sum().backward())


def test_training():
    """A layer of attention learns to repeat the token before, with giwa and with PyTorch, to the same loss."""
    tokens = torch.randint(0, 16, (60, 8, 48), device=plain.DEVICE)
    losses = {}
    for name, attend in (("giwa", lambda q, k, v: giwa_attention(q, k, v, causal=True)),
                         ("PyTorch", lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True))):
        torch.manual_seed(1)
        letters, places, project, scores = (torch.nn.Embedding(16, 128), torch.nn.Embedding(48, 128), torch.nn.Linear(128, 384),
                                            torch.nn.Linear(128, 16))
        model = torch.nn.ModuleList((letters, places, project, scores)).to(plain.DEVICE)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for batch in tokens:
            x = letters(batch) + places.weight
            q, k, v = project(x).view(8, 48, 3, 2, 64).transpose(1, 3).unbind(2)
            o = attend(q, k, v).transpose(1, 2).flatten(2)
            loss = torch.nn.functional.cross_entropy(scores(o)[:, 1:].flatten(0, 1), batch[:, :-1].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses[name] = loss.item()
    print(f"   loss after {len(tokens)} steps: " + ", ".join(f"{name} {x:.4f}" for name, x in losses.items()))
    assert losses["giwa"] < 1.5 and abs(losses["giwa"] - losses["PyTorch"]) < 0.02


def load():
    for size in HEAD_SIZES:
        load_library(size, kernels="training")


if __name__ == "__main__":
    sys.exit(plain.main(globals(), load))
