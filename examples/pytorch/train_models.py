#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains models of transformers with giwa's attention and with their own: python3 train_models.py [models...] [--csv FILE] [--plot FILE].

Llama, Gemma 2 (softcap, windows), GPT-2, BERT (masked letters, padding) and Whisper, each with random weights, learn the pages of
docs/ for 200 steps in bf16 autocast. There is a warm-up, and gradients are clipped: without both, single steps raise the loss by chance,
on either side. Both sides start from the same weights and see the same batches. The other side is transformers' "sdpa", and "eager"
for Gemma 2, whose softcap sdpa refuses. The mean loss of every 20 steps must be that of the other side to 1 %, and the last must be
well below the first. --csv writes the losses; --plot FILE draws those of --csv, with matplotlib, and trains nothing.
"""
import argparse
import csv
import multiprocessing
import sys
from pathlib import Path

STEPS, WARM_UP, BATCH, TOKENS, MEAN = 200, 40, 16, 256, 20
MASK, PAD, START = 1, 0, 2  # bytes that the text does not have
WHISPER_TOKENS = 128
SIZES = dict(vocab_size=256, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4)
OTHER = {"Llama": "sdpa", "Gemma 2": "eager", "GPT-2": "sdpa", "BERT": "sdpa", "Whisper": "sdpa"}


def model_of(name, implementation, device):
    import torch
    import transformers
    heads = dict(num_key_value_heads=2, head_dim=64, max_position_embeddings=512)
    if name == "Llama":
        config, kind = transformers.LlamaConfig(**SIZES, **heads), transformers.LlamaForCausalLM
    elif name == "Gemma 2":
        config = transformers.Gemma2Config(**SIZES, **heads, sliding_window=64, attn_logit_softcapping=20.0, query_pre_attn_scalar=64)
        kind = transformers.Gemma2ForCausalLM
    elif name == "GPT-2":
        config = transformers.GPT2Config(vocab_size=256, n_embd=256, n_layer=4, n_head=4, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
        kind = transformers.GPT2LMHeadModel
    elif name == "BERT":
        config = transformers.BertConfig(**SIZES, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0)
        kind = transformers.BertForMaskedLM
    else:
        config = transformers.WhisperConfig(
            vocab_size=256, d_model=256, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=512, decoder_ffn_dim=512, max_source_positions=WHISPER_TOKENS * 2, max_target_positions=WHISPER_TOKENS,
            pad_token_id=PAD, bos_token_id=START, eos_token_id=PAD, decoder_start_token_id=START)
        kind = transformers.WhisperForConditionalGeneration
    config._attn_implementation = implementation
    torch.manual_seed(1)
    return kind(config).to(device).train()


def batch_of(name, letters, chosen, spectra):
    """The arguments of a model for one step. What a bidirectional model or a decoder is to say are the letters themselves."""
    import torch
    tokens = WHISPER_TOKENS if name == "Whisper" else TOKENS
    first = torch.randint(len(letters) - tokens, (BATCH, 1), generator=chosen)
    text = letters[first + torch.arange(tokens)]
    if name == "BERT":
        kept = torch.arange(tokens) < torch.randint(tokens // 3, tokens + 1, (BATCH, 1), generator=chosen)
        hidden = (torch.rand(text.shape, generator=chosen) < 0.15) & kept
        return {"input_ids": torch.where(hidden, MASK, torch.where(kept, text, PAD)), "attention_mask": kept.long(),
                "labels": torch.where(hidden, text, -100)}
    if name == "Whisper":  # each letter sounds for four frames, with noise
        sound = spectra[text].repeat_interleave(4, 1)
        return {"input_features": (sound + 0.5 * torch.randn(sound.shape, generator=chosen)).transpose(1, 2), "labels": text}
    return {"input_ids": text, "labels": text}


def losses_of(name, implementation, steps=STEPS):
    import torch
    from giwa_torch.transformers import register
    register()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, chosen = model_of(name, implementation, device), torch.Generator().manual_seed(2)
    pages = sorted((Path(__file__).resolve().parents[2] / "docs").glob("*.md"))
    letters = torch.tensor(list(b"".join(path.read_bytes() for path in pages)), dtype=torch.long)
    spectra = torch.randn(256, 80, generator=torch.Generator().manual_seed(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP))
    losses = []
    for _ in range(steps):
        given = {name: x.to(device) for name, x in batch_of(name, letters, chosen, spectra).items()}
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(**given).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    return torch.stack(losses).float().cpu().tolist()


def one(name):
    return name, {side: losses_of(name, side) for side in (OTHER[name], "giwa")}


def tell(name, found):
    """Prints the mean losses; returns whether they agree, and fall."""
    means = {side: [sum(x[i:i + MEAN]) / MEAN for i in range(0, STEPS, MEAN)] for side, x in found.items()}
    ours, theirs = means["giwa"], means[OTHER[name]]
    worst = max(abs(a / b - 1) for a, b in zip(ours, theirs))
    good = worst < 0.01 and ours[-1] < 0.9 * ours[0]
    print(f"{'ok    ' if good else 'FAILED'} {name:8} {OTHER[name]:5} " + " ".join(f"{x:.4f}" for x in theirs))
    print(f"{'':15} giwa  " + " ".join(f"{x:.4f}" for x in ours) + f"   farthest {100 * worst:.2f} %", flush=True)
    return good


def plot(source, target):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    matplotlib.rcParams.update({"svg.hashsalt": "giwa", "svg.fonttype": "none", "font.family": "DejaVu Sans", "font.size": 9})
    rows = list(csv.DictReader(source.open()))
    figure, axes = plt.subplots(1, len(OTHER), figsize=(12, 2.6), sharey=True)
    for axis, (name, other) in zip(axes, OTHER.items()):
        for side, style in ((other, dict(color="#999999", linewidth=3.0)), ("giwa", dict(color="#b02418", linewidth=1.0))):
            axis.plot([float(x[f"{name} {side}"]) for x in rows], label=side, **style)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("step")
        axis.legend(frameon=False, fontsize=8)
        axis.grid(color="#e0e0e0", linewidth=0.5)
    axes[0].set_ylabel("loss")
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None, "Creator": None})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=list(OTHER))
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--plot", type=Path)
    chosen = parser.parse_args()
    if chosen.plot:
        plot(chosen.csv, chosen.plot)
        return 0
    with multiprocessing.get_context("spawn").Pool(len(chosen.models)) as pool:
        found = dict(pool.imap_unordered(one, chosen.models))
    good = [tell(name, found[name]) for name in chosen.models]
    if chosen.csv:
        columns = {f"{name} {side}": x for name in chosen.models for side, x in found[name].items()}
        with chosen.csv.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["step", *columns])
            writer.writerows([i, *(f"{x[i]:.4f}" for x in columns.values())] for i in range(STEPS))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
