#!/usr/bin/env python3
"""Ends `infinigen calibrate -o FILE` with SIGKILL before every single call that opens, writes, syncs, renames or closes: afterwards FILE
is the old one or the new one, whole. Standard library only.

usage: kill_test.py INFINIGEN_FAULTS GOLDEN_MODELS

A kill shows what other processes see. It does not show what a disk keeps when the machine loses power, because the kernel still writes
what a killed process has written: for that the tests of base/new_file.h check that file and directory are synced, in this order.

That the test can fail was tried with a NewFile that wrote in place (opened FILE itself with O_TRUNC, no rename): the kill before the
first write left an empty file, and the test failed.
"""

import os
import signal
import subprocess
import sys
import tempfile

import commands

CLASSES = ("open", "write", "sync", "close")
SECONDS = 60


class Killed:
    def __init__(self, binary, models, work):
        self.binary, self.work = binary, work
        self.out = os.path.join(work, "out")
        self.path, self.log = os.path.join(self.out, "made.skew"), os.path.join(work, "fault.log")
        os.mkdir(self.out)
        text = os.path.join(work, "text.txt")
        with open(text, "w", encoding="ascii") as file:
            file.write("The quick brown fox jumps over the lazy dog, and then it sleeps. " * 6)
        self.arguments = ["calibrate", "-m", commands.make_model(models, work), "-f", text, "--device", "cpu", "-t", "1", "-o", self.path]

    def run(self, **variables):
        """The exit code of one run."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("INFINIGEN_")}
        environment |= {"XDG_CACHE_HOME": os.path.join(self.work, "cache"), **variables}
        return subprocess.run([self.binary, *self.arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment,
                              timeout=SECONDS, check=False).returncode

    def calls(self, kind):
        """How many calls of a class a run makes."""
        if self.run(INFINIGEN_FAULT=f"{kind}:record", INFINIGEN_FAULT_LOG=self.log) != 0:
            sys.exit("calibrate fails while its calls are counted")
        with open(self.log, encoding="ascii") as file:
            return sum(int(line.split()[1]) for line in file)

    def content(self):
        with open(self.path, "rb") as file:
            return file.read()

    def kill(self, kind, number, expected):
        """Whether the file is the new one after a kill before this call."""
        with open(self.path, "wb") as file:
            file.write(b"old")
        code = self.run(INFINIGEN_FAULT=f"{kind}:{number}", INFINIGEN_FAULT_KILL="1")
        if code != -signal.SIGKILL:
            sys.exit(f"{kind}:{number}: exit code {code}, not killed")
        made = self.content()
        if made not in (b"old", expected):
            sys.exit(f"{kind}:{number}: the kill left a damaged file of {len(made)} bytes; whole are 3 (old) and {len(expected)}")
        for name in os.listdir(self.out):  # a temporary file may be left, under a name of its own
            if name != "made.skew":
                os.unlink(os.path.join(self.out, name))
        return made == expected


def main():
    with tempfile.TemporaryDirectory() as work:
        killed = Killed(os.path.abspath(sys.argv[1]), sys.argv[2], work)
        if killed.run() != 0:
            sys.exit("calibrate fails without a signal")
        expected = killed.content()
        for kind in CLASSES:
            calls = killed.calls(kind)
            new = [killed.kill(kind, number, expected) for number in range(1, calls + 1)]
            print(f"{kind}: {calls} kills, {new.count(False)} left the old file, {new.count(True)} the new one")
            if kind == "sync" and set(new) != {False, True}:
                sys.exit("sync: kills before and after the rename were expected")
        if killed.run() != 0 or killed.content() != expected:
            sys.exit("calibrate fails after the kills")


if __name__ == "__main__":
    main()
