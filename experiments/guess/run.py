#!/usr/bin/env python3
"""How much of the true attention is covered by the selection, for each source of the guess?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from common import BARE, WALDEN, Experiment, command, percent, scored, table
from plot import bars, figure, lines

SCORE = f"eval ppl -f TEXT -c 4096 --limit-tokens 4096 --kv-dense-layers 1 --kv-cap 20% {BARE} --mass-recall --stats-per-layer"
SOURCES = {"the true scores (oracle)": "--kv oracle", "self": "--kv-from self", "prev-mid": "--kv-from prev-mid",
           "prev-layer": "--kv-from prev-layer", "prev-step": "--kv-from prev-step"}


def read(output, keys):
    stats = output["kv_stats"]
    layers = [layer["mass_recall"]["mean"] for layer in stats["layers"] if layer.get("mass_recall")]
    return [scored(output, keys) | {"recall": stats["mass_recall"]["mean"], "recall_p5": stats["mass_recall"]["p5"], "layers": layers}]


def plot(rows):
    first = min(len(r["layers"]) for r in rows)
    return figure(bars("KL divergence from full, nats", [(r["source"], r["kld"]) for r in rows]),
                  lines("True attention inside the selection", "layer", "%",
                        {r["source"]: [(len(r["layers"]) - first + i + 1, 100 * m) for i, m in enumerate(r["layers"][-first:])] for r in rows}))


def tell(rows):
    return table(["guess from", "recall (worst 5 %)", "perplexity", "KL"],
                 [[r["source"], f"{percent(r['recall'])} ({percent(r['recall_p5'])})", f"{r['ppl']:.3f}", f"{r['kld']:.4f}"] for r in rows])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=read, plot=plot, table=tell,
    commands=[command(f"{SCORE} {flags}", WALDEN, source=source) for source, flags in SOURCES.items()])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
