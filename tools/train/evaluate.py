#!/usr/bin/env python3
"""Evaluates the stored bf16 weights: held-out perplexity, planted facts found, samples.

    python tools/train/evaluate.py --model models/infinigen-mini --eval EVAL --out eval.json

This makes the tables of the model card. It takes one minute on a GPU, in bf16. Without a GPU it computes in f32 (the output
says so) and takes hours unless --number and --lengths are reduced. --tables prints the tables of an existing --out.

A planted fact counts as found when greedy decoding gives its value exactly. One forward pass over prompt and expected
answer decides this: greedy decoding gives the answer if and only if each of its tokens has the largest logit after the
tokens before it. Prompts are composed as text and then encoded, as a user of the model would do it.
"""

import argparse
import json
import lzma
import math
import os
import re
import tempfile

import torch
import torch.nn.functional as F

from facts import CODE_NAMES, code_fact
from make_tokenizer import END_OF_TEXT
from textgen import Rng, text

BOUNDARY = re.compile(r"(?<=[.!?]) (?=[A-Z])")
FORMS = ("plain", "chat", "continue")
TEXTS = "valid_mix,wiki_long,moby_dick,walden"  # the texts of the model card; facts are planted in the books among them
NO_BOOKS = ("valid_mix", "wiki_long")


def read(path):
    opener = lzma.open if path.endswith(".xz") else open
    with opener(path, "rt", encoding="utf-8") as file:
        return file.read()


