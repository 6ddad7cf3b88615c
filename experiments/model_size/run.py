#!/usr/bin/env python3
"""How does the speed-up over fetching everything change with the size of the model?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from common import Experiment, benched, fetched_step, pick, table, tokens_per_s
from plot import bars, figure

MODELS = {"opt-6.7b": {}, "opt-13b": {}, "opt-30b": {"timeout_s": 120},
          "opt-30b, 30 % of its weights on the host": {"shape": "opt-30b", "more": " --weights-on-device 70%", "timeout_s": 150}}


def gain(rows, model, over="full"):
    mine, other = pick(rows, model=model, kv="infinigen"), pick(rows, model=model, kv=over)
    return tokens_per_s(mine) / tokens_per_s(other) if mine and other else None


def plot(rows):
    return figure(bars("4 sequences, 1,920 + 128 tokens: speed-up over full", [(model, gain(rows, model)) for model in MODELS], "x"))


def tell(rows):
    step = lambda model, kv: f"{pick(rows, model=model, kv=kv)['step_ms']:.1f}"
    return table(["model", "full, ms per step", "infinigen", "speed-up, prefill included"],
                 [[model, step(model, "full"), step(model, "infinigen"), f"{gain(rows, model):.2f}x"] for model in MODELS if gain(rows, model)])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=benched, plot=plot, table=tell, kind="speed",
    commands=[fetched_step(**({"shape": model, "batch": 4, "model": model} | more)) for model, more in MODELS.items()])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
