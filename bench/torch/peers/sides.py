# SPDX-License-Identifier: MIT
"""How each peer is loaded and called. Tensors are (batch, length, heads, head size), or packed (rows, heads, head size)."""
import ctypes
import importlib

import torch

from attention import CAP, WINDOW


def first_line(error):
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:220]


def empty(*shape, dtype=torch.float16):
    return torch.empty(*shape, device="cuda", dtype=dtype)


def nans(*shape, dtype=torch.float16):
    """What a side writes to: what it leaves out fails the comparison."""
    return torch.full(shape, float("nan"), device="cuda", dtype=dtype)


def lazily(make):
    """A side that `make` returns at the first call, which is not captured: a library that does not take a cell fails there."""
    made = []

    def call(s):
        if not made:
            made.append(make())
        return made[0](s)
    return call


class CudnnGraph:
    """cuDNN through its frontend: masks aligned to the last query and key, windows, packed sequences, other head sizes of v, and e4m3
    with unit scales. The graph is built at the first call, which must not be captured."""
    handle = None

    def __init__(self, q, k, v, causal=False, window=0, lengths=None):
        self.q, self.k, self.v, self.causal, self.window, self.lengths, self.graph = q, k, v, causal, window, lengths, None

    def build(self):
        import cudnn
        q, k, v, lengths = self.q, self.k, self.v, self.lengths
        small = q.dtype == torch.float8_e4m3fn
        kind = cudnn.data_type.BFLOAT16 if q.dtype == torch.bfloat16 else cudnn.data_type.FP8_E4M3 if small else cudnn.data_type.HALF
        if CudnnGraph.handle is None:
            CudnnGraph.handle = cudnn.create_handle()
        g = cudnn.pygraph(io_data_type=kind, intermediate_data_type=cudnn.data_type.FLOAT, compute_data_type=cudnn.data_type.FLOAT,
                          handle=CudnnGraph.handle)
        self.o, self.given, more = nans(*q.shape[:-1], v.shape[-1]).to(q.dtype), {}, {}
        if self.causal or self.window:
            at_end = lengths is None and q.shape[1] != k.shape[1]
            more["diagonal_alignment"] = cudnn.diagonal_alignment.BOTTOM_RIGHT if at_end else cudnn.diagonal_alignment.TOP_LEFT
            more["diagonal_band_right_bound"] = 0
        if self.window:
            more["diagonal_band_left_bound"] = self.window
        heads_first = (lambda x: x) if lengths else (lambda x: x.transpose(1, 2))
        if lengths is None:
            tensors = [g.tensor(dim=list(x.shape), stride=list(x.stride()), data_type=kind) for x in map(heads_first, (q, k, v))]
            shape, stride = list(heads_first(self.o).shape), list(heads_first(self.o).stride())
        else:
            n, most, (_, h, d) = len(lengths), max(lengths), q.shape
            make = lambda values: torch.tensor(values, device="cuda", dtype=torch.int32).view(-1, 1, 1, 1)
            offsets, counts = make([sum(lengths[:i]) * h * d for i in range(n + 1)]), make(lengths)
            at, count = g.tensor_like(offsets), g.tensor_like(counts)
            shape, stride = [n, h, most, d], [most * h * d, d, h * d, 1]
            tensors = [g.tensor(dim=shape, stride=stride, data_type=kind) for _ in range(3)]
            for x in tensors:
                x.set_ragged_offset(at)
            more.update(use_padding_mask=True, seq_len_q=count, seq_len_kv=count)
            self.given.update({at: offsets, count: counts})
        if small:
            o = self.with_scales(g, tensors)
        else:
            o, _ = g.sdpa(name="sdpa", q=tensors[0], k=tensors[1], v=tensors[2], is_inference=True, attn_scale=q.shape[-1] ** -0.5, **more)
        o.set_output(True).set_dim(shape).set_stride(stride)
        if lengths:
            o.set_ragged_offset(at)
        g.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        self.given.update(zip([*tensors, o], (heads_first(x) for x in (q, k, v, self.o))))
        self.graph, self.space = g, empty(max(1, g.get_workspace_size()), dtype=torch.uint8)

    def with_scales(self, g, tensors):
        """The graph's o in e4m3. P is multiplied by 256, so that few weights are too small for e4m3."""
        import cudnn
        number = {"data_type": cudnn.data_type.FLOAT, "dim": [1, 1, 1, 1], "stride": [1, 1, 1, 1]}
        given = {"descale_q": 1, "descale_k": 1, "descale_v": 1, "descale_s": 1 / 256, "scale_s": 256, "scale_o": 1}
        scales = {name: g.tensor(name=name, **number) for name in given}
        o, _, *largest = g.sdpa_fp8(q=tensors[0], k=tensors[1], v=tensors[2], **scales, is_inference=True, use_causal_mask=self.causal,
                                    attn_scale=self.q.shape[-1] ** -0.5, name="sdpa")
        for x in largest:
            x.set_output(True).set_dim([1, 1, 1, 1]).set_stride([1, 1, 1, 1]).set_data_type(cudnn.data_type.FLOAT)
        one = lambda x: torch.full((1, 1, 1, 1), float(x), device="cuda")
        self.given.update({scales[name]: one(x) for name, x in given.items()} | {x: one(0) for x in largest})
        return o

    def __call__(self, _=0):
        import cudnn
        if self.graph is None:
            self.build()
        cudnn.set_stream(handle=CudnnGraph.handle, stream=torch.cuda.current_stream().cuda_stream)
        self.graph.execute(self.given, self.space, handle=CudnnGraph.handle)
        return self.o


