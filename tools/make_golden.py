#!/usr/bin/env python3
"""Makes the golden models: tiny random models with the logits and greedy continuations that transformers computes.

    python tools/make_golden.py --out tests/golden/models            # all golden models
    python tools/make_golden.py --out DIR --only llama_gqa_tied      # one of them
    python tools/make_golden.py --out DIR --unseen                   # two further shapes, for manual tests
    python tools/make_golden.py --out DIR --families                 # the models of tools/make_numpy_golden.py

Needs torch and transformers (5.x). Each directory contains the output of save_pretrained and

    golden.json         prompts (as ids), greedy continuations, the gap between the two largest logits at every step
    golden.safetensors  f32 logits at the positions that golden.json lists

The reference uses float32 arithmetic on the stored weights (bf16 and f16 models are converted after loading), eager
attention and no KV cache: every step recomputes the whole sequence. For bf16 and f16 models the logits computed in that
type are stored too, as `native`: they show how much of a difference is due to rounding.

Weights are drawn so that attention is peaked and logits are spread. From several seeds, the script keeps the one whose
greedy continuation has many distinct tokens and no near ties. golden.json records these properties under `checks`.

--families makes the models that tools/make_numpy_golden.py describes, with the config.json that stands there, so that
`tools/make_numpy_golden.py --check DIR/*` compares numpy with transformers in every family.
"""

import argparse
import json
import math
import os
import shutil

import tempfile

import make_numpy_golden
import torch
import transformers
from safetensors.torch import save_file
from transformers import (AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, OPTConfig,
                          OPTForCausalLM)

VOCAB = 160
GREEDY = 64
LENGTHS = {"single": 1, "short": 12, "medium": 48, "long": 200}
SEEDS = 12
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}


def llama(**options):
    base = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
                num_key_value_heads=4, max_position_embeddings=512, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2,
                tie_word_embeddings=False)
    return LlamaConfig(**{**base, **options})


def opt(**options):
    base = dict(vocab_size=VOCAB, hidden_size=32, ffn_dim=64, num_hidden_layers=3, num_attention_heads=4,
                max_position_embeddings=320, word_embed_proj_dim=None)
    return OPTConfig(**{**base, **options})


# name -> (what the model covers, configuration, options of save_pretrained)
GOLDEN = {
    "opt_pre_norm": ("OPT: learned positions, biases, norm before", opt(), {}),
    "opt_post_norm": ("OPT-350m: norm after, narrow embedding with projections, no final norm",
                      opt(hidden_size=48, ffn_dim=80, word_embed_proj_dim=32, do_layer_norm_before=False,
                          num_hidden_layers=2, num_attention_heads=3), {}),
    "opt_bare": ("OPT without biases, norm parameters and final norm",
                 opt(enable_bias=False, layer_norm_elementwise_affine=False, _remove_final_layer_norm=True,
                     num_hidden_layers=2), {}),
    "opt_f16": ("OPT stored in f16", opt(), {"dtype": torch.float16}),
    "llama_mha": ("Llama, as many KV heads as heads, own output matrix", llama(), {}),
    "llama_gqa_tied": ("Llama, 8 heads on 2 KV heads, tied embeddings, two end ids",
                       llama(hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=8,
                             num_key_value_heads=2, tie_word_embeddings=True), {"eos": 2}),
    "llama_rope_llama3": ("llama3 rope scaling, new spelling", llama(rope_parameters=LLAMA3, num_key_value_heads=2), {}),
    "llama_rope_llama3_old": ("llama3 rope scaling, old spelling",
                              llama(rope_parameters=LLAMA3, num_key_value_heads=1), {"old": "rope_type"}),
    "llama_rope_linear": ("linear rope scaling, new spelling", llama(rope_parameters=LINEAR), {}),
    "llama_rope_linear_old": ("linear rope scaling, old spelling with `type`",
                              llama(rope_parameters=LINEAR, num_key_value_heads=2), {"old": "type"}),
    "llama_head_dim": ("heads · head_dim ≠ hidden", llama(hidden_size=48, head_dim=16, num_key_value_heads=2,
                                                          num_hidden_layers=2), {}),
    "llama_bias": ("biases on attention and MLP", llama(attention_bias=True, mlp_bias=True, num_key_value_heads=2), {}),
    "llama_sharded": ("several files and an index", llama(), {"shard": "40KB"}),
    "llama_bf16": ("stored in bf16, tied, GQA", llama(hidden_size=64, intermediate_size=128, num_attention_heads=8,
                                                      num_key_value_heads=2, tie_word_embeddings=True),
                   {"dtype": torch.bfloat16}),
    "llama_f16": ("stored in f16", llama(hidden_size=48, intermediate_size=96, num_key_value_heads=2,
                                         num_attention_heads=6), {"dtype": torch.float16}),
}
UNSEEN = {
    "unseen_llama": ("another Llama shape, llama3 scaling, odd sizes",
                     llama(vocab_size=211, hidden_size=40, intermediate_size=108, num_hidden_layers=5,
                           num_attention_heads=10, num_key_value_heads=5, head_dim=12, attention_bias=True,
                           tie_word_embeddings=True,
                           rope_parameters={**LLAMA3, "factor": 4.0, "original_max_position_embeddings": 48}),
                     {"shard": "60KB"}),
    "unseen_opt": ("another OPT shape, bf16", opt(vocab_size=197, hidden_size=56, ffn_dim=100, num_hidden_layers=4,
                                                  num_attention_heads=7, max_position_embeddings=300),
                   {"dtype": torch.bfloat16}),
}


