#!/usr/bin/env python3
"""Expected values of `eval ppl`'s arithmetic: negative log-likelihoods that transformers computes in float32.

    python tools/make_ppl_reference.py
    python tools/make_ppl_reference.py --text FILE [--model DIR] [--ctx N] [--limit-tokens M]

The second prints what `infinigen eval ppl -f FILE -c N --limit-tokens M --kv full --json` must say about a text, which is encoded by
transformers too. The first takes the ids of the longest golden prompt of each model below, cuts them into windows as src/eval/windows.h
says (with an opening token, every token is scored; without, all but a window's first), and writes the sum of every
window to tests/golden/ppl.json. Log-softmax in float64.
"""

import argparse
import json
import math
import os

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

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


def open_model(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


def cut(ids, opening, context):
    """Windows side by side; the opening's first token takes no room from them, since a window's last token is not fed."""
    length = context - max(len(opening) - 1, 0)
    windows = [ids[i:i + length] for i in range(0, len(ids), length)]
    return [w for w in windows if opening or len(w) > 1]


def score_text(path, text, context, limit):
    tokenizer, model = AutoTokenizer.from_pretrained(path), open_model(path)
    with open(text, encoding="utf-8", newline="") as file:
        ids = tokenizer(file.read(), add_special_tokens=False)["input_ids"][:limit]
    opening = tokenizer("")["input_ids"]
    windows = cut(ids, opening, context)
    tokens = sum(len(w) - (not opening) for w in windows)
    nll = sum(window_nll(model, opening, w) for w in windows) / tokens
    print(json.dumps({"ppl": math.exp(nll), "nll": nll, "tokens_scored": tokens, "windows": len(windows)}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text")
    parser.add_argument("--model", default=os.path.join(ROOT, "models/infinigen-mini"))
    parser.add_argument("--ctx", type=int, default=1024)
    parser.add_argument("--limit-tokens", type=int)
    args = parser.parse_args()
    if args.text:
        return score_text(args.model, args.text, args.ctx, args.limit_tokens)
    write_golden()


def write_golden():
    cases = []
    for path, golden, opening, context in CASES:
        with open(os.path.join(ROOT, GOLDEN, golden, "golden.json")) as file:
            prompt = max(json.load(file)["prompts"], key=lambda p: len(p["ids"]))
        model = open_model(os.path.join(ROOT, path))
        windows = cut(prompt["ids"], opening, context)
        cases.append({"model": path, "golden": f"{GOLDEN}/{golden}", "prompt": prompt["name"], "opening": opening, "context": context,
                      "tokens": sum(len(w) - (not opening) for w in windows),
                      "window_nll": [window_nll(model, opening, w) for w in windows]})
    with open(os.path.join(ROOT, GOLDEN, "ppl.json"), "w") as file:
        json.dump(cases, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
