#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the queries, keys and values in this folder: make_activations.py <folder of the model> [<folder for the files>]

Runs the text below through all-MiniLM-L6-v2 in NumPy, a BERT of 6 layers with 12 heads of 32, and saves what the attention
of layers 0, 3 and 5 is given, as (batch, tokens, heads, head size) in fp16. README.md says where the model comes from.
"""
import json
import math
import re
import sys
import unicodedata
from pathlib import Path

import numpy as np

TEXT = """A roof of clay tiles is older than most of the words we have for it. The tiles are small, so that two hands can
carry a stack of them up a ladder, and each one covers the seam between two others. No tile is watertight by itself; what
keeps the rain out is the overlap, and the overlap is the same from the ridge to the eaves. When a tile cracks after a hard
winter, the roofer lifts its neighbours, slides the broken piece out, and pushes a new one in."""
LAYERS = (0, 3, 5)
HEADS = 12


def read_safetensors(path):
    """All tensors of a file in fp32: 8 bytes with the size of a JSON header, the header, the data."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8:8 + size]), data[8 + size:]
    types = {"F32": np.float32, "F16": np.float16}
    return {name: np.frombuffer(body[slice(*t["data_offsets"])], types[t["dtype"]]).reshape(t["shape"]).astype(np.float32)
            for name, t in header.items() if name != "__metadata__" and t["dtype"] in types}


def tokenise(text, vocabulary):
    """WordPiece: lower case, no accents, punctuation split off, then the longest pieces that the vocabulary has."""
    text = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    ids = [vocabulary["[CLS]"]]
    for word in re.findall(r"\w+|[^\w\s]", text):
        start, pieces = 0, []
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = ("##" if start else "") + word[start:end]
                if piece in vocabulary:
                    break
            else:
                pieces = [vocabulary["[UNK]"]]
                break
            pieces.append(vocabulary[piece])
            start = end
        ids += pieces
    return ids + [vocabulary["[SEP]"]]


def layer_norm(x, w, name):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12) * w[name + ".weight"] + w[name + ".bias"]


def linear(x, w, name):
    return x @ w[name + ".weight"].T + w[name + ".bias"]


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)).astype(np.float32))


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def run(ids, w):
    """The sentence's embedding, and the (tokens, heads, head size) queries, keys and values of every layer."""
    e = "embeddings."
    x = w[e + "word_embeddings.weight"][ids] + w[e + "position_embeddings.weight"][:len(ids)]
    x = layer_norm(x + w[e + "token_type_embeddings.weight"][0], w, e + "LayerNorm")
    seen = []
    for layer in range(6):
        at = f"encoder.layer.{layer}."
        q, k, v = (linear(x, w, f"{at}attention.self.{n}").reshape(len(ids), HEADS, -1) for n in ("query", "key", "value"))
        seen.append((q, k, v))
        p = softmax(np.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1]))
        o = np.einsum("hqk,khd->qhd", p, v).reshape(x.shape)
        x = layer_norm(x + linear(o, w, at + "attention.output.dense"), w, at + "attention.output.LayerNorm")
        y = linear(gelu(linear(x, w, at + "intermediate.dense")), w, at + "output.dense")
        x = layer_norm(x + y, w, at + "output.LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean), seen


def main():
    model, target = Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else Path(__file__).parent)
    w = read_safetensors(model / "model.safetensors")
    vocabulary = {line: i for i, line in enumerate((model / "vocab.txt").read_text("utf-8").split("\n"))}

    # That this is the model, and not merely something that runs: it knows which sentences say the same.
    of = lambda text: run(tokenise(text, vocabulary), w)[0]
    food, bread, girl = of("A man is eating food."), of("A man is eating a piece of bread."), of("The girl is carrying a baby.")
    print(f"alike {food @ bread:.4f}, not alike {food @ girl:.4f}")
    assert food @ bread > 0.7 and food @ girl < 0.2

    ids = tokenise(TEXT, vocabulary)
    _, seen = run(ids, w)
    for layer in LAYERS:
        for name, x in zip("qkv", seen[layer]):
            x = np.ascontiguousarray(x[None], np.float16)
            np.save(target / f"layer_{layer}_{name}.npy", x)
            print(f"layer_{layer}_{name}.npy {x.shape} {x.dtype}, largest {np.abs(x).max():.2f}")


if __name__ == "__main__":
    main()