def draw_weights(model, seed):
    """Scales the weights by their role. With unit-variance inputs, attention scores have a deviation of about std² · hidden."""
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    hidden = config.hidden_size
    score = math.sqrt(2.5 / hidden)
    wide = 1.4 / math.sqrt(hidden)
    gemma = config.model_type.startswith("gemma")
    for name, parameter in model.named_parameters():
        if "norm" in name:
            values = torch.randn(parameter.shape, generator=generator) * 0.2
            values = values + (1.0 if name.endswith("weight") and not gemma else 0.0)
            if ".q_norm." in name or ".k_norm." in name:
                values = values + 0.3
            if gemma and ".post_" in name:  # outputs of layers that outweigh the tied embedding
                values = values + 1.5
        elif name.endswith("bias"):
            values = torch.randn(parameter.shape, generator=generator) * 0.3
        else:
            std = wide
            if "q_proj" in name or "k_proj" in name or "qkv_proj" in name:
                std = score
            elif "embed_tokens" in name and gemma:  # multiplied by √hidden, so that a larger one would outweigh the layers
                std = 1.0 / math.sqrt(hidden)
            elif "embed_positions" in name:
                std = 0.5
            elif "embed_tokens" in name or "lm_head" in name:
                std = 4.0 / math.sqrt(parameter.shape[1])
            elif "down_proj" in name or "fc2" in name:
                std = 2.0 / math.sqrt(parameter.shape[1])
            values = torch.randn(parameter.shape, generator=generator) * std
        parameter.data.copy_(values)


def make_model(config, seed, dtype):
    torch.manual_seed(seed)
    if config.model_type in ("opt", "llama"):
        kind = OPTForCausalLM if config.model_type == "opt" else LlamaForCausalLM
        config = type(config)(**config.to_dict())
        config._attn_implementation = "eager"
        model = kind(config).eval().to(torch.float32)
    else:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().to(torch.float32)
    draw_weights(model, seed)
    return model.to(dtype)


@torch.no_grad()
def logits_of(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0].float()


@torch.no_grad()
def greedy(model, prompt, steps=GREEDY):
    ids, tokens, gaps = list(prompt), [], []
    for _ in range(steps):
        best = torch.topk(logits_of(model, ids)[-1], 2)
        tokens.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
        ids.append(tokens[-1])
    return tokens, gaps


def prompts_of(vocab, seed, lengths):
    generator = torch.Generator().manual_seed(seed + 1000)
    return {name: torch.randint(3, vocab, (length,), generator=generator).tolist() for name, length in lengths.items()}


@torch.no_grad()
def attention_entropy(model, ids):
    """Mean entropy of the last rows of attention, divided by log(n): 1 is uniform, 0 is a single token."""
    attentions = model(torch.tensor([ids]), output_attentions=True, use_cache=False).attentions
    rows = torch.stack([a[0, :, -8:, :] for a in attentions]).clamp_min(1e-12)
    return float((-(rows * rows.log()).sum(-1) / math.log(len(ids))).mean())


def checks_of(model, prompts, continuations):
    long = prompts["long"]
    base = logits_of(model, long)[-1]
    other = list(long)
    other[5] = (other[5] + 7) % model.config.vocab_size
    return {
        "attention_entropy": attention_entropy(model, long),
        "logit_std": float(base.std()),
        "change_by_one_early_token": float((logits_of(model, other)[-1] - base).abs().max()),
        "distinct_greedy_tokens": min(len(set(tokens)) for tokens, _ in continuations.values()),
        "smallest_gap": min(min(gaps) for _, gaps in continuations.values()),
    }


def choose_seed(config, dtype, lengths):
    best = None
    for seed in range(SEEDS):
        model = make_model(config, seed, dtype).float()
        prompts = prompts_of(config.vocab_size, seed, lengths)
        continuations = {name: greedy(model, ids) for name, ids in prompts.items()}
        checks = checks_of(model, prompts, continuations)
        fit = checks["distinct_greedy_tokens"] >= 8 and checks["attention_entropy"] < 0.85
        key = (fit, checks["smallest_gap"])
        if best is None or key > best[0]:
            best = (key, seed, prompts, continuations, checks)
    return best[1:]


def to_old_spelling(path, type_key):
    """Rewrites config.json to the form of transformers 4.x: rope_theta, rope_scaling and torch_dtype as separate fields."""
    with open(path) as file:
        config = json.load(file)
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    rope[type_key] = rope.pop("rope_type")
    config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.40.0"
    with open(path, "w") as file:
        json.dump(config, file, indent=2)
        file.write("\n")


