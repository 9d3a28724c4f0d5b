#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times giwa's attention_backward and the backward passes of PyTorch: cuDNN, FlashAttention-2, and FlexAttention compiled; in
fp32 (--fp32, TF32 off) the memory-efficient one. Libraries that PyTorch does not have, such as FlashAttention-3, take part in peers/measure.py.

Builds attention_backward_entries.cu (nvcc in PATH), or takes libraries that are built: --library NAME=PATH, as often as wanted.
Each name is a side; a name given twice looks for a case in its first library, then in the next. All sides are CUDA graphs of
several calls that alternate on the same inputs, new ones each round. Only the backward pass is timed: another graph, before it,
runs the forward pass. Rows that end in /both are of the forward and the backward pass together. A figure is the median of the
rounds, a ratio the median of the rounds' ratios; TFLOP/s are those of 2.5 times the forward pass, or 3.5 times with it. PyTorch's
sides are in their default mode, which does not promise the same bits twice.

Before timing, the gradients of one sequence and kv head are compared with PyTorch's in fp32, and whole tensors with a peer's; in
fp32 with PyTorch's in fp64, from which those of giwa may be no further than those of unfused attention in fp32.
MB are the most memory that a call has at any time beyond its inputs and gradients. The side "own score" has a score modifier that
does nothing, in the cases of which a library has that (head size 128, full and causal).
"""
import argparse
import ctypes
import math
import re
import statistics
import subprocess
import sys
from pathlib import Path

import torch
import torch._functorch.config
from torch.nn.attention import sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from attention import BACKENDS, CAP, HEADS, HERE, INCLUDE, SHAPES, WINDOW, flops, folder

sys.path.append(str(HERE.parent))  # last: its folder torch is not PyTorch
import report_rows  # noqa: E402

KINDS = ("full", "causal", "softcap", "alibi", "window", "bias", "dropout", "packed", "own full", "own causal",
         "pair", "slopes")  # in the order of attention_backward_entries.cu
# (element, kind, head size, batch, heads, kv heads, length)
USUAL = tuple(("fp16", kind, size, batch, heads, heads, length) for size, heads in HEADS.items() for kind in KINDS[:2]
              for batch, length in SHAPES)
OTHERS = (("bf16", "full", 128, 4, 16, 16, 4096), ("bf16", "causal", 128, 4, 16, 16, 4096),
          ("fp16", "causal", 128, 4, 32, 8, 4096), ("fp16", "causal", 128, 4, 16, 1, 4096),
          ("fp16", "causal", 128, 1, 32, 8, 1024), ("fp16", "causal", 128, 1, 32, 8, 4096),
          ("fp16", "full", 96, 4, 16, 16, 4096), ("fp16", "causal", 96, 4, 16, 16, 4096),
          ("fp16", "full", 192, 4, 16, 16, 4096), ("fp16", "causal", 192, 4, 16, 16, 4096), ("fp16", "packed", 128, 1, 16, 16, 16384))
PACKED = (4096, 3000, 2500, 2000, 1500, 1200, 1000, 600, 300, 188)  # lengths of the sequences of a packed case
FLEX = tuple(("fp16", kind, 128, batch, 16, 16, 4096)
             for kind, batch in (("causal", 4), ("window", 4), ("softcap", 4), ("alibi", 4), ("bias", 1)))
# A bias with its gradient, and Evoformer's two: of each key, and of pairs, which all sequences share.
FLEX += (("fp16", "bias", 64, 1, 32, 32, 4096), ("fp16", "bias", 128, 4, 16, 16, 1024), ("fp16", "pair", 32, 128, 8, 8, 256),
         ("fp16", "pair", 32, 128, 8, 8, 512), ("fp16", "pair", 64, 16, 16, 16, 1024),
         ("fp16", "slopes", 128, 4, 16, 16, 4096))
FP32 = tuple(("fp32", kind, size, batch, heads, heads, length) for size, heads in ((64, 32), (128, 16)) for kind in KINDS[:2]
             for batch, length in SHAPES)
ELEMENTS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}  # in the order of attention_backward_entries.cu
BOTH = (("fp16", "full", 128, 4, 16, 16, 4096), ("fp16", "causal", 128, 4, 16, 16, 4096),
        ("fp16", "causal", 128, 32, 16, 16, 512), ("fp16", "dropout", 128, 4, 16, 16, 4096))
DROPPED, SEED = 26, 5  # of 256: dropout(0.1f, 5) in attention_backward_entries.cu


def kept(queries, keys, head, batch):
    """Which weights giwa's dropout keeps: (queries, keys), from its definition, Philox4x32 with 7 rounds."""
    low = 0xffffffff
    q, k = queries[:, None], keys[None, :]
    place = (q & 3) << 3 | (k & 8) >> 1 | (q & 8) >> 2 | k & 1
    number = torch.zeros_like(place)
    for call in (0, 1):
        c = [(q & ~11 | call).expand(place.shape), torch.full_like(q, head), (k & ~9).expand(place.shape), torch.full_like(q, batch)]
        key = [SEED, 0]
        for _ in range(7):
            products = c[0] * 0xd2511f53, c[2] * 0xcd9e8d57  # modulo 2^64, whose halves are right
            c = [(products[1] >> 32 & low) ^ c[1] ^ key[0], products[1] & low, (products[0] >> 32 & low) ^ c[3] ^ key[1],
                 products[0] & low]
            key = [key[0] + 0x9e3779b9 & low, key[1] + 0xbb67ae85 & low]
        for i, word in enumerate(c):
            number |= (word >> place & 1) << 4 * call + i
    return number >= DROPPED


