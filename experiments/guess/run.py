#!/usr/bin/env python3
"""How much of the true attention is covered by the selection, for each source of the guess?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from accuracy import BARE, MODELS, beside, changed, diverged, loss, measured, of_model
from common import Experiment, percent, scored
from plot import bars, figure, lines

# The selection alone, as published; one dense layer for every source.
SELECTION = f"--kv-dense-layers 1 --kv-cap 20% {BARE} --mass-recall --stats-per-layer"
SOURCES = {"the true scores (oracle)": "--kv oracle",
           **{source: f"--kv infinigen --kv-tail off --kv-from {source}" for source in ("self", "prev-mid", "prev-layer", "prev-step")}}


def read(output, keys):
    stats = output["kv_stats"]
    layers = [layer["mass_recall"]["mean"] for layer in stats["layers"] if layer.get("mass_recall")]
    return [scored(output, keys) | {"recall": stats["mass_recall"]["mean"], "recall_p5": stats["mass_recall"]["p5"], "layers": layers}]


def plot(rows):
    panels = []
    for model in measured(rows):
        mine = of_model(rows, model)
        first = min(len(r["layers"]) for r in mine)
        recall = {r["source"]: [(len(r["layers"]) - first + i + 1, 100 * m) for i, m in enumerate(r["layers"][-first:])] for r in mine}
        panels += [bars(f"{model}: KL divergence from full, nats", [(r["source"], r.get("kld"), r.get("kld_stderr")) for r in mine]),
                   lines(f"{model}: true attention inside the selection", "layer", "%", recall)]
    return figure(*panels)


def tell(rows):
    return beside("guess from", rows, lambda r: r["source"], ["recall (worst 5 %)", "perplexity", "KL"],
                  lambda r: [f"{percent(r['recall'])} ({percent(r['recall_p5'])})", changed(r), diverged(r)])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=read, plot=plot, table=tell,
    commands=[loss(model, f"{flags} {SELECTION}", source=source) for source, flags in SOURCES.items() for model in MODELS])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
