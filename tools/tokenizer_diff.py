#!/usr/bin/env python3
"""Compares the engine's tokenizers with Hugging Face's on generated text of many scripts.

    python3 tools/tokenizer_diff.py --binary build/release/tokenize_lines [--megabytes 5]

`tokenize_lines` (tests/text) encodes with the engine's code. The reference is the `tokenizers` package, and `transformers`
and `sentencepiece` if they are installed. Compares the committed tokenizers (tests/text/data) and, if the corpus exists
($INFINIGEN_DATA or ../shared/corpus), OPT, Llama 3 and Llama 2. Prints one line per tokenizer: megabytes and differences.
Exit code 0: no differences; 1: differences; 77: the package `tokenizers` is not installed.
"""

import argparse
import base64
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
except ImportError:
    print("skipped: the Python package 'tokenizers' is not installed")
    sys.exit(77)

ROOT = Path(__file__).resolve().parent.parent
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# First and last code point of blocks that real text uses.
SCRIPTS = [
    (0x20, 0x7E), (0xA0, 0xFF), (0x100, 0x24F), (0x250, 0x2AF), (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x58F),
    (0x590, 0x5FF), (0x600, 0x6FF), (0x700, 0x74F), (0x780, 0x7BF), (0x900, 0x97F), (0x980, 0x9FF), (0xA00, 0xA7F),
    (0xB80, 0xBFF), (0xC00, 0xC7F), (0xD00, 0xD7F), (0xE00, 0xE7F), (0xE80, 0xEFF), (0xF00, 0xFFF), (0x1000, 0x109F),
    (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F), (0x13A0, 0x13FF), (0x1780, 0x17FF), (0x1800, 0x18AF),
    (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x209F), (0x20A0, 0x20CF), (0x2100, 0x218F), (0x2190, 0x23FF),
    (0x2460, 0x24FF), (0x2500, 0x27BF), (0x2C00, 0x2DFF), (0x2E80, 0x2FDF), (0x3000, 0x30FF), (0x3100, 0x318F),
    (0x3200, 0x33FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xA4CF), (0xA640, 0xA69F), (0xA720, 0xA7FF),
    (0xAB30, 0xAB6F), (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xF900, 0xFAFF), (0xFB00, 0xFDFF), (0xFE00, 0xFE0F),
    (0xFE20, 0xFEFF), (0xFF00, 0xFFFD), (0x10000, 0x100FF), (0x10400, 0x1044F), (0x12000, 0x123FF), (0x1D400, 0x1D7FF),
    (0x1E900, 0x1E95F), (0x1F000, 0x1FAFF), (0x20000, 0x2A6DF), (0x2EBF0, 0x2EE5D), (0xE0000, 0xE007F),
]
SPACES = " \t\n\r\u000b\u000c\u001c\u0085\u00a0\u1680\u180e\u2000\u2003\u2009\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
WORDS = ("the of and to in that was it his with as for had you not be her is at on by which have from this him but all she "
         "they were my are me one their so an said them we who would been will no when there if more out up into do any your "
         "what has man could other than our some very time upon about may its only now like little then can should made did "
         "us such great before must two these see know over much down after first mr good men").split()
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "'Re", "'\u017f", "\u2019s", "''", "'"]
CODE = ["def f(x):\n    return x ** 2\n", "for (int i = 0; i < n; ++i) {\n\ta[i] += b[i];\n}\n", "{\"key\": [1, 2.5e-3, null]}",
        "SELECT * FROM t WHERE a <> 'b';", "x=x&0xFF>>3|~y", "https://example.org/a?b=c&d=%20#e", "// ---- ====\r\n", "$HOME/.x",
        "<div class=\"a\">&amp;</div>", "\\frac{1}{2}", "template <class T>\nT&& f(T&&);\n", "        deep\n                indent"]
EMOJI = ["😀", "👩\u200d👩\u200d👧", "🇫🇷", "👍🏽", "❤\ufe0f", "🏴\U000e0067\U000e0062\U000e007f", "1\ufe0f\u20e3", "🦙"]


