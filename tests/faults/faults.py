#!/usr/bin/env python3
"""Lets one call after another of a command fail, and checks that it ends well (docs/faults.md).

usage: faults.py INFINIGEN_FAULTS GOLDEN_MODELS [COMMAND…] [--classes A,B] [--every] [--lasting] [--point POINT] [--jobs N] [--gpu]

A point is one call of a class: the first with a certain stack (default: each distinct stack once), or the N-th (--every). With
--lasting it is a shortage: K calls from the N-th on, for some N and K. A command must end with exit code 0 and exactly the right output, or with exit code 1 and one line on stderr that says why. A server must refuse
to start in that way, or serve everything else. Exit code 77: this binary cannot be tested here. Standard library only.
"""

import argparse
import collections
import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile
import time

import commands

# What must never be on stderr: marks of sanitizers, of a terminated program, of a message that explains nothing.
BAD_MARKS = ("Sanitizer", "runtime error:", "terminate called", "internal error: CHECK", "unexpected error", "pure virtual",
             "bad_alloc", "Success")
LEAKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "leaks.supp")
SECONDS = 60  # after which a command hangs
MOST_MISSED = 0.08  # of the points may be not reached
# With --lasting: so many N of a class, evenly spread, and so many calls that fail.
LASTING_STARTS = 8
LASTING_CALLS = {"alloc": (30, 200)}  # accepting connections is tried again every 50 ms, so others: 30

Point = collections.namedtuple("Point", "command kind at")  # at: number, N+K, xHASH or record
Outcome = collections.namedtuple("Outcome", "reached problem stack seconds")


