#!/usr/bin/env python3
"""How long does each method take for OPT-13B, 20 sequences, 1,920 tokens of prompt and 128 generated?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from common import RESIDENT_STEP, WIDE_STEP, Experiment, benched, command, fetched_step, table
from plot import bars, figure

# The published code on the same GPU and shape, random weights, ms a step (measured apart; OSDI'24 artifact).
ARTIFACT = {"full": 4030, "int4": 1475, "h2o": 2664, "infinigen, 409 a head": 1452, "infinigen, 73 a head": 504}


def label(row):
    where = ", on the GPU" if row["home"] == "device" else ""
    return row["kv"] + where + (f", {row['count']} a head" if row["kv"] == "infinigen" else "")


def total_s(row):
    return row["prefill_s"] + 128 * row["step_ms"] / 1e3


def plot(rows):
    return figure(bars("A step, ms", [(label(r), r["step_ms"]) for r in rows]),
                  bars("Prompt and 128 tokens, s", [(label(r), total_s(r)) for r in rows]))


def tell(rows):
    return table(["method", "ms a step", "whole, s", "published code here, ms"],
                 [[label(r), f"{r['step_ms']:.1f}", f"{total_s(r):.1f}", f"{ARTIFACT[label(r)]:,}" if label(r) in ARTIFACT else "-"] for r in rows])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=benched, plot=plot, table=tell, kind="speed",
    commands=[fetched_step(), command(WIDE_STEP, timeout_s=90), command(RESIDENT_STEP, timeout_s=90),
              command("bench --device cuda --shape opt-13b --batch 20 --prompt 1920 --gen 6 --kv h2o,streaming", timeout_s=90)])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
