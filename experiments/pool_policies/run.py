#!/usr/bin/env python3
"""How much does each eviction policy lose with a pool of 80 %, and does FIFO collapse?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from common import BARE, WALDEN, Experiment, command, scored, table
from plot import bars, figure

import math

LIMITED = "--kv infinigen --kv-window 64 --kv-min 64 --kv-limit 80%"
POLICIES = {"all kept": f"--kv infinigen {BARE}",
            "counter, no sinks": f"{LIMITED} --kv-evict counter --kv-sinks 0", "lru, no sinks": f"{LIMITED} --kv-evict lru --kv-sinks 0",
            "fifo, no sinks": f"{LIMITED} --kv-evict fifo --kv-sinks 0", "counter": f"{LIMITED} --kv-evict counter",
            "fifo": f"{LIMITED} --kv-evict fifo", "random": f"{LIMITED} --kv-evict random"}
EVICTING = 13  # the first chunk of 256 that begins after 80 % of a window of 4,096


def read(output, keys):
    """`eval ppl` gives the loss, also for the tokens after the pool is full; `eval needle` gives the facts."""
    if "cells" in output:
        return [keys | {"found": output["cells"][0]["found"], "cases": output["cells"][0]["n"]}]
    late = output["chunks"][EVICTING:]
    tokens = sum(c["tokens"] for c in late)
    return [scored(output, keys) | {"late_nll": sum(c["nll"] * c["tokens"] for c in late) / tokens,
                                    "late_kld": sum(c["kld_mean"] * c["tokens"] for c in late) / tokens}]


def joined(rows):
    """Joins the two rows of each policy."""
    both = {}
    for row in rows:
        both.setdefault(row["policy"], {}).update(row)
    return list(both.values())


def late_loss(row, rows):
    return 100 * math.expm1(row["late_nll"] - rows[0]["late_nll"])


def plot(rows):
    rows = joined(rows)
    return figure(bars("KL from full once the pool is full, nats", [(r["policy"], r.get("late_kld")) for r in rows]),
                  bars("Planted facts found, of 10", [(r["policy"], r.get("found")) for r in rows]))


def tell(rows):
    rows = joined(rows)
    return table(["policy", "perplexity once full", "KL", "facts"],
                 [[r["policy"], f"{late_loss(r, rows):+.2f} %", f"{r['late_kld']:.4f}", f"{r['found']} of {r['cases']}"] for r in rows])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=read, plot=plot, table=tell,
    commands=[command(line, *texts, policy=policy) for policy, flags in POLICIES.items()
              for line, texts in ((f"eval ppl -f TEXT -c 4096 --limit-tokens 8192 --chunk 256 {flags}", [WALDEN]),
                                  (f"eval needle --lengths 4096 --facts 1 --n 10 {flags}", []))])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
