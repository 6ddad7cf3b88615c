#!/usr/bin/env python3
"""How does the loss of each method grow along a text, in chunks of 256 tokens?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import math

from accuracy import BARE, MODELS, beside, changed, loss, measured, of_model
from common import Experiment, scored
from plot import figure, lines

WINDOWS = "-c 8192 --windows 2 --chunk 256"  # no prompt: the loss at every length
METHODS = {"full": "--kv full", "infinigen, defaults": "--kv infinigen --kv-tail on",
           "infinigen, no tail, defaults": "--kv infinigen --kv-tail off",
           "infinigen, cap 5 %": f"--kv infinigen --kv-tail on --kv-cap 5% {BARE}",
           "infinigen, no tail, cap 5 %": f"--kv infinigen --kv-tail off --kv-cap 5% {BARE}", "quest, cap 20 %": "--kv quest",
           "h2o, limit 20 %": "--kv h2o --kv-limit 20%", "streaming, limit 20 %": "--kv streaming --kv-limit 20%",
           "h2o, limit 5 %": "--kv h2o --kv-limit 5%", "streaming, limit 5 %": "--kv streaming --kv-limit 5%"}


def read(output, keys):
    row = scored(output, keys) | {"chunk_nll": [c["nll"] for c in output["chunks"]]}
    return [row if row["kv"] == "full" else row | {"chunk_kld": [c["kld_mean"] for c in output["chunks"]]}]


def quarter(row, which):
    """The mean KL divergence over one quarter of the window's chunks."""
    size = len(row["chunk_kld"]) // 4
    return sum(row["chunk_kld"][which * size:(which + 1) * size]) / size


def plot(rows):
    line = lambda values: [(256 * i + 128, value) for i, value in enumerate(values)]
    panels = [lines("Perplexity of a chunk, full", "position in the text, tokens", "perplexity",
                    {row["model"]: line([math.exp(n) for n in row["chunk_nll"]]) for row in rows if row["kv"] == "full"})]
    panels += [lines(f"{model}: KL divergence from full", "position in the text, tokens", "nats",
                     {row["method"]: line(row["chunk_kld"]) for row in of_model(rows, model) if "chunk_kld" in row}) for model in measured(rows)]
    return figure(*panels)


def tell(rows):
    kl = lambda row: " ".join(f"{quarter(row, which):.3f}" for which in range(4))
    return beside("method", [r for r in rows if "chunk_kld" in r], lambda r: r["method"], ["perplexity", "KL per 2K"], lambda r: [changed(r), kl(r)])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=read, plot=plot, table=tell,
    commands=[loss(model, flags, WINDOWS, method=name) for name, flags in METHODS.items() for model in MODELS])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