def script_text(rng, length):
    first, last = rng.choice(SCRIPTS)
    out = []
    while len(out) < length:
        for _ in range(rng.randint(1, 9)):
            out.append(chr(rng.randint(first, last)))
            if rng.random() < 0.05:
                out.append(chr(rng.randint(0x300, 0x36F)))
        out.append(" " if rng.random() < 0.8 else rng.choice(SPACES))
    return "".join(out)


def english(rng, length):
    out = []
    while sum(map(len, out)) < length:
        word = rng.choice(WORDS)
        word = rng.choice([word, word, word, word.capitalize(), word.upper()])
        out.append(word + (rng.choice(CONTRACTIONS) if rng.random() < 0.1 else ""))
        out.append(rng.choice([" "] * 12 + [", ", ". ", "\n", "\n\n", "  ", "   ", "; ", "! ", "-", " (", ") ", ".\r\n"]))
    return "".join(out)


def noise(rng, length):
    makers = [
        lambda: rng.choice(SPACES) * rng.randint(1, 6), lambda: str(rng.randint(0, 10 ** rng.randint(1, 18))),
        lambda: rng.choice(CONTRACTIONS), lambda: rng.choice(CODE), lambda: rng.choice(EMOJI) * rng.randint(1, 3),
        lambda: rng.choice(WORDS), lambda: rng.choice("!?.,;:-_/\\|@#$%^&*()[]{}<>~`+=\"'") * rng.randint(1, 5),
        lambda: chr(rng.choice([rng.randint(1, 0xD7FF), rng.randint(0xE000, 0x10FFFF)])), lambda: rng.choice("aAeizéß") * rng.randint(1, 40),
        lambda: rng.choice(["<s>", "</s>", "<unk>", "<pad>", "<|eot|>", "<tool>", "mira", "<|eot_id|>", "<0x0A>", "▁", "Ġ"]),
    ]
    out = []
    while sum(map(len, out)) < length:
        out.append(rng.choice(makers)())
    return "".join(out)


def texts_of(rng, megabytes, corpus):
    """Texts of 1 to 3,000 characters without NUL, which separates texts."""
    samples = []
    for path in sorted(corpus.glob("eval/*.raw")) if corpus else []:
        samples.append(path.read_text(encoding="utf-8", errors="replace"))
    texts, size = [], 0
    while size < megabytes * 1e6:
        length = rng.choice([1, 2, 3, 10, 50, 300, 3000])
        kind = rng.random()
        if samples and kind < 0.25:
            whole = rng.choice(samples)
            start = rng.randrange(len(whole))
            text = whole[start:start + length]
        elif kind < 0.45:
            text = english(rng, length)
        elif kind < 0.75:
            text = script_text(rng, length)
        else:
            text = noise(rng, length)
        text = text.replace("\0", "")
        texts.append(text)
        size += len(text.encode("utf-8"))
    return texts


def ours(binary, directory, texts, special):
    stdin = b"".join(text.encode("utf-8") + b"\0" for text in texts)
    flags = ["--decode"] + ([] if special else ["--no-special"])
    run = subprocess.run([binary, str(directory), *flags], input=stdin, capture_output=True)
    if run.returncode != 0:
        raise SystemExit(f"{binary} {directory}: exit {run.returncode}: {run.stderr.decode(errors='replace').strip()}")
    lines = run.stdout.decode("ascii").split("\n")
    ids = [[int(number) for number in line.split()] for line in lines[0:-1:2]]
    return ids, [bytes.fromhex(line) for line in lines[1:-1:2]]


