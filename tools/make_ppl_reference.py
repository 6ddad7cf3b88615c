#!/usr/bin/env python3
"""Reference values for `eval ppl`: negative log-likelihoods that transformers computes in float32.

    python tools/make_ppl_reference.py
    python tools/make_ppl_reference.py --text FILE [--model DIR] [--ctx N] [--limit-tokens M]

Without --text, it writes tests/golden/ppl.json: for each model in CASES it divides the ids of the longest golden prompt into
windows by the rules of src/eval/windows.h (with an opening token every token is scored, without one all but the first of a window)
and stores the sum of every window. With --text, it prints the values that
`infinigen eval ppl -f FILE -c N --limit-tokens M --kv full --json` must give; the text is encoded by transformers too.
Log-softmax in float64.
"""

import argparse
import json
import math
import os

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GOLDEN = "tests/golden"
# (model directory, folder of its golden.json, opening ids, tokens per window)
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
    """Consecutive windows. A window's last token is not fed, so the first opening token fits without shortening the window."""
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
    parser.add_argument("--text", metavar="FILE", help="print the values for this text instead of writing the golden file")
    parser.add_argument("--model", metavar="DIR", default=os.path.join(ROOT, "models/infinigen-mini"),
                        help="model for --text (default: the shipped model)")
    parser.add_argument("--ctx", type=int, default=1024, help="tokens per window (default 1024)")
    parser.add_argument("--limit-tokens", type=int, help="use only the first tokens of the text (default: all)")
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
