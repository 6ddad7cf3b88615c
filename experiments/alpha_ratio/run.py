#!/usr/bin/env python3
"""How much do the threshold (alpha 1 to 9) and the sketch size (ratio 0.1 to 1) matter?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from accuracy import BARE, MODELS, beside, changed, diverged, loss, measured, of_model, read, share
from common import Experiment
from plot import figure, lines

SELECTION = f"--kv infinigen --kv-tail off --kv-cap 20% {BARE}"  # selection alone, as published
TAIL = f"--kv infinigen --kv-tail on --kv-cap 5% {BARE}"
ALPHAS = [1, 2, 3, 4, 5, 7, 9]
RATIOS = [0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0]  # sketch sizes are multiples of 8 of 64 numbers, so 0.5 equals 0.4 and 0.9 equals 1.0
TAIL_RATIOS = [0.25, 0.5, 0.75, 1.0]


def points(rows, key, tail="off"):
    return {model: [(r[key], r["kld"], r.get("kld_stderr", 0)) for r in of_model(rows, model) if key in r and "kld" in r and r["tail"] == tail] for model in measured(rows)}


def plot(rows):
    attended = {model: [(r["alpha"], 100 * r["attended"]) for r in of_model(rows, model) if "alpha" in r] for model in measured(rows)}
    return figure(lines("KL divergence from full, no tail", "alpha (ratio 0.3)", "nats", points(rows, "alpha")),
                  lines("Attended", "alpha (ratio 0.3)", "%", attended),
                  lines("KL divergence from full, no tail", "ratio (alpha 5)", "nats", points(rows, "ratio")),
                  lines("KL divergence from full, tail", "ratio (alpha 5, cap 5 %)", "nats", points(rows, "ratio", "on")))


def label(row):
    setting = f"alpha {row['alpha']}" if "alpha" in row else f"ratio {row['ratio']}"
    return setting if row["tail"] == "off" else f"tail, {setting}"


def tell(rows):
    return beside("setting", rows, label, ["attended", "perplexity", "KL"], lambda r: [share(r), changed(r), diverged(r)])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=read, plot=plot, table=tell,
    commands=[*(loss(model, f"{SELECTION} --kv-alpha {alpha}", alpha=alpha, tail="off") for alpha in ALPHAS for model in MODELS),
              *(loss(model, f"{SELECTION} --kv-ratio {ratio}", ratio=ratio, tail="off") for ratio in RATIOS for model in MODELS),
              *(loss(model, f"{TAIL} --kv-ratio {ratio}", ratio=ratio, tail="on") for ratio in TAIL_RATIOS for model in MODELS)])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