class Comparison:
    def __init__(self, binary, texts, verbose):
        self.binary, self.texts, self.verbose, self.total = binary, texts, verbose, 0

    def run(self, name, directory, encode, decode=None, special=True):
        """encode(texts) -> lists of ids; decode(list of ids) -> text without special tokens."""
        mine, decoded = ours(self.binary, directory, self.texts, special)
        reference = encode(self.texts)
        bad = [i for i in range(len(self.texts)) if mine[i] != reference[i]]
        bad_decoded = []
        if decode:
            # The reference replaces invalid bytes, the engine returns them: such texts are not compared.
            bad_decoded = [i for i, text in enumerate(decode(reference))
                           if "\ufffd" not in text and decoded[i] != text.encode("utf-8")]
        size = sum(len(text.encode("utf-8")) for text in self.texts) / 1e6
        print(f"{name}: {size:.2f} MB, {len(self.texts)} texts, {len(bad)} differences in ids, {len(bad_decoded)} in decoding")
        for i in bad[:self.verbose]:
            at = next((k for k, (a, b) in enumerate(zip(mine[i], reference[i])) if a != b), min(len(mine[i]), len(reference[i])))
            print(f"  text {self.texts[i][:300]!r}\n  first differs at token {at}: ours {mine[i][max(0, at - 2):at + 6]}, "
                  f"reference {reference[i][max(0, at - 2):at + 6]}")
        for i in bad_decoded[:self.verbose]:
            print(f"  text {self.texts[i][:120]!r}\n  decoded {decoded[i][:160]!r}\n  reference {decode([reference[i]])[0][:160]!r}")
        self.total += len(bad) + len(bad_decoded)

    def run_json(self, name, directory):
        reference = Tokenizer.from_file(str(Path(directory) / "tokenizer.json"))
        self.run(name, directory, lambda texts: [e.ids for e in reference.encode_batch(texts)], reference.decode_batch)


def byte_chars():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable}
    table.update({byte: chr(256 + i) for i, byte in enumerate(others)})
    return table


def llama3_json(model_file, target):
    """Llama 3's ranks as tokenizer.json, written with the tokenizers package."""
    ranks = {}
    for line in model_file.read_text().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    table = byte_chars()
    merges = []
    for token, rank in ranks.items():
        cuts = [(ranks[token[:i]], ranks[token[i:]], token[:i], token[i:])
                for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += [(rank, number, left, right) for number, (_, _, left, right) in enumerate(sorted(cuts))]
    merges.sort(key=lambda merge: merge[:2])
    text = lambda token: "".join(table[byte] for byte in token)
    tokenizer = Tokenizer(models.BPE({text(t): r for t, r in ranks.items()}, [(text(l), text(r)) for _, _, l, r in merges],
                                     ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3_PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
             "<|finetune_right_pad_id|>", "<|reserved_special_token_2|>", "<|start_header_id|>", "<|end_header_id|>",
             "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"] + [f"<|reserved_special_token_{i}|>" for i in range(3, 248)]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 128000)])
    target.mkdir()
    tokenizer.save(str(target / "tokenizer.json"))


def compare_opt(comparison, files, temp):
    target = temp / "opt"
    target.mkdir()
    shutil.copy(files / "gpt2-vocab.json", target / "vocab.json")
    shutil.copy(files / "gpt2-merges.txt", target / "merges.txt")
    (target / "config.json").write_text('{"model_type": "opt"}')
    (target / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "bos_token": "</s>", "eos_token": "</s>",
         "unk_token": "</s>", "pad_token": "<pad>"}))
    reference = Tokenizer(models.BPE.from_file(str(target / "vocab.json"), str(target / "merges.txt")))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.decoder = decoders.ByteLevel()
    reference.add_special_tokens(["<pad>", "</s>"])
    reference.post_processor = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", 2)])
    comparison.run("OPT, vocab.json + merges.txt", target, lambda texts: [e.ids for e in reference.encode_batch(texts)],
                   reference.decode_batch)
    saved = temp / "opt_json"
    saved.mkdir()
    reference.save(str(saved / "tokenizer.json"))
    comparison.run_json("OPT, tokenizer.json", saved)


