#!/usr/bin/env python3
"""How does the loss of each method grow along a text, in chunks of 256 tokens?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from common import BARE, WALDEN, Experiment, command, scored, table
from plot import figure, lines

import math

SCORE = "eval ppl -f TEXT -c 8192 --limit-tokens 16384 --chunk 256"
METHODS = {"full": "--kv full", "infinigen, defaults": "--kv infinigen", "infinigen, cap 5 %": f"--kv infinigen --kv-cap 5% {BARE}",
           "quest, cap 20 %": "--kv quest", "h2o, limit 20 %": "--kv h2o", "streaming, limit 20 %": "--kv streaming",
           "h2o, limit 5 %": "--kv h2o --kv-limit 5%", "streaming, limit 5 %": "--kv streaming --kv-limit 5%"}


def read(output, keys):
    return [scored(output, keys) | {"chunk_nll": [c["nll"] for c in output["chunks"]], "chunk_kld": [c["kld_mean"] for c in output["chunks"]]}]


def quarter(row, name, which):
    """The mean over one quarter of the window's chunks."""
    size = len(row[name]) // 4
    return sum(row[name][which * size:(which + 1) * size]) / size


def plot(rows):
    line = lambda values: [(256 * i + 128, value) for i, value in enumerate(values)]
    others = [row for row in rows if row["kv"] != "full"]
    return figure(
        lines("Perplexity of a chunk, full", "position in the text, tokens", "perplexity",
              {row["method"]: line([math.exp(n) for n in row["chunk_nll"]]) for row in rows if row["kv"] == "full"}),
        lines("KL divergence from full", "position in the text, tokens", "nats", {row["method"]: line(row["chunk_kld"]) for row in others}))


def tell(rows):
    loss = lambda row, which: f"{100 * math.expm1(quarter(row, 'chunk_nll', which) - quarter(rows[0], 'chunk_nll', which)):+.2f} %"
    kl = lambda row: " ".join(f"{quarter(row, 'chunk_kld', which):.3f}" for which in range(4))
    return table(["method", "perplexity, first 2K", "last 2K", "KL per 2K"], [[r["method"], loss(r, 0), loss(r, 3), kl(r)] for r in rows[1:]])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=read, plot=plot, table=tell,
    commands=[command(f"{SCORE} {flags}", WALDEN, method=name) for name, flags in METHODS.items()])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
