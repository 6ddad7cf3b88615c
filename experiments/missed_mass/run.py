#!/usr/bin/env python3
"""How well does the tail estimate the attention that a selection misses, layer by layer?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from accuracy import MODELS, beside, diverged, loss, measured, of_model, share
from common import Experiment, percent, scored
from plot import figure, lines

WINDOWS = "-c 8192 --from 4096 --windows 2 --mass-recall --stats-per-layer"
SETTINGS = {"defaults": "", "mass 0.9": " --kv-mass 0.9", "mass 0.95": " --kv-mass 0.95", "mass 0.98": " --kv-mass 0.98"}


def read(output, keys):
    stats = output["kv_stats"]
    layers = [[layer["missed_mass"]["true"], layer["missed_mass"]["estimated"]] for layer in stats["layers"] if layer.get("missed_mass")]
    return [scored(output, keys) | {"missed": stats["missed_mass"]["true"], "estimated": stats["missed_mass"]["estimated"], "layers": layers}]


def plot(rows):
    panels = []
    for model in measured(rows):
        points = {r["setting"]: [(100 * true, 100 * estimate) for true, estimate in r["layers"]] for r in of_model(rows, model)}
        panels.append(lines(f"{model}: attention outside the selection, a point per layer", "true, %", "estimated, %", points,
                            log_x=True, log_y=True, scatter=True))
    return figure(*panels)


def tell(rows):
    return beside("setting", rows, lambda r: r["setting"], ["attended", "missed, estimated (true)", "KL"],
                  lambda r: [share(r), f"{percent(r['estimated'], 2)} ({percent(r['missed'], 2)})", diverged(r)])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=read, plot=plot, table=tell,
    commands=[loss(model, f"--kv infinigen --kv-tail on{flags}", WINDOWS, setting=setting) for setting, flags in SETTINGS.items() for model in MODELS])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