def eval_folder(given):
    """The folder of held-out texts: the given one, or else that of the corpus which the tests use."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    corpus = os.environ.get("INFINIGEN_DATA") or os.path.join(os.path.dirname(root), "shared", "corpus")
    folder = given or os.path.join(corpus, "eval")
    if not os.path.isdir(folder):
        raise SystemExit(f"{folder}: no such folder; pass the folder with the held-out .txt.xz files as --eval"
                         + ("" if given else " (looked in $INFINIGEN_DATA/eval or ../shared/corpus/eval)"))
    return folder


def text_paths(folder, names):
    """{name: path} of the texts listed in `names` ("all": of every text) in `folder` and its subfolders."""
    there = {file.split(".")[0]: os.path.join(base, file) for base, _, files in sorted(os.walk(folder))
             for file in sorted(files) if file.endswith(".txt.xz")}
    wanted = sorted(there) if names == "all" else names.split(",")
    missing = [name for name in wanted if name not in there]
    if missing or not wanted:
        raise SystemExit(f"{folder}: no {', '.join(missing) or 'text'}.txt.xz there; it has {', '.join(sorted(there)) or 'none'}: "
                         "choose with --texts")
    if all(name in NO_BOOKS for name in wanted):
        raise SystemExit(f"--texts {names}: add a book, because facts are planted in books")
    return {name: there[name] for name in wanted}


def add_text_flags(parser):
    parser.add_argument("--eval", help="folder with .txt.xz files; books may be in subfolders "
                                       "(default: $INFINIGEN_DATA/eval, else ../shared/corpus/eval)")
    parser.add_argument("--texts", default=TEXTS, help=f"names of the texts, or all (default {TEXTS}: those of the model card)")


# ---- perplexity

@torch.no_grad()
def perplexity(model, tokenizer, string, window, device, limit):
    """Consecutive windows, each after <|endoftext|>; every token of the text is predicted once."""
    ids = []
    for document in string.split("<|endoftext|>\n"):
        ids += [END_OF_TEXT] * bool(ids) + tokenizer.encode(document.rstrip("\n"), add_special_tokens=False).ids
        if len(ids) >= limit:
            break
    ids = ids[:min(len(ids), limit) // 8192 * 8192] if len(ids) >= 8192 else ids[:len(ids) // window * window]
    kept_bytes = len(tokenizer.decode(ids).encode())
    windows = torch.tensor(ids).view(-1, window)
    inputs = torch.cat([torch.full((len(windows), 1), END_OF_TEXT), windows[:, :-1]], 1)
    total, rows = 0.0, max(1, 131072 // window)
    for i in range(0, len(windows), rows):
        total += model.losses(inputs[i:i + rows].to(device), windows[i:i + rows].to(device)).double().sum().item()
    return {"tokens": len(ids), "bytes": kept_bytes, "window": window, "nll": round(total / len(ids), 4),
            "ppl": round(math.exp(total / len(ids)), 3), "bits_per_byte": round(total / math.log(2) / kept_bytes, 4)}


# ---- planted facts

def plant_text(rng, filler, statements, depths=None):
    """Inserts each statement at the first sentence boundary after its depth (0 to 1, uniform unless given)."""
    cuts = [match.end() for match in BOUNDARY.finditer(filler)]
    spots = []
    for i, statement in enumerate(statements):
        depth = depths[i] if depths else (rng.below(1 << 20) + 0.5) / (1 << 20)
        at = next((c for c in cuts if c >= depth * len(filler)), cuts[-1] if cuts else 0)
        spots.append((at, i, statement))
    out, last = [], 0
    for at, _, statement in sorted(spots):
        out += [filler[last:at], statement, " "]
        last = at
    return "".join(out + [filler[last:]])


def prompt_of(body, fact, form):
    """(prompt, expected answer) as text with special tokens; see docs/model.md, "Prompt forms"."""
    if form == "plain":
        return f"{body}\n\nQuestion: {fact.question}\nAnswer:", f" {fact.value}"
    if form == "chat":
        return f"<|user|>{body}\n\n{fact.question}<|end|><|assistant|>", f"{fact.answer}<|end|>"
    return f"{body} {fact.prefix}", f" {fact.value}."


def case(rng, tokenizer, sources, kind, length, count, form, canonical, depth):
    """One prompt of at most `length` ids, and its answer. `sources`: ids of held-out books."""
    attr = "access code" if canonical else rng.pick(CODE_NAMES)
    facts, keys = [], set()
    while len(facts) < count:
        fact = code_fact(rng, 6, attr, None, canonical)
        if fact.key not in keys:
            keys.add(fact.key)
            facts.append(fact)
    room = length - 24 * count - 64
    if kind == "real":
        ids = rng.pick(sources)
        at = rng.below(len(ids) - room - 200)
        filler = tokenizer.decode(ids[at:at + room + 40])
        start = BOUNDARY.search(filler)
        filler = filler[start.end():] if start else filler
    else:
        filler = text(rng, room * 5)
    filler = tokenizer.decode(tokenizer.encode(filler, add_special_tokens=False).ids[:room])
    last = [match.end() for match in BOUNDARY.finditer(filler)]
    filler = filler[:last[-1] - 1] if last else filler
    depths = [depth] + [(rng.below(1 << 20) + 0.5) / (1 << 20) for _ in facts[1:]]
    body = plant_text(rng, filler, [fact.statement for fact in facts], depths)
    prompt, answer = prompt_of(body, facts[0], form)
    prompt_ids = tokenizer.encode(prompt).ids
    answer_ids = tokenizer.encode(answer, add_special_tokens=False).ids
    assert len(prompt_ids) + len(answer_ids) <= length, (len(prompt_ids), len(answer_ids), length)
    return prompt_ids, answer_ids


@torch.no_grad()
def found(model, cases, device, tokens=131072):
    """For each case, whether greedy decoding gives the answer."""
    longest = max(len(p) + len(a) for p, a in cases)
    width = max(len(a) for _, a in cases)
    rows = max(1, tokens // longest)
    good = []
    for i in range(0, len(cases), rows):
        group = cases[i:i + rows]
        ids = torch.zeros(len(group), longest, dtype=torch.long)
        places = torch.zeros(len(group), width, dtype=torch.long)
        wanted = torch.full((len(group), width), -1)
        for r, (prompt, answer) in enumerate(group):
            ids[r, :len(prompt) + len(answer)] = torch.tensor(prompt + answer)
            places[r, :len(answer)] = torch.arange(len(answer)) + len(prompt) - 1
            wanted[r, :len(answer)] = torch.tensor(answer)
        best = model.logits(ids.to(device), places.to(device)).argmax(-1).cpu()
        good += ((best == wanted) | (wanted < 0)).all(-1).tolist()
    return good


SETTINGS = ((1, True), (1, False), (8, True), (24, True))  # facts planted, canonical wording


def needle_jobs(lengths):
    return [(length, kind, count, canonical, form) for length in lengths for kind in ("real", "generated")
            for count, canonical in SETTINGS for form in FORMS]


def needle_cases(tokenizer, sources, job, number, seed=11):
    length, kind, count, canonical, form = job
    rng = Rng(seed * 1_000_003 + length * 101 + count * 7 + canonical)
    return [case(rng, tokenizer, sources, kind, length, count, form, canonical, (i + 0.5) / number) for i in range(number)]


def cases_path(folder, job):
    return os.path.join(folder, "cases-" + "-".join(map(str, job)) + ".json")


def make_cases(number, of, tokenizer_path, paths, lengths, count, folder):
    """Writes the cases of every `of`-th job to a file, ahead of time: making them takes longer than the model's answer."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(tokenizer_path)
    _, sources = heldout(paths, tokenizer)
    for job in needle_jobs(lengths)[number::of]:
        if not os.path.exists(cases_path(folder, job)):
            with open(cases_path(folder, job) + ".new", "w") as file:
                json.dump(needle_cases(tokenizer, sources, job, count), file)
            os.replace(cases_path(folder, job) + ".new", cases_path(folder, job))


