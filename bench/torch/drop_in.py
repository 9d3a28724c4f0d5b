#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times giwa_torch (examples/pytorch) and PyTorch's scaled_dot_product_attention: host time of a call, and an attention layer.

    python3 bench/torch/drop_in.py [host] [layer] [decode] [profile] [--tokens 512 ...] [--points 8x1024 ...] [--how eager compiled] [--kernels cuDNN ...] [--pages 64 ...]

host   Python and C++ until a call returns, also of what a model of transformers calls for each layer, with kernels too small to fill the queue: the median of the rounds, in microseconds. Both
       sides alternate. On the CPU, where a call also computes, only a GPU's figures count.
layer  a layer as in Llama 3 8B, 32 heads of 128 over 8 of k and v, of the projections, rotary embedding and attention: bf16, causal, one
       sequence of 512 to 8192 tokens, eager and compiled, forward under no_grad and forward with backward. Milliseconds, and how
       many times as fast as with PyTorch's function; both sides alternate.
decode microseconds of a step of decoding in one CUDA graph: four layers as in Llama 3 8B, with their MLPs. giwa has a cache in pages
       of each size of --pages, appends and rotates in one kernel, and reads lengths on the GPU. PyTorch's function has a contiguous
       cache and is told its exact length; it runs with each of its fused kernels (or those of --kernels), also with the queries of a
       group as rows, and the fastest counts: eager, and compiled.
profile   microseconds of each kernel of the eager layer's forward with backward; after "decode", of the fastest step of PyTorch's and of
       giwa's.
"""
import argparse
import contextlib
import fcntl
import math
import statistics
import sys
import time
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "pytorch"))
import giwa_torch  # noqa: E402

sys.path.append(str(Path(__file__).resolve().parents[1]))  # last: its folder torch is not PyTorch
import report_rows  # noqa: E402

ROWS = []  # of a report


def add_rows(case, unit, ours, theirs):
    """Of two times in a unit, each side's and their ratio."""
    us = {"us": 1, "ms": 1000}[unit]
    ROWS.append(report_rows.row("frameworks", case, "giwa", "time", ours, unit, us=ours * us, ratio_to="torch", ratio=theirs / ours))
    ROWS.append(report_rows.row("frameworks", case, "torch", "time", theirs, unit, us=theirs * us))


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
    calls = [
        ("forward, no gradient", forward(sdpa), forward(giwa_torch.scaled_dot_product_attention)),
        ("forward, gradient", lambda: sdpa(*leaves, is_causal=True), lambda: giwa_torch.scaled_dot_product_attention(*leaves, is_causal=True)),
        ("forward and backward", both(sdpa), both(giwa_torch.scaled_dot_product_attention)),
        ("flash_attn_func, no gradient", forward(sdpa), lambda: giwa_torch.flash_attn_func(*flash, causal=True))]
    try:
        from giwa_torch.transformers import attention_forward
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
    except ImportError:
        print("left out: no transformers")
    else:
        module = torch.nn.Module()
        module.is_causal, module.num_key_value_groups = True, 2
        grouped = q.repeat(1, 2, 1, 1), k, v
        mask = torch.ones(1, 1, 16, 16, dtype=torch.bool, device=DEVICE).tril()
        of_layer = lambda attend, mask: lambda: attend(module, *grouped, mask, dropout=0.0, scaling=0.125)
        calls += [(f"layer of transformers{', mask' if x is not None else ''}", of_layer(sdpa_attention_forward, x), of_layer(attention_forward, x))
                  for x in (None, mask)]
    print(f"{'host time, us':32}{'SDPA':>8}{'giwa':>8}{'ratio':>8}")
    for name, theirs, ours in calls:
        found = host_time({"SDPA": theirs, "giwa": ours})
        print(f"{name:32}{found['SDPA']:8.1f}{found['giwa']:8.1f}{found['giwa'] / found['SDPA']:8.2f}", flush=True)
        add_rows(f"host/{name}", "us", found["giwa"], found["SDPA"])


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


turn = None  # a file: of the processes that have it, one at a time uses the GPU


