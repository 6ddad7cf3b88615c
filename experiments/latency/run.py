#!/usr/bin/env python3
"""How long does each method take for 20 sequences of OPT-13B, 1,920 prompt tokens and 128 generated tokens each?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from common import RESIDENT_STEP, WIDE_STEP, Experiment, benched, command, fetched_step, table
from plot import bars, figure

# ms per step of the published code (OSDI '24 artifact) on the same GPU and shape with random weights, measured separately.
ARTIFACT = {"full": 4030, "int4": 1475, "h2o": 2664, "infinigen, 409 per head": 1452, "infinigen, 73 per head": 504}


def label(row):
    where = ", on the GPU" if row["home"] == "device" else ""
    return row["kv"] + where + (f", {row['count']} per head" if row["kv"] == "infinigen" else "")


def total_s(row):
    return row["prefill_s"] + 128 * row["step_ms"] / 1e3


def plot(rows):
    return figure(bars("Time per step, ms", [(label(r), r["step_ms"]) for r in rows]),
                  bars("Total time, s", [(label(r), total_s(r)) for r in rows]))


def tell(rows):
    return table(["method", "ms per step", "total, s", "published code, ms per step"],
                 [[label(r), f"{r['step_ms']:.1f}", f"{total_s(r):.1f}", f"{ARTIFACT[label(r)]:,}" if label(r) in ARTIFACT else "-"] for r in rows])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=benched, plot=plot, table=tell, kind="speed",
    commands=[fetched_step(), command(WIDE_STEP, timeout_s=90), command(RESIDENT_STEP, timeout_s=90),
              command("bench --device cuda --shape opt-13b --batch 20 --prompt 1920 --gen 6 --kv h2o,streaming", timeout_s=90)])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
