#!/usr/bin/env python3
"""What does a pool of 8 or 4 bits cost when only selected entries are fetched?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from common import BARE, WALDEN, Experiment, against, command, compared, table
from plot import bars, figure

COMPARE = f"eval compare -f TEXT -c 4096 --limit-tokens 4096 --facts 1 --gen 0 --kv infinigen {BARE}"
CASES = {"20%": 0, "5%": 6}  # number of texts with a planted fact; only the small cap is a hard test
ROW_BYTES = {"bf16": 128, "int8": 68, "int4": 36}  # bytes of a key or value of 64 numbers


def read(output, keys):
    """`bytes`: bytes that a step reads, relative to all entries in bf16."""
    return [row | {"bytes": row["attended"] * ROW_BYTES[row["type"]] / ROW_BYTES["bf16"]} for row in compared(output, keys)]


def label(row):
    return f"{row['type']}, cap {row['cap']}"


def against_bf16(row, rows):
    """Relative to `full` in bf16, which is that of the first run; every other run compares with `full` of its own type."""
    return row["ppl"] / rows[0]["ppl"] * rows[0]["ppl_vs_full"]


def plot(rows):
    return figure(bars("Perplexity against full in bf16, %", [(label(r), 100 * (against_bf16(r, rows) - 1)) for r in rows]),
                  bars("Bytes read per step, % of all in bf16", [(label(r), 100 * r["bytes"]) for r in rows]))


def tell(rows):
    return table(["entries, cap", "bytes read", "perplexity", "facts"],
                 [[label(r), f"{100 * r['bytes']:.1f} %", against(against_bf16(r, rows)), f"{r['found']} of {r['cases']}" if "found" in r else "-"] for r in rows])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=read, plot=plot, table=tell,
    commands=[command(f"{COMPARE} --n {cases} --kv-cap {cap} --kv-type {kind}", WALDEN, cap=cap, type=kind)
              for cap, cases in CASES.items() for kind in ("bf16", "int8", "int4")])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
