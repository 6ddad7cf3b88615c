#!/usr/bin/env python3
"""Compares the token ids of `infinigen tokenize` with those of llama.cpp's llama-tokenize for one GGUF file.

    tools/gguf_tokenizer_diff.py -m FILE.gguf --llama-tokenize PATH [--binary build/release/infinigen] TEXT...

A TEXT is a file (also .xz) or a directory, whose files are all compared. Prints a line for each text; exit code 0: all
ids are equal, 1: some differ, 77: llama-tokenize was not found. Standard library only.
"""

import argparse
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile


def texts(paths):
    for path in paths:
        if not os.path.isdir(path):
            yield path
            continue
        for folder, _, names in sorted(os.walk(path)):
            yield from (os.path.join(folder, name) for name in sorted(names))


def ids(command):
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{' '.join(command)}: {run.stderr.strip()[-500:]}")
    return [int(number) for number in re.findall(r"\d+", run.stdout)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--binary", default="build/release/infinigen")
    parser.add_argument("--llama-tokenize", default="llama-tokenize")
    parser.add_argument("texts", nargs="+")
    arguments = parser.parse_args()
    other = shutil.which(arguments.llama_tokenize)
    if other is None:
        print(f"skipped: {arguments.llama_tokenize} was not found")
        return 77
    different = 0
    with tempfile.TemporaryDirectory() as scratch:
        plain = os.path.join(scratch, "text")
        for path in texts(arguments.texts):
            opened = lzma.open(path) if path.endswith(".xz") else open(path, "rb")
            with opened as source, open(plain, "wb") as target:
                shutil.copyfileobj(source, target)
            ours = ids([arguments.binary, "tokenize", "-m", arguments.model, "-f", plain])
            theirs = ids([other, "-m", arguments.model, "-f", plain, "--ids", "--no-escape", "--log-disable"])
            if ours == theirs:
                print(f"equal      {len(ours):>9} ids  {path}")
                continue
            different += 1
            first = next((i for i, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]),
                         min(len(ours), len(theirs)))
            print(f"DIFFERENT  at id {first}: {ours[first:first + 5]}, llama.cpp {theirs[first:first + 5]}  {path}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