class Faults:
    def __init__(self, options):
        self.options = options
        self.binary = os.path.abspath(options.binary)
        self.work = tempfile.mkdtemp(prefix="infinigen-faults-")
        self.commands = {c.name: c for c in commands.make(self.binary, options.models, self.work, options.gpu)}
        self.known = set()  # hashes of stacks that an earlier command has

    def environment(self, point, log):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("INFINIGEN_")}
        environment["XDG_CACHE_HOME"] = os.path.join(self.work, "cache")
        environment["INFINIGEN_FAULT_LOG"] = log
        environment["LSAN_OPTIONS"] = f"suppressions={LEAKS}:print_suppressions=0"
        if point is not None:
            environment["INFINIGEN_FAULT"] = f"{point.kind}:{point.at}"
        if self.options.depth:
            environment["INFINIGEN_FAULT_DEPTH"] = str(self.options.depth)
        return environment

    def attempt(self, point):
        """Runs the point's command once in a directory of its own."""
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=self.work) as directory:
            log = os.path.join(directory, "fault.log")
            os.mkdir(os.path.join(directory, "out"))
            run = commands.Run(self.binary, os.path.join(directory, "out"), self.environment(point, log), log, SECONDS,
                               kind=None if point.at == "record" else point.kind, lasting="+" in str(point.at))
            try:
                problem = self.commands[point.command].check(run) or self.marks(run)
            except commands.Problem as caught:
                problem = str(caught)
            finally:
                run.end()
            lines = []
            if os.path.exists(log):
                with open(log, encoding="ascii") as file:
                    lines = [line.split() for line in file]
            if point.at != "record" and problem and not lines:
                problem = f"the fault was not reached, and yet: {problem}"
            if problem:
                problem += f"\n    exit code {run.code}, stderr: {run.stderr[-1500:].strip()!r}"
            return Outcome(bool(lines), problem, lines, time.monotonic() - began)

    @staticmethod
    def marks(run):
        found = [mark for mark in BAD_MARKS if mark in run.stderr]
        return f"stderr has {found[0]!r}" if found else None

    def record(self, command, kind):
        """The distinct stacks of a class, as (first number, calls, hash, frames)."""
        outcome = self.attempt(Point(command, kind, "record"))
        if outcome.problem:
            raise SystemExit(f"{command}: fails without a fault: {outcome.problem}")
        return sorted((int(first), int(calls), name, frames) for first, calls, name, *frames in outcome.stack)

    def points(self, command, kind):
        stacks = self.record(command, kind)
        calls = sum(stack[1] for stack in stacks)
        if self.options.lasting:
            starts = sorted({1 + calls * i // LASTING_STARTS for i in range(LASTING_STARTS)}) if calls else []
            return calls, [Point(command, kind, f"{start}+{count}") for start in starts
                           for count in LASTING_CALLS.get(kind, (30,))]
        if not self.options.every:
            new = [stack[2] for stack in stacks if stack[2] not in self.known]
            self.known.update(new)
            return calls, [Point(command, kind, name) for name in new]
        step = max(1, calls // self.options.most)
        return calls, [Point(command, kind, number) for number in range(1, calls + 1, step)]

    def shown_stack(self, frames):
        addresses = [hex(int(frame, 16) - 1) for frame in frames]
        try:
            lines = subprocess.run(["addr2line", "-Cfpse", self.binary, *addresses], capture_output=True, text=True,
                                   check=False).stdout.splitlines()
        except OSError:
            lines = addresses
        return "".join(f"\n      {line[:160]}" for line in lines[1:22])

    def report(self, point, outcome):
        text = f"FAILED {point.command} {point.kind}:{point.at}: {outcome.problem}"
        if outcome.stack and point.at != "record":
            text += "\n    the call that failed:" + self.shown_stack(outcome.stack[0][3:])
        again = f"{sys.argv[0]} {self.options.binary} {self.options.models} --point {point.command}:{point.kind}:{point.at}"
        print(f"{text}\n    again: {again}", flush=True)

    def run(self):
        total = failed = missed = 0
        began = time.monotonic()
        chosen = self.options.command or list(self.commands)
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            for command in chosen:
                for kind in self.options.classes:
                    calls, points = self.points(command, kind)
                    bad = unreached = 0
                    for point, outcome in zip(points, pool.map(self.attempt, points)):
                        if outcome.problem:
                            bad += 1
                            self.report(point, outcome)
                        elif not outcome.reached:
                            unreached += 1
                    if calls:
                        print(f"{command:10} {kind:7} {calls:6} calls, {len(points):5} points, {bad} failed, "
                              f"{unreached} not reached", flush=True)
                    total, failed, missed = total + len(points), failed + bad, missed + unreached
        print(f"{total} points in {time.monotonic() - began:.0f} s: {failed} failed, {missed} not reached")
        # Threads may take another way in another run (4.4 % of the points of `serve` at most, docs/faults.md).
        if missed > MOST_MISSED * total:
            print(f"FAILED: more than {MOST_MISSED:.0%} of the points were not reached")
        return 1 if failed or total == 0 or missed > MOST_MISSED * total else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("models")
    parser.add_argument("command", nargs="*")
    parser.add_argument("--classes", default="alloc,map,read,write,sync,close,open,thread")
    parser.add_argument("--every", action="store_true", help="every N instead of every distinct stack")
    parser.add_argument("--most", type=int, default=1000, help="with --every: at most about so many N of a class, evenly spread")
    parser.add_argument("--lasting", action="store_true", help="shortages: many calls fail, from the N-th on")
    parser.add_argument("--point", help="COMMAND:CLASS:N, COMMAND:CLASS:N+K or COMMAND:CLASS:xHASH: this one alone")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--depth", type=int, default=0, help="frames that tell stacks apart; 0: all")
    options = parser.parse_args()
    options.classes = options.classes.split(",")
    if options.gpu and (shutil.which("nvidia-smi") is None or
                        subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode != 0):
        print("this machine has no GPU")
        return 77
    faults = Faults(options)
    try:
        if not options.point:
            return faults.run()
        point = Point(*options.point.split(":"))
        outcome = faults.attempt(point)
        if outcome.problem:
            faults.report(point, outcome)
        print("failed" if outcome.problem else "passed" if outcome.reached else "not reached")
        return 1 if outcome.problem else 0
    finally:
        shutil.rmtree(faults.work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