ANY_ORDER, HEADS_SPLIT, OWN_SCORE = "any order", "heads split", "own score"  # how the name of a side ends that has this
UNCHANGED = 8  # added to a kind: with a score modifier that does nothing


class Call(ctypes.Structure):  # backward_call in attention_backward_entries.cu
    _fields_ = ([(name, ctypes.c_longlong) for name in "kind element batch length heads kv_heads head_size window order sequences "
                                                    "longest".split()]
                + [("cap", ctypes.c_double)]
                + [(name, ctypes.c_void_p) for name in "q k v dout bias o dq dk dv dbias lse slopes forward_workspace "
                                                       "workspace".split()]
                + [("workspace_bytes", ctypes.c_longlong), ("stream", ctypes.c_void_p), ("offsets", ctypes.c_void_p),
                   ("of_keys", ctypes.c_void_p)])


def gpu_libraries(architecture):
    """The entries in three libraries, which are compiled at the same time."""
    if not architecture:
        major, minor = torch.cuda.get_device_capability()
        architecture = f"{major}{minor}" + ("a" if major >= 9 else "")
    at = folder()
    built = {at / f"{part.lower()}.so": part for part in ("USUAL_SIZES", "OTHER_CASES", "FP32")}
    running = [subprocess.Popen(["nvcc", "-std=c++20", "-O3", "-shared", "-Xcompiler=-fPIC", INCLUDE, f"-DGIWA_BENCH_{part}",
                                 f"-gencode=arch=compute_{architecture},code=sm_{architecture}",
                                 HERE / "attention_backward_entries.cu", "-o", path]) for path, part in built.items()]
    if any([process.wait() for process in running]):
        sys.exit("attention_backward_entries.cu does not compile")
    return {"giwa": [ctypes.CDLL(str(path)) for path in built]}


def libraries(arguments):
    found = {}
    for name, path in (x.split("=", 1) for x in arguments.libraries):
        found.setdefault(name, []).append(ctypes.CDLL(str(Path(path).resolve())))
    found = found or gpu_libraries(arguments.architecture)
    for library in (x for them in found.values() for x in them):
        for entry in (library.giwa_forward, library.giwa_backward, library.giwa_backward_workspace, library.giwa_forward_workspace):
            entry.restype, entry.argtypes = ctypes.c_longlong, [ctypes.POINTER(Call)]
    return found


