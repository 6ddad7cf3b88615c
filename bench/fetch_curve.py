#!/usr/bin/env python3
"""Finds where a KV cache on the host becomes faster than one on the GPU: Llama-3.1-8B, 5 % of the entries selected, over
lengths and batch sizes.

usage: bench/fetch_curve.py INFINIGEN [--batches 1,2,4,8,16] [--depths 8000,...] [--hits 0.6,0.8] [--json FILE]

Each point compares a step of `full`, with its entries on the GPU, with a step of `infinigen`, with its entries on the host
and the given share of the selected entries counted as hits. Pools above --pool (90 GiB) are left out. Prints a table with
the ratio of the two times, above 1 where the cache on the host is faster.
"""
import argparse
import json
import subprocess
import sys

TOKEN_BYTES = 2 * 32 * 8 * 128 * 2  # keys and values, layers, KV heads, numbers, bf16


def step_ms(binary, batch, depths, flags):
    command = [binary, "bench", "--device", "cuda", "--shape", "llama-3.1-8b", "--fill", "synthetic", "--gen", "12", "--format", "json",
               "--batch", str(batch), "--depth", ",".join(map(str, depths)), *flags]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{run.stderr}")
    return {r["depth"]: (r["timing"]["decode_step_ms_median"], r) for r in json.loads(run.stdout)["results"]}


def main():
    numbers = lambda kind: lambda text: [kind(part) for part in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--batches", type=numbers(int), default=[1, 2, 4, 8, 16])
    parser.add_argument("--depths", type=numbers(int), default=[8000, 16000, 32000, 64000, 128000])
    parser.add_argument("--hits", type=numbers(float), default=[0.6, 0.8])
    parser.add_argument("--pool", type=float, default=90, help="largest pool to run, in GiB")
    parser.add_argument("--json")
    arguments = parser.parse_args()

    points = []
    print("| batch | tokens each | full on the GPU | " + " | ".join(f"{hits:.0%} hits | ratio" for hits in arguments.hits) + " |")
    print("|--:|--:|--:|" + "--:|--:|" * len(arguments.hits), flush=True)
    for batch in arguments.batches:
        depths = [depth for depth in arguments.depths if batch * (depth + 16) * TOKEN_BYTES <= arguments.pool * 2**30]
        if not depths:
            continue
        resident = step_ms(arguments.binary, batch, depths, ["--kv", "full", "--kv-home", "device"])
        fetched = {hits: step_ms(arguments.binary, batch, depths,
                                 ["--kv", "infinigen", "--kv-tail", "off", "--kv-alpha", "inf", "--kv-cap", "0.05", "--kv-window", "0", "--kv-sinks", "0", "--kv-min", "0",
                                  "--kv-hot", "0", "--kv-force-hits", str(hits)])
                   for hits in arguments.hits}
        for depth in depths:
            full, cells = resident[depth][0], []
            point = {"batch": batch, "depth": depth, "full_on_gpu_ms": full, "infinigen_ms": {}}
            for hits in arguments.hits:
                ms = fetched[hits][depth][0]
                point["infinigen_ms"][str(hits)] = ms
                cells += [f"{ms:.2f}", f"{full / ms:.2f}"]
            points.append(point)
            print(f"| {batch} | {depth} | {full:.2f} | " + " | ".join(cells) + " |", flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(points, file, indent=1)


main()
