#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a small language model on the pages of docs/, with giwa_torch and with PyTorch's unfused attention, in fp32, bf16 and fp16:
python3 test_language_model.py, or pytest.

Both start from the same weights and see the same text. bf16 and fp16 are autocast, fp16 with a scaler of the loss. The mean loss of
the last 20 steps must be that of unfused attention in fp32 to 1 %, and must be half of a bit per letter below what it was after 20
steps, so that the models have learned something. Prints the losses on the way.
"""
import sys
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import giwa_torch
from test_giwa_torch import DEVICE, main, short

STEPS, BATCH, TOKENS, WIDTH, HEADS, LAYERS = (200, 32, 256, 256, 4, 4) if DEVICE == "cuda" else (80, 8, 64, 128, 2, 2)
TYPES = (torch.float32, torch.bfloat16, torch.float16)


def text():
    pages = sorted((Path(__file__).resolve().parents[2] / "docs").glob("*.md"))
    letters = b"".join(path.read_bytes() for path in pages)
    return torch.tensor(list(letters), dtype=torch.long)


class Block(torch.nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.attend = attend
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(2))
        self.project, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.wider, self.narrower = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.project(self.norms[0](x)).view(*x.shape[:2], 3, HEADS, -1).transpose(1, 3).unbind(2)
        x = x + self.out(self.attend(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.narrower(torch.nn.functional.gelu(self.wider(self.norms[1](x))))


class Model(torch.nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.letters, self.places = torch.nn.Embedding(256, WIDTH), torch.nn.Embedding(TOKENS, WIDTH)
        self.blocks = torch.nn.ModuleList(Block(attend) for _ in range(LAYERS))
        self.norm, self.scores = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 256)

    def forward(self, tokens):
        x = self.letters(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.scores(self.norm(x))


def unfused(*arguments, **keywords):
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(*arguments, **keywords)


def losses_of(attend, dtype):
    torch.manual_seed(1)
    model = Model(attend).to(DEVICE)
    letters, chosen = text(), torch.Generator().manual_seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(DEVICE, enabled=dtype == torch.float16)
    losses = []
    for _ in range(STEPS):
        first = torch.randint(len(letters) - TOKENS - 1, (BATCH, 1), generator=chosen)
        window = letters[first + torch.arange(TOKENS + 1)].to(DEVICE)
        with torch.autocast(DEVICE, dtype=dtype, enabled=dtype != torch.float32):
            scores = model(window[:, :-1])
        loss = cross_entropy(scores.float().flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return torch.stack(losses).cpu()


def test_losses():
    reference = losses_of(unfused, torch.float32)
    at = [x - 1 for x in (20, STEPS // 2, STEPS * 3 // 4, STEPS)]
    tell = lambda what, x: print(f"   {what:22}" + "".join(f"{x[i - 19:i + 1].mean():8.4f}" for i in at), flush=True)
    print("   mean of 20 steps up to" + "".join(f"{i + 1:8}" for i in at))
    tell("unfused in fp32", reference)
    assert reference[-20:].mean() < reference[:20].mean() - 0.35
    for dtype in TYPES:
        found = losses_of(giwa_torch.scaled_dot_product_attention, dtype)
        tell(f"giwa in {short(dtype)}", found)
        ratio = (found[-20:].mean() / reference[-20:].mean()).item()
        assert abs(ratio - 1) < 0.01, f"{short(dtype)}: the loss is {ratio:.4f} of that of unfused attention in fp32"


if __name__ == "__main__":
    sys.exit(main(globals(), ()))
