#!/usr/bin/env python3
"""What share of the selected rows was also selected 1 to 64 steps before?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from common import BARE, WALDEN, Experiment, command, percent, scored, table
from plot import figure, lines

SCORE = "eval ppl -f TEXT -c 4096 --limit-tokens 4096 --step-overlap"
SETTINGS = {"infinigen, defaults": "--kv infinigen", "infinigen, cap 20 %": f"--kv infinigen --kv-cap 20% {BARE}",
            "infinigen, cap 5 %": f"--kv infinigen --kv-cap 5% {BARE}", "quest, cap 5 %": f"--kv quest --kv-cap 5% {BARE}"}


def read(output, keys):
    overlap = output["step_overlap"]
    return [scored(output, keys) | {"steps": overlap["steps"], "share": overlap["share"],
                                    "layers": {str(of["layer"]): of["share"] for of in overlap["layers"]}}]


def plot(rows):
    return figure(
        lines("Rows also selected before", "steps before", "%",
              {r["setting"]: [(s, 100 * share) for s, share in zip(r["steps"], r["share"])] for r in rows}, log_x=True, x_ticks=rows[0]["steps"]),
        lines("One step before, by layer", "layer", "%", {r["setting"]: [(int(l), 100 * s) for l, s in r["layers"].items()] for r in rows}))


def tell(rows):
    at = lambda row, steps: percent(row["share"][row["steps"].index(steps)])
    return table(["setting", "1 step", "8 steps", "64 steps"], [[r["setting"], at(r, 1), at(r, 8), at(r, 64)] for r in rows])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=read, plot=plot, table=tell,
    commands=[command(f"{SCORE} {flags}", WALDEN, setting=setting) for setting, flags in SETTINGS.items()])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
