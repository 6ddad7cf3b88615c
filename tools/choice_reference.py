#!/usr/bin/env python3
"""Reference for `infinigen eval choice --kv full`: scores the same questions with transformers in float32, by the formula
of lm-evaluation-harness.

    python tools/choice_reference.py --task DIR|FILE [--model DIR] [--shots K] [--limit N] [--seed S] [--out FILE]
    python tools/choice_reference.py --task DIR|FILE ... --compare RESULT.json ... # output of infinigen eval choice --json
    python tools/choice_reference.py --golden                                      # writes tests/golden/choice/golden.json
    python tools/choice_reference.py --random-model DIR                            # writes a tiny random model with the shipped tokenizer

Needs torch and transformers. This is an independent implementation: it shares no code with the program for reading
files, building prompts, drawing examples and splitting context from choice, and it uses transformers' tokenizer. Every
choice is one forward pass over context and ending, without a KV cache; log-softmax in float64. --compare fails unless
every choice is the same.
"""

import argparse
import json
import os
import re
import shutil
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EMBEDDED = os.path.join(ROOT, "models/infinigen-mini")
GOLDEN = os.path.join(ROOT, "tests/golden/choice")
MASK = (1 << 64) - 1


# ---- files: (contexts, endings, answer) per question; a single context or ending is shared by all choices ----


def copa(item):
    word = {"cause": "because", "effect": "therefore"}[item["question"]]
    endings = [item[name][0].lower() + item[name][1:] for name in ("choice1", "choice2")]
    return [f"{item['premise'].strip()[:-1]} {word}"], endings, item["label"]


def piqa(item):
    return [f"Question: {item['goal']}\nAnswer:"], [item["sol1"], item["sol2"]], item.get("label")


def winogrande(item):
    before, after = item["sentence"].split("_", 1)
    return [before + item["option1"], before + item["option2"]], [after.strip()], int(item["answer"]) - 1


def plain(item):
    return [item.get("query", item.get("context"))], item["choices"], item["answer"]


def read(path, labels=None):
    """`labels`: a file with the answers, for formats with the answers in a separate file."""
    with open(path, encoding="utf-8", newline="") as file:
        lines = [line for line in file.read().split("\n") if line.strip()]
    if path.endswith(".tsv"):
        rows = [line.rstrip("\r").split("\t") for line in lines]
        stem, choices, key = (rows[0].index(name) for name in ("Question Stem", "Choices", "Answer Key"))
        cut = lambda text: [piece.strip() for piece in re.split(r"(?:^| )\([A-Z]\) ", text)[1:]]
        return [([row[stem]], cut(row[choices]), ord(row[key].strip()) - ord("A")) for row in rows[1:]]
    items = [json.loads(line) for line in lines]
    forms = {"premise": copa, "goal": piqa, "sentence": winogrande, "choices": plain}
    form = next(forms[name] for name in forms if name in items[0])
    questions = [form(item) for item in items]
    if labels and form is piqa:
        with open(labels) as file:
            questions = [(contexts, endings, int(label)) for (contexts, endings, _), label in zip(questions, file.read().split(), strict=True)]
    return questions


def load(task):
    """(questions, questions to draw examples from); the second is None when examples are drawn from the first."""
    if not os.path.isdir(task):
        return read(task), None
    files, labels = {}, None
    for name in os.listdir(task):
        split = next((kind for word, kind in (("train", "train"), ("test", "test"), ("val", "val"), ("dev", "val")) if word in name), None)
        if split and name.endswith((".jsonl", ".tsv")):
            files[split] = os.path.join(task, name)
        if split == "val" and name.endswith(".lst"):
            labels = os.path.join(task, name)
    asked = "test" if "test" in files and files["test"].endswith(".tsv") else "val"
    return read(files[asked], labels), read(files["train"]) if "train" in files else None


# ---- prompts ----


class SplitMix:
    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
        return z ^ (z >> 31)

    def below(self, n):
        return (self.next() >> 33) % n


def draw(seed, index, pool, count, from_itself):
    random = SplitMix(SplitMix(seed).next() ^ index)
    drawn = []
    while len(drawn) < count:
        one = random.below(pool)
        if one not in drawn and not (from_itself and one == index):
            drawn.append(one)
    return drawn


def shots(questions, training, index, count, seed):
    pool = questions if training is None else training
    text = ""
    for one in draw(seed, index, len(pool), count, training is None):
        contexts, endings, answer = pool[one]
        text += contexts[answer if len(contexts) > 1 else 0] + " " + endings[answer if len(endings) > 1 else 0] + "\n\n"
    return text


# ---- scores ----


def cut(tokenizer, context, ending):
    """(ids of the context, ids that are scored). Trailing spaces of the context move to the ending."""
    ending = context[len(context.rstrip()):] + ending
    context = context.rstrip()
    before = tokenizer(context)["input_ids"]
    return before, tokenizer(context + ending)["input_ids"][len(before):]


@torch.no_grad()
def log_likelihood(model, context, ending):
    logits = model(torch.tensor([context + ending[:-1]])).logits[0, len(context) - 1:].double()
    return -torch.nn.functional.cross_entropy(logits, torch.tensor(ending), reduction="sum").item()


def ask(model, tokenizer, task, count, limit, seed):
    questions, training = load(task)
    results = []
    for index, (contexts, endings, answer) in enumerate(questions[:limit]):
        before = shots(questions, training, index, count, seed)
        scores, norms = [], []
        for i in range(max(len(contexts), len(endings))):
            ending = endings[i if len(endings) > 1 else 0]
            pair = cut(tokenizer, before + contexts[i if len(contexts) > 1 else 0], " " + ending)
            scores.append(log_likelihood(model, *pair))
            norms.append(scores[-1] / len(ending))
        results.append({"choice": scores.index(max(scores)), "choice_norm": norms.index(max(norms)), "answer": answer, "scores": scores})
    return results


