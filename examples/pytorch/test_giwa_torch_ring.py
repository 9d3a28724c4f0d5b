#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks giwa_torch.ring: python3 test_giwa_torch_ring.py, with one process for each GPU, or with processes on the CPU and gloo.

Rows of o and gradients of all ranks, put together, against attention over the whole sequence in float64. RANKS=n is the number of
processes, GIWA_TORCH_DEVICE=cpu chooses the CPU. On one GPU the rank is alone and sends nothing.
"""
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.functional import scaled_dot_product_attention as sdpa

ON_GPU = torch.cuda.is_available() and os.environ.get("GIWA_TORCH_DEVICE") != "cpu"
CASES = [  # tokens, heads, kv heads; arguments of the slices and of the call
    ("ring, causal", 203, 6, 6, {}, {"is_causal": True}),
    ("ring, causal, contiguous, grouped heads", 130, 6, 3, {"zigzag": False}, {"is_causal": True, "scale": 0.2}),
    ("ring, fewer tokens than pieces", 3, 6, 6, {}, {"is_causal": True}),
    ("heads, causal", 203, 24, 12, {}, {"is_causal": True, "heads": True}),  # 12: a multiple of 1, 2, 3 and 4 ranks
]
TYPES = (torch.bfloat16, torch.float32) if ON_GPU else (torch.float32,)


def whole_tensors(tokens, heads, kv_heads, dtype, device):
    torch.manual_seed(3)  # the same on all ranks
    return [torch.randn(2, tokens, h, 64, device=device).to(dtype) for h in (heads, kv_heads, kv_heads, heads)]


def check(rank, ranks, device):
    from giwa_torch.ring import Ring
    for name, tokens, heads, kv_heads, slices, arguments in CASES:
        for dtype in TYPES:
            begin = time.time()
            q, k, v, dout = whole = whole_tensors(tokens, heads, kv_heads, dtype, device)
            ring = Ring(tokens, **slices)
            own = [ring.slice(x).requires_grad_() for x in (q, k, v)]
            o = ring.attention(*own, **arguments)
            found = [ring.gather(x) for x in (o, *torch.autograd.grad(o, own, ring.slice(dout)))]
            again = ring.attention(*own, **arguments)
            assert torch.equal(o, again), f"{name}: the bits of two runs differ"
            torch.use_deterministic_algorithms(True)
            twice = [torch.autograd.grad(ring.attention(*own, **arguments), own, ring.slice(dout)) for _ in range(2)]
            torch.use_deterministic_algorithms(False)
            assert all(map(torch.equal, *twice)), f"{name}: the bits of two gradients differ"

            def exact(dtype):
                q, k, v, dout = (x.detach().to(dtype).transpose(1, 2) for x in whole)
                arrays = [x.requires_grad_() for x in (q, k, v)]
                o = sdpa(*arrays, is_causal=arguments["is_causal"], scale=arguments.get("scale"), enable_gqa=True)
                return [x.transpose(1, 2).double() for x in (o, *torch.autograd.grad(o, arrays, dout))]
            worst = 0.0
            for what, x, truth, plain in zip(("o", "dq", "dk", "dv"), found, exact(torch.float64), exact(dtype), strict=True):
                assert x.shape == truth.shape, f"{name}: {what} is {tuple(x.shape)}"
                error, of_plain = ((t.double() - truth).abs().max().item() for t in (x, plain))
                allowed = 3 * of_plain + 4 * torch.finfo(dtype).eps * truth.abs().max().item()
                assert error <= allowed, f"{name}, {dtype}: {what} is {error:.2e} from the truth, allowed are {allowed:.2e}"
                worst = max(worst, error / allowed)
            if rank == 0:
                print(f"{name}, {dtype}, {ranks} ranks: ok, {worst:.2f} of what is allowed, {time.time() - begin:.1f} s", flush=True)


def check_refused(device):
    from giwa_torch.ring import Ring
    ring = Ring(100)
    x = torch.zeros(1, len(ring.positions), 2, 64, device=device)
    for text, call in {
        "must be (batch,": lambda: ring.attention(x[:, 1:], x, x),
        "do not agree": lambda: ring.attention(x, x, x[:, :, :1]),
        "head size must be": lambda: ring.attention(*[x.repeat(1, 1, 1, 9)] * 3),
        "scale must be finite": lambda: ring.attention(x, x, x, is_causal=True, scale=float("nan")),
    }.items():
        try:
            call()
        except ValueError as error:
            assert text in str(error), f"{text}: {error}"
        else:
            raise AssertionError(f"not refused: {text}")


def process(rank, ranks, file):
    device = torch.device("cpu")
    if ON_GPU:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if ON_GPU else "gloo", init_method=f"file://{file}", rank=rank, world_size=ranks,
                            device_id=device if ON_GPU else None)
    check(rank, ranks, device)
    check_refused(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks = int(os.environ.get("RANKS") or (torch.cuda.device_count() if ON_GPU else 3))
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name() if ON_GPU else 'cpu'}, {ranks} ranks")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(process, (ranks, os.path.join(folder, "store")), nprocs=ranks)
