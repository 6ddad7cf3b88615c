#!/usr/bin/env python3
"""Ends `infinigen calibrate -o FILE` with SIGKILL at random times: FILE must be the old one or the whole new one. Standard library only.

usage: kill_test.py INFINIGEN GOLDEN_MODELS [KILLS]
"""

import os
import random
import subprocess
import sys
import tempfile
import time

import commands


def main():
    binary, models = os.path.abspath(sys.argv[1]), sys.argv[2]
    kills = int(sys.argv[3]) if len(sys.argv) > 3 else 100
    draw = random.Random(1)
    with tempfile.TemporaryDirectory() as work:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("INFINIGEN_")}
        environment["XDG_CACHE_HOME"] = os.path.join(work, "cache")
        model, text, out = commands.make_model(models, work), os.path.join(work, "text.txt"), os.path.join(work, "out")
        with open(text, "w", encoding="ascii") as file:
            file.write("The quick brown fox jumps over the lazy dog, and then it sleeps. " * 6)
        os.mkdir(out)
        path = os.path.join(out, "made.skew")
        command = [binary, "calibrate", "-m", model, "-f", text, "--device", "cpu", "-t", "1", "-o", path]

        def start():
            return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)

        began = time.monotonic()
        if start().wait() != 0:
            sys.exit("calibrate fails without a signal")
        usual = time.monotonic() - began
        with open(path, "rb") as file:
            expected = file.read()
        counts = {"old": 0, "new": 0}
        for number in range(kills):
            with open(path, "wb") as file:
                file.write(b"old")
            process = start()
            # Most of the times lie in the last part of a run, where the file is written.
            time.sleep(usual * (1.1 - draw.random() ** 2))
            process.kill()
            process.wait()
            with open(path, "rb") as file:
                made = file.read()
            if made not in (b"old", expected):
                sys.exit(f"kill {number} left a damaged file of {len(made)} bytes")
            counts["old" if made == b"old" else "new"] += 1
            for name in os.listdir(out):  # a temporary file may be left, under a name of its own
                if name != "made.skew":
                    os.unlink(os.path.join(out, name))
        if start().wait() != 0:
            sys.exit("calibrate fails after the kills")
        print(f"{kills} kills in runs of {usual * 1000:.0f} ms: {counts['old']} left the old file, {counts['new']} the new one")


if __name__ == "__main__":
    main()