class Giwa:
    """A side of giwa: its forward and its backward call. o, lse and the gradients are its own."""

    def __init__(self, case, library, name):
        self.case, self.entries = case, library
        self.o = torch.full_like(case.q, float("nan"))
        self.lse = torch.full((case.batch, case.heads, case.length), float("nan"), device="cuda")
        self.gradients = [torch.full_like(x, float("nan")) for x in case.inputs()]
        kind = KINDS.index(case.kind)
        if name.endswith(HEADS_SPLIT) and case.heads == case.kv_heads:
            raise NotImplementedError
        if name.endswith(OWN_SCORE):
            if kind > 1:
                raise NotImplementedError
            kind += UNCHANGED
        self.call = Call(kind=kind, element=list(ELEMENTS).index(case.element), batch=case.batch, length=case.length,
                         heads=case.heads, kv_heads=case.kv_heads, head_size=case.size, window=WINDOW,
                         order=1 if name.endswith(ANY_ORDER) else 2 if name.endswith(HEADS_SPLIT) else 0, cap=CAP, sequences=len(PACKED),
                         longest=max(PACKED), offsets=case.offsets.data_ptr())
        self.bytes = library.giwa_backward_workspace(self.call)
        if self.bytes < 0:
            raise NotImplementedError
        self.scratch = [torch.zeros(n, device="cuda", dtype=torch.uint8)
                        for n in (library.giwa_forward_workspace(self.call), self.bytes)]
        tensors = dict(zip(("q", "k", "v", "bias"), case.inputs()), dout=case.dout, o=self.o, lse=self.lse, slopes=case.slopes,
                       forward_workspace=self.scratch[0], workspace=self.scratch[1])
        tensors.update(zip(("dq", "dk", "dv", "dbias"), self.gradients))
        for name, tensor in tensors.items():
            setattr(self.call, name, tensor.data_ptr())
        self.call.workspace_bytes = self.bytes
        if case.kind == "pair":
            self.half = case.bias.half()
            self.call.bias, self.call.of_keys = self.half.data_ptr(), case.of_keys.data_ptr()

    def run(self, entry):
        self.call.stream = torch.cuda.current_stream().cuda_stream
        code = entry(self.call)
        assert code == 0, f"{self.case.name}: giwa answers {code}"

    def forward(self):
        if self.case.kind == "pair":
            self.half.copy_(self.case.bias)
        self.run(self.entries.giwa_forward)

    def backward(self):
        if self.case.kind == "pair":
            self.gradients[3].zero_()  # sums are added
        self.run(self.entries.giwa_backward)

    def megabytes(self):
        return self.bytes / 1e6


class Torch:
    """A side of PyTorch, through autograd: the gradients of (batch, length, heads, head size), which no backend copies."""

    def __init__(self, case, name):
        self.case, self.name = case, name
        self.leaves = [x.detach().requires_grad_() for x in case.inputs()]  # the same memory
        self.o = self.gradients = None
        if name == "flex":
            torch._functorch.config.donated_buffer = False  # a compiled backward pass runs more than once
            self.compiled, self.score, self.mask = torch.compile(flex_attention, dynamic=False), *self.flex()

    def flex(self):
        case, slopes = self.case, self.case.slopes
        score = {"softcap": lambda score, b, h, q, k: CAP * torch.tanh(score / CAP),
                 "alibi": lambda score, b, h, q, k: score - slopes[h] * (q - k)}.get(case.kind)
        if case.kind == "bias":
            bias = self.leaves[3]
            score = lambda score, b, h, q, k: score + bias[b, h, q, k]
        if case.kind == "slopes":
            trained = self.leaves[3]
            score = lambda score, b, h, q, k: score - trained[h] * (q - k)
        if case.kind == "pair":
            pair, of_keys = self.leaves[3], case.of_keys
            score = lambda score, b, h, q, k: score + of_keys[b, k] + pair[h, q, k]
        if case.kind not in ("causal", "alibi", "window", "slopes"):
            return score, None
        mask = (lambda b, h, q, k: (q >= k) & (q - k < WINDOW)) if case.kind == "window" else (lambda b, h, q, k: q >= k)
        return score, create_block_mask(mask, None, None, case.length, case.length, device="cuda")

    def forward(self):
        if self.case.kind == "packed":
            q, k, v = (x[0] for x in self.leaves)
            self.o = torch.ops.aten._flash_attention_forward(q, k, v, self.case.offsets, self.case.offsets, max(PACKED), max(PACKED), 0.0, True,
                                                             False)[0][None]
            return
        q, k, v = (x.transpose(1, 2) for x in self.leaves[:3])
        grouped = self.case.heads != self.case.kv_heads
        if self.name == "flex":
            o = self.compiled(q, k, v, score_mod=self.score, block_mask=self.mask, enable_gqa=grouped)
        else:
            with sdpa_kernel(BACKENDS[self.name]):  # the backend is chosen here, also for the backward pass
                o = scaled_dot_product_attention(q, k, v, is_causal=self.case.causal, enable_gqa=grouped)
        self.o = o.transpose(1, 2)

    def backward(self):
        self.gradients = torch.autograd.grad(self.o, self.leaves, self.case.dout, retain_graph=True)

    def megabytes(self):
        self.gradients = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.backward()
        torch.cuda.synchronize()
        outputs = sum(x.numel() * x.element_size() for x in self.gradients)
        return (torch.cuda.max_memory_allocated() - before - outputs) / 1e6


