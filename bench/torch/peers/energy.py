#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""TFLOP/s for each kW of giwa's forward pass, cuDNN's and FlashAttention-3's and -4's, which alternate in one process.

A side replays a CUDA graph for some seconds; its energy is what the driver's counter says (nvmlDeviceGetTotalEnergyConsumption,
of the whole GPU). Inputs are drawn anew before each of these. FlashAttention-3 and -4 take part if unpack.py restored them.
"""
import argparse
import ctypes
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch
from attention import HEADS, Gpu, gpu_library

from sides import Peers
from tables import PEERS, activate


class Meter:
    """The GPU's counters: joules since the driver was loaded, and clocks in MHz."""

    def __init__(self):
        self.nvml, self.device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}".encode()  # CUDA_VISIBLE_DEVICES does not count here
        if self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(self.device)):
            sys.exit("the driver has no such GPU")

    def joules(self):
        found = ctypes.c_ulonglong()
        assert self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.device, ctypes.byref(found)) == 0
        return found.value / 1e3

    def clock(self):
        found = ctypes.c_uint()
        assert self.nvml.nvmlDeviceGetClockInfo(self.device, 1, ctypes.byref(found)) == 0
        return found.value


def measure(meter, graph, calls, seconds):
    """Seconds of a call, watts, and the median clock, of replays for so many seconds."""
    graph.replay(), torch.cuda.synchronize()
    begin = time.perf_counter()
    graph.replay(), torch.cuda.synchronize()
    replays = max(1, round(seconds / (time.perf_counter() - begin)))
    clocks, before, begin = [], meter.joules(), time.perf_counter()
    for i in range(replays):
        graph.replay()
        if i % 4 == 3:
            torch.cuda.synchronize()
            clocks.append(meter.clock())
    torch.cuda.synchronize()
    spent = time.perf_counter() - begin
    return spent / replays / calls, (meter.joules() - before) / spent, statistics.median(clocks or [0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", dest="libraries", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--cells", nargs="+", default=["full/128", "causal/128"], metavar="MASK/SIZE")
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without", nargs="*", default=[], metavar="SIDE")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    libraries = dict(x.split("=", 1) for x in arguments.libraries) or {"giwa": gpu_library("fp16", "", "")}
    libraries = {name: ctypes.CDLL(str(path)) for name, path in libraries.items()}
    activate(PEERS)
    peers, meter, calls = Peers(PEERS, print, [x for x in ("fa3", "fa4") if x not in arguments.without]), Meter(), 20
    print("| cell | side | TFLOP/s | W | MHz | TFLOP/s for each kW |\n|---|---|---|---|---|---|")
    for cell in arguments.cells:
        mask, size = cell.split("/")
        size, causal = int(size), mask == "causal"
        gpu = Gpu(libraries, ["cudnn"], "fp16", 1, arguments.length, arguments.length, HEADS[size], HEADS[size], size, causal, True)
        gpu.renew()
        for name, call in peers.forward(gpu.q, gpu.k, gpu.v, causal=causal).items():
            gpu.calls[name] = lambda gpu=gpu, name=name, call=call: gpu.results.update({name: call(0)})
        graphs = {}
        for name, call in gpu.calls.items():
            if name not in arguments.without:
                gpu.warm_up(call)
                graphs[name] = gpu.graph(call, calls)
        found = {name: [] for name in graphs}
        for round_ in range(arguments.rounds):
            for name in list(graphs) if round_ % 2 == 0 else list(graphs)[::-1]:
                gpu.renew()
                found[name].append(measure(meter, graphs[name], calls, arguments.seconds))
        for name, rows in found.items():
            seconds, watts, clock = (statistics.median(x) for x in zip(*rows))
            speeds = [gpu.flops / x[0] / 1e12 for x in rows]
            each = ", ".join(f"{speed / x[1] * 1e3:.0f}" for speed, x in zip(speeds, rows))
            print(f"| {gpu.case} | {name} | {gpu.flops / seconds / 1e12:.0f} | {watts:.0f} | {clock:.0f} | "
                  f"{statistics.median(s / x[1] * 1e3 for s, x in zip(speeds, rows)):.0f} ({each}) |", flush=True)
        del graphs, gpu


if __name__ == "__main__":
    main()
