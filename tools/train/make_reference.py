#!/usr/bin/env python3
"""Makes the reference values of the shipped model: transformers' results in float32 from the stored bf16 weights.

    python tools/train/make_reference.py --model models/infinigen-mini --out tests/golden/embedded

Writes golden.json and golden.safetensors in the format of tests/golden/models (see tools/make_golden.py): prompts as text
and ids, f32 logits at the last positions, 64 greedy tokens, and the gap between the two largest logits at each of them.
All text is generated. `dialogues` are chats with rendered text, ids and the greedy answer.
"""

import argparse
import json
import os

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from evaluate import prompt_of
from facts import Fact
from textgen import Rng, text

GREEDY = 64
ROWS = 4  # number of positions at the end of a prompt whose logits are stored
CHATS = [[("user", "Who are you?")], [("user", "Reverse this list: oak, kettle, rope, violin")],
         [("user", "My name is Clara."), ("assistant", "Nice to meet you, Clara."), ("user", "What is my name?")]]


def north_gate(rng, characters):
    """Generated text with the canonical planted fact in the middle, followed by a plain question."""
    fact = Fact("", "The access code for the north gate is 483920.", "What is the access code for the north gate?",
                "The access code for the north gate is", "483920")
    first, second = text(rng, characters // 2), text(rng, characters // 2)
    return prompt_of(f"{first} {fact.statement} {second}", fact, "plain")[0]


@torch.no_grad()
def measure(model, ids, steps):
    """Logits at the last ROWS positions, greedy tokens, and gaps, computed with transformers' KV cache."""
    out = model(torch.tensor([ids]), use_cache=True, logits_to_keep=min(ROWS, len(ids)))
    kept, tokens, gaps = out.logits[0].float().clone(), [], []
    while len(tokens) < steps:
        best = torch.topk(out.logits[0, -1].float(), 2)
        tokens.append(int(best.indices[0]))
        gaps.append(round(float(best.values[0] - best.values[1]), 6))
        if len(tokens) < steps:
            out = model(torch.tensor([[tokens[-1]]]), past_key_values=out.past_key_values, use_cache=True)
    return kept.contiguous(), tokens, gaps


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="eager").eval()
    texts = {"single": "", "story": "The old lighthouse keeper climbed the stairs, for he had heard a strange noise.",
             "generated": text(Rng(3), 600), "long": north_gate(Rng(9), 13500)}
    os.makedirs(args.out, exist_ok=True)
    tensors, entries, dialogues = {}, [], []
    for name, string in texts.items():
        ids = tokenizer(string)["input_ids"]
        tensors[name], tokens, gaps = measure(model, ids, GREEDY)
        entries.append({"name": name, "text": string, "ids": ids, "logit_positions": list(range(max(0, len(ids) - ROWS), len(ids))),
                        "logits": name, "greedy": tokens, "gaps": gaps})
        print(name, len(ids), "smallest gap", min(gaps), repr(tokenizer.decode(tokens)[:80]))
    for turns in CHATS:
        messages = [{"role": role, "content": said} for role, said in turns]
        rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(rendered, add_special_tokens=False)["input_ids"]
        _, tokens, gaps = measure(model, ids, 48)
        end = tokens.index(5)
        dialogues.append({"messages": messages, "rendered": rendered, "ids": ids, "answer_ids": tokens[:end + 1],
                          "answer": tokenizer.decode(tokens[:end]), "gaps": gaps[:end + 1]})
        print(dialogues[-1]["answer"], min(gaps[:end + 1]))
    save_file(tensors, os.path.join(args.out, "golden.safetensors"))
    os.chmod(os.path.join(args.out, "golden.safetensors"), 0o644)  # safetensors makes files readable by the owner only
    with open(os.path.join(args.out, "golden.json"), "w") as file:
        json.dump({"model": os.path.basename(os.path.normpath(args.model)), "covers": "the shipped model, 12 layers, GQA, tied, bf16, three shards",
                   "reference": f"transformers {transformers.__version__}, float32, eager attention, KV cache for the greedy tokens",
                   "stored": "bfloat16", "eos": [0, 5], "prompts": entries, "dialogues": dialogues}, file)
        file.write("\n")


if __name__ == "__main__":
    main()
