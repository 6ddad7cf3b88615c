#!/usr/bin/env python3
"""How does throughput grow with the batch size, from 4 to 20 sequences of OPT-13B?"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from common import Experiment, benched, fetched_step, pick, series, table, tokens_per_s
from plot import figure, lines

BATCHES = [4, 8, 12, 16, 20]


def plot(rows):
    return figure(lines("OPT-13B, 1,920 + 128 tokens", "sequences", "tokens/s, prefill included",
                        series([r | {"y": tokens_per_s(r)} for r in rows], "kv", "batch", "y"), log_y=True, x_ticks=BATCHES))


def tell(rows):
    cells = lambda batch: [pick(rows, batch=batch, kv=kv) for kv in ("full", "int4", "infinigen")]
    return table(["sequences", "full, tok/s", "int4", "infinigen (73 per head)"],
                 [[batch, *(f"{tokens_per_s(row):.1f}" if row else "-" for row in cells(batch))] for batch in BATCHES if any(cells(batch))])


EXPERIMENT = Experiment(
    file=__file__, question=__doc__, read=benched, plot=plot, table=tell, kind="speed",
    commands=[fetched_step(batch=batch) for batch in BATCHES[::-1]])


if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
