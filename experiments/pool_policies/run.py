#!/usr/bin/env python3
"""How much does each eviction policy lose with a pool of 80 %, and does FIFO collapse?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from accuracy import BARE, MODELS, beside, changed, counted, diverged, facts, joined, loss, measured, of_model, read
from common import Experiment
from plot import bars, figure

# The prompt is longer than 80 % of the window, so the pool is full at every scored token.
WINDOWS = "-c 4096 --from 3328 --windows 6"
BASE = "--kv infinigen --kv-window 64 --kv-min 64"
LIMITED = f"{BASE} --kv-tail off --kv-limit 80%"
POLICIES = {"all kept": f"--kv infinigen --kv-tail off {BARE}",
            "counter, no sinks": f"{LIMITED} --kv-evict counter --kv-sinks 0", "lru, no sinks": f"{LIMITED} --kv-evict lru --kv-sinks 0",
            "fifo, no sinks": f"{LIMITED} --kv-evict fifo --kv-sinks 0", "counter": f"{LIMITED} --kv-evict counter --kv-sinks 4",
            "fifo": f"{LIMITED} --kv-evict fifo --kv-sinks 4", "random": f"{LIMITED} --kv-evict random --kv-sinks 4",
            "all kept, tail": f"--kv infinigen --kv-tail on {BARE}",
            "counter, tail": f"{BASE} --kv-tail on --kv-limit 80% --kv-evict counter --kv-sinks 4"}


def plot(rows):
    panels = []
    for model in measured(rows):
        mine = joined(of_model(rows, model), "policy")
        panels += [bars(f"{model}: KL divergence from full, nats", [(r["policy"], r.get("kld"), r.get("kld_stderr")) for r in mine]),
                   bars(f"{model}: planted facts found, of 10", [(r["policy"], r.get("found")) for r in mine])]
    return figure(*panels)


def tell(rows):
    return beside("policy", joined(rows, "policy"), lambda r: r["policy"], ["perplexity", "KL", "facts"], lambda r: [changed(r), diverged(r), counted(r)])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=read, plot=plot, table=tell,
    commands=[make for policy, flags in POLICIES.items() for model in MODELS
              for make in (loss(model, flags, WINDOWS, policy=policy), facts(model, flags, n=10, policy=policy))])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
