#!/usr/bin/env python3
"""Trains the small tokenizers of tests/text/data and writes test cases with the ids of the reference libraries.

    python3 tools/make_test_tokenizers.py tests/text/data

The training text is generated from a fixed seed. Each directory gets a tokenizer in one of the four formats and
cases.json (a list of {"text", "ids", "decoded"}). The files are committed, so this is needed only to add a tokenizer.
Needs the packages `tokenizers`, `tiktoken` and `sentencepiece`.
"""

import base64
import io
import json
import random
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SYLLABLES = "ka to mi ra ne lo si vu per an del tor is un eth wa gri mo fen sha ol ba".split()
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CASES = [
    "", " ", "  ", "\n", "\t\n ", "a", " a", "karato miran", "  two  spaces ", "It's we'll THEY'RE don't",
    "1 22 333 4444 55555", "x = f(y[3]);\n\tif (a != b) { return; }\n", "Äpfel große Straße", "нещо на Български",
    "漢字とかな交じり文", "한국어 문장", "नमस्ते दुनिया", "مرحبا بالعالم", "😀🦙👩‍👩‍👧‍👦 🇩🇪", "e\u0301 a\u0308\u0323",
    "nbsp\u00a0thin\u2009ideo\u3000line\u2028end", "zero\u200bwidth\u200djoin\ufeff", "<s>inside</s> <pad>",
    "before <|eot|> after", " <tool>  <tool>x", "\u0000nul", "ſ's 'ſ 'S 'LL", "\U0001F9D1\u200d\U0001F4BB", "ﬁ ligature ½ ²",
    "a" * 70, "karato" * 30, "…—“”‘’", "\r\n\r\n  \r\n", "ǅ ß İ ı", "\U000e0041 \ue000 \uffff",
]


def training_text(rng):
    lines = []
    for _ in range(4000):
        words = ["".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 4))) for _ in range(rng.randint(3, 12))]
        if rng.random() < 0.2:
            words[0] = words[0].capitalize()
        if rng.random() < 0.1:
            words.append(str(rng.randint(0, 9999)))
        if rng.random() < 0.1:
            words.append(rng.choice(["it's", "we'll", "naïve", "Größe", "слово", "漢字", "😀"]))
        lines.append(" ".join(words) + rng.choice([".", "!", ",", "?", ""]))
    return lines


def byte_level(lines):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<s>", "</s>", "<pad>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.add_special_tokens([AddedToken("<|eot|>", normalized=False)])
    tokenizer.add_tokens([AddedToken("<tool>", lstrip=True, rstrip=True), AddedToken("mira", single_word=True)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def split_regex(lines):
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3_PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.add_special_tokens(["<s>", "</s>", "<|eot|>"])
    tokenizer.decoder = decoders.ByteLevel()
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", bos), ("</s>", bos + 1)])])
    return tokenizer


def with_bytes(lines):
    """Trains without byte tokens, then inserts them after <unk>, <s>, </s> as SentencePiece does."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    pieces = pieces[:3] + [f"<0x{byte:02X}>" for byte in range(256)] + pieces[3:]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    merges = [tuple(merge) for merge in model["merges"]]
    return models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)


def finish_metaspace(tokenizer):
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def legacy_prefix(lines):
    tokenizer = Tokenizer(with_bytes(lines))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return finish_metaspace(tokenizer)


def metaspace(lines):
    tokenizer = Tokenizer(with_bytes(lines))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    return finish_metaspace(tokenizer)


def mixed_steps(lines):
    """The parts that the other tokenizers lack: Digits, string splits, lower case, unknown tokens, Metaspace decoder."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Split("-", behavior="merged_with_previous"),
        pre_tokenizers.Metaspace(prepend_scheme="always", split=True)])
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return tokenizer


def bytes_of(token):
    table = {}
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    for byte in printable:
        table[chr(byte)] = byte
    for number, byte in enumerate(byte for byte in range(256) if byte not in printable):
        table[chr(256 + number)] = byte
    return bytes(table[c] for c in token)


def write_cases(target, encode, decode):
    cases = [{"text": text, "ids": encode(text), "decoded": decode(encode(text))} for text in CASES]
    (target / "cases.json").write_text(json.dumps(cases, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


def tiktoken_ranks(lines, target):
    """Bytes first, then merged tokens in order of training, so that each token can be built in only one way."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3_PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    vocab = tokenizer.get_vocab()
    tokens = {bytes_of(token): rank for token, rank in vocab.items()}
    text = "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in sorted(tokens.items(), key=lambda x: x[1]))
    (target / "tokenizer.model").write_text(text)
    import tiktoken
    encoding = tiktoken.Encoding("test", pat_str=LLAMA3_PATTERN, mergeable_ranks=tokens, special_tokens={})
    write_cases(target, encoding.encode_ordinary, encoding.decode)


def vocab_and_merges(lines, target):
    tokenizer = byte_level(lines)
    tokenizer.model.save(str(target))
    (target / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "bos_token": "</s>", "eos_token": "</s>",
         "unk_token": "</s>", "pad_token": {"content": "<pad>", "lstrip": False, "rstrip": False, "single_word": False,
                                            "normalized": True, "__type": "AddedToken"}}) + "\n")
    reference = Tokenizer(models.BPE.from_file(str(target / "vocab.json"), str(target / "merges.txt")))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.decoder = decoders.ByteLevel()
    reference.add_special_tokens(["</s>", "<pad>"])
    reference.post_processor = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", 1)])
    write_cases(target, lambda text: reference.encode(text).ids, reference.decode)


def qwen2_files(lines, target):
    """vocab.json and merges.txt alone, read by transformers' Qwen2Tokenizer."""
    from transformers import Qwen2Tokenizer
    tokenizer = byte_level(lines)
    tokenizer.model.save(str(target))
    first = tokenizer.get_vocab_size(with_added_tokens=False)
    added = {str(first + i): {"content": text, "special": True} for i, text in enumerate(["<|im_start|>", "<|eot|>"])}
    (target / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|eot|>", "added_tokens_decoder": added}) + "\n")
    reference = Qwen2Tokenizer.from_pretrained(str(target))
    write_cases(target, reference.encode, lambda ids: reference.decode(ids, skip_special_tokens=True))


def sentencepiece_bpe(lines, target):
    import sentencepiece
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=500, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.999, num_threads=1,
        allow_whitespace_only_pieces=True, split_digits=True, minloglevel=2)
    (target / "tokenizer.model").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    global CASES
    kept = CASES
    # SentencePiece does not search for control tokens in text, and ends a text at NUL.
    CASES = [text for text in kept if "<s>" not in text and "\0" not in text]
    write_cases(target, processor.encode, processor.decode)
    CASES = kept


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    directory = Path(sys.argv[1])
    lines = training_text(random.Random(7))
    for make in [tiktoken_ranks, vocab_and_merges, qwen2_files, sentencepiece_bpe]:
        target = directory / make.__name__
        target.mkdir(parents=True, exist_ok=True)
        make(lines, target)
    for name, make in [("byte_level", byte_level), ("split_regex", split_regex), ("legacy_prefix", legacy_prefix),
                       ("metaspace", metaspace), ("mixed_steps", mixed_steps)]:
        tokenizer = make(lines)
        target = directory / name
        target.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(target / "tokenizer.json"), pretty=False)
        write_cases(target, lambda text: tokenizer.encode(text).ids, tokenizer.decode)
        print(name, tokenizer.get_vocab_size())


if __name__ == "__main__":
    main()
