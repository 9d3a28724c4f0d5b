# SPDX-License-Identifier: MIT
"""Attention over a sequence whose tokens are divided among the ranks of a torch.distributed process group.

  ring = giwa_torch.ring.Ring(tokens)         # all ranks
  q, k, v = (ring.slice(x) for x in (q, k, v))   # (batch, tokens, heads, head size), or load only what ring.positions says
  o = ring.attention(q, k, v, is_causal=True)    # this rank's rows, with gradients

On GPUs it takes the NCCL communicator that the process group has. On the CPU it sends by the process group, such as gloo's.
"""
import ctypes
import os
import weakref
from pathlib import Path

import torch
import torch.distributed as dist

from . import build

ELEMENTS = {torch.float16: "giwa::fp16", torch.bfloat16: "giwa::bf16", torch.float32: "float"}


class _Call(ctypes.Structure):
    _fields_ = ([(x, ctypes.c_void_p) for x in ("q", "k", "v", "o", "lse", "dout", "dq", "dk", "dv")]
                + [(x, ctypes.c_int64) for x in ("batch", "rows", "heads", "kv_heads", "tokens")]
                + [("zigzag", ctypes.c_bool), ("any_order", ctypes.c_bool), ("scale", ctypes.c_double), ("stream", ctypes.c_void_p),
                   ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_int64)])


_SEND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)
_WAIT = ctypes.CFUNCTYPE(ctypes.c_int)


class _Transport(ctypes.Structure):
    _fields_ = [("rank", ctypes.c_int), ("size", ctypes.c_int), ("send", _SEND), ("receive", _SEND), ("wait", _WAIT)]


class _Messages:
    """Sends memory of the CPU by a process group."""

    def __init__(self, group):
        self.group, self.started, self.errors = group, [], []
        self.transport = _Transport(dist.get_rank(group), dist.get_world_size(group), _SEND(self.starting(dist.isend, "group_dst")),
                                    _SEND(self.starting(dist.irecv, "group_src")), _WAIT(self.wait))

    def starting(self, start, peer_argument):
        def call(data, size, peer):
            memory = torch.frombuffer((ctypes.c_byte * size).from_address(data), dtype=torch.uint8)
            return self.caught(lambda: self.started.append(start(memory, group=self.group, **{peer_argument: peer})))
        return call

    def wait(self):
        started, self.started = self.started, []
        return max([self.caught(x.wait) for x in started], default=0)  # of all: their memory is used again after the call

    def caught(self, call):
        try:
            call()
            return 0
        except Exception as error:  # it cannot leave a callback
            self.errors.append(error)
            return 1


def _nccl_folder():
    if "NCCL_ROOT" in os.environ:
        return Path(os.environ["NCCL_ROOT"])
    import nvidia.nccl  # the package that PyTorch brings
    return Path(list(nvidia.nccl.__path__)[0])


def _library(device, heads, dtype, head_size, causal):
    architecture = build.architecture_of(device) if device.type == "cuda" else None
    name = "_".join(map(str, ("heads" if heads else "ring", ELEMENTS[dtype].split(":")[-1], head_size, int(causal),
                              architecture or build.host_processor())))
    with build.locks[name]:
        what = (f"ring attention{' by heads' if heads else ''}, {str(dtype).removeprefix('torch.')}, head size {head_size}, "
                f"{'causal' if causal else 'no mask'}, for ")
        flags = ["-std=c++20", "-O3", "-shared", f"-I{build.include_folder()}", f"-DGIWA_RING_HEADS={int(heads)}",
                 f"-DGIWA_RING_ELEMENT={ELEMENTS[dtype]}", f"-DGIWA_RING_HEAD_SIZE={head_size}",
                 f"-DGIWA_RING_CAUSAL={int(causal)}", build.HERE / "ring.cu"]
        if architecture is None:
            path = build.compiled(name, f"{what}this CPU: about 10 seconds",
                                  [build.host_compiler(), "-x", "c++", "-march=native", "-fPIC", "-fvisibility=hidden",
                                   "-isystem", build.toolkit_headers(), *flags])
        else:
            nccl = _nccl_folder()
            path = build.compiled(name, f"{what}sm_{architecture}: about 20 seconds",
                                  [build.nvcc(), "-Xcompiler=-fPIC,-fvisibility=hidden",
                                   f"-gencode=arch=compute_{architecture},code=sm_{architecture}", "-isystem", nccl / "include",
                                   *flags, f"-L{nccl / 'lib'}", "-l:libnccl.so.2"])
        library = ctypes.CDLL(str(path))
        library.giwa_ring_workspace_bytes.restype = ctypes.c_int64
        library.giwa_ring_close.argtypes = [ctypes.c_void_p]
        return library


