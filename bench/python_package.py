#!/usr/bin/env python3
"""Measures the Python package beside the command line: tokens/s of one answer, and memory over open/generate/close cycles.

usage: bench/python_package.py BINARY MODEL [--tokens N] [--rounds N] [--cycles N] [--threads N] [--kv PRESET]

The package must be importable (PYTHONPATH=build/NAME/python). Rounds alternate between the two programs; the medians count.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import time

began = time.perf_counter()
from infinigen import LLM  # noqa: E402

IMPORT_S = time.perf_counter() - began
PROMPT = "Once upon a time there was a lighthouse keeper who wrote down the wind and the tide of every day. " * 20


def resident() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def command_line(arguments, tokens) -> float:
    """Seconds of a whole run."""
    command = [arguments.binary, "generate", "-m", arguments.model, "-p", PROMPT, "-n", str(tokens), "--temp", "0",
               "--ignore-eos", "-t", str(arguments.threads), "-c", "2048", "--kv", arguments.kv]
    first = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - first


def package(llm, tokens) -> float:
    """The same, streamed as the command line does."""
    first = time.perf_counter()
    for _ in llm.generate(PROMPT, max_tokens=tokens, temperature=0, ignore_eos=True, stream=True):
        pass
    return time.perf_counter() - first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv", default="infinigen")
    arguments = parser.parse_args()
    print(f"import: {IMPORT_S:.2f} s")
    theirs, ours = [], []
    few, many = arguments.tokens // 4, arguments.tokens  # their difference is free of loading and prefill
    for _ in range(arguments.rounds):
        theirs.append((many - few) / (command_line(arguments, many) - command_line(arguments, few)))
        with LLM(arguments.model, ctx=2048, batch=1, threads=arguments.threads, kv=arguments.kv) as llm:
            package(llm, 1)  # now the prompt's prefix is cached for both
            ours.append((many - few) / (package(llm, many) - package(llm, few)))
    if arguments.rounds:
        a, b = statistics.median(theirs), statistics.median(ours)
        print(f"tokens/s: command line {a:.2f}, package {b:.2f} ({100 * (b / a - 1):+.1f} %)")
        print(f"  rounds: {[f'{x:.1f}' for x in theirs]} and {[f'{x:.1f}' for x in ours]}")
    sizes = []
    for _ in range(arguments.cycles):
        with LLM(arguments.model, ctx=256, batch=1, threads=arguments.threads, kv=arguments.kv) as llm:
            llm.generate("Once", max_tokens=2, temperature=0)
        sizes.append(resident())
    if len(sizes) > 20:
        middle, last = sizes[len(sizes) // 2] / 2**20, sizes[-1] / 2**20
        print(f"resident MiB after {len(sizes)} cycles: tenth {sizes[9] / 2**20:.1f}, middle {middle:.1f}, last {last:.1f}")


if __name__ == "__main__":
    main()
