#!/usr/bin/env python3
"""How is the time of an OPT-13B step spent, and how far is it from a step with all entries on the GPU?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from common import RESIDENT_STEP, WIDE_STEP, Experiment, benched, command, fetched_step, pick, table
from plot import bars, figure

def read(output, keys):
    return [row for row in benched(output, keys) if row["kv"] == "infinigen" or row["home"] == "device"]


def label(row):
    return "full, on the GPU" if row["home"] == "device" else f"infinigen, {row['count']} per head"


def plot(rows):
    panels = [bars(f"{label(r)}: ms by kind of work (some overlap)", [(k, ms) for k, ms in r["kinds"].items() if ms >= 0.005])
              for r in rows if "kinds" in r]
    return figure(bars("Time per step, ms", [(label(r), r["step_ms"]) for r in rows]), *panels)


def tell(rows):
    ideal = pick(rows, home="device")
    number = lambda row, key: f"{row[key]:.1f}" if key in row else "-"
    return table(["kv", "ms per step (of ideal)", "without fetching", "without computing"],
                 [[label(r), f"{r['step_ms']:.1f}" + (f" ({r['step_ms'] / ideal['step_ms']:.2f}x)" if ideal else ""),
                   number(r, "no_fetch_step_ms"), number(r, "no_compute_step_ms")] for r in rows])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=read, plot=plot, table=tell, kind="speed",
    commands=[fetched_step(), command(WIDE_STEP, timeout_s=90), command(RESIDENT_STEP, timeout_s=90)])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
