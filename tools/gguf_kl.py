#!/usr/bin/env python3
"""KL divergence and perplexity of a GGUF file against transformers in float32, on weights dequantised by the package gguf.

    tools/gguf_kl.py -m FILE.gguf -f TEXT [-f TEXT ...] [-c 1024] [--tokens 4096] [--binary build/release/infinigen] [-- FLAGS...]

`infinigen eval ppl --logits` scores the first tokens of each text in windows; transformers (from_pretrained with
gguf_file, which dequantises with gguf.dequantize) computes the same windows. Prints for each text both perplexities and
their ratio, the mean, the median and the largest KL(transformers || ours) in nats, and the share of predictions with the
same most likely token. FLAGS go to `eval ppl` (for instance --kv infinigen). Texts can be compressed (.xz). Needs torch,
transformers 5, accelerate and gguf; exit code 77 without them, 1 if a bound of --max-kl or --max-ppl is passed.
"""

import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def reference_rows(model, window):
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([window])).logits[0].double(), dim=-1).numpy()


def compare(arguments, model, file, flags):
    data = lzma.open(file).read() if file.endswith(".xz") else open(file, "rb").read()
    with tempfile.TemporaryDirectory() as folder:
        text, logits = os.path.join(folder, "text"), os.path.join(folder, "logits.npy")
        with open(text, "wb") as out:
            out.write(data)

        def run(*words):
            return subprocess.run([arguments.binary, *words], check=True, capture_output=True, text=True).stdout

        ids = [int(i) for i in run("tokenize", "-m", arguments.model, "-f", text, "--no-special").split()][:arguments.tokens]
        report = json.loads(run("eval", "ppl", "-m", arguments.model, "-f", text, "-c", str(arguments.ctx), "--limit-tokens",
                                str(arguments.tokens), "--logits", logits, "--json", *flags))
        rows = np.load(logits, mmap_mode="r")
        assert report["tokens_scored"] == len(rows)
        kl, same, nll, at = [], 0, 0.0, 0
        for start in range(0, len(ids), arguments.ctx):
            window = ids[start:start + arguments.ctx]
            expected = reference_rows(model, window)[:-1]
            found = torch.log_softmax(torch.from_numpy(rows[at:at + len(expected)].astype(np.float64)), dim=-1).numpy()
            at += len(expected)
            kl += list(np.sum(np.exp(expected) * (expected - found), axis=-1))
            same += int(np.sum(expected.argmax(-1) == found.argmax(-1)))
            nll -= float(np.sum(expected[np.arange(len(expected)), window[1:]]))
        assert at == len(rows), "the tokenizer opens texts with special tokens: windows differ"
    perplexity = float(np.exp(nll / at))
    ratio = report["ppl"] / perplexity
    print(f"{os.path.basename(file)}: {at} predictions; perplexity {report['ppl']:.4f}, reference {perplexity:.4f} "
          f"({100 * (ratio - 1):+.3f} %); KL mean {np.mean(kl):.6f}, median {np.median(kl):.6f}, most {np.max(kl):.4f}; "
          f"same most likely token {100 * same / at:.2f} %", flush=True)
    return np.mean(kl) <= arguments.max_kl and abs(ratio - 1) <= arguments.max_ppl


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-f", "--file", required=True, action="append")
    parser.add_argument("-c", "--ctx", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--binary", default="build/release/infinigen")
    parser.add_argument("--max-kl", type=float, default=0.002, help="largest mean KL divergence")
    parser.add_argument("--max-ppl", type=float, default=0.002, help="largest relative difference of perplexity")
    parser.add_argument("flags", nargs="*", help="flags of eval ppl, after --")
    arguments = parser.parse_args()
    folder, name = os.path.split(os.path.abspath(arguments.model))
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    flags = arguments.flags or ["--kv", "full"]
    return 0 if all([compare(arguments, model, file, flags) for file in arguments.file]) else 1


if __name__ == "__main__":
    sys.exit(main())