class Case:
    """Inputs (batch, length, heads, head size) and the sides that take them."""

    def __init__(self, element, kind, size, batch, heads, kv_heads, length, flex=False, both=False):
        self.element, self.kind, self.size, self.batch = element, kind, size, batch
        self.heads, self.kv_heads, self.length, self.both, self.is_flex = heads, kv_heads, length, both, flex
        self.causal = kind in ("causal", "alibi", "packed", "slopes")
        self.last = slice(length - PACKED[-1], length) if kind == "packed" else slice(0, length)  # rows of the last sequence
        self.name = (f"{element}/{'flex/' if flex else ''}{kind}/D{size}/{batch}x{heads}"
                     + (f"({kv_heads})" if heads != kv_heads else "") + f"x{length}" + ("/both" if both else ""))
        self.flops = (3.5 if both else 2.5) * flops(batch, length, length, heads, size, self.causal)
        if kind == "window":
            self.flops = 2.5 * 4 * batch * heads * size * sum(min(query + 1, WINDOW) for query in range(length))

        if kind == "packed":
            self.flops = 2.5 * sum(flops(1, n, n, heads, size, True) for n in PACKED)

    def inputs(self):
        trained = {"bias": "bias", "pair": "bias", "slopes": "slopes"}.get(self.kind)
        return [self.q, self.k, self.v] + ([getattr(self, trained)] if trained else [])

    def make(self, sides, names):
        kind = ELEMENTS[self.element]
        self.q, self.k, self.v, self.dout = (torch.randn(self.batch, self.length, h, self.size, device="cuda", dtype=kind)
                                             for h in (self.heads, self.kv_heads, self.kv_heads, self.heads))
        self.slopes = torch.tensor([2 ** (-8 * (h + 1) / self.heads) for h in range(self.heads)], device="cuda")
        if self.kind == "bias":
            self.bias = torch.randn(self.batch, self.heads, self.length, self.length, device="cuda", dtype=kind)
        if self.kind == "pair":  # in fp32, so that the peer's gradient is in fp32 too
            self.bias = torch.randn(self.heads, self.length, self.length, device="cuda").to(kind).float()
            self.of_keys = torch.randn(self.batch, self.length, device="cuda", dtype=kind)
        begins = [sum(PACKED[:i]) for i in range(len(PACKED) + 1)]
        self.offsets = torch.tensor(begins, device="cuda", dtype=torch.int32)
        self.sides = {}
        for name, libraries_ in sides.items():
            for library in libraries_:
                try:
                    self.sides[name] = Giwa(self, library, name)
                    break
                except NotImplementedError:
                    continue
        for name in names if self.sides and self.kind != "dropout" else ():  # PyTorch's drops other weights
            if self.kind == "packed" and name != "flash":
                continue
            self.sides[name] = Torch(self, name)

    def renew(self):
        for x in (*self.inputs(), self.dout):
            x.normal_()
        if self.kind == "pair":
            self.bias.copy_(self.bias.half())
        if self.kind == "slopes":
            self.slopes.uniform_(0.01, 0.5)

    def exact(self, kind):
        """The gradients of the last sequence and kv head by PyTorch's unfused attention in this type: dq, dk and dv."""
        group = self.heads // self.kv_heads
        q, dout = (x[-1, self.last, -group:].transpose(0, 1).to(kind) for x in (self.q, self.dout))
        k, v = (x[-1, self.last, -1:].transpose(0, 1).to(kind).detach().requires_grad_() for x in (self.k, self.v))
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        length = q.shape[1]
        key = torch.arange(length, device="cuda")
        for begin in range(0, length, 2048):
            rows = slice(begin, begin + 2048)
            part = q[:, rows].detach().requires_grad_()
            distance = key[rows, None] - key
            score = part @ k.transpose(1, 2) / math.sqrt(self.size)
            if self.kind == "softcap":
                score = CAP * torch.tanh(score / CAP)
            if self.kind in ("alibi", "slopes"):
                score = score - self.slopes[-group:, None, None] * distance
            if self.kind == "bias":
                score = score + self.bias[-1, -group:, rows].float()
            if self.kind == "pair":
                score = score + self.bias[-group:, rows] + self.of_keys[-1].float()
            if self.causal or self.kind == "window":
                score = score.masked_fill((distance < 0) | (distance >= (WINDOW if self.kind == "window" else length)),
                                          float("-inf"))
            weights = score.softmax(-1)
            if self.kind == "dropout":
                heads = range(self.heads - group, self.heads)
                drop = torch.stack([kept(key[rows], key, head, self.batch - 1) for head in heads])
                weights = weights * drop * (256 / (256 - DROPPED))
            found = torch.autograd.grad(weights @ v, (part, k, v), dout[:, rows])
            dq[:, rows] = found[0]
            dk += found[1]
            dv += found[2]
        return dq, dk, dv

    def check(self):
        """The largest relative error of each side: the norm of the difference over that of the gradient."""
        group = self.heads // self.kv_heads
        wide = torch.float64 if self.element == "fp32" else torch.float32
        exact = self.exact(wide)
        distance = lambda a, b: ((a.to(wide) - b.to(wide)).norm() / b.to(wide).norm()).item()
        errors = {}
        for name, side in self.sides.items():
            own = [side.gradients[0][-1, self.last, -group:]] + [x[-1, self.last, -1:] for x in side.gradients[1:3]]
            errors[name] = max(distance(x.transpose(0, 1), y) for x, y in zip(own, exact))
        allowed = 2 * torch.finfo(self.q.dtype).eps  # P, dz and o are rounded to the type
        if self.element == "fp32":
            allowed = errors["unfused"] = max(distance(x, y) for x, y in zip(self.exact(self.q.dtype), exact))
        theirs_of = [x for x in self.sides.values() if not isinstance(x, Giwa)]
        for name, side in self.sides.items():
            if not isinstance(side, Giwa):
                continue
            most = 2 * torch.finfo(torch.float16).eps if "tf32" in name else allowed  # built with GIWA_BENCH_HOW=giwa::tf32
            assert errors[name] <= most, f"{self.name}: {name} is {errors[name]:.2g} from PyTorch's, more than {most:.2g}"
            for what, ours, theirs in zip(("dq", "dk", "dv", "dbias"), side.gradients, theirs_of[0].gradients if theirs_of else ()):
                far = distance(ours, theirs)  # NaN fails too
                assert far <= 2 * max(allowed, *errors.values()), f"{self.name}: {what} of {name} is {far:.2g} from the peer's"
        return errors

    def measure(self, rounds, milliseconds):
        """Seconds of a call, round by round, of each side; its error, and its memory in MB."""
        stream = torch.cuda.Stream()  # autograd runs a backward pass on the stream of its forward pass
        stream.wait_stream(torch.cuda.current_stream())
        forward, backward, spent, memory = {}, {}, {}, {}
        with torch.cuda.stream(stream):
            for name, side in list(self.sides.items()):
                try:
                    side.forward()
                    side.backward()
                    memory[name] = side.megabytes()
                except RuntimeError as error:  # a backend that does not take this case
                    print(f"# {self.name}: {name} has no answer: {str(error).splitlines()[0]}")
                    del self.sides[name]
            errors = self.check()
            for name, side in self.sides.items():
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                side.backward()
                end.record()
                end.synchronize()
                calls = max(1, min(20, round(milliseconds / begin.elapsed_time(end))))
                forward[name], backward[name] = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
                with torch.cuda.graph(forward[name], stream=stream):
                    side.forward()
                with torch.cuda.graph(backward[name], pool=forward[name].pool(), stream=stream):
                    for _ in range(calls):
                        if self.both:
                            side.forward()
                        side.backward()
                spent[name] = (calls, [])
            for round_ in range(rounds + 1):  # one to warm up
                self.renew()
                for name in (list(backward) if round_ % 2 else list(backward)[::-1]):
                    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    forward[name].replay()
                    begin.record()
                    backward[name].replay()
                    end.record()
                    end.synchronize()
                    if round_ > 0:
                        spent[name][1].append(begin.elapsed_time(end) * 1e-3 / spent[name][0])
        return {name: times for name, (_, times) in spent.items()}, errors, memory