def device_time(sides, rounds=9):
    """Milliseconds of each side's call on the device, of calls that follow each other."""
    for call in sides.values():
        for _ in range(3):
            call()
    synchronize()
    if turn is None:
        return device_time_now(sides, rounds)
    with open(turn, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return device_time_now(sides, rounds)


def device_time_now(sides, rounds):
    times = {name: [] for name in sides}
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


def layers(tokens):
    """The same layer on both sides, its input and the gradient of its output."""
    torch.manual_seed(0)
    models = {name: Layer(attend, tokens) for name, attend in (("SDPA", sdpa), ("giwa", giwa_torch.scaled_dot_product_attention))}
    models["giwa"].load_state_dict(models["SDPA"].state_dict())
    models = {name: model.to(DEVICE, torch.bfloat16) for name, model in models.items()}
    x = torch.randn(1, tokens, 4096, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    return models, x, torch.randn_like(x)


def profile(lengths):
    for tokens in lengths:
        models, x, dout = layers(tokens)
        for name, model in models.items():
            step = lambda: torch.autograd.grad(model(x), [x, *model.parameters()], dout)
            step(), synchronize()
            tell_kernels(f"{name}, {tokens} tokens", step)


def tell_kernels(name, step, calls=5):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(calls):
            step()
        synchronize()
    rows = sorted(found.key_averages(), key=lambda row: -row.self_device_time_total)
    print(f"{name}: {sum(row.self_device_time_total for row in rows) / calls:.0f} us of kernels")
    for row in rows:
        print(f"   {row.self_device_time_total / calls:8.1f} us {row.count // calls:4} x {row.key[:100]}")


def layer(lengths, hows):
    print(f"{'layer, ms':34}{'tokens':>8}{'SDPA':>9}{'giwa':>9}{'speed':>8}")
    for tokens in lengths:
        models, x, dout = layers(tokens)
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
                add_rows(f"layer/{how}/{what}/{tokens}", "ms", found["giwa"], found["SDPA"])


class Decoder(torch.nn.Module):
    """Four layers of Llama 3 8B; attend(layer, q, k, v), of (batch, 1, heads, size), has a cache."""
    layers, hidden, heads, kv_heads, size, wide = 4, 4096, 32, 8, 128, 14336

    def __init__(self):
        super().__init__()
        linear = lambda a, b: torch.nn.Linear(a, b, bias=False)
        make = lambda a, b: torch.nn.ModuleList(linear(a, b) for _ in range(self.layers))
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(self.hidden) for _ in range(2 * self.layers))
        self.project, self.out = make(self.hidden, (self.heads + 2 * self.kv_heads) * self.size), make(self.heads * self.size, self.hidden)
        self.wider, self.narrower = make(self.hidden, 2 * self.wide), make(self.wide, self.hidden)
        self.attend = None

    def forward(self, x):
        for i in range(self.layers):
            qkv = self.project[i](self.norms[2 * i](x)).view(len(x), 1, -1, self.size)
            x = x + self.out[i](self.attend(i, *qkv.split((self.heads, self.kv_heads, self.kv_heads), 2)).flatten(2))
            a, b = self.wider[i](self.norms[2 * i + 1](x)).chunk(2, -1)
            x = x + self.narrower[i](torch.nn.functional.silu(a) * b)
        return x


def sides_of_decode(batch, keys, kernels, pages):
    """attend of each side. The caches have the same contents; the new token is the last of `keys`."""
    kv_heads, size, room = Decoder.kv_heads, Decoder.size, -(-keys // math.lcm(*pages)) * math.lcm(*pages)
    angle = torch.arange(keys, device=DEVICE)[:, None] * 500000.0 ** (-torch.arange(size // 2, device=DEVICE) / (size // 2))
    cos, sin = angle.cos().to(torch.bfloat16), angle.sin().to(torch.bfloat16)
    lengths, at = torch.full((batch,), keys, dtype=torch.int32, device=DEVICE), torch.tensor([keys - 1], device=DEVICE)
    contiguous = [[torch.randn(batch, kv_heads, room, size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2)]
                  for _ in range(Decoder.layers)]

    def rotate(x):
        a, b = x.chunk(2, -1)
        c, s = cos[at], sin[at]
        return torch.cat((a * c - b * s, b * c + a * s), -1)

    def theirs(folded):
        def attend(layer, q, k, v):
            for cache, new in zip(contiguous[layer], (rotate(k), v)):
                cache.index_copy_(2, at, new.transpose(1, 2))
            own = [x[:, :, :keys] for x in contiguous[layer]]
            q = rotate(q).transpose(1, 2)
            if not folded:
                return sdpa(q, *own, enable_gqa=True).transpose(1, 2)
            return sdpa(q.view(len(q), kv_heads, -1, size), *own).reshape(len(q), 1, -1, size)
        return attend

    def ours(page):
        order = torch.randperm(batch * (room // page), device=DEVICE)
        table, pools = order.to(torch.int32).view(batch, -1), []
        for pair in contiguous:
            pools.append([torch.empty(len(order), page, kv_heads, size, device=DEVICE, dtype=torch.bfloat16) for _ in pair])
            for pool, x in zip(pools[-1], pair):
                pool[order] = x.view(batch, kv_heads, -1, page, size).permute(0, 2, 3, 1, 4).flatten(0, 1)

        def attend(layer, q, k, v):
            q = giwa_torch.append_to_cache(k, v, *pools[layer], lengths, table, q=q, cos=cos, sin=sin)
            return giwa_torch.attention_cached(q, *pools[layer], lengths, table)
        return attend

    return {**{f"giwa, pages of {page}": (ours(page), None) for page in pages},
            **{f"{name}{', folded' * folded}": (theirs(folded), backend) for name, backend in (
                ("flash", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION), ("efficient", SDPBackend.EFFICIENT_ATTENTION))
                if name in kernels for folded in (False, True)}}


def kernel_of(backend):
    return contextlib.nullcontext() if backend is None else sdpa_kernel(backend)


def check_sides(sides, batch):
    """Compares the attention of the first layer alone: in the sums of a step it is too small to be seen."""
    qkv = torch.randn(batch, 1, Decoder.heads + 2 * Decoder.kv_heads, Decoder.size, device=DEVICE, dtype=torch.bfloat16)
    wanted = None
    for name, (attend, backend) in sides.items():  # giwa is the first
        try:
            with kernel_of(backend):
                o = attend(0, *qkv.split((Decoder.heads, Decoder.kv_heads, Decoder.kv_heads), 2)).float()
        except RuntimeError:  # a kernel that does not take these, which is told below
            if backend is None:
                raise
            continue
        wanted = o if wanted is None else wanted
        difference = ((o - wanted).abs().max() / wanted.abs().max()).item()
        if not difference <= 0.02:
            raise AssertionError(f"{name}: the attention of a layer is {difference:.2g} of its largest value from giwa's")


def graph_of(call):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = call()
    return graph, o


@torch.no_grad()
def decode(points, hows, kernels, pages, profiled):
    torch.manual_seed(0)
    decoder = Decoder().to(DEVICE, torch.bfloat16)
    print(f"{'decode, us a step':>22}{'keys':>7}{'SDPA':>9}   giwa, and how many times as fast; the fastest of PyTorch's")
    for batch, keys in points:
        sides = sides_of_decode(batch, keys, kernels, pages)  # whose tensors the graphs read: kept until the times are taken
        check_sides(sides, batch)
        x, graphs, outputs = torch.randn(batch, 1, Decoder.hidden, device=DEVICE, dtype=torch.bfloat16), {}, {}
        for name, (attend, backend) in sides.items():
            decoder.attend = attend
            for how in hows:
                torch._dynamo.reset()
                model = torch.compile(decoder, fullgraph=True, dynamic=False) if how == "compiled" else decoder
                try:
                    with kernel_of(backend):
                        graphs[name, how], outputs[name, how] = graph_of(lambda: model(x))
                except RuntimeError as error:  # a kernel that does not take these
                    if backend is None:
                        raise
                    print(f"   {name}, {how}: {str(error).splitlines()[0][:100]}", file=sys.stderr)
        for graph in graphs.values():
            graph.replay()
        wanted = next(iter(outputs.values()))
        for name, o in outputs.items():
            torch.testing.assert_close(o, wanted, atol=0.05, rtol=0.05, msg=lambda text: f"{name}: {text}")
        found = {name: 1000 * t for name, t in device_time({name: graph.replay for name, graph in graphs.items()}).items()}
        for how in hows:
            own = {name: t for (name, its_how), t in found.items() if its_how == how and sides[name][1] is None}
            best = min((name for name, its_how in found if its_how == how and name not in own), key=lambda name: found[name, how], default=None)
            if best is None:
                print(f"   {how}, {batch} sequences, {keys} keys: no kernel of PyTorch ran", file=sys.stderr)
                continue
            theirs = found[best, how]
            print(f"{f'{how}, {batch} sequences':>22}{keys:7}{theirs:9.1f}   "
                  + "; ".join(f"{name} {t:.1f} {theirs / t:.3f}" for name, t in own.items()) + f"; {best}", flush=True)
            for name, t in own.items():
                add_rows(f"decode/{how}/{batch}x{keys}/{name}", "us", t, theirs)
            for name in (best, *own) if profiled else ():
                tell_kernels(f"{name}, {how}", graphs[name, how].replay)
        del graphs, outputs, sides


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=("host", "layer"))
    parser.add_argument("--tokens", nargs="+", type=int, default=(512, 1024, 2048, 4096, 8192))
    parser.add_argument("--points", nargs="+", default=("1x1024", "1x8192", "8x1024", "8x8192", "32x1024", "32x8192"))
    parser.add_argument("--how", nargs="+", choices=("eager", "compiled"), default=("eager", "compiled"))
    parser.add_argument("--kernels", nargs="+", choices=("flash", "cuDNN", "efficient"), default=("flash", "cuDNN", "efficient"))
    parser.add_argument("--pages", nargs="+", type=int, default=(16, 64, 256), help="tokens of a page of giwa's caches, each of which has room for a common multiple")
    parser.add_argument("--csv", help="where the figures go, in the columns of a report")
    parser.add_argument("--turns", metavar="FILE", help="processes with the same file compile at the same time, and measure one after the other")
    chosen = parser.parse_args()
    if min(chosen.pages) < 1:
        parser.error("--pages: a page has at least one token")
    turn = chosen.turns
    print(f"{torch.cuda.get_device_name() if DEVICE == 'cuda' else 'CPU'}, torch {torch.__version__}")
    if "host" in chosen.parts:
        host()
    if "layer" in chosen.parts:
        layer(chosen.tokens, chosen.how)
    if "decode" in chosen.parts:
        decode([tuple(map(int, x.split("x"))) for x in chosen.points], chosen.how, chosen.kernels, chosen.pages, "profile" in chosen.parts)
    elif "profile" in chosen.parts:
        profile(chosen.tokens)
    if chosen.csv:
        Path(chosen.csv).write_text(report_rows.csv_text(ROWS), encoding="utf-8")