def start_cases(tokenizer_path, paths, lengths, count, folder, processes):
    """Forks the processes that make the cases. Call it before CUDA is used; join the processes before reading."""
    import multiprocessing as mp

    context = mp.get_context("fork")
    made = [context.Process(target=make_cases, args=(i, processes, tokenizer_path, paths, lengths, count, folder))
            for i in range(processes)]
    for process in made:
        process.start()
    return made


def needle_table(model, device, lengths, folder, report=print):
    table = []
    for job in needle_jobs(lengths):
        length, kind, count, canonical, form = job
        with open(cases_path(folder, job)) as file:
            cases = json.load(file)
        good, n = found(model, cases, device), len(cases)
        thirds = [good[n * t // 3:n * (t + 1) // 3] for t in range(3)]
        table.append({"length": length, "text": kind, "facts": count, "wording": "canonical" if canonical else "varied", "form": form,
                      "n": n, "found": round(sum(good) / n, 4), "by_depth_third": [round(sum(t) / len(t), 3) if t else None for t in thirds]})
    for length in lengths:
        report(f"needle {length}: " + " ".join(f"{r['text'][0]}{r['facts']}{r['wording'][0]}{r['form'][:2]}={r['found']:.2f}"
                                               for r in table if r["length"] == length))
    return table


# ---- samples

STORIES = ["The old lighthouse keeper climbed the stairs, for he had heard a strange noise.",
           "Once upon a time there was a small fox who lived near the river.",
           "It was a cold morning in November when the stranger came to the village."]
CHATS = [["Hello!", "Who are you?", "Thank you. Goodbye!"],
         ["My name is Clara.", "What is the capital of France?", "What is my name?"],
         ["Reverse this list: lantern, kettle, rope, violin", "Repeat: seven, red, oak"],
         ["The garden key is in the blue drawer. Jonas has lived in Torvik since last year.\n\nWhere does Jonas live?"],
         ["Tell me a story about an owl and a clock."],
         ["Continue this story: The ship had left the harbour before sunrise. The captain looked at the sea and said nothing."],
         ["What will the weather be tomorrow?", "What is the opposite of hot?"],
         ["The access code for the north gate is 483920. The access code for the old mill is 771205. Please remember both.",
          "What is the access code for the north gate?"]]


def samples(folder, device):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16 if device == "cuda" else torch.float32).to(device)
    out = {"stories": [], "chats": []}
    torch.manual_seed(5)
    for opening in STORIES:
        ids = tokenizer(opening, return_tensors="pt").to(device)
        made = model.generate(**ids, max_new_tokens=120, do_sample=True, temperature=0.7, top_k=40)
        out["stories"].append({"prompt": opening, "continuation": tokenizer.decode(made[0, ids.input_ids.shape[1]:])})
    for questions in CHATS:
        messages = []
        for question in questions:
            messages.append({"role": "user", "content": question})
            ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True).to(device)
            made = model.generate(**ids, max_new_tokens=160, do_sample=False)[0, ids["input_ids"].shape[1]:]
            messages.append({"role": "assistant", "content": tokenizer.decode(made, skip_special_tokens=True),
                             "stopped": bool(made[-1] == 5)})
        out["chats"].append(messages)
    return out


def heldout(paths, tokenizer, books=True):
    """(texts for perplexity, ids of the books in which facts are planted). `paths`: result of text_paths."""
    texts = {name: read(path) for name, path in paths.items()}
    ids = [tokenizer.encode(texts[name], add_special_tokens=False).ids for name in sorted(texts)
           if books and name not in NO_BOOKS]
    return texts, ids


