#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times giwa_torch (examples/pytorch) and PyTorch's scaled_dot_product_attention: host time of a call, and an attention layer.

    python3 bench/torch/drop_in.py [host] [layer] [--tokens 512 ...] [--how eager compiled]

host   Python and C++ until a call returns, with kernels too small to fill the queue: the median of the rounds, in microseconds. Both
       sides alternate. On the CPU, where a call also computes, only a GPU's figures count.
layer  a layer as in Llama 3 8B, 32 heads of 128 over 8 of k and v, of the projections, rotary embedding and attention: bf16, causal, one
       sequence of 512 to 8192 tokens, eager and compiled, forward under no_grad and forward with backward. Milliseconds, and how
       many times as fast as with PyTorch's function; both sides alternate.
"""
import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "pytorch"))
import giwa_torch  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def host_time(sides, rounds=15, calls=100):
    """Microseconds of each side's call until it returns."""
    times = {name: [] for name in sides}
    for i in range(rounds + 3):
        for name, call in sides.items():
            synchronize()
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            elapsed = time.perf_counter() - begin
            synchronize()
            if i >= 3:
                times[name].append(elapsed / calls * 1e6)
    return {name: statistics.median(x) for name, x in times.items()}


def host():
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    q, k, v = (torch.randn(1, 2, 16, 64, device=DEVICE, dtype=dtype) for _ in range(3))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    dout = torch.randn_like(q)
    flash = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    def both(attend):
        return lambda: torch.autograd.grad(attend(*leaves, is_causal=True), leaves, dout)
    def forward(attend):
        return lambda: attend(q, k, v, is_causal=True)
    print(f"{'host time, us':32}{'SDPA':>8}{'giwa':>8}{'ratio':>8}")
    for name, theirs, ours in (
            ("forward, no gradient", forward(sdpa), forward(giwa_torch.scaled_dot_product_attention)),
            ("forward, gradient", lambda: sdpa(*leaves, is_causal=True), lambda: giwa_torch.scaled_dot_product_attention(*leaves, is_causal=True)),
            ("forward and backward", both(sdpa), both(giwa_torch.scaled_dot_product_attention)),
            ("flash_attn_func, no gradient", forward(sdpa), lambda: giwa_torch.flash_attn_func(*flash, causal=True))):
        found = host_time({"SDPA": theirs, "giwa": ours})
        print(f"{name:32}{found['SDPA']:8.1f}{found['giwa']:8.1f}{found['giwa'] / found['SDPA']:8.2f}", flush=True)


class Layer(torch.nn.Module):
    """The attention of a layer of Llama 3 8B."""

    def __init__(self, attend, tokens, hidden=4096, heads=32, kv_heads=8, size=128):
        super().__init__()
        self.attend, self.heads, self.kv_heads, self.size = attend, heads, kv_heads, size
        self.project = torch.nn.Linear(hidden, (heads + 2 * kv_heads) * size, bias=False)
        self.out = torch.nn.Linear(heads * size, hidden, bias=False)
        angle = torch.arange(tokens)[:, None] * 500000.0 ** (-torch.arange(size // 2) / (size // 2))
        self.register_buffer("cos", angle.cos()[:, None]), self.register_buffer("sin", angle.sin()[:, None])

    def rotate(self, x):
        a, b = x.chunk(2, -1)
        return torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), -1)

    def forward(self, x):
        batch, tokens, _ = x.shape
        q, k, v = self.project(x).view(batch, tokens, -1, self.size).split((self.heads, self.kv_heads, self.kv_heads), 2)
        o = self.attend(*(x.transpose(1, 2) for x in (self.rotate(q), self.rotate(k), v)), is_causal=True, enable_gqa=True)
        return self.out(o.transpose(1, 2).flatten(2))


def device_time(sides, rounds=9):
    """Milliseconds of each side's call on the device, of calls that follow each other."""
    times = {name: [] for name in sides}
    for call in sides.values():
        for _ in range(3):
            call()
    synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    calls = {}
    for name, call in sides.items():
        begin.record(), call(), end.record(), synchronize()
        calls[name] = max(3, min(50, int(4 / max(begin.elapsed_time(end), 1e-3))))
    for _ in range(rounds):
        for name, call in sides.items():
            begin.record()
            for _ in range(calls[name]):
                call()
            end.record()
            synchronize()
            times[name].append(begin.elapsed_time(end) / calls[name])
    return {name: statistics.median(x) for name, x in times.items()}


def layer(lengths, hows):
    print(f"{'layer, ms':34}{'tokens':>8}{'SDPA':>9}{'giwa':>9}{'speed':>8}")
    for tokens in lengths:
        torch.manual_seed(0)
        models = {name: Layer(attend, tokens) for name, attend in (("SDPA", sdpa), ("giwa", giwa_torch.scaled_dot_product_attention))}
        models["giwa"].load_state_dict(models["SDPA"].state_dict())
        models = {name: model.to(DEVICE, torch.bfloat16) for name, model in models.items()}
        x = torch.randn(1, tokens, 4096, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        dout = torch.randn_like(x)
        for how in hows:
            if how == "compiled":
                torch._dynamo.reset()
                models = {name: torch.compile(model, fullgraph=True, dynamic=False) for name, model in models.items()}
            def forward(model):
                def run():
                    with torch.no_grad():
                        model(x)
                return run
            def both(model):
                return lambda: torch.autograd.grad(model(x), [x, *model.parameters()], dout)
            for what, make in (("forward", forward), ("forward and backward", both)):
                found = device_time({name: make(model) for name, model in models.items()})
                print(f"{how + ', ' + what:34}{tokens:8}{found['SDPA']:9.3f}{found['giwa']:9.3f}{found['SDPA'] / found['giwa']:8.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=("host", "layer"))
    parser.add_argument("--tokens", nargs="+", type=int, default=(512, 1024, 2048, 4096, 8192))
    parser.add_argument("--how", nargs="+", choices=("eager", "compiled"), default=("eager", "compiled"))
    chosen = parser.parse_args()
    print(f"{torch.cuda.get_device_name() if DEVICE == 'cuda' else 'CPU'}, torch {torch.__version__}")
    if "host" in chosen.parts:
        host()
    if "layer" in chosen.parts:
        layer(chosen.tokens, chosen.how)
