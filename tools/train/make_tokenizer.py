#!/usr/bin/env python3
"""Trains the tokenizer and writes tokenizer.json and tokenizer_config.json into the model's directory.

    python tools/train/make_tokenizer.py --shards ../shared/corpus/shards --out models/infinigen-mini

Byte-level BPE with 8,192 tokens: eight special tokens, 256 bytes, the rest merges. The split pattern is Llama 3's, except
that every digit is a separate token, so that numbers are copied digit by digit. `<|endoftext|>` is added before every
text, as it starts every document and every row of the training data.
"""

import argparse
import json
import lzma
import os

from dialogue import dialogue
from facts import draw_facts
from textgen import Rng, text

VOCAB = 8192
SPECIAL = ["<|endoftext|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|reserved_0|>", "<|reserved_1|>"]
END_OF_TEXT, PAD, SYSTEM, USER, ASSISTANT, END = range(6)
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
           r"|\s+(?!\S)|\s+")
CHAT_TEMPLATE = ("{{- bos_token }}{%- for message in messages %}"
                 "{{- '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' }}"
                 "{%- endfor %}{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}")


def shard_paths(folder):
    return sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".txt.xz"))


def sample(shards, megabytes):
    """Yields the first `megabytes` of each shard (each shard is a random sample), then generated text."""
    for path in shard_paths(shards):
        with lzma.open(path, "rt", encoding="utf-8") as file:
            for document in file.read(megabytes << 20).split("<|endoftext|>\n"):
                yield document
    rng = Rng(1)
    for _ in range(60):
        yield text(rng, 10000)
        yield "\n".join(fact.statement + " " + fact.question + " " + fact.answer for fact in draw_facts(rng, 60))
        yield "\n".join(said for _ in range(20) for _, said in dialogue(rng))


def main():
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shards", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--megabytes", type=int, default=6, help="megabytes of text from each shard (default 6)")
    args = parser.parse_args()

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(sample(args.shards, args.megabytes), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", pair="<|endoftext|> $A <|endoftext|>:1 $B:1", special_tokens=[("<|endoftext|>", END_OF_TEXT)])
    assert tokenizer.get_vocab_size() == VOCAB
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == list(range(len(SPECIAL)))

    os.makedirs(args.out, exist_ok=True)
    tokenizer.save(os.path.join(args.out, "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
              "pad_token": "<|pad|>", "add_bos_token": True, "clean_up_tokenization_spaces": False, "model_max_length": 8192,
              "model_input_names": ["input_ids", "attention_mask"], "chat_template": CHAT_TEMPLATE}
    with open(os.path.join(args.out, "tokenizer_config.json"), "w") as file:
        json.dump(config, file, indent=2)
        file.write("\n")


if __name__ == "__main__":
    main()