class Peers:
    """The peers that can be loaded, of `names`: each is a module, or None."""

    def __init__(self, folder, note, names):
        self.folder = folder
        self.frontend = self.fa3 = self.fa3_e4m3 = self.fa4 = self.flashinfer = None
        # The frontend first: with libcudart 12 and 13 in one process it throws, unless it has found its own before.
        for name in [x for x in ("frontend", "fa3", "fa3_e4m3", "fa4", "flashinfer") if x in names]:
            try:
                getattr(self, f"load_{name}")()
                note(name, "is ready")
            except Exception as error:  # a peer is optional, whatever it throws
                note(f"# without {name}: {first_line(error)}")
        note(torch.cuda.get_device_name(), "torch", torch.__version__, "cuDNN", torch.backends.cudnn.version())

    def load_frontend(self):
        import cudnn
        x = torch.randn(1, 256, 2, 64, device="cuda", dtype=torch.float16)
        assert torch.isfinite(CudnnGraph(x, x, x)()).all()
        self.frontend = cudnn

    def load_fa3(self):
        ctypes.CDLL(str(self.folder / "fa3/libcudart.so.12"), mode=ctypes.RTLD_GLOBAL)
        torch.ops.load_library(str(self.folder / "fa3/fa3.so"))
        self.fa3 = torch.ops.flash_attn_3

    def load_fa3_e4m3(self):
        torch.ops.load_library(str(self.folder / "fa3/fa3_e4m3.so"))
        self.fa3_e4m3 = torch.ops.fa3_fwd

    def load_fa4(self):
        self.fa4 = importlib.import_module("flash_attn.cute.interface")

    def load_flashinfer(self):
        self.flashinfer = importlib.import_module("flashinfer")

    def fa3_forward(self, q, k, v, causal=False, window=0, splits=1, offsets=None, longest=None, softcap=0.0, scale=None, **more):
        """Returns o and lse. splits: 1 is what FlashAttention-3's flash_attn_func takes, 0 lets it choose."""
        packed = {"cu_seqlens_q": offsets, "cu_seqlens_k": offsets, "max_seqlen_q": longest, "max_seqlen_k": longest}
        return self.fa3.fwd(q, k, v, softmax_scale=scale or q.shape[-1] ** -0.5, is_causal=causal, num_splits=splits, softcap=softcap,
                            window_size_left=window - 1 if window else -1, window_size_right=0 if window else -1,
                            is_rotary_interleaved=True, **(packed if longest else {}), **more)[:2]

    def fa4_forward(self, q, k, v, causal=False, window=0, offsets=None, longest=None, softcap=0.0, **more):
        """Returns o and, if asked with return_lse, lse."""
        if longest:
            more.update(cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=longest, max_seqlen_k=longest)
        if window:
            more.update(window_size_left=window - 1, window_size_right=0)
        if softcap:
            more["softcap"] = softcap
        return self.fa4._flash_attn_fwd(q, k, v, causal=causal, **more)[:2]

    def forward(self, q, k, v, **mask):
        """{side: call} of FlashAttention-3 and -4. mask: causal, window, softcap, or offsets and longest for packed sequences."""
        calls = {}
        if self.fa3:
            calls["fa3"] = lambda s: self.fa3_forward(q, k, v, **mask)[0]
        if self.fa4:
            calls["fa4"] = lambda s: self.fa4_forward(q, k, v, **mask)[0]
        return calls

    def forward_e4m3(self, q, k, v, causal=False, splits=1, scales=None):
        """FlashAttention-3 with q, k and v in e4m3. scales: of each, (batch, kv heads); None: 1."""
        scales = scales or [torch.ones(q.shape[0], k.shape[2], device="cuda")] * 3
        return self.fa3_e4m3.fwd(q, k, v, **dict(zip(("q_descale", "k_descale", "v_descale"), scales)), softmax_scale=q.shape[-1] ** -0.5,
                                 is_causal=causal, num_splits=splits, is_rotary_interleaved=True)[0]

    def backward(self, name, case):
        """A side of attention_backward.py's Case: fa3, fa3_fixed, fa4 or fa4_fixed; None if it is not there or has no such kind."""
        made = {"fa3": self.fa3 and Flash3Backward, "fa4": self.fa4 and Flash4Backward}.get(name[:3])
        return made(case, self, name.endswith("_fixed")) if made and case.kind in KINDS else None