def summary(results):
    share = lambda name: sum(one[name] == one["answer"] for one in results) / len(results)
    return {"accuracy": share("choice"), "acc_norm": share("choice_norm"), "n": len(results)}


def open_model(path):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(path) if os.path.exists(os.path.join(path, "tokenizer.json")) else None
    return model, tokenizer


# ---- the comparison ----


def gap(scores):
    first, second = sorted(scores, reverse=True)[:2]
    return first - second


def compare(expected, path):
    with open(path) as file:
        found = json.load(file)
    ours = found["questions"]
    if len(ours) != len(expected):
        sys.exit(f"{path}: it has {len(ours)} questions, but the reference has {len(expected)}")
    same = [a["choice"] == b["choice"] for a, b in zip(ours, expected)]
    norm = [a["choice_norm"] == b["choice_norm"] for a, b in zip(ours, expected)]
    wrong_answer = [a["answer"] != b["answer"] for a, b in zip(ours, expected)]
    far = max(abs(x - y) for a, b in zip(ours, expected) for x, y in zip(a["scores"], b["scores"]))
    print(f"{found['task']}, {found['shots']} shots, {found['kv']['type']}: the same choice in {sum(same)} of {len(same)} questions, "
          f"with length-normalised scores in {sum(norm)}; largest difference of scores {far:.2g}, smallest gap between two choices "
          f"{min(gap(b['scores']) for b in expected):.2g}; accuracy {found['accuracy']:.4f}, reference {summary(expected)['accuracy']:.4f}")
    for a, b, equal in zip(ours, expected, same):
        if not equal:
            print(f"  line {a['line']}: choice {a['choice']}, reference {b['choice']} (ahead by {gap(b['scores']):.2g})")
    return all(same) and not any(wrong_answer)


# ---- golden files of the repository's tests ----

# (task, number of examples before each question); the tasks are our own, in the formats of the published ones
TASKS = [("copa", 0), ("copa", 2), ("openbookqa", 0), ("openbookqa", 3), ("piqa", 0), ("piqa", 1), ("winogrande", 0), ("winogrande", 2),
         ("plain.jsonl", 0), ("plain.jsonl", 2)]
RANDOM_MODELS = ["llama_gqa_tied", "opt_pre_norm"]


def random_questions(model, count=12):
    """Questions of random token ids: some with a shared context, some with a context per choice and a shared ending."""
    random, vocab = SplitMix(7), model.config.vocab_size
    ids = lambda n: [3 + random.below(vocab - 3) for _ in range(n)]
    questions = []
    for index in range(count):
        shared = ids(1 + random.below(90))
        choices = 2 + random.below(4)
        if index % 3 == 2:
            ending = ids(1 + random.below(20))
            pairs = [(shared + ids(1 + random.below(3)), ending) for _ in range(choices)]
        else:
            pairs = [(shared, ids(1 + random.below(20))) for _ in range(choices)]
        questions.append({"contexts": [pair[0] for pair in pairs], "endings": [pair[1] for pair in pairs],
                          "scores": [log_likelihood(model, *pair) for pair in pairs]})
    return questions


def golden():
    model, tokenizer = open_model(EMBEDDED)
    tasks = [{"task": task, "shots": count, "seed": 1, "questions": ask(model, tokenizer, os.path.join(GOLDEN, task), count, None, 1)}
             for task, count in TASKS]
    models = [{"model": name, "questions": random_questions(open_model(os.path.join(ROOT, "tests/golden/models", name))[0])}
              for name in RANDOM_MODELS]
    with open(os.path.join(GOLDEN, "golden.json"), "w") as file:
        json.dump({"made_by": f"torch {torch.__version__}, transformers {transformers.__version__}", "tasks": tasks, "models": models}, file)
        file.write("\n")


def random_model(directory):
    """A random model with peaked attention, spread logits and the vocabulary of the shipped tokenizer."""
    torch.manual_seed(5)
    config = transformers.LlamaConfig(vocab_size=8192, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
                                      num_key_value_heads=2, max_position_embeddings=4096, initializer_range=0.2, bos_token_id=0, eos_token_id=0)
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(EMBEDDED, name), directory)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", metavar="DIR|FILE", help="the questions, in a format that `infinigen eval choice` reads")
    parser.add_argument("--model", metavar="DIR", default=EMBEDDED, help="model directory (default: the shipped model)")
    parser.add_argument("--shots", type=int, default=0, help="examples before each question (default 0)")
    parser.add_argument("--limit", type=int, help="number of questions (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="seed for drawing the examples (default 1)")
    parser.add_argument("--out", metavar="FILE", help="write choices and scores as JSON")
    parser.add_argument("--compare", nargs="+", metavar="RESULT.json",
                        help="compare with results of `infinigen eval choice --json`; exit code 1 if a choice differs")
    parser.add_argument("--golden", action="store_true", help="write tests/golden/choice/golden.json")
    parser.add_argument("--random-model", metavar="DIR", help="write a tiny random model to DIR")
    args = parser.parse_args()
    if args.random_model:
        return random_model(args.random_model)
    if args.golden:
        return golden()
    if not args.task:
        parser.error("--task is required, unless --golden or --random-model is given")
    results = ask(*open_model(args.model), args.task, args.shots, args.limit, args.seed)
    if args.out:
        with open(args.out, "w") as file:
            json.dump({**summary(results), "questions": results}, file)
    if args.compare:
        sys.exit(0 if all([compare(results, path) for path in args.compare]) else 1)
    else:
        print(json.dumps(summary(results)))


if __name__ == "__main__":
    main()
