# SPDX-License-Identifier: MIT
"""Libraries that peer.h describes, for attention.py and attention_backward.py: --peer NAME=PATH."""
import ctypes
from pathlib import Path

ELEMENTS = ("fp16", "bf16")
NUMBERS = ("element", "causal", "batch", "queries", "keys", "heads", "kv_heads", "head_size")
POINTERS = ("q", "k", "v", "dout", "o", "dq", "dk", "dv", "lse", "workspace", "stream")


class Call(ctypes.Structure):  # peer_call in peer.h
    _fields_ = [*((name, ctypes.c_longlong) for name in NUMBERS), *((name, ctypes.c_void_p) for name in POINTERS)]


def load(given):
    """{name: library} of NAME=PATH."""
    found = {}
    for name, path in (x.split("=", 1) for x in given):
        if not name.isidentifier():
            raise SystemExit(f"--peer {name}: a name has letters, digits and _")
        found[name] = ctypes.CDLL(str(Path(path).resolve()))
        for which in ("forward", "backward"):
            for entry in (f"peer_{which}", f"peer_{which}_workspace"):
                getattr(found[name], entry).restype = ctypes.c_longlong
                getattr(found[name], entry).argtypes = [ctypes.POINTER(Call)]
    return found


class Peer:
    """One problem of a library. Its tensors are anything with data_ptr(); `allocate(bytes)` gives zeros on the GPU."""

    def __init__(self, library, allocate, element, **sizes):
        self.entries, self.allocate, self.scratch, self.kept = library, allocate, {}, {}
        self.is_known = element in ELEMENTS
        self.call = Call(element=ELEMENTS.index(element) if self.is_known else -1, **{k: int(v) for k, v in sizes.items()})

    def bytes(self, which):
        """Of workspace; -1 if the library does not have the problem."""
        return getattr(self.entries, f"peer_{which}_workspace")(self.call) if self.is_known else -1

    def run(self, which, stream, **tensors):
        """Enqueues `which`, "forward" or "backward". Tensors stay known to later calls."""
        self.kept.update(tensors)
        if which not in self.scratch:
            self.scratch[which] = self.allocate(self.bytes(which))
        for name, tensor in {**self.kept, "workspace": self.scratch[which]}.items():
            setattr(self.call, name, tensor.data_ptr())
        self.call.stream = stream
        if code := getattr(self.entries, f"peer_{which}")(self.call):
            raise RuntimeError(f"a peer's {which} call answers {code}")
