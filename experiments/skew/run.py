#!/usr/bin/env python3
"""What does the skew gain: sketches from a rotation, from the best pair of matrices, and from plain dimensions?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from common import BARE, WALDEN, Experiment, against, command, compared, percent, table
from plot import bars, figure

COMPARE = f"eval compare -f TEXT -c 4096 --limit-tokens 4096 --facts 1 --gen 0 --kv infinigen {BARE}"
CASES = {"20%": 0, "5%": 6}  # number of texts with a planted fact; only the small cap is a hard test


def label(row):
    return f"{row['projection']}, cap {row['cap']}"


def plot(rows):
    return figure(bars("Perplexity against full, %", [(label(r), 100 * (r["ppl_vs_full"] - 1)) for r in rows]),
                  bars("Planted facts found, of 6", [(label(r), r.get("found")) for r in rows]))


def tell(rows):
    return table(["projection, cap", "attended", "perplexity", "facts"],
                 [[label(r), percent(r["attended"]), against(r["ppl_vs_full"]), f"{r['found']} of {r['cases']}" if "found" in r else "-"] for r in rows])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=compared, plot=plot, table=tell,
    commands=[command(f"{COMPARE} --n {cases} --kv-cap {cap} --kv-projection {projection}", WALDEN, projection=projection, cap=cap)
              for cap, cases in CASES.items() for projection in ("rotation", "pair", "none")])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
