"""The network in plain PyTorch, its optimizer, and conversion to and from a transformers directory.

Llama: RMSNorm, rotary positions (half-split, as transformers does), grouped-query attention, SwiGLU, tied embeddings.
Parameters are f32; the arithmetic is bf16. The block is one function of tensors, so that torch.compile compiles it once
for all layers.
"""

import json
import math
import os
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Shape:
    vocab: int = 8192
    hidden: int = 384
    layers: int = 12
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 64
    ffn: int = 704
    theta: float = 100000.0
    eps: float = 1e-5
    context: int = 8192


# name -> shape, in the order of block()'s parameters; [outputs][inputs] as in nn.Linear
def layer_shapes(s):
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    return {"input_layernorm": (s.hidden,), "self_attn.q_proj": (q, s.hidden), "self_attn.k_proj": (kv, s.hidden),
            "self_attn.v_proj": (kv, s.hidden), "self_attn.o_proj": (s.hidden, q), "post_attention_layernorm": (s.hidden,),
            "mlp.gate_proj": (s.ffn, s.hidden), "mlp.up_proj": (s.ffn, s.hidden), "mlp.down_proj": (s.hidden, s.ffn)}


def norm(x, weight, eps):
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def rotate(x, cos, sin):
    """x: [batch][time][heads][head_dim]; cos, sin: [time][head_dim / 2]"""
    a, b = x.float().chunk(2, -1)
    cos, sin = cos[None, :, None], sin[None, :, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


REPEAT_KV = False  # set when a fused attention kernel needs as many KV heads as heads


def block(x, cos, sin, heads, kv_heads, eps, ln1, wq, wk, wv, wo, ln2, wg, wu, wd):
    """One decoder layer. x: [batch][time][hidden] -> the same shape."""
    batch, time, _ = x.shape
    dim, dtype = wq.shape[0] // heads, x.dtype
    h = norm(x, ln1, eps)
    qkv = F.linear(h, torch.cat([wq, wk, wv]).to(dtype)).view(batch, time, heads + 2 * kv_heads, dim)
    q, k, v = qkv.split([heads, kv_heads, kv_heads], 2)
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    if REPEAT_KV:
        k, v = (y.repeat_interleave(heads // kv_heads, 2) for y in (k, v))
    y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True,
                                       enable_gqa=not REPEAT_KV)
    x = x + F.linear(y.transpose(1, 2).reshape(batch, time, heads * dim), wo.to(dtype))
    h = norm(x, ln2, eps)
    gate, up = F.linear(h, torch.cat([wg, wu]).to(dtype)).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, wd.to(dtype))


def token_losses(x, ln, embed, targets, eps):
    """x: [tokens][hidden] -> cross entropy of each token, f32."""
    logits = F.linear(norm(x, ln, eps), embed.to(x.dtype)).float()
    return torch.logsumexp(logits, -1) - logits.gather(-1, targets[:, None])[:, 0]


class Model(torch.nn.Module):
    def __init__(self, shape, seed=1, device="cpu"):
        super().__init__()
        self.shape = shape
        generator = torch.Generator().manual_seed(seed)
        draw = lambda dims, std: torch.nn.Parameter((torch.randn(dims, generator=generator) * std).to(device))
        self.embed = draw((shape.vocab, shape.hidden), 0.02)
        self.norm = torch.nn.Parameter(torch.ones(shape.hidden, device=device))
        self.layers = torch.nn.ModuleList()
        for _ in range(shape.layers):
            layer = torch.nn.ParameterDict()
            for name, dims in layer_shapes(shape).items():
                std = 0.5 / math.sqrt(dims[-1])
                if name.endswith(("o_proj", "down_proj")):
                    std = 0.02 / math.sqrt(2 * shape.layers)
                layer[name.replace(".", "/")] = torch.nn.Parameter(torch.ones(dims, device=device)) if len(dims) == 1 else draw(dims, std)
            self.layers.append(layer)
        half = shape.head_dim // 2
        angles = torch.outer(torch.arange(shape.context).float(), shape.theta ** (-torch.arange(half).float() / half))
        self.register_buffer("cos", angles.cos().to(device), persistent=False)
        self.register_buffer("sin", angles.sin().to(device), persistent=False)
        self.block, self.token_losses = block, token_losses
        self.dtype = torch.bfloat16

    def compile(self):
        self.block = torch.compile(block, dynamic=False)
        self.token_losses = torch.compile(token_losses, dynamic=False)

    def matrices(self):
        return [p for layer in self.layers for p in layer.values() if p.ndim == 2]

    def others(self):
        return [self.embed, self.norm] + [p for layer in self.layers for p in layer.values() if p.ndim == 1]

    def body(self, ids):
        """ids: [batch][time] -> [batch][time][hidden], before the last norm."""
        s, time = self.shape, ids.shape[1]
        x = F.embedding(ids, self.embed).to(self.dtype)
        cos, sin = self.cos[:time], self.sin[:time]
        for layer in self.layers:
            x = self.block(x, cos, sin, s.heads, s.kv_heads, s.eps, *layer.values())
        return x

    def losses(self, ids, targets, chunk=65536):
        """Cross entropy of each token, [batch · time]. Computed in chunks, because the logits of a step exceed 32-bit indexing."""
        x, targets = self.body(ids).flatten(0, 1), targets.flatten()
        parts = [self.token_losses(x[i:i + chunk], self.norm, self.embed, targets[i:i + chunk], self.shape.eps)
                 for i in range(0, len(targets), chunk)]
        return torch.cat(parts)

    def logits(self, ids, positions):
        """Logits at `positions` [batch][n] of each row."""
        x = self.body(ids)
        x = x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))
        return F.linear(norm(x, self.norm, self.shape.eps), self.embed.to(x.dtype)).float()


