#!/usr/bin/env python3
"""Perplexity of a Llama GGUF file by a float32 forward pass in numpy, for comparison with `infinigen eval ppl`.

    tools/gguf_reference.py -m FILE.gguf -f TEXT [-c 512] [--tokens 2048] [--binary build/release/infinigen]

Weights are dequantised by the Python package gguf; ids come from `infinigen tokenize`. Windows are scored as `eval ppl`
scores them: each with an empty cache, every token but the first. Prints both perplexities and their ratio. Needs numpy
and gguf; without them the exit code is 77.
"""

import argparse
import json
import subprocess
import sys

try:
    import gguf
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def number(reader, key, default=None):
    field = reader.get_field(key)
    return default if field is None else field.contents()


class Model:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        arch = number(reader, "general.architecture")
        assert arch == "llama", f"{arch}: this tool computes llama files alone"
        self.layers = number(reader, "llama.block_count")
        self.heads = number(reader, "llama.attention.head_count")
        self.kv_heads = number(reader, "llama.attention.head_count_kv", self.heads)
        self.eps = number(reader, "llama.attention.layer_norm_rms_epsilon")
        self.base = number(reader, "llama.rope.freq_base", 10000.0)
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.dim = self["blk.0.attn_q.weight"].shape[0] // self.heads

    def __getitem__(self, name):
        tensor = self.tensors[name]
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)

    def norm(self, x, name):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(self.eps)) * self[name]

    def rotate(self, x):
        """x [tokens][heads][dim]; planes are adjacent pairs."""
        divisors = self["rope_freqs.weight"] if "rope_freqs.weight" in self.tensors else 1
        frequency = self.base ** (-np.arange(0, self.dim, 2) / self.dim) / divisors
        angle = np.arange(len(x))[:, None] * frequency
        cos, sin = np.cos(angle)[:, None].astype(np.float32), np.sin(angle)[:, None].astype(np.float32)
        out = np.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
        out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
        return out

    def attention(self, x, prefix):
        count = len(x)
        q = self.rotate((x @ self[prefix + "attn_q.weight"].T).reshape(count, self.heads, self.dim))
        k = self.rotate((x @ self[prefix + "attn_k.weight"].T).reshape(count, self.kv_heads, self.dim))
        v = (x @ self[prefix + "attn_v.weight"].T).reshape(count, self.kv_heads, self.dim)
        group = self.heads // self.kv_heads
        out = np.empty_like(q)
        mask = np.triu(np.full((count, count), -np.inf, dtype=np.float32), 1)
        for head in range(self.heads):
            scores = q[:, head] @ k[:, head // group].T / np.float32(np.sqrt(self.dim)) + mask
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            out[:, head] = scores / scores.sum(axis=-1, keepdims=True) @ v[:, head // group]
        return out.reshape(count, -1) @ self[prefix + "attn_output.weight"].T

    def logits(self, windows):
        """Of all windows at once, so that each matrix is dequantised once; yields one array a window."""
        embedding = self["token_embd.weight"]
        streams = [embedding[window] for window in windows]
        for layer in range(self.layers):
            prefix = f"blk.{layer}."
            up, gate, down = (self[prefix + f"ffn_{name}.weight"].T for name in ("up", "gate", "down"))
            for i, x in enumerate(streams):
                x = x + self.attention(self.norm(x, prefix + "attn_norm.weight"), prefix)
                inner = self.norm(x, prefix + "ffn_norm.weight")
                gated = inner @ gate
                streams[i] = x + (gated / (1 + np.exp(-gated)) * (inner @ up)) @ down
        head = self["output.weight"] if "output.weight" in self.tensors else embedding
        for x in streams:
            yield self.norm(x, "output_norm.weight") @ head.T


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-f", "--file", required=True)
    parser.add_argument("-c", "--ctx", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--binary", default="build/release/infinigen")
    arguments = parser.parse_args()

    def run(*words):
        return subprocess.run([arguments.binary, *words], check=True, capture_output=True, text=True).stdout

    ids = [int(i) for i in run("tokenize", "-m", arguments.model, "-f", arguments.file, "--no-special").split()]
    ids = ids[:arguments.tokens // arguments.ctx * arguments.ctx]
    windows = [ids[i:i + arguments.ctx] for i in range(0, len(ids), arguments.ctx)]
    total = 0.0
    for window, logits in zip(windows, Model(arguments.model).logits(windows)):
        rows = logits[:-1].astype(np.float64)
        rows -= rows.max(axis=-1, keepdims=True)
        total += np.sum(np.log(np.exp(rows).sum(axis=-1)) - rows[np.arange(len(rows)), window[1:]])
    reference = float(np.exp(total / (len(ids) - len(windows))))
    ours = json.loads(run("eval", "ppl", "-m", arguments.model, "-f", arguments.file, "-c", str(arguments.ctx),
                          "--limit-tokens", str(len(ids)), "--kv", "full", "--json"))
    print(f"perplexity {ours['ppl']:.5f}, reference {reference:.5f}, ratio {ours['ppl'] / reference:.5f} "
          f"({ours['tokens_scored']} tokens)")


if __name__ == "__main__":
    main()