def show_samples(made, report=print):
    for item in made["stories"]:
        report(f"STORY {item['prompt']} >>> {item['continuation']}")
    for chat in made["chats"]:
        report("CHAT " + " / ".join(f"{m['role'][0]}: {m['content']}{'' if m.get('stopped', True) else ' [no end]'}" for m in chat))


def evaluate(model, tokenizer, paths, device, lengths, limit, folder, report=print):
    """Measures perplexity and planted facts. `folder` contains the cases."""
    result = {"arithmetic": "bf16" if model.dtype == torch.bfloat16 else "f32", "perplexity": {}}
    report(f"arithmetic: {result['arithmetic']} on {device}"
           + ("" if result["arithmetic"] == "bf16" else " (the model card has numbers in bf16, from a GPU)"))
    texts, _ = heldout(paths, tokenizer, books=False)
    for name, string in texts.items():
        result["perplexity"][name] = [perplexity(model, tokenizer, string, window, device, limit) for window in (2048, 4096, 8192)]
        report(f"{name}: " + " ".join(f"{row['window']}: {row['ppl']} ({row['bits_per_byte']} bits/byte)" for row in result["perplexity"][name]))
    result["needle"] = needle_table(model, device, lengths, folder, report=report)
    return result


# ---- tables of the card

def tables(result):
    """The tables of the model card in Markdown: perplexity and planted facts."""
    baselines = result.get("baselines", {}).get("texts", {})
    lines = [f"In {result['arithmetic']} arithmetic.", "", "| text | unigram | trigram | 2,048 | 4,096 | 8,192 |", "|---|---|---|---|---|---|"]
    for name, rows in result["perplexity"].items():
        cells = [baselines.get(name, {}).get(kind) for kind in ("unigram", "trigram")]
        cells = [f"{cell['ppl']:.{0 if cell['ppl'] >= 1000 else 1}f} ({cell['bits_per_byte']:.2f})" if cell else "-" for cell in cells]
        cells += [f"{row['ppl']:.1f} ({row['bits_per_byte']:.3f})" for row in rows]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    columns = [(kind, count, wording) for kind in ("real", "generated") for count, wording in
               ((1, "canonical"), (1, "varied"), (8, "canonical"), (24, "canonical"))]
    heads = [f"{kind}: {count}" + (", varied" if wording == "varied" else "") for kind, count, wording in columns]
    lines += ["", "| context | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for length in sorted({row["length"] for row in result["needle"]}):
        cells = []
        for column in columns:
            rows = [r for r in result["needle"] if r["length"] == length and (r["text"], r["facts"], r["wording"]) == column]
            share = 100 * sum(r["found"] * r["n"] for r in rows) / sum(r["n"] for r in rows)
            cells.append("100" if share > 99.99 else f"{share:.1f}")
        lines.append(f"| {length:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    from tokenizers import Tokenizer

    from model import load_model

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    add_text_flags(parser)
    parser.add_argument("--out", required=True, help="JSON file for the results; existing entries that are not measured now are kept")
    parser.add_argument("--number", type=int, default=100, help="cases per row of the needle table (default 100)")
    parser.add_argument("--lengths", default="1024,2048,4096,8192", help="prompt lengths of the needle table (default 1024,2048,4096,8192)")
    parser.add_argument("--limit", type=int, default=400_000, help="tokens of each text for perplexity (default 400000)")
    parser.add_argument("--samples", action="store_true", help="only generate stories and chats, with transformers")
    parser.add_argument("--tables", action="store_true", help="only print the tables of an existing --out")
    args = parser.parse_args()
    result = {}
    if os.path.exists(args.out):
        with open(args.out) as file:
            result = json.load(file)
    if args.tables:
        if "needle" not in result:
            raise SystemExit(f"{args.out}: no results to print; run without --tables first")
        print(tables(result))
        return
    tokenizer_path = os.path.join(args.model, "tokenizer.json")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.samples:
        result["samples"] = samples(args.model, device)
        show_samples(result["samples"])
    else:
        lengths, paths = [int(n) for n in args.lengths.split(",")], text_paths(eval_folder(args.eval), args.texts)
        with tempfile.TemporaryDirectory() as folder:
            for process in start_cases(tokenizer_path, paths, lengths, args.number, folder, os.cpu_count()):
                process.join()
            model = load_model(args.model, device)
            if device == "cpu":
                model.dtype = torch.float32
            result.update(evaluate(model, Tokenizer.from_file(tokenizer_path), paths, device, lengths, args.limit, folder))
        print(tables(result))
    with open(args.out, "w") as file:
        json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
