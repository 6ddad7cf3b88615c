#!/usr/bin/env python3
"""How does the speed-up over fetching everything grow with the length, at the published counts of fetched entries?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from common import Experiment, benched, fetched_step, pick, table, tokens_per_s
from plot import figure, lines

COUNTS = {512: 37, 1024: 60, 1536: 66, 2048: 73}  # mean fetched entries per head of OPT-13B, as published


def speedup(rows, length, over):
    mine, other = pick(rows, length=length, kv="infinigen"), pick(rows, length=length, kv=over)
    return tokens_per_s(mine) / tokens_per_s(other) if mine and other else None


def lengths(rows):
    return [length for length in COUNTS if speedup(rows, length, "full")]


def plot(rows):
    return figure(lines("OPT-13B, 8 sequences: speed-up of infinigen", "tokens", "times as fast, prefill included",
                        {f"over {kv}": [(n, speedup(rows, n, kv)) for n in lengths(rows)] for kv in ("full", "int4")}, x_ticks=list(COUNTS)))


def tell(rows):
    return table(["tokens", "fetched per head", "over full", "over int4"],
                 [[f"{n:,}", COUNTS[n], f"{speedup(rows, n, 'full'):.2f}x", f"{speedup(rows, n, 'int4'):.2f}x"] for n in lengths(rows)])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=benched, plot=plot, table=tell, kind="speed",
    commands=[fetched_step(batch=8, prompt=length - 128, count=count, length=length) for length, count in COUNTS.items()])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
