#!/usr/bin/env python3
"""How well does the tail estimate the attention that a selection misses, layer by layer?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from common import SMOLLM2, WALDEN, Experiment, command, percent, scored, table
from plot import figure, lines

SCORE = "eval ppl -f TEXT -c 8192 --from 4096 --windows 1 --kv-tail on --mass-recall --stats-per-layer"
MODELS = {"infinigen-mini": ("", ()), "SmolLM2": (" -m MODEL", (SMOLLM2,))}
SETTINGS = {"defaults": "", "mass 0.9": " --kv-mass 0.9", "mass 0.95": " --kv-mass 0.95", "mass 0.98": " --kv-mass 0.98"}


def read(output, keys):
    stats = output["kv_stats"]
    layers = [[layer["missed_mass"]["true"], layer["missed_mass"]["estimated"]] for layer in stats["layers"] if layer.get("missed_mass")]
    return [scored(output, keys) | {"missed": stats["missed_mass"]["true"], "estimated": stats["missed_mass"]["estimated"], "layers": layers}]


def plot(rows):
    panels = []
    for model in MODELS:
        points = {r["setting"]: [(100 * true, 100 * estimate) for true, estimate in r["layers"]] for r in rows if r["model"] == model}
        panels.append(lines(f"{model}: attention outside the selection, a point per layer", "true, %", "estimated, %", points,
                            log_x=True, log_y=True, scatter=True))
    return figure(*panels)


def tell(rows):
    return table(["model, setting", "attended", "missed, estimated (true)", "KL"],
                 [[f"{r['model']}, {r['setting']}", percent(r["attended"]), f"{percent(r['estimated'], 2)} ({percent(r['missed'], 2)})", f"{r['kld']:.4f}"]
                  for r in rows])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=read, plot=plot, table=tell,
    commands=[command(SCORE + model + flags, WALDEN, *files, model=name, setting=setting)
              for name, (model, files) in MODELS.items() for setting, flags in SETTINGS.items()])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
