#!/usr/bin/env python3
"""What does the tail gain, and what do selection by mass and late rows add?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from accuracy import MODELS, beside, changed, diverged, loss, measured, of_model, read, share
from common import BOOKS, Experiment
from plot import bars, figure

WINDOWS = "-c 8192 --from 4096 --windows 5"
BUDGET = "--kv-cap 5% --kv-window 64 --kv-min 32"  # attends to about as many rows as the tail's defaults, whose cap is 7 %
SETTINGS = {
    "no tail, its own defaults": "--kv-tail off",
    "no tail, the tail's budget": f"--kv-tail off {BUDGET}",
    "no tail, the tail's budget, prev-layer": f"--kv-tail off {BUDGET} --kv-from prev-layer",
    "tail": "--kv-tail on",
    **{f"tail, mass {mass}": f"--kv-tail on --kv-mass {mass}" for mass in (0.9, 0.95, 0.98)},
    **{f"tail, {source}, {late or 'none'} late": f"--kv-tail on --kv-from {source} --kv-late {late}"
       for source in ("prev-layer", "prev-mid") for late in (0, 16, 64)}}


def plot(rows):
    panels = []
    for model in measured(rows):
        mine = of_model(rows, model)
        panels += [bars(f"{model}: perplexity against full, %", [(f"{r['setting']} ({share(r)} attended)", r.get("loss"), r.get("loss_stderr")) for r in mine]),
                   bars(f"{model}: KL divergence from full, nats", [(r["setting"], r.get("kld"), r.get("kld_stderr")) for r in mine])]
    return figure(*panels)


def tell(rows):
    return beside("setting", rows, lambda r: r["setting"], ["attended", "perplexity", "KL"], lambda r: [share(r), changed(r), diverged(r)])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=read, plot=plot, table=tell,
    commands=[loss(model, f"--kv infinigen {flags}", WINDOWS, BOOKS, setting=setting) for setting, flags in SETTINGS.items() for model in MODELS])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
