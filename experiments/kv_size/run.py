#!/usr/bin/env python3
"""How much accuracy does each method lose, by the share of the cache that it reads or keeps?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import accuracy
from accuracy import BARE, MODELS, beside, changed, counted, facts, joined, loss, measured, of_model, share
from common import Experiment
from plot import figure, lines

BYTES = {"full": 1, "int8": 68 / 128, "int4": 88 / 256}  # size of an entry of 64 numbers, relative to 16 bits
EARLY = "--kv-from prev-layer"
# name of a line: {setting: flags}
METHODS = {
    "full": {"": "--kv full"},
    "int8": {"": "--kv int8"},
    "int4": {"": "--kv int4"},
    "infinigen": {"defaults": "--kv infinigen --kv-tail on",
                  **{f"cap {cap}": f"--kv infinigen --kv-tail on --kv-cap {cap} {BARE}" for cap in ("5%", "10%", "20%")}},
    "infinigen, a layer early": {"cap 5%": f"--kv infinigen --kv-tail on {EARLY} --kv-cap 5% {BARE}"},
    "infinigen, no tail": {"defaults": "--kv infinigen --kv-tail off",
                           **{f"cap {cap}": f"--kv infinigen --kv-tail off --kv-cap {cap} {BARE}" for cap in ("5%", "10%", "20%")}},
    "infinigen, no tail, a layer early": {f"cap {cap}": f"--kv infinigen --kv-tail off {EARLY} --kv-cap {cap} {BARE}" for cap in ("5%", "20%")},
    "quest": {f"cap {cap}": f"--kv quest --kv-cap {cap} {BARE}" for cap in ("5%", "20%")},
    "h2o": {f"limit {limit}": f"--kv h2o --kv-limit {limit}" for limit in ("10%", "20%", "50%")},
    "streaming": {f"limit {limit}": f"--kv streaming --kv-limit {limit}" for limit in ("10%", "20%", "50%")}}


def commands():
    """`full` has no loss. On a GPU evicting layers run token by token, so the larger model leaves out the largest limit."""
    for method, settings in METHODS.items():
        for setting, flags in settings.items():
            for model in MODELS:
                if not (model == "SmolLM2" and setting == "limit 50%"):
                    yield from ([loss(model, flags, method=method, setting=setting)] if method != "full" else [])
                    yield facts(model, flags, method=method, setting=setting)


def read(output, keys):
    """`size`, `needle_size`: the share of the cache that a step reads, of the entries or of their bytes."""
    rows = accuracy.read(output, keys)
    for row in rows:
        for share, size in (("attended", "size"), ("needle_attended", "needle_size")):
            if share in row:
                row[size] = BYTES.get(row["method"], row[share])
    return rows


def plot(rows):
    panels = []
    for model in measured(rows):
        points = {method: [r for r in of_model(rows, model) if r["method"] == method] for method in METHODS}
        panels += [lines(f"{model}: perplexity against full", "share of the cache read per step, %", "%",
                         {m: [(100 * r["size"], r["loss"], r.get("loss_stderr", 0)) for r in of if "loss" in r] for m, of in points.items()}),
                   lines(f"{model}: planted facts found", "share of the cache read per step, %", "%",
                         {m: [(100 * r["needle_size"], 100 * r["found"] / r["cases"]) for r in of if "found" in r] for m, of in points.items()})]
    return figure(*panels)


def tell(rows):
    rows = joined([r for r in rows if r["method"] != "full"] + [r | {"size": 1} for r in rows if r["method"] == "full"], "method", "setting")
    order = list(METHODS)
    return beside("kv, setting", sorted(rows, key=lambda r: order.index(r["method"])), lambda r: f"{r['method']}, {r['setting']}".rstrip(", "),
                  ["read", "perplexity", "facts"], lambda r: [share(r, "size"), changed(r), counted(r)])


EXPERIMENT = Experiment(file=__file__, question=__doc__, read=read, plot=plot, table=tell, commands=list(commands()))


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
