#!/usr/bin/env python3
"""Runs experiments, or does something with what they kept.

    experiments/run_all.py                                  every experiment on accuracy
    experiments/run_all.py --speed --binary B --out DIR     every one on speed, on a GPU; DIR/NAME/result.json as each ends
    experiments/run_all.py --check                          again, compared with what was kept
    experiments/run_all.py --plot-only                      plot.svg of each result.json
    experiments/run_all.py --tables                         fills the tables of docs/results-*.md from every result.json
    experiments/run_all.py --dry-run                        asks the program whether it would take each command

Names of experiments choose some. One that fails leaves the others alone; commands that two experiments share run once.
"""
import argparse
import importlib.util
import math
import os
import pathlib
import re
import sys
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from common import ROOT, Runner

ACCURACY = ["kv_size", "along_length", "skew", "pool_policies", "alpha_ratio", "guess", "overlap", "quantised_pool"]
SPEED = ["latency", "breakdown", "batch", "length", "context", "hot_set", "model_size"]  # the most wanted first
BUDGET_S = 600  # of all on speed; what is left out says so


def load(name):
    spec = importlib.util.spec_from_file_location(f"experiment_{name}", HERE / name / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.EXPERIMENT


def filled(page):
    """The text of a page where between `<!-- NAME -->` and `<!-- end -->` stand plot and table of experiment NAME, and
    nothing where it has no result."""
    def table(match):
        experiment = load(match[1])
        kept = experiment.kept()
        rows = experiment.rows(kept) if kept else []
        plot = os.path.relpath(experiment.folder / "plot.svg", page.parent)
        inside = f"![{experiment.question.strip().splitlines()[0]}]({plot})\n\n{experiment.table(rows)}\n" if rows else ""
        return f"<!-- {match[1]} -->\n{inside}<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n(?:.*?)<!-- end -->", table, page.read_text(), flags=re.DOTALL)


def run(experiments, arguments):
    runner = Runner(arguments.binary, time.monotonic() + arguments.budget if arguments.budget else math.inf)
    worst = 0
    for experiment in experiments:
        print(f"{experiment.name}: {experiment.question.strip().splitlines()[0]}", flush=True)
        try:
            result = experiment.measure(runner)
            if arguments.check:
                worst |= experiment.check(result)
            else:
                experiment.write(result, arguments.out / experiment.name if arguments.out else None)
                if not arguments.out:  # elsewhere it is drawn later, with --plot-only
                    experiment.draw(result)
                rows = experiment.rows(result)
                print(experiment.table(rows) if rows else "nothing was measured", flush=True)
            worst |= any("error" in run for run in result["runs"])
        except Exception:  # a surprise in one is no reason to lose the others
            traceback.print_exc()
            worst = 1
    return int(worst)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--binary", default=str(ROOT / "build/release/infinigen"))
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--budget", type=float, help=f"seconds, after which nothing is begun (default: none; with --speed {BUDGET_S})")
    for flag in ("--check", "--plot-only", "--tables", "--dry-run"):
        parser.add_argument(flag, action="store_true")
    arguments = parser.parse_args()
    if arguments.budget is None and arguments.speed:
        arguments.budget = BUDGET_S
    every = arguments.plot_only or arguments.dry_run or arguments.tables
    experiments = [load(name) for name in arguments.names or (ACCURACY + SPEED if every else SPEED if arguments.speed else ACCURACY)]
    if arguments.tables:
        for page in [*sorted(ROOT.glob("docs/results-*.md")), *(e.folder / "README.md" for e in experiments)]:
            if page.exists():
                page.write_text(filled(page))
        return 0
    if arguments.plot_only:
        for experiment in experiments:
            if kept := experiment.kept():
                experiment.draw(kept)
        return 0
    if arguments.dry_run:
        runner = Runner(arguments.binary)
        refused = [(c, why) for e in experiments for c in e.commands if (why := runner.refused(c))]
        for command, why in refused:
            print(f"{why}: {command}")
        return 1 if refused else 0
    return run(experiments, arguments)


if __name__ == "__main__":
    sys.exit(main())
