#!/usr/bin/env python3
"""Expected values of `eval ppl`'s arithmetic: negative log-likelihoods that transformers computes in float32.

    python tools/make_ppl_reference.py

Takes the ids of the longest golden prompt of each model below, cuts them into windows as src/cli/eval_perplexity.h
says (with an opening token, every token is scored; without, all but a window's first), and writes the sum of every
window to tests/golden/ppl.json. Log-softmax in float64.
"""

import json
import os

import torch
from transformers import AutoModelForCausalLM

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GOLDEN = "tests/golden"
# model directory, its golden.json, opening ids, tokens of a window
CASES = [("models/infinigen-mini", "embedded", [0], 1024), ("tests/golden/models/llama_gqa_tied", "models/llama_gqa_tied", [1], 48),
         ("tests/golden/models/opt_pre_norm", "models/opt_pre_norm", [], 48)]


@torch.no_grad()
def window_nll(model, opening, tokens):
    fed = opening + tokens[:-1]
    scored = tokens if opening else tokens[1:]
    logits = model(torch.tensor([fed])).logits[0, len(fed) - len(scored):].double()
    return torch.nn.functional.cross_entropy(logits, torch.tensor(scored), reduction="sum").item()


def main():
    cases = []
    for path, golden, opening, context in CASES:
        with open(os.path.join(ROOT, GOLDEN, golden, "golden.json")) as file:
            prompt = max(json.load(file)["prompts"], key=lambda p: len(p["ids"]))
        model = AutoModelForCausalLM.from_pretrained(os.path.join(ROOT, path), dtype=torch.float32, attn_implementation="eager").eval()
        ids = prompt["ids"]
        windows = [ids[i:i + context] for i in range(0, len(ids), context)]
        windows = [w for w in windows if opening or len(w) > 1]
        cases.append({"model": path, "golden": f"{GOLDEN}/{golden}", "prompt": prompt["name"], "opening": opening, "context": context,
                      "tokens": sum(len(w) - (not opening) for w in windows),
                      "window_nll": [window_nll(model, opening, w) for w in windows]})
    with open(os.path.join(ROOT, GOLDEN, "ppl.json"), "w") as file:
        json.dump(cases, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