class Muon:
    """Muon: the step is the orthogonal matrix nearest to the momentum (Jordan et al. 2024).

    Matrices of one shape are orthogonalized together, by five Newton-Schulz iterations in bf16.
    """

    def __init__(self, parameters, momentum=0.95, decay=0.1):
        self.groups = {}
        for p in parameters:
            self.groups.setdefault(tuple(p.shape), []).append(p)
        self.momentum, self.decay = momentum, decay
        self.buffers = {shape: torch.zeros(len(ps), *shape, device=ps[0].device) for shape, ps in self.groups.items()}

    @torch.no_grad()
    def step(self, rate):
        for shape, parameters in self.groups.items():
            grads = torch.stack([p.grad for p in parameters])
            buffer = self.buffers[shape]
            buffer.lerp_(grads, 1 - self.momentum)
            update = grads.lerp_(buffer, self.momentum)
            update = orthogonal(update) * (rate * math.sqrt(max(1.0, shape[0] / shape[1])))
            torch._foreach_mul_(parameters, 1 - rate * self.decay)
            torch._foreach_sub_(parameters, list(update.float().unbind(0)))


def orthogonal(matrices, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        g = x @ x.mT
        x = a * x + (b * g + c * g @ g) @ x
    return x.mT if tall else x


# ---- files

SHARD_BYTES = 12 << 20  # below the limit of 15 MiB per shard


def tensors_of(model):
    named = {"model.embed_tokens.weight": model.embed}
    for i, layer in enumerate(model.layers):
        for name, p in layer.items():
            named[f"model.layers.{i}.{name.replace('/', '.')}.weight"] = p
    named["model.norm.weight"] = model.norm
    return named


def save_model(model, folder):
    """Writes bf16 shards with their index, config.json and generation_config.json."""
    from safetensors.torch import save_file

    os.makedirs(folder, exist_ok=True)
    shards, size = [{}], 0
    for name, p in tensors_of(model).items():
        tensor = p.detach().to(torch.bfloat16).cpu().contiguous()
        if size + tensor.nbytes > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    index = {"metadata": {"total_size": sum(t.nbytes for shard in shards for t in shard.values())}, "weight_map": {}}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        save_file(shard, os.path.join(folder, file), {"format": "pt"})
        index["weight_map"].update({name: file for name in shard})
    s = model.shape
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": s.vocab, "hidden_size": s.hidden,
              "intermediate_size": s.ffn, "num_hidden_layers": s.layers, "num_attention_heads": s.heads,
              "num_key_value_heads": s.kv_heads, "head_dim": s.head_dim, "hidden_act": "silu", "rms_norm_eps": s.eps,
              "rope_theta": s.theta, "rope_scaling": None, "max_position_embeddings": s.context, "attention_bias": False,
              "attention_dropout": 0.0, "mlp_bias": False, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
              "bos_token_id": 0, "eos_token_id": [0, 5], "pad_token_id": 1, "initializer_range": 0.02, "use_cache": True}
    generation = {"bos_token_id": 0, "eos_token_id": [0, 5], "pad_token_id": 1}
    for file, content in (("model.safetensors.index.json", index), ("config.json", config), ("generation_config.json", generation)):
        with open(os.path.join(folder, file), "w") as out:
            json.dump(content, out, indent=2)
            out.write("\n")


def load_weights(model, folder):
    from safetensors.torch import load_file

    stored = {}
    for file in sorted(os.listdir(folder)):
        if file.endswith(".safetensors"):
            stored.update(load_file(os.path.join(folder, file)))
    with torch.no_grad():
        for name, p in tensors_of(model).items():
            p.copy_(stored[name].float())


def load_model(folder, device):
    with open(os.path.join(folder, "config.json")) as file:
        c = json.load(file)
    shape = Shape(c["vocab_size"], c["hidden_size"], c["num_hidden_layers"], c["num_attention_heads"], c["num_key_value_heads"],
                  c["head_dim"], c["intermediate_size"], c["rope_theta"], c["rms_norm_eps"], c["max_position_embeddings"])
    model = Model(shape, device=device)
    load_weights(model, folder)
    return model


def parameters_of(shape):
    per_layer = sum(math.prod(dims) for dims in layer_shapes(shape).values())
    return shape.vocab * shape.hidden + shape.hidden + shape.layers * per_layer


if __name__ == "__main__":
    print(asdict(Shape()), parameters_of(Shape()), "parameters")