def rows_of(case, spent, memory):
    """Rows for each side: those of giwa compared with each of PyTorch's, other libraries of giwa with the first; and its MB."""
    names = list(spent)
    for name in names:
        us = statistics.median(spent[name]) * 1e6
        figure = {"value": case.flops / us * 1e-6, "unit": "TFLOP/s", "us": us}
        ours = isinstance(case.sides[name], Giwa)
        compared = [x for x in names if ours and x != name and (not isinstance(case.sides[x], Giwa) or x == names[0])]
        for peer in compared or [None]:
            more = {}
            if peer:
                ratios = [theirs / own for theirs, own in zip(spent[peer], spent[name], strict=True)]
                more = {"ratio_to": peer, "ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
            yield report_rows.row("attention_backward", case.name, name, "speed", **figure, **more)
    for name in names:
        yield report_rows.row("attention_backward", case.name, name, "memory", memory[name], "MB")


def cases(arguments):
    listed = [(x, {}) for x in USUAL]
    if arguments.all or arguments.rows:
        listed += [(x, {}) for x in OTHERS] + [(x, {"both": True}) for x in BOTH]
    if arguments.fp32:
        listed = [(x, {}) for x in FP32]
    if arguments.flex:
        listed += [(x, {"flex": True}) for x in FLEX]
    for sizes, more in listed:
        case = Case(*sizes, **more)  # holds no tensors yet
        if re.search(arguments.rows, case.name):
            yield case


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", default="attention_backward.csv", help="where the figures go, in the columns of a report")
    parser.add_argument("--rows", default="", help="regular expression: which cases, as 'causal/D128' or '/both'")
    parser.add_argument("--all", action="store_true", help="bf16, grouped heads, other sizes and whole steps too")
    parser.add_argument("--flex", action="store_true", help="FlexAttention's cases too; compiling it takes a minute or two")
    parser.add_argument("--any-order", action="store_true", help="also with attention_backward_options::any_order")
    parser.add_argument("--split-heads", action="store_true", help="also with attention_backward_options::split_heads, where kv heads are fewer")
    parser.add_argument("--own-score", action="store_true", help="also with a score modifier that does nothing")
    parser.add_argument("--fp32", action="store_true", help="fp32 instead of 16 bits")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ms", type=float, default=6, help="what a graph takes, about")
    parser.add_argument("--library", dest="libraries", action="append", default=[], metavar="NAME=PATH",
                        help="a library built from attention_backward_entries.cu")
    parser.add_argument("--architecture", default="", help="what to build for, as 90a or 80; default: the GPU's. 90 has no Hopper kernels: it measures those of mma.sync")
    parser.add_argument("--backends", help="PyTorch's, of cudnn, flash; default: both, or in fp32 efficient")
    arguments = parser.parse_args()
    ours = libraries(arguments)
    more = [x for x, wanted in ((ANY_ORDER, arguments.any_order), (HEADS_SPLIT, arguments.split_heads), (OWN_SCORE, arguments.own_score)) if wanted]
    ours.update({f"{name}, {x}": found for x in more for name, found in list(ours.items())})
    chosen = arguments.backends if arguments.backends is not None else "efficient" if arguments.fp32 else "cudnn,flash"
    backends = [x for x in chosen.split(",") if x]
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, "
          f"{arguments.rounds} rounds; TFLOP/s, how many times as fast {next(iter(ours))} is, MB, relative errors")
    rows, ratios = [], {}
    Path(arguments.csv).write_text(report_rows.csv_text(rows), encoding="utf-8")
    for case in cases(arguments):
        case.make(ours, ["flex"] if case.is_flex else backends)
        if not case.sides:
            print(f"# {case.name}: no library has it")
            continue
        spent, errors, memory = case.measure(arguments.rounds, arguments.ms)
        rows += rows_of(case, spent, memory)
        found = [r for r in rows if r["case"] == case.name and r["metric"] == "speed"]
        speeds = {r["contender"]: f"{r['contender']} {r['value']:.0f}" for r in found}
        compared = [r for r in found if r["ratio"]]
        for r in compared:
            ratios.setdefault((r["contender"], r["ratio_to"]), []).append(r["ratio"])
        print(f"{case.name:<34}" + " ".join(speeds.values()) + " |"
              + "".join(f" {r['contender'] if r['contender'] != found[0]['contender'] else ''}/{r['ratio_to']} {r['ratio']:.3f}"
                        for r in compared)
              + " | " + "/".join(f"{x:.0f}" for x in memory.values()) + " MB | "
              + "/".join(f"{x:.1e}" for x in errors.values()), flush=True)
        Path(arguments.csv).write_text(report_rows.csv_text(rows), encoding="utf-8")
        case.sides = {}
        del case
        torch.cuda.empty_cache()
    for (name, peer), of_cases in ratios.items():
        print(f"# {name}/{peer}: geometric mean {statistics.geometric_mean(of_cases):.3f} of {len(of_cases)} cases, "
              f"lowest {min(of_cases):.3f}")


if __name__ == "__main__":
    main()
