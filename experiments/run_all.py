#!/usr/bin/env python3
"""Runs experiments, or updates plots and tables from their stored results.

    experiments/run_all.py                                  runs all accuracy experiments
    experiments/run_all.py --device cuda --jobs 8           the same on a GPU, eight commands at the same time
    experiments/run_all.py --speed --binary B --out DIR     runs all speed experiments on a GPU; writes DIR/NAME/result.json
    experiments/run_all.py --check                          runs them and compares with the stored results
    experiments/run_all.py --plot-only                      draws every plot.svg from its result.json
    experiments/run_all.py --tables                         fills the tables of docs/results-*.md and of each README.md
    experiments/run_all.py --dry-run                        checks that the program accepts every command

Without names, all experiments of the kind are used. A failing experiment does not stop the others. A command that several
experiments share runs once.
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
from common import ROOT, Runner, add_machine_options

ACCURACY = ["tail", "kv_size", "guess", "skew", "quantised_pool", "missed_mass", "alpha_ratio", "overlap", "pool_policies",
            "along_length"]  # most important first, because of the budget
SPEED = ["latency", "breakdown", "batch", "length", "context", "hot_set", "model_size"]  # most important first, because of the budget
BUDGET_S = 600  # for all speed experiments; commands that are left out are recorded as errors


def load(name):
    spec = importlib.util.spec_from_file_location(f"experiment_{name}", HERE / name / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.EXPERIMENT


def filled(page):
    """The text of a page with plot and table of experiment NAME between `<!-- NAME -->` and `<!-- end -->`, or nothing
    between them when the experiment has no result."""
    def table(match):
        experiment = load(match[1])
        kept = experiment.kept()
        rows = experiment.rows(kept) if kept else []
        plot = os.path.relpath(experiment.folder / "plot.svg", page.parent)
        inside = f"![{experiment.question.strip().splitlines()[0]}]({plot})\n\n{experiment.table(rows)}\n" if rows else ""
        return f"<!-- {match[1]} -->\n{inside}<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n(?:.*?)<!-- end -->", table, page.read_text(), flags=re.DOTALL)


def run(experiments, arguments, device="cpu", jobs=1):
    runner = Runner(arguments.binary, time.monotonic() + arguments.budget if arguments.budget else math.inf, device=device, jobs=jobs)
    try:
        if jobs > 1:
            runner.start([command for experiment in experiments for command in experiment.commands])
        return measure(experiments, arguments, runner)
    finally:
        runner.close()


def measure(experiments, arguments, runner):
    worst = 0
    for experiment in experiments:
        print(f"{experiment.name}: {experiment.question.strip().splitlines()[0]}", flush=True)
        try:
            result = experiment.measure(runner)
            if arguments.check:
                worst |= experiment.check(result)
            else:
                experiment.write(result, arguments.out / experiment.name if arguments.out else None)
                if not arguments.out:  # with --out, the plot is drawn later by --plot-only
                    experiment.draw(result)
                rows = experiment.rows(result)
                print(experiment.table(rows) if rows else "nothing was measured", flush=True)
            worst |= any("error" in run for run in result["runs"])
        except Exception:  # an error in one experiment must not stop the others
            traceback.print_exc()
            worst = 1
    return int(worst)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments (default: all of the kind)")
    parser.add_argument("--binary", default=str(ROOT / "build/release/infinigen"), help="the program (default: build/release/infinigen)")
    parser.add_argument("--speed", action="store_true", help="the speed experiments instead of those on accuracy; needs a GPU")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="write DIR/NAME/result.json instead of the stored results")
    parser.add_argument("--budget", type=float, help=f"seconds after which no command is started (default: no limit; with --speed {BUDGET_S})")
    add_machine_options(parser)
    parser.add_argument("--check", action="store_true", help="compare with the stored results instead of replacing them")
    parser.add_argument("--plot-only", action="store_true", help="draw every plot.svg from its result.json")
    parser.add_argument("--tables", action="store_true", help="fill the tables of docs/results-*.md and of each README.md")
    parser.add_argument("--dry-run", action="store_true", help="check that the program accepts every command")
    arguments = parser.parse_args()
    if arguments.speed and (arguments.jobs > 1 or arguments.device != "cpu"):
        parser.error("--speed: times are measured one after the other, and its commands name their device: leave out --jobs and --device")
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
        runner = Runner(arguments.binary, device=arguments.device, jobs=arguments.jobs)
        refused = [(c, why) for e in experiments for c in e.commands if (why := runner.refused(c))]
        for command, why in refused:
            print(f"{why}: {command}")
        return 1 if refused else 0
    return run(experiments, arguments, arguments.device, arguments.jobs)


if __name__ == "__main__":
    sys.exit(main())
