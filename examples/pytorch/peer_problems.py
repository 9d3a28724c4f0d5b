# SPDX-License-Identifier: MIT
"""The problems of tests of attention of TransformerEngine and xFormers, as tests of giwa_torch (peer_tests.py).

Those tests need their libraries, so only their tables are read: each ModelConfig of TransformerEngine's
tests/pytorch/attention/test_attention.py, or each shape of xFormers' tests/test_mem_eff_attention.py with one of its biases, is a forward
call and its gradients, compared with PyTorch in float32, together with those of PyTorch's unfused attention in the same type. GIWA_PEER_CHECKOUT is the checkout.
"""
import ast
import math
import os
import random
import types
import zlib
from pathlib import Path

import giwa_torch
import pytest
import torch

NAMES = ("batch_size", "max_seqlen_q", "num_heads", "head_dim_qk")
DEFAULTS = {"softmax_type": "vanilla", "dropout_p": 0.0, "attn_mask_type": "no_mask", "attn_bias_type": "no_bias", "alibi_type": "none",
            "bias_shape": "1hss", "window_size": (-1, -1), "return_max_logit": False, "num_splits": 1, "factor": 1}
CHECKOUT = Path(os.environ["GIWA_PEER_CHECKOUT"])
OF_XFORMERS = CHECKOUT / "tests/test_mem_eff_attention.py"
BIASES = {  # of xFormers by name
    "none": {},
    "LowerTriangularMask": {"attn_mask_type": "causal"},
    "LowerTriangularFromBottomRightMask": {"attn_mask_type": "causal_bottom_right"},
    "LowerTriangularFromBottomRightLocalAttentionMask": {"attn_mask_type": "causal_bottom_right", "window_size": (10, -1)},
    "LocalAttentionFromBottomRightMask": {"window_size": (5, 7)},
    "Tensor": {"attn_bias_type": "post_scale_bias", "bias_shape": "bhss"},
    "LowerTriangularMaskWithTensorBias": {"attn_mask_type": "causal", "attn_bias_type": "post_scale_bias", "bias_shape": "bhss"},
    "BlockDiagonalMask": {"attn_mask_type": "padding"},
    "BlockDiagonalCausalFromBottomRightMask": {"attn_mask_type": "padding_causal_bottom_right"}}


def xformers_configs():
    """Its function of shapes, for an operator without limits, with a bias drawn for each shape as there."""
    name = "generate_test_shapes_B_Mq_Mkv_H_K_Kv"
    function = next(x for x in ast.parse(OF_XFORMERS.read_text()).body if getattr(x, "name", "") == name)
    op = types.SimpleNamespace(_TEST_BATCH_SIZES=(1, 300), _TEST_K=(32, 128), SUPPORTED_MIN_K=1, SUPPORTED_MAX_K=512,
                               SUPPORTS_DIFFERENT_VALUE_EMBED=True, shape_not_supported_reasons=lambda *_, **__: [])
    kernels = types.SimpleNamespace(FwOp=op, BwOp=op)
    names = {"random": random, "fmha": types.SimpleNamespace(cutlass=kernels, cutlass_blackwell=kernels, flash=kernels, ck=kernels)}
    exec(compile(ast.Module([function], []), str(OF_XFORMERS), "exec"), names)
    draw = random.Random(0)
    for batch, rows, keys, heads, size, size_v in dict.fromkeys(names[name](op)):
        bias = draw.choice(list(BIASES))
        if "BottomRight" in bias:
            keys = max(rows, keys)
        if bias not in ("none", "LowerTriangularMask"):
            batch = min(batch, 12)
        yield pytest.param({**DEFAULTS, "name": "", "batch_size": batch, "max_seqlen_q": rows, "max_seqlen_kv": keys, "num_heads": heads,
                            "num_gqa_groups": heads, "head_dim_qk": size, "head_dim_v": size_v, "factor": 3, **BIASES[bias]},
                           id=f"{bias}-{batch}-{rows}-{keys}-{heads}-{size}-{size_v}")


def transformer_engine_configs():
    tree = ast.parse((CHECKOUT / "tests/pytorch/attention/test_attention.py").read_text())
    for table in tree.body:
        if not (isinstance(table, ast.Assign) and isinstance(table.value, ast.Dict)):
            continue
        for key, call in zip(table.value.keys, table.value.values):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "ModelConfig":
                given = dict(zip(NAMES, (ast.literal_eval(x) for x in call.args)))
                given.update({x.arg: ast.literal_eval(x.value) for x in call.keywords})
                config = {**DEFAULTS, "name": table.targets[0].id.removeprefix("model_configs_"), **given}
                config.setdefault("max_seqlen_kv", config["max_seqlen_q"])
                config.setdefault("num_gqa_groups", config["num_heads"])
                config.setdefault("head_dim_v", config["head_dim_qk"])
                yield pytest.param(config, id=f"{config['name']}-{key.value}")


def slopes_of(heads):
    """As in the paper of ALiBi."""
    power = 2 ** math.floor(math.log2(heads))
    first = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return first + [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]


def refused(**arguments):
    given = [name for name, value in arguments.items() if value]
    if given:
        raise NotImplementedError(f"giwa_torch: {', '.join(given)}")


