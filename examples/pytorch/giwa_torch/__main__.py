# SPDX-License-Identifier: MIT
"""Compiles kernels ahead of the calls that need them, or checks attention on this machine.

  python3 -m giwa_torch build                                            # bf16, head sizes 64 and 128, for this machine
  python3 -m giwa_torch build --architecture 90a 80 --dtype fp16 bf16 --head-size 128 192:128 --mask causal --pass forward
  python3 -m giwa_torch check                                            # forward and gradients against float64
"""
import argparse
import itertools
import time

import torch

import giwa_torch
from giwa_torch import build

CACHES = {"dtype": 0, "e4m3": 128, "int8": 256, "int4": 512}  # as cache_flag of call.hpp
MASKS = {"full": 0, "causal": 1, "band": 2, "tensor": 3, "bits": 4, "blocks": 5}


def architectures_here():
    gpus = {build.architecture_of(i) for i in range(torch.cuda.device_count())} if torch.cuda.is_available() else set()
    return sorted(gpus) or ["cpu"]


def pair(text):
    sizes = [int(x) for x in text.split(":")]
    if len(sizes) > 2 or not all(1 <= x <= 512 for x in sizes):
        raise argparse.ArgumentTypeError(f"{text} is not a head size from 1 to 512, or two as 192:128")
    return sizes[0], sizes[-1]


def variants(arguments):
    """The libraries that calls with these properties need, as binding.cpp names them."""
    for architecture, dtype, which in itertools.product(arguments.architecture, arguments.dtype, arguments.passes):
        cpu, which, element = architecture == "cpu", build.PASSES.index(which), build.DTYPES.index(dtype)
        place = None if cpu else architecture
        caches = [CACHES[x] for x in arguments.cache] if build.PASSES[which] in ("cached", "append") else [0]
        if build.PASSES[which] in ("append", "block_map"):  # one library serves all head sizes, and of block_map all element types
            for cache in caches:
                yield which, place, element if build.PASSES[which] == "append" else 2, 1, 1, 0, cache
            continue
        cached = build.PASSES[which] == "cached"
        least = (2 if cached else 3) if cpu else 0  # on the CPU one library has all masks up to this
        masks = sorted({max(MASKS[x], least) for x in arguments.mask if not (cached and MASKS[x] >= 3)})
        score = sum(1 << build.SCORES.index(x) for x in arguments.score if not (cached and x == "dropout"))
        for (head_size, head_size_v), mask, cache in itertools.product(arguments.head_size, masks, caches):
            yield which, place, element, head_size, head_size_v, mask, score | cache


def build_ahead(arguments):
    begin = time.perf_counter()
    wanted = list(variants(arguments))
    missing = [x for x in wanted if not build.path_of(build.name_of(*x)).exists()]
    build.compile_all(missing, arguments.jobs)
    print(f"{len(missing)} of {len(wanted)} libraries compiled in {time.perf_counter() - begin:.0f} s; all are in {build.folder()}")


def check(_):
    """Causal attention in float32 with its gradients, on the GPU if there is one and on the CPU, against PyTorch's in float64."""
    torch.manual_seed(0)
    worst = 0.0
    for device in ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]:
        inputs = [torch.randn(2, heads, 200, 64, device=device, requires_grad=True) for heads in (4, 2, 2)]
        exact = [x.detach().double().requires_grad_() for x in inputs]
        o = giwa_torch.scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=True)
        expected = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=True, enable_gqa=True)
        weights = torch.randn_like(o)
        (o * weights).sum().backward(), (expected * weights.double()).sum().backward()
        pairs = [(o, expected), *((x.grad, y.grad) for x, y in zip(inputs, exact))]
        error = max((x - y).abs().max().item() / y.abs().max().item() for x, y in pairs)
        worst = max(worst, error) if error == error else float("inf")
        name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
        print(f"{name}: o, dq, dk and dv differ from float64 by at most {error:.1e} of the largest element")
    print("check:", "right" if worst < 1e-5 else "FAILED")
    return 0 if worst < 1e-5 else 1


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python3 -m giwa_torch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="build | check")
    builder = commands.add_parser("build", help="compiles kernels ahead")
    builder.add_argument("--architecture", nargs="+", default=architectures_here(), metavar="SM",
                         help="as 90a or 80, or cpu; default: the GPUs of this machine, or its CPU")
    builder.add_argument("--dtype", nargs="+", default=["bf16"], choices=build.DTYPES, help="default: bf16")
    builder.add_argument("--head-size", nargs="+", type=pair, default=[(64, 64), (128, 128)], metavar="SIZE",
                         help="1 to 512; two, as 192:128, if that of v differs; default: 64 128")
    builder.add_argument("--mask", nargs="+", default=["full", "causal"], choices=MASKS,
                         help="band is a window, tensor an attn_mask of bool, bits a packed custom mask, blocks a BlockMask, which needs "
                              "--pass block_map too; default: full causal. On the CPU one library has the first four")
    builder.add_argument("--pass", dest="passes", nargs="+", default=["forward", "backward"], choices=build.PASSES,
                         help="default: forward backward")
    builder.add_argument("--score", nargs="+", default=[], choices=("softcap", "alibi", "dropout"), help="modifiers, all in each call")
    builder.add_argument("--cache", nargs="+", default=["dtype"], choices=CACHES,
                         help="elements of the cache of --pass cached and append; default: those of --dtype")
    builder.add_argument("--jobs", type=int, help="compilers at once; default: the number of cores")
    builder.set_defaults(run=build_ahead)
    commands.add_parser("check", help="checks attention on this machine against float64").set_defaults(run=check)
    arguments = parser.parse_args(arguments)
    return arguments.run(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
