#!/usr/bin/env python3
"""What does the skew gain: sketches from a rotation, from the best pair of matrices, and from plain dimensions?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from accuracy import BARE, MODELS, beside, changed, counted, facts, joined, loss, measured, of_model, read, share
from common import Experiment
from plot import bars, figure

# Selection alone, as published, and with a tail, which plain dimensions cannot have.
SETTINGS = {**{f"{projection}, no tail, cap {cap}": f"--kv-tail off --kv-projection {projection} --kv-cap {cap} {BARE}"
               for cap in ("20%", "5%") for projection in ("rotation", "pair", "none")},
            **{f"{projection}, tail, cap 5%": f"--kv-tail on --kv-projection {projection} --kv-cap 5% {BARE}" for projection in ("rotation", "pair")}}


def commands():
    """Facts are asked for with the small cap only, which is the harder test."""
    for setting, flags in SETTINGS.items():
        for model in MODELS:
            yield loss(model, f"--kv infinigen {flags}", setting=setting)
            if "cap 5%" in setting:
                yield facts(model, f"--kv infinigen {flags}", setting=setting)


def plot(rows):
    panels = []
    for model in measured(rows):
        mine = joined(of_model(rows, model), "setting")
        panels += [bars(f"{model}: perplexity against full, %", [(r["setting"], r.get("loss"), r.get("loss_stderr")) for r in mine]),
                   bars(f"{model}: planted facts found, of 8", [(r["setting"], r.get("found")) for r in mine])]
    return figure(*panels)


def tell(rows):
    return beside("projection", joined(rows, "setting"), lambda r: r["setting"], ["attended", "perplexity", "facts"],
                  lambda r: [share(r), changed(r), counted(r)])


EXPERIMENT = Experiment(file=__file__, question=__doc__, read=read, plot=plot, table=tell, commands=list(commands()))


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
