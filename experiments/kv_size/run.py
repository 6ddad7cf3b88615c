#!/usr/bin/env python3
"""How much accuracy does each method lose, by the share of the cache that it reads or keeps?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from common import BARE, WALDEN, Experiment, against, command, compared, percent, series, table
from plot import figure, lines

COMPARE = "eval compare -f TEXT -c 4096 --limit-tokens 8192 --facts 1 --n 8 --gen 0"
BYTES = {"full": 1, "int8": 68 / 128, "int4": 36 / 128}  # size of a row of 64 numbers, relative to bf16


def read(output, keys):
    """`size` is the share of the cache that a step reads: of the entries, or of their bytes."""
    return [row | {"size": BYTES.get(row["kv"], row["attended"])} for row in compared(output, keys)]


def line(row):
    return row["kv"] + (", a layer early" if "early" in row["setting"] else "")


def plot(rows):
    return figure(
        lines("Perplexity against full", "share of the cache read per step, %", "%",
              series([r | {"x": 100 * r["size"], "y": 100 * (r["ppl_vs_full"] - 1)} for r in rows], line, "x", "y")),
        lines("Planted facts found", "share of the cache read per step, %", "%",
              series([r | {"x": 100 * BYTES.get(r["kv"], r["needle_attended"]), "y": 100 * r["found"] / r["cases"]} for r in rows],
                     line, "x", "y")))


def tell(rows):
    return table(["kv, setting", "read", "perplexity", "facts"],
                 [[f"{r['kv']} {r['setting']}".strip(), percent(r["size"]), against(r["ppl_vs_full"]), f"{r['found']} of {r['cases']}"] for r in rows])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=read, plot=plot, table=tell,
    commands=[command(f"{COMPARE} --kv full,int8,int4", WALDEN, setting=""),
              *(command(f"{COMPARE} --kv infinigen,quest --kv-cap {cap} {BARE}", WALDEN, setting=f"cap {cap}") for cap in ("5%", "10%", "20%")),
              *(command(f"{COMPARE} --kv infinigen --kv-from prev-layer --kv-cap {cap} {BARE}", WALDEN, setting=f"cap {cap}, guessed a layer early")
                for cap in ("5%", "20%")),
              *(command(f"{COMPARE} --kv h2o,streaming --kv-limit {limit}", WALDEN, setting=f"limit {limit}") for limit in ("10%", "20%", "50%"))])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