def compare_llama3(comparison, files, temp):
    llama3_json(files / "tokenizer.model", temp / "llama3_json")
    comparison.run_json("Llama 3, tokenizer.json", temp / "llama3_json")
    bare = temp / "llama3"
    bare.mkdir()
    shutil.copy(files / "tokenizer.model", bare)
    reference = Tokenizer.from_file(str(temp / "llama3_json" / "tokenizer.json"))
    comparison.run("Llama 3, tokenizer.model", bare,
                   lambda texts: [e.ids for e in reference.encode_batch(texts, add_special_tokens=False)], special=False)


def compare_llama2(comparison, files, temp):
    bare = temp / "llama2"
    bare.mkdir()
    shutil.copy(files / "tokenizer.model", bare)
    try:
        import sentencepiece
        processor = sentencepiece.SentencePieceProcessor(model_file=str(bare / "tokenizer.model"))
        kept = comparison.texts
        # SentencePiece does not search for control tokens in text.
        comparison.texts = [text for text in kept if not any(token in text for token in ("<s>", "</s>", "<unk>"))]
        comparison.run("Llama 2, tokenizer.model, SentencePiece's rules", bare, processor.encode)
        comparison.texts = kept
    except ImportError:
        print("Llama 2, SentencePiece's rules: skipped, the package 'sentencepiece' is not installed")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        print("Llama 2, AutoTokenizer: skipped, the package 'transformers' is not installed")
        return
    for name, extra in [("llama", {}), ("llama_legacy", {"legacy": True}), ("llama_no_prefix", {"add_prefix_space": False})]:
        target = temp / name
        target.mkdir()
        shutil.copy(files / "tokenizer.model", target)
        (target / "config.json").write_text('{"model_type": "llama"}')
        (target / "tokenizer_config.json").write_text(json.dumps(
            {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, **extra}))
        tokenizer = AutoTokenizer.from_pretrained(str(target))
        comparison.run(f"Llama 2, AutoTokenizer ({name})", target, lambda texts: tokenizer(texts)["input_ids"],
                       lambda ids: tokenizer.batch_decode(ids, skip_special_tokens=True))
        saved = temp / (name + "_saved")
        tokenizer.save_pretrained(str(saved))
        shutil.copy(target / "config.json", saved)
        reloaded = AutoTokenizer.from_pretrained(str(saved))
        comparison.run(f"Llama 2, as transformers saves it ({name})", saved, lambda texts: reloaded(texts)["input_ids"])


def corpus_path():
    path = Path(os.environ.get("INFINIGEN_DATA") or ROOT.parent / "shared" / "corpus")
    return path if (path / "tokenizers").is_dir() else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="tokenize_lines, built from tests/text")
    parser.add_argument("--megabytes", type=float, default=0.5, help="of text for each tokenizer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--committed-only", action="store_true", help="leave the corpus' tokenizers out")
    parser.add_argument("--verbose", type=int, default=3, help="differences shown for each tokenizer")
    arguments = parser.parse_args()
    corpus = corpus_path()
    comparison = Comparison(arguments.binary, texts_of(random.Random(arguments.seed), arguments.megabytes, corpus),
                            arguments.verbose)
    for directory in sorted((ROOT / "tests" / "text" / "data").iterdir()):
        if (directory / "tokenizer.json").exists():
            comparison.run_json(directory.name, directory)
    if arguments.committed_only:
        pass
    elif corpus is None:
        print("OPT, Llama 3, Llama 2: skipped, no corpus ($INFINIGEN_DATA or ../shared/corpus)")
    else:
        with tempfile.TemporaryDirectory() as temp:
            compare_opt(comparison, corpus / "tokenizers" / "opt", Path(temp))
            compare_llama3(comparison, corpus / "tokenizers" / "llama3", Path(temp))
            compare_llama2(comparison, corpus / "tokenizers" / "llama2", Path(temp))
    return 1 if comparison.total else 0


if __name__ == "__main__":
    sys.exit(main())