def without_scaling(config):
    rope = getattr(config, "rope_parameters", None)
    if config.model_type != "llama" or not rope or rope["rope_type"] == "default":
        return None
    plain = type(config)(**config.to_dict())
    plain.rope_parameters = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
    return plain


def family_model(name):
    """(description, configuration, options) of a model of make_numpy_golden."""
    description, fields = make_numpy_golden.GOLDEN[name]
    fields = {"pad_token_id": 0, **fields}  # some families' default is outside a small vocabulary
    with tempfile.TemporaryDirectory() as directory:
        with open(os.path.join(directory, "config.json"), "w") as file:
            json.dump({key: value for key, value in fields.items() if key != "auto_map"}, file)
        config = AutoConfig.from_pretrained(directory)
    stored = fields.get("torch_dtype", fields.get("dtype"))
    return description, config, {"dtype": getattr(torch, stored), "fields": fields}


def write(name, out):
    families = make_numpy_golden.GOLDEN
    description, config, options = family_model(name) if name in families else {**GOLDEN, **UNSEEN}[name]
    dtype = options.get("dtype", torch.float32)
    lengths = make_numpy_golden.lengths_of(name)
    seed, prompts, continuations, checks = choose_seed(config, dtype, lengths)
    # End ids that no continuation contains, so that a run which stops at them still yields every token.
    used = {token for tokens, _ in continuations.values() for token in tokens}
    free = [token for token in range(3, config.vocab_size) if token not in used][:options.get("eos", 1)]
    model = make_model(config, seed, dtype)
    for target in (model.config, model.generation_config):
        target.eos_token_id = free if len(free) > 1 else free[0]

    directory = os.path.join(out, name)
    shutil.rmtree(directory, ignore_errors=True)
    model.save_pretrained(directory, max_shard_size=options.get("shard", "5GB"))
    if "old" in options:
        to_old_spelling(os.path.join(directory, "config.json"), options["old"])
    if "fields" in options:  # the spelling that is to be tested, with the end id
        fields = {key: value for key, value in options["fields"].items() if key != "auto_map"}
        with open(os.path.join(directory, "config.json"), "w") as file:
            json.dump({**fields, "eos_token_id": free[0]}, file, indent=2, sort_keys=True)
            file.write("\n")
    native = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", dtype="auto").eval()
    reference = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32).eval()

    plain = without_scaling(config)
    if plain is not None:
        difference = logits_of(make_model(plain, seed, dtype).float(), prompts["long"])[-1]
        checks["change_by_rope_scaling"] = float((logits_of(reference, prompts["long"])[-1] - difference).abs().max())

    tensors, entries = {}, []
    for prompt, ids in prompts.items():
        # By the model as it is loaded: one that was converted in memory has rounded rotary frequencies too.
        tokens, gaps = greedy(reference, ids)
        assert not set(tokens) & set(free), "a continuation contains an end id"
        positions = list(range(len(ids))) if len(ids) <= 12 else list(range(len(ids) - 4, len(ids)))
        tensors[prompt] = logits_of(reference, ids)[positions].contiguous()
        entry = {"name": prompt, "ids": ids, "logit_positions": positions, "logits": prompt,
                 "greedy": tokens, "gaps": [round(gap, 6) for gap in gaps]}
        if dtype != torch.float32:
            tensors[prompt + ".native"] = logits_of(native, ids)[positions].contiguous()
            entry["native_logits"] = prompt + ".native"
            entry["native_greedy"] = greedy(native, ids)[0]
        entries.append(entry)
    save_file(tensors, os.path.join(directory, "golden.safetensors"))
    with open(os.path.join(directory, "golden.json"), "w") as file:
        json.dump({"model": name, "covers": description, "seed": seed,
                   "reference": f"transformers {transformers.__version__}, float32, eager attention, no KV cache",
                   "stored": str(dtype).removeprefix("torch."), "eos": free,
                   "checks": {key: round(value, 4) for key, value in checks.items()}, "prompts": entries}, file)
        file.write("\n")
    for file in os.listdir(directory):  # safetensors makes files readable by the owner only
        os.chmod(os.path.join(directory, file), 0o644)
    size = sum(os.path.getsize(os.path.join(directory, f)) for f in os.listdir(directory))
    print(f"{name}: {size // 1024} KiB, seed {seed}, {checks}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, metavar="DIR", help="each model gets a subdirectory")
    names = [*GOLDEN, *UNSEEN, *make_numpy_golden.GOLDEN]
    parser.add_argument("--only", choices=names, metavar="NAME", help="make only this model: " + ", ".join(names))
    parser.add_argument("--unseen", action="store_true", help="make the further shapes instead of the golden models")
    parser.add_argument("--families", action="store_true", help="make the models of tools/make_numpy_golden.py")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    os.makedirs(arguments.out, exist_ok=True)
    chosen = make_numpy_golden.GOLDEN if arguments.families else UNSEEN if arguments.unseen else GOLDEN
    for name in [arguments.only] if arguments.only else chosen:
        write(name, arguments.out)


if __name__ == "__main__":
    main()
