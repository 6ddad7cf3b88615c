#!/usr/bin/env python3
"""Computes unigram and trigram baselines with the model's tokenizer, on the same held-out tokens as evaluate.py.

    python tools/train/ngram.py --shards ../shared/corpus/shards --eval EVAL --model models/infinigen-mini --state DIR --out eval.json

The trigram model is interpolated Kneser-Ney with one discount per order; the unigram model adds one to the counts. Both
are trained on all shards. The results are written to eval.json under `baselines`.
"""

import argparse
import json
import math
import multiprocessing as mp
import os

import numpy as np
from tokenizers import Tokenizer

from data import PARTS, encode_part, part_path
from evaluate import add_text_flags, eval_folder, heldout, text_paths
from make_tokenizer import END_OF_TEXT, VOCAB, shard_paths

DISCOUNT = 0.75


def encode(job):
    tokenizer_path, shard, part, state = job
    encode_part(Tokenizer.from_file(tokenizer_path), shard, part, state)


class Counts:
    """Sorted keys with their counts, for looking up many keys at once."""

    def __init__(self, keys, weights=None):
        if weights is None:
            self.keys, self.values = np.unique(keys, return_counts=True)
        else:
            self.keys, inverse = np.unique(keys, return_inverse=True)
            self.values = np.bincount(inverse, weights=weights)

    def __call__(self, keys):
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, self.values[at], 0).astype(np.float64)


class Trigram:
    def __init__(self, ids):
        a, b, c = (ids[i:len(ids) - 2 + i].astype(np.int64) for i in range(3))
        self.abc = Counts((a * VOCAB + b) * VOCAB + c)
        kinds = self.abc.keys
        self.ab = Counts(kinds // VOCAB, self.abc.values)        # n(ab.)
        self.ab_kinds = Counts(kinds // VOCAB)                   # different c after ab
        self.bc = Counts(kinds % (VOCAB * VOCAB))                # different a before bc
        self.b = Counts(self.bc.keys // VOCAB, self.bc.values)
        self.b_kinds = Counts(self.bc.keys // VOCAB)
        self.c = Counts(self.bc.keys % VOCAB)                    # different b before c
        self.pairs = len(self.bc.keys)

    def probability(self, a, b, c):
        d = DISCOUNT
        one = (np.maximum(self.c(c) - d, 0) + d * len(self.c.keys) / VOCAB) / self.pairs
        total = np.maximum(self.b(b), 1)
        two = np.where(self.b(b) > 0, np.maximum(self.bc(b * VOCAB + c) - d, 0) / total + d * self.b_kinds(b) / total * one, one)
        ab = a * VOCAB + b
        total = np.maximum(self.ab(ab), 1)
        return np.where(self.ab(ab) > 0, np.maximum(self.abc(ab * VOCAB + c) - d, 0) / total + d * self.ab_kinds(ab) / total * two, two)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("shards", "model", "state", "out"):
        parser.add_argument(f"--{name}", required=True)
    add_text_flags(parser)
    parser.add_argument("--limit", type=int, default=400_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    args = parser.parse_args()
    paths = text_paths(eval_folder(args.eval), args.texts)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.makedirs(args.state, exist_ok=True)
    tokenizer_path = os.path.join(args.model, "tokenizer.json")
    parts = [(shard, part) for shard in shard_paths(args.shards) for part in range(PARTS)]
    with mp.Pool(args.processes) as pool:
        pool.map(encode, [(tokenizer_path, s, p, args.state) for s, p in parts if not os.path.exists(part_path(args.state, s, p))], chunksize=1)
    ids = np.concatenate([np.load(part_path(args.state, s, p)) for s, p in parts])
    unigram = (np.bincount(ids, minlength=VOCAB) + 1) / (len(ids) + VOCAB)
    trigram = Trigram(ids)
    tokenizer = Tokenizer.from_file(tokenizer_path)
    baselines = {"trained_on_tokens": len(ids), "discount": DISCOUNT, "texts": {}}
    for name, string in heldout(paths, tokenizer, books=False)[0].items():
        text = []
        for document in string.split("<|endoftext|>\n"):
            text += [END_OF_TEXT] * bool(text) + tokenizer.encode(document.rstrip("\n"), add_special_tokens=False).ids
            if len(text) >= args.limit:
                break
        text = np.array([END_OF_TEXT] * 2 + text[:min(len(text), args.limit) // 8192 * 8192], np.int64)
        size = len(tokenizer.decode(text[2:].tolist()).encode())
        row = {"tokens": len(text) - 2}
        for kind, p in (("unigram", unigram[text[2:]]), ("trigram", trigram.probability(text[:-2], text[1:-1], text[2:]))):
            nll = -np.log(p).mean()
            row[kind] = {"ppl": round(math.exp(nll), 2), "bits_per_byte": round(float(nll) * (len(text) - 2) / math.log(2) / size, 4)}
        baselines["texts"][name] = row
        print(name, row, flush=True)
    result = {}
    if os.path.exists(args.out):
        with open(args.out) as file:
            result = json.load(file)
    result["baselines"] = baselines
    with open(args.out, "w") as file:
        json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
