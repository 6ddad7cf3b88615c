#!/usr/bin/env python3
"""What share of the selected rows was also selected 1 to 64 steps before?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from accuracy import BARE, MODELS, beside, loss, measured, of_model
from common import Experiment, percent, scored
from plot import figure, lines

WINDOWS = "-c 4096 --from 2048 --windows 2 --step-overlap"
SETTINGS = {"infinigen, defaults": "--kv infinigen --kv-tail on", "infinigen, no tail, defaults": "--kv infinigen --kv-tail off",
            "infinigen, no tail, cap 20 %": f"--kv infinigen --kv-tail off --kv-cap 20% {BARE}",
            "infinigen, no tail, cap 5 %": f"--kv infinigen --kv-tail off --kv-cap 5% {BARE}", "quest, cap 5 %": f"--kv quest --kv-cap 5% {BARE}"}


def read(output, keys):
    overlap = output["step_overlap"]
    return [scored(output, keys) | {"steps": overlap["steps"], "share": overlap["share"],
                                    "layers": {str(of["layer"]): of["share"] for of in overlap["layers"]}}]


def plot(rows):
    panels = []
    for model in measured(rows):
        mine = of_model(rows, model)
        before = {r["setting"]: [(s, 100 * share) for s, share in zip(r["steps"], r["share"]) if share is not None] for r in mine}
        panels += [lines(f"{model}: rows also selected before", "steps before", "%", before, log_x=True, x_ticks=mine[0]["steps"]),
                   lines(f"{model}: one step before, by layer", "layer", "%", {r["setting"]: [(int(l), 100 * s) for l, s in r["layers"].items() if s is not None] for r in mine})]
    return figure(*panels)


def tell(rows):
    def at(row, steps):
        share = row["share"][row["steps"].index(steps)]
        return "-" if share is None else percent(share)

    return beside("setting", rows, lambda r: r["setting"], ["1 step", "8 steps", "64 steps"], lambda r: [at(r, steps) for steps in (1, 8, 64)])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=read, plot=plot, table=tell,
    commands=[loss(model, flags, WINDOWS, setting=setting) for setting, flags in SETTINGS.items() for model in MODELS])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