# {kind of attention_backward.py: what forward takes}
KINDS = {"full": {}, "causal": {"causal": True}, "window": {"window": WINDOW}, "softcap": {"softcap": CAP}, "packed": {"causal": True}}


class Flash3Backward:
    """A side of attention_backward.py's Case. fixed: the pass that adds in the same order each time."""

    def __init__(self, case, peers, fixed=False):
        from attention_backward import PACKED
        self.peers, self.fixed, self.mask, self.packed = peers, fixed, dict(KINDS[case.kind]), case.kind == "packed"
        if self.packed:
            self.mask.update(offsets=case.offsets, longest=max(PACKED))
        self.gradients = [torch.full_like(x, float("nan")) for x in case.inputs()]
        rows = (lambda x: x[0]) if self.packed else (lambda x: x)
        self.q, self.k, self.v, self.dout, self.dq, self.dk, self.dv = map(rows, (*case.inputs(), case.dout, *self.gradients))

    def forward(self):
        self.o, self.lse = self.peers.fa3_forward(self.q, self.k, self.v, **self.mask)

    def backward(self):
        mask = dict(self.mask)
        window, offsets, longest = (mask.pop(x, None) for x in ("window", "offsets", "longest"))
        more = {"cu_seqlens_q": offsets, "cu_seqlens_k": offsets, "max_seqlen_q": longest, "max_seqlen_k": longest} if longest else {}
        self.peers.fa3.bwd(self.dout, self.q, self.k, self.v, self.o, self.lse, dq=self.dq, dk=self.dk, dv=self.dv,
                           softmax_scale=self.q.shape[-1] ** -0.5, is_causal=mask.pop("causal", False), deterministic=self.fixed,
                           window_size_left=window - 1 if window else -1, window_size_right=0 if window else -1, **mask, **more)

    def megabytes(self):
        return 0.0


class Flash4Backward(Flash3Backward):
    def forward(self):
        self.o, self.lse = self.caught(self.peers.fa4_forward, self.q, self.k, self.v, **self.mask, return_lse=True)

    def backward(self):
        mask = dict(self.mask)
        window, offsets, longest = (mask.pop(x, None) for x in ("window", "offsets", "longest"))
        if window:
            mask.update(window_size_left=window - 1, window_size_right=0)
        if longest:
            mask.update(cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=longest, max_seqlen_k=longest)
        self.caught(self.peers.fa4._flash_attn_bwd, self.q, self.k, self.v, self.o, self.dout, self.lse, dq=self.dq, dk=self.dk,
                    dv=self.dv, deterministic=self.fixed, **mask)

    @staticmethod
    def caught(call, *arguments, **more):
        try:
            return call(*arguments, **more)
        except Exception as error:  # a RuntimeError is how a side says that it does not take a case
            raise RuntimeError(first_line(error)) from error


def flashinfer_decode(module, kind, q, tables, page, keys, kv_heads, kv_type):
    """A call with k and v of (pages, page, kv heads, head size). kind: "" (CUDA cores), "tc" (tensor cores), "xqa"."""
    (batch, _, heads, size), space = q.shape, torch.zeros(256 << 20, device="cuda", dtype=torch.uint8)
    if kind == "xqa":
        lengths = torch.full((batch,), keys, device="cuda", dtype=torch.int32)
        return lambda k, v: module.decode.xqa_batch_decode_with_kv_cache(q[:, 0], (k, v), space, tables, lengths, keys,
                                                                        bmm1_scale=size ** -0.5, bmm2_scale=1.0)[:, None]
    more = {"use_tensor_cores": True, "backend": "fa2"} if kind else {}
    wrapper, n = module.BatchDecodeWithPagedKVCacheWrapper(space, "NHD", **more), keys // page
    wrapper.plan(torch.arange(0, (batch + 1) * n, n, dtype=torch.int32), tables.reshape(-1).contiguous(),
                 torch.full((batch,), page, dtype=torch.int32), heads, kv_heads, size, page, q_data_type=q.dtype, kv_data_type=kv_type)
    return lambda k, v: wrapper.run(q[:, 0], (k, v))[:, None]


def flashinfer_latent(module, q, tables, page, keys, scale):
    """A call of the MLA kernel for sm_90 with rows of (pages, page, 576). q (sequences, heads, 576)."""
    batch, heads, _ = q.shape
    wrapper = module.mla.BatchMLAPagedAttentionWrapper(torch.zeros(256 << 20, device="cuda", dtype=torch.uint8), backend="fa3")
    steps = torch.arange(batch + 1, device="cuda", dtype=torch.int32)
    wrapper.plan(steps, steps * tables.shape[1], tables.reshape(-1).contiguous(), torch.full((batch,), keys, device="cuda", dtype=torch.int32),
                 heads, 512, 64, page, False, scale, q.dtype, q.dtype)
    nope, rope = q[..., :512], q[..., 512:]
    return lambda rows: wrapper.run(nope, rope, rows[..., :512], rows[..., 512:])
