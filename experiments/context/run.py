#!/usr/bin/env python3
"""How does the time per step of Llama-3.1-8B grow with the context, up to 128,000 tokens?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from common import Experiment, benched, command, pick, series, table
from plot import figure, lines

DEPTHS = [8000, 16000, 32000, 64000, 128000]
BENCH = f"bench --device cuda --shape llama-3.1-8b --batch 1 --fill synthetic --depth {','.join(map(str, DEPTHS))}"
TWENTIETH = "--kv infinigen --kv-tail off --kv-alpha inf --kv-cap 0.05 --kv-window 0 --kv-sinks 0 --kv-min 0 --kv-hot 0"
METHODS = {"full, on the host": "--gen 4 --kv full", "full, on the GPU": "--gen 12 --kv full --kv-home device",
           "infinigen 5 %, no hits": f"--gen 12 {TWENTIETH} --kv-force-hits 0", "infinigen 5 %, 80 % hits": f"--gen 12 {TWENTIETH} --kv-force-hits 0.8"}


def plot(rows):
    return figure(lines("Llama-3.1-8B, one sequence", "tokens of context", "ms per step",
                        series(rows, "method", "depth", "step_ms"), log_x=True, log_y=True, x_ticks=DEPTHS))


def tell(rows):
    ms = lambda method, depth: f"{row['step_ms']:.1f}" if (row := pick(rows, method=method, depth=depth)) else "-"
    return table(["ms per step", "8,000", "32,000", "128,000"], [[m, ms(m, 8000), ms(m, 32000), ms(m, 128000)] for m in METHODS if pick(rows, method=m)])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=benched, plot=plot, table=tell, kind="speed",
    commands=[command(f"{BENCH} {flags}", timeout_s=90, method=method) for method, flags in METHODS.items()])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