class Problem:
    def __init__(self, c, name, dtype):
        refused(dropout=c["dropout_p"] > 0, return_max_logit=c["return_max_logit"],
                **{"head sizes above 512": max(c["head_dim_qk"], c["head_dim_v"]) > 512})
        generator = torch.Generator("cuda").manual_seed(zlib.crc32(name.encode()))
        b, sq, sk, h, hk = (c[x] for x in ("batch_size", "max_seqlen_q", "max_seqlen_kv", "num_heads", "num_gqa_groups"))

        def normal(*shape, of=dtype):
            return (c["factor"] * torch.randn(*shape, device="cuda", generator=generator)).to(of).requires_grad_()

        def lengths(most):
            return torch.randint(1, max(2, most), (b,), device="cuda", generator=generator, dtype=torch.int32)

        self.q, self.k, self.v = normal(b, sq, h, c["head_dim_qk"]), normal(b, sk, hk, c["head_dim_qk"]), normal(b, sk, hk, c["head_dim_v"])
        self.dout = normal(b, sq, h, c["head_dim_v"]).detach()
        kind = c["attn_mask_type"]
        self.causal, self.top_left = "causal" in kind, "causal" in kind and "bottom_right" not in kind
        self.q_lengths = self.k_lengths = None
        if "padding" in kind:
            self.q_lengths = lengths(sq)
            self.k_lengths = self.q_lengths if sq == sk else lengths(sk)
        self.window = tuple(c["window_size"])
        if "swa" in c["name"] and self.window == (-1, -1):
            self.window = (sk // 8, -1 if self.causal else sk // 10)
        shape = {"1": 1, "b": b, "h": h}
        of_bias = c["bias_shape"]
        self.bias = self.slopes = None
        if c["attn_bias_type"] == "post_scale_bias":
            self.bias = normal(shape[of_bias[0]], shape[of_bias[1]], sq if of_bias[2] == "s" else 1, sk)
        if c["attn_bias_type"] == "alibi":
            custom = torch.rand(h, device="cuda", generator=generator)
            self.slopes = custom if c["alibi_type"] == "custom" else torch.tensor(slopes_of(h), device="cuda")
        self.sinks = None
        if c["softmax_type"] != "vanilla":
            self.sinks = normal(h, of=torch.float32) if c["softmax_type"] == "learnable" else torch.zeros(h, device="cuda")

    def ours(self):
        return giwa_torch.attention(self.q, self.k, self.v, causal=self.causal, window=self.window, top_left=self.top_left, bias=self.bias,
                                    alibi_slopes=self.slopes, sinks=self.sinks, q_lengths=self.q_lengths, k_lengths=self.k_lengths)

    def unfused(self, dtype):
        q, k, v = (x.to(dtype).transpose(1, 2) for x in (self.q, self.k, self.v))
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        (b, _, sq, sk), device = scores.shape, q.device
        rows = torch.full((b,), sq, device=device) if self.q_lengths is None else self.q_lengths
        keys = torch.full((b,), sk, device=device) if self.k_lengths is None else self.k_lengths
        offset = torch.zeros_like(rows) if self.top_left else keys - rows
        ahead = torch.arange(sk, device=device) - torch.arange(sq, device=device)[:, None] - offset[:, None, None]
        keep = torch.arange(sk, device=device)[None, None] < keys[:, None, None]
        keep = keep & (ahead <= 0) if self.causal else keep
        keep = keep & (ahead >= -self.window[0]) if self.window[0] >= 0 else keep
        keep = keep & (ahead <= self.window[1]) if self.window[1] >= 0 and not self.causal else keep
        if self.bias is not None:
            scores = scores + self.bias.to(dtype)
        if self.slopes is not None:
            scores = scores - (self.slopes[:, None, None] * ahead.abs()[:, None]).to(dtype)
        scores = scores.masked_fill(~keep[:, None], -math.inf)
        if self.sinks is not None:
            scores = torch.cat([scores, self.sinks[:, None, None].expand(b, -1, sq, 1).to(dtype)], -1)
        weights = torch.softmax(scores.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0), -1)
        weights = weights[..., :sk].masked_fill(~keep[:, None], 0)
        self.seen = torch.arange(sq, device=device)[None, :, None, None] < rows[:, None, None, None]
        return (weights @ v).transpose(1, 2)

    def gradients_of(self, o):
        wanted = {name: x for name, x in (("q", self.q), ("k", self.k), ("v", self.v), ("bias", self.bias), ("sinks", self.sinks))
                  if x is not None and x.requires_grad}
        return dict(zip(wanted, torch.autograd.grad(o, wanted.values(), (self.dout * self.seen).to(o.dtype))))


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=("bf16", "fp16"))
@pytest.mark.parametrize("config", list(xformers_configs() if OF_XFORMERS.exists() else transformer_engine_configs()))
def test_config(config, dtype, request):
    problem = Problem(config, request.node.name, dtype)
    o = problem.ours()
    exact, plain = problem.unfused(torch.float32), problem.unfused(dtype)
    found = {"o": o * problem.seen, **problem.gradients_of(o)}
    expected, of_plain = ({"o": o * problem.seen, **problem.gradients_of(o)} for o in (exact, plain))
    for name, x in found.items():
        error, by_plain = ((y.float() - expected[name].float()).abs().max().item() for y in (x, of_plain[name]))
        size = expected[name].abs().max().item()
        # Where a query sees few keys, gradients are small differences of what is rounded, and exactly 0 for one key.
        allowed = max((0.02 if dtype == torch.bfloat16 else 0.004) * size, 2 * by_plain, 1e-5)
        assert error <= allowed, f"{name}: {error} of {size}, in {dtype} without fusion {by_plain}"
