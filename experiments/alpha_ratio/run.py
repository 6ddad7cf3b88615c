#!/usr/bin/env python3
"""How much do the threshold (alpha 1 to 9) and the sketch size (ratio 0.1 to 1) matter?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from common import BARE, WALDEN, Experiment, command, percent, scored, series, table
from plot import figure, lines

SCORE = f"eval ppl -f TEXT -c 2048 --limit-tokens 4096 --kv infinigen --kv-cap 20% {BARE}"
RATIOS = [0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 1.0]  # sketch sizes are multiples of 8 of 64 numbers, so 0.5 equals 0.4 and 0.9 equals 1.0


def read(output, keys):
    return [scored(output, keys)]


def plot(rows):
    alphas, ratios = ([r for r in rows if key in r] for key in ("alpha", "ratio"))
    return figure(lines("KL divergence from full", "alpha (ratio 0.3)", "nats", series(alphas, "kv", "alpha", "kld")),
                  lines("Attended", "alpha (ratio 0.3)", "%", series([r | {"y": 100 * r["attended"]} for r in alphas], "kv", "alpha", "y")),
                  lines("KL divergence from full", "ratio (alpha 5)", "nats", series(ratios, "kv", "ratio", "kld")))


def tell(rows):
    words = lambda r: f"alpha {r['alpha']}" if "alpha" in r else f"ratio {r['ratio']}"
    return table(["setting", "attended", "perplexity", "KL"], [[words(r), percent(r["attended"]), f"{r['ppl']:.3f}", f"{r['kld']:.4f}"] for r in rows])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=read, plot=plot, table=tell,
    commands=[*(command(f"{SCORE} --kv-alpha {alpha}", WALDEN, alpha=alpha) for alpha in range(1, 10)),
              *(command(f"{SCORE} --kv-ratio {ratio}", WALDEN, ratio=ratio) for ratio in RATIOS)])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
