#!/usr/bin/env python3
"""What does a pool of 8 or 4 bits cost when only selected entries are fetched?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import accuracy
from accuracy import BARE, MODELS, beside, changed, counted, facts, joined, loss, measured, of_model, share
from common import Experiment
from plot import bars, figure

TYPES = {"16 bits": "auto", "int8": "int8", "int4": "int4"}  # 16 bits: bf16 or f16, as the model
ROW_BYTES = {"16 bits": 128, "int8": 68, "int4": 44}  # bytes of a key or value of 64 numbers, their mean
SELECTIONS = {"no tail, cap 20%": f"--kv-tail off --kv-cap 20% {BARE}", "no tail, cap 5%": f"--kv-tail off --kv-cap 5% {BARE}",
              "tail, cap 5%": f"--kv-tail on --kv-cap 5% {BARE}"}


def commands():
    """The loss is against `full` in 16 bits. Facts are asked for with the small cap only, which is the harder test."""
    for selection, flags in SELECTIONS.items():
        for kind, name in TYPES.items():
            for model in MODELS:
                yield loss(model, f"--kv infinigen --kv-type {name} {flags}", type=kind, selection=selection)
                if "cap 5%" in selection:
                    yield facts(model, f"--kv infinigen --kv-type {name} {flags}", type=kind, selection=selection)


def read(output, keys):
    """`bytes`: bytes that a step reads, relative to all entries in 16 bits."""
    return [row | ({"bytes": row["attended"] * ROW_BYTES[row["type"]] / ROW_BYTES["16 bits"]} if "attended" in row else {})
            for row in accuracy.read(output, keys)]


def label(row):
    return f"{row['type']}, {row['selection']}"


def plot(rows):
    panels = []
    for model in measured(rows):
        mine = joined(of_model(rows, model), "type", "selection")
        panels += [bars(f"{model}: perplexity against full in 16 bits, %", [(label(r), r.get("loss"), r.get("loss_stderr")) for r in mine]),
                   bars(f"{model}: bytes read per step, % of all in 16 bits", [(label(r), 100 * r["bytes"]) for r in mine if "bytes" in r])]
    return figure(*panels)


def tell(rows):
    return beside("entries, selection", joined(rows, "type", "selection"), label, ["bytes read", "perplexity", "facts"],
                  lambda r: [share(r, "bytes"), changed(r), counted(r)])


EXPERIMENT = Experiment(file=__file__, question=__doc__, read=read, plot=plot, table=tell, commands=list(commands()))


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