def _uses_nccl(group):
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        return False
    try:  # the name of a group's backend may be "undefined", as that of init_device_mesh
        return isinstance(group._get_backend(torch.device("cuda")), dist.ProcessGroupNCCL)
    except RuntimeError:
        return False


class Ring:
    """The ranks of a process group (None: all), and which of `tokens` tokens each has: two pieces of 2 n for n ranks, which suits
    causal attention, or with zigzag=False one of n. `device` is the GPU of this process, by default the current one if the group
    uses NCCL, or "cpu". Every rank makes the same calls in the same order."""

    def __init__(self, tokens, group=None, *, zigzag=True, device=None):
        self.group, self.tokens, self.zigzag = group or dist.group.WORLD, tokens, zigzag
        self.rank, self.ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        if device is None:
            device = f"cuda:{torch.cuda.current_device()}" if _uses_nccl(self.group) else "cpu"
        self.device = torch.device(device)
        self.libraries = {}

    # --- Slices --------------------------------------------------------------------------------------------------------

    def positions_of(self, rank):
        """The tokens of a rank, in the order of its rows: piece r, and of 2 n also piece 2 n - 1 - r, as giwa::sequence_slices has them."""
        pieces = 2 * self.ranks if self.zigzag else self.ranks
        own = [rank, pieces - 1 - rank] if self.zigzag else [rank]
        return torch.cat([torch.arange(self.tokens * i // pieces, self.tokens * (i + 1) // pieces) for i in own])

    @property
    def positions(self):
        return self.positions_of(self.rank)

    def slice(self, whole, dim=1):
        """This rank's tokens of a tensor that has all."""
        return whole.index_select(dim, self.positions.to(whole.device))

    def gather(self, own, dim=1):
        """The whole tensor on every rank, from the rows of each; without gradients."""
        positions = [self.positions_of(r) for r in range(self.ranks)]
        own = own.detach().movedim(dim, 0).contiguous()
        parts = [own.new_empty(len(p), *own.shape[1:]) for p in positions]
        parts[self.rank] = own
        for r, part in enumerate(parts):  # all_gather needs equal sizes
            dist.broadcast(part, group=self.group, group_src=r)
        whole = own.new_empty(self.tokens, *own.shape[1:])
        for p, part in zip(positions, parts):
            whole[p.to(own.device)] = part
        return whole.movedim(0, dim)

    # --- Attention -----------------------------------------------------------------------------------------------------

    def attention(self, q, k, v, *, is_causal=False, scale=None, heads=False):
        """The rows of o of this rank's tokens. q: (batch, tokens of this rank, heads, head size), k and v with kv heads, in float16,
        bfloat16 or float32. Keys and values travel around the ring, or with heads=True all ranks exchange heads, of which kv heads
        must be a multiple of the ranks. The gradient of q has the same bits in every run with
        torch.use_deterministic_algorithms(True), the rest always."""
        rows = len(self.positions)
        for name, x in {"q": q, "k": k, "v": v}.items():
            if x.dim() != 4 or x.size(1) != rows or x.device != self.device or x.dtype not in ELEMENTS or x.dtype != q.dtype:
                raise ValueError(f"giwa_torch: {name} must be (batch, {rows}, heads, head size) of one type, float16, bfloat16 or float32, "
                                 f"on {self.device}; it is {tuple(x.shape)}, {x.dtype}, on {x.device}")
        if k.shape != v.shape or q.shape[:2] != k.shape[:2] or q.size(3) != k.size(3) or k.size(2) == 0 or q.size(2) % k.size(2):
            raise ValueError(f"giwa_torch: the shapes of q, k and v do not agree: {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}")
        if not 1 <= q.size(3) <= 512:  # before rank 0 compiles, for which the others wait
            raise ValueError(f"giwa_torch: the head size must be 1 to 512, it is {q.size(3)}")
        library, comm = self.communicator(heads, q.dtype, q.size(3), is_causal)
        return _Attention.apply(q, k, v, self, library, comm, q.size(3) ** -0.5 if scale is None else float(scale))

    def communicator(self, *variant):
        if variant not in self.libraries:
            if self.rank == 0:  # others find what it compiled, if they have the same disk
                _library(self.device, *variant)
            # NCCL makes its communicator at the first call, if not before.
            dist.barrier(self.group, device_ids=[self.device.index] if self.device.type == "cuda" else None)
            library = _library(self.device, *variant)
            comm, text = ctypes.c_void_p(), ctypes.create_string_buffer(500)
            if self.device.type == "cuda":
                backend = self.group._get_backend(self.device)
                of_group = ctypes.c_void_p(backend._comm_ptr())
                if not of_group:
                    raise RuntimeError(f"giwa_torch: the process group has no NCCL communicator of {self.device}")
            else:
                self.messages = getattr(self, "messages", None) or _Messages(self.group)
                of_group = ctypes.byref(self.messages.transport)
            with self.current():
                _check(self, library.giwa_ring_open(of_group, ctypes.byref(comm), text, ctypes.c_size_t(len(text))), text)
            weakref.finalize(self, library.giwa_ring_close, comm)
            self.libraries[variant] = library, comm
        return self.libraries[variant]

    def current(self):
        """The GPU of this rank is the current one; nothing for the CPU."""
        return torch.cuda.device(self.device.index if self.device.type == "cuda" else -1)

    def run(self, library, comm, scale, tensors, shapes, backward):
        (batch, rows, heads, _), kv_heads = shapes
        call = _Call(batch=batch, rows=rows, heads=heads, kv_heads=kv_heads, tokens=self.tokens, zigzag=self.zigzag, scale=scale,
                     any_order=not torch.are_deterministic_algorithms_enabled(), **{name: x.data_ptr() for name, x in tensors.items()})
        if self.device.type == "cuda":
            call.stream = torch.cuda.current_stream(self.device).cuda_stream
        size = library.giwa_ring_workspace_bytes(comm, ctypes.byref(call), ctypes.c_bool(backward))
        workspace = torch.empty(size, dtype=torch.uint8, device=self.device)  # used in the order of the stream
        call.workspace, call.workspace_bytes = workspace.data_ptr(), size
        text = ctypes.create_string_buffer(500)
        with self.current():
            code = library.giwa_ring_run(comm, ctypes.byref(call), ctypes.c_bool(backward), text, ctypes.c_size_t(len(text)))
        _check(self, code, text)


def _check(ring, code, text):
    messages = getattr(ring, "messages", None)
    errors, said = [], text.value.decode()
    if messages:
        errors, messages.errors = messages.errors, []
    if code:
        said += "".join(f"; {type(x).__name__}: {x}" for x in errors)
        raise (ValueError if code == 1 else RuntimeError)(f"giwa_torch: {said}") from (errors[0] if errors else None)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, ring, library, comm, scale):
        q, k, v = (x.contiguous() for x in (q, k, v))
        o = torch.empty_like(q)
        lse = q.new_empty(q.size(0), q.size(2), q.size(1), dtype=torch.float32)
        ring.run(library, comm, scale, {"q": q, "k": k, "v": v, "o": o, "lse": lse}, (q.shape, k.size(2)), False)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.call = ring, library, comm, scale
        return o

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout):
        ring, library, comm, scale = ctx.call
        tensors = dict(zip(("q", "k", "v", "o", "lse"), ctx.saved_tensors))
        gradients = {f"d{x}": torch.empty_like(tensors[x]) for x in "qkv"}
        tensors |= {"dout": dout.contiguous(), **gradients}
        ring.run(library, comm, scale, tensors, (tensors["q"].shape, tensors["k"].size(2)), True)
        return *gradients.values(), None, None, None, None
