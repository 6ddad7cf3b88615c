#!/usr/bin/env python3
"""The soak's test of itself, in seconds: it passes a sound server, and finds each planted defect.

usage: soak_test.py INFINIGEN LEAK_LIBRARY
"""

import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    binary, leak = sys.argv[1:]
    command = [sys.executable, os.path.join(HERE, "soak.py"), "0.04", "--binary", binary]
    wanted = {None: (0, "soak: passed"), "wrong-answer": (1, "wrong answer: "), "leak": (1, "leak: memory at rest grows"),
              "crash": (1, "crash: the server ended with -9")}
    runs = {}
    for plant in wanted:
        flags = ["--plant", plant] if plant else []
        flags += ["--leak-library", leak] if plant == "leak" else []
        runs[plant] = subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    failed = False
    for plant, (code, words) in wanted.items():
        output = runs[plant].communicate()[0]
        good = runs[plant].returncode == code and words in output
        failed = failed or not good
        print(f"{'ok' if good else 'FAILED'}: {plant or 'nothing'} planted, exit {runs[plant].returncode}")
        if not good:
            print(output)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
