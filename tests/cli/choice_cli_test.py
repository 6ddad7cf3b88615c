#!/usr/bin/env python3
"""`infinigen eval choice` as a user meets it: JSON, tables, every method by steps and in bulk, errors in one line, Ctrl-C.

usage: choice_cli_test.py INFINIGEN MODEL [unittest arguments]. Standard library only; MODEL is the shipped one. The questions are our own,
in the forms of the published tasks (tests/golden/choice).
"""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
import unittest

import cli_test
from cli_test import Case, Run

MODEL = ""
TASKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/choice")
# Prompts of about a hundred tokens: small enough that something is left out or evicted.
SMALL = ("--kv-window", 8, "--kv-min", 8, "--kv-sinks", 2, "--kv-cap", "10%")


class Choice(Case):
    def choice(self, task, *more, env=None):
        return Run("eval", "choice", "-m", MODEL, "--task", os.path.join(TASKS, task), *more, env=env)

    def test_json_and_tables(self):
        run = self.choice("copa", "--shots", 2, "--kv", "full", "--json")
        self.assertEqual((run.code, run.err), (0, ""), run)
        result = run.json()
        with open(os.path.join(TASKS, "golden.json")) as file:
            golden = next(one for one in json.load(file)["tasks"] if (one["task"], one["shots"]) == ("copa", 2))["questions"]
        for name in ("choice", "choice_norm", "answer"):
            self.assertEqual([one[name] for one in result["questions"]], [one[name] for one in golden], name)
        for ours, theirs in zip(result["questions"], golden):
            for a, b in zip(ours["scores"], theirs["scores"]):
                self.assertAlmostEqual(a, b, delta=0.1)  # the cache is bf16 here
        self.assertEqual([one["line"] for one in result["questions"]], list(range(1, 9)))
        right, norm = (sum(one[name] == one["answer"] for one in golden) / 8 for name in ("choice", "choice_norm"))
        self.assertEqual((result["n"], result["accuracy"], result["acc_norm"], result["agreement"]), (8, right, norm, 1))
        self.assertAlmostEqual(result["accuracy_stderr"], (right * (1 - right) / 7) ** 0.5, 12)
        self.assertEqual((result["task"], result["shots"], result["complete"]), ("copa", 2, True))
        self.assertTrue(result["examples_file"].endswith("own_train_6.jsonl"))
        self.assertGreater(result["kv_stats"]["pool_peak_bytes"], 0)
        for group in ("model", "device", "kv", "timing", "memory"):
            self.assertIn(group, result)

        table = self.choice("copa", "--shots", 2, "--kv", "full").out
        self.assertIn(f"| copa | 2 | full | 8 | {100 * right:.1f} % |", table)
        run = self.choice("copa", "--shots", 2, "--kv", "full", "--format", "csv")
        row = next(csv.DictReader(io.StringIO(run.out)))
        self.assertEqual((row["kv"], row["task"], float(row["accuracy"]), float(row["acc_norm"]), row["n"]), ("full", "copa", right, norm, "8"))

    def test_steps_and_bulk_are_the_same_bits_under_every_method(self):
        # One question whose contexts differ at their ends: those that can go back share its beginning, the others read it twice.
        full = self.choice("winogrande", "--shots", 4, "--limit", 1, "--kv", "full", "--json").json()["questions"]
        seen = set()
        methods = (("--kv", "int4"), ("--kv-from", "self"), ("--kv-from", "prev-step"), ("--kv-columns", "prompt"), ("--kv", "quest"),
                   ("--kv", "h2o"), ("--kv-evict", "lru", "--kv-limit", "50%"))
        for more in methods:
            small = () if more[1] in ("int4", "h2o") else SMALL
            common = ("--shots", 4, "--limit", 1, "--json", *small, *more)
            bulk, steps = (self.choice("winogrande", *common, *mode).json() for mode in ((), ("--mode", "step")))
            self.assertEqual(bulk["questions"], steps["questions"], more)
            self.assertEqual(bulk["kv_stats"]["attended_ratio"] or 1, steps["kv_stats"]["attended_ratio"] or 1, more)
            self.assertEqual([one["full_scores"] for one in bulk["questions"]], [one["scores"] for one in full], more)
            seen.add(bulk["questions"][0]["scores"][0])
            self.assertEqual(bulk["agreement"], bulk["questions"][0]["choice"] == full[0]["choice"], more)
        self.assertEqual(len(seen | {full[0]["scores"][0]}), len(methods) + 1, "every method is one of its own")

    def test_limit_environment_and_standard_input(self):
        env = {"INFINIGEN_TASK": os.path.join(TASKS, "piqa"), "INFINIGEN_MODEL": MODEL, "INFINIGEN_LIMIT": "1", "INFINIGEN_JSON": "1"}
        self.assertEqual(Run("eval", "choice", env=env).json()["n"], 1)
        line = b'{"context": "One, two,", "choices": ["three", "potato"], "answer": 0}'
        run = Run("eval", "choice", "-m", MODEL, "--task", "-", "--json", stdin=line)
        self.assertEqual((run.json()["accuracy"], run.json()["accuracy_stderr"]), (1, None))
        plan = self.choice("piqa", "--dry-run", "--json").json()
        self.assertNotIn("accuracy", plan)

    def test_errors(self):
        self.assert_error(Run("eval", "choice", "-m", MODEL), 2, "--task")
        self.assert_error(self.choice("none"), 1, "none")
        self.assert_error(self.choice("piqa", "--shots", 6), 1, "only 5 questions")
        self.assert_error(self.choice("piqa", "--limit", 0), 2)
        self.assert_error(Run("eval", "choice", "-m", MODEL, "--task", TASKS), 1, "no file of questions")
        wrong = self.write("wrong.jsonl", '{"context": "a", "choices": ["b", "c"], "answer": 0}\n{"context": "a", "choices": ["b"]}\n')
        self.assert_error(Run("eval", "choice", "-m", MODEL, "--task", wrong), 1, "wrong.jsonl:2: field 'choices'")
        for name in ("val_a.jsonl", "val_b.jsonl"):
            self.write(name, "{}")
        self.assert_error(Run("eval", "choice", "-m", MODEL, "--task", self.directory), 1, "val_a.jsonl", "val_b.jsonl")

    def test_interrupt_keeps_what_is_done(self):
        many = self.write("many.jsonl", ('{"context": "' + "One, two, " * 100 + '", "choices": ["three", "potato"], "answer": 0}\n') * 300)
        process = subprocess.Popen([cli_test.BINARY, "eval", "choice", "-m", MODEL, "--task", many, "--kv", "full"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertRegex(err.decode(), r"interrupted: the results are for [1-9]\d* of 300 questions\n$")
        self.assertIn(b"| many | 0 | full |", out)


if __name__ == "__main__":
    cli_test.BINARY, MODEL = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
