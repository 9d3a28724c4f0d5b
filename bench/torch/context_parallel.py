#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times PyTorch's context_parallel and giwa_torch.ring on all GPUs of a machine, with the same process group: the peer of
bench/ring_attention.cu.

  torchrun --nproc-per-node 2 bench/torch/context_parallel.py 131072 32768 --heads 16 --backward

fp16, head size 128, batch 1. Prints the median for each number of tokens, each backend of scaled_dot_product_attention and each way to pass keys and
values on, and the time of the same backend on one GPU.
"""
import argparse
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "pytorch"))
from giwa_torch.ring import Ring  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tokens", type=int, nargs="+")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, help="fewer than heads: of k and v")
    parser.add_argument("--full", action="store_true", help="without a mask")
    parser.add_argument("--no-flash", action="store_true", help="not the backend FlashAttention, which takes longest")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--alone", action="store_true", help="also on one GPU")
    args = parser.parse_args()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    mesh = init_device_mesh("cuda", (ranks,), mesh_dim_names=("cp",))

    kv_heads, causal = args.kv_heads or args.heads, not args.full

    def tensors(tokens):
        torch.manual_seed(1)
        return [torch.randn(1, heads, tokens, 128, device="cuda", dtype=torch.float16) for heads in (args.heads, kv_heads, kv_heads)]

    def measure(step):
        """Medians of forward and backward in ms; all ranks begin together."""
        times = []
        for _ in range(args.rounds + 1):
            torch.cuda.synchronize()
            dist.barrier()
            begin = time.perf_counter()
            out = step()
            torch.cuda.synchronize()
            middle = time.perf_counter()
            if args.backward:
                out.backward(out.detach())
                torch.cuda.synchronize()
            times.append(((middle - begin) * 1e3, (time.perf_counter() - middle) * 1e3))
        forward, backward = zip(*times[1:])
        return sorted(forward)[len(forward) // 2], sorted(backward)[len(backward) // 2]

    def report(tokens, name, times):
        if rank == 0:
            shape = f"{args.heads} heads" + (f", {kv_heads} of k and v" if kv_heads != args.heads else "")
            print(f"{tokens:7d} tokens {shape} {'causal' if causal else 'full'} {name:34s} forward {times[0]:9.3f} ms"
                  + (f" backward {times[1]:9.3f} ms" if args.backward else ""), flush=True)

    def of_pytorch(tokens, backend):
        with sdpa_kernel(backend), torch.set_grad_enabled(args.backward):
            attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=kv_heads != args.heads)
            if args.alone:
                q, k, v = (x.requires_grad_(args.backward) for x in tensors(tokens))
                report(tokens, f"{backend.name} one GPU", measure(lambda: attend(q, k, v)))
                del q, k, v
            for rotate in ("alltoall", "allgather"):
                try:
                    set_rotate_method(rotate)
                    q, k, v = tensors(tokens)
                    with context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2], no_restore_buffers={q, k, v}):
                        q, k, v = (x.detach().requires_grad_(args.backward) for x in (q, k, v))
                        report(tokens, f"{backend.name} {rotate} {ranks} GPUs", measure(lambda: attend(q, k, v)))
                except Exception as error:  # a backend that refuses: say so, and go on
                    if rank == 0:
                        print(f"{backend.name} {rotate}: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)

    def of_giwa(tokens):
        ring = Ring(tokens)
        with torch.set_grad_enabled(args.backward):
            own = [ring.slice(x.transpose(1, 2)).requires_grad_(args.backward) for x in tensors(tokens)]  # (batch, tokens, heads, size)
            for name, heads in (("ring", False), ("heads", True)):
                if kv_heads % ranks == 0 or not heads:
                    report(tokens, f"giwa_torch {name} {ranks} GPUs",
                           measure(lambda: ring.attention(*own, is_causal=causal, heads=heads)))

    for tokens in args.tokens:
        of_giwa(tokens)
        for backend in (SDPBackend.CUDNN_ATTENTION, *(() if args.no_flash else (SDPBackend.FLASH_ATTENTION,))):
            of_pytorch(tokens, backend)
        of_giwa(tokens)  # again: GPUs grow warm
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
