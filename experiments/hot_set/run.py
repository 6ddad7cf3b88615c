#!/usr/bin/env python3
"""What share of the selected entries is already on the GPU, by size of the hot set?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from common import Experiment, Text, command, percent, series, table
from plot import figure, lines

BOOK = Text("books/walden.txt", 30000)  # about 7,600 tokens
STEPS = "generate --device cuda -f TEXT -n 400 --ignore-eos --temp 0 --kv infinigen --kv-tail off --kv-cap 0.05 --kv-window 64 --kv-min 64"
PUBLISHED = {1: 0.70, 2: 0.87, 4: 0.93}  # HiSparse, with another model


def read(output, keys):
    stats = output["kv_stats"]
    return [keys | {"hit_ratio": stats["hit_ratio"], "fetched_bytes_per_step": stats["fetched_bytes_per_step"], "hot_bytes": stats["hot_bytes"],
                    "prompt_tokens": output["prompt_tokens"], "generated_tokens": output["generated_tokens"]}]


def plot(rows):
    mine = series([r | {"line": "here", "y": 100 * r["hit_ratio"]} for r in rows], "line", "selections", "y")
    return figure(lines("Selected entries already on the GPU", "size of the hot set, in selections", "%",
                        mine | {"HiSparse, as published": [(n, 100 * hits) for n, hits in PUBLISHED.items()]}, log_x=True, x_ticks=[r["selections"] for r in rows]))


def tell(rows):
    return table(["hot set size", "hits", "HiSparse", "KB fetched per step"],
                 [[f"{r['selections']} selection{'s' * (r['selections'] > 1)}", percent(r["hit_ratio"]), percent(PUBLISHED[r["selections"]], 0) if r["selections"] in PUBLISHED else "-",
                   f"{r['fetched_bytes_per_step'] / 1000:,.0f}"] for r in rows])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=read, plot=plot, table=tell, kind="speed",
    commands=[command(f"{STEPS} --kv-hot {times}x", BOOK, timeout_s=60, selections=times) for times in (1, 2, 4, 8)])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
