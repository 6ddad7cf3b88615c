#!/usr/bin/env python3
"""`infinigen eval compare` as a user meets it: the numbers of `eval ppl` and `eval needle`, three formats, refusals in their row, Ctrl-C.

usage: compare_cli_test.py INFINIGEN MODEL [unittest arguments]. Standard library only; MODEL is the shipped one.
"""

import csv
import io
import signal
import subprocess
import sys
import time
import unittest

import cli_test
from cli_test import Case, Run

MODEL = ""
CTX = 256
# Short enough to be quick, long enough that something is left out.
SMALL = ("--kv-window", 16, "--kv-min", 16, "--kv-cap", "10%")
TEXT = "The old man closed the door and looked at the sea. It was a cold morning, and nobody had come. Then the {} ship went by, and he saw it. "
TEXT = "".join(TEXT.format(word) for word in "first second third fourth fifth sixth seventh eighth ninth last".split() * 6)


class Compare(Case):
    def compare(self, *more):
        return Run("eval", "compare", "-m", MODEL, "-f", self.write("text.txt", TEXT), "--ctx", CTX, *more)

    def test_the_same_numbers_as_alone(self):
        run = self.compare("--kv", "infinigen,full,oracle", "--facts", "1,3", "--n", 2, "--seed", 4, "--limit-tokens", 350, "--json", *SMALL)
        self.assertEqual((run.code, run.err), (0, ""), run)
        table = run.json()
        self.assertEqual([row["kv"] for row in table["results"]], ["infinigen", "full", "oracle"])
        self.assertTrue(table["complete"])
        text = self.write("text.txt", TEXT)
        for row in table["results"]:
            self.assertIsNone(row["error"])
            alone = Run("eval", "ppl", "-m", MODEL, "-f", text, "--ctx", CTX, "--limit-tokens", 350, "--kv", row["kv"], "--json", *SMALL).json()
            self.assertGreater(alone["windows"], 1)
            for field in ("ppl", "nll", "kld_mean", "top1_agree", "tokens_scored", "windows"):
                self.assertEqual(row[field], alone[field], (row["kv"], field))
            self.assertEqual(row["ppl_kv_stats"], alone["kv_stats"], row["kv"])
            alone = Run("eval", "needle", "-m", MODEL, "-f", text, "--lengths", CTX, "--facts", "1,3", "--n", 2, "--seed", 4, "--kv", row["kv"],
                        "--json", *SMALL).json()
            for field in ("accuracy", "n", "cells"):
                self.assertEqual(row[field], alone[field], (row["kv"], field))
            self.assertEqual(row["needle_kv_stats"], alone["kv_stats"], row["kv"])
        infinigen, full, oracle = table["results"]
        self.assertEqual((full["kld_mean"], full["top1_agree"], full["ppl_vs_full"], full["tok_s_vs_full"]), (0, 1, 1, 1))
        self.assertGreater(infinigen["kld_mean"], oracle["kld_mean"])
        self.assertGreater(oracle["kld_mean"], 0)

    def test_after_a_prompt(self):
        flags = ("--limit-tokens", 350, "--from", 100, "--json", *SMALL)
        table = self.compare("--kv", "infinigen,h2o", "--n", 0, "--gen", 0, *flags).json()
        self.assertEqual(table["from"], 100)
        text = self.write("text.txt", TEXT)
        for row in table["results"]:
            alone = Run("eval", "ppl", "-m", MODEL, "-f", text, "--ctx", CTX, "--kv", row["kv"], *flags).json()
            for field in ("ppl", "nll", "ppl_delta_percent", "ppl_delta_stderr", "kld_mean", "kld_stderr", "top1_agree", "tokens_scored", "windows"):
                self.assertEqual(row[field], alone[field], (row["kv"], field))
        self.assert_error(self.compare("--from", CTX), 1, f"--from {CTX}")

    def test_steps_at_the_end_of_the_window(self):
        rows = self.compare("--kv", "full,infinigen", "--n", 0, "--no-ppl", "--gen", 20, "--json", *SMALL).json()["results"]
        for row in rows:
            self.assertEqual(row["depth"], CTX - 20)
            self.assertAlmostEqual(row["tok_s"] * row["step_ms_median"], 1000, 3)
            self.assertAlmostEqual(row["tok_s_vs_full"], row["tok_s"] / rows[0]["tok_s"], 9)
            self.assertNotIn("ppl", row)
            self.assertNotIn("accuracy", row)
        full, infinigen = (row["kv_stats"] for row in rows)
        # Mean over rows CTX-19 .. CTX of what one token's entries take.
        self.assertEqual(full["fetched_bytes_per_step"] * CTX, full["pool_peak_bytes"] * (CTX - 9.5))
        self.assertEqual((full["attended_ratio"], full["sketch_bytes"]), (1, 0))
        self.assertLess(infinigen["attended_ratio"], 0.3)
        self.assertLess(infinigen["fetched_bytes_per_step"], 0.3 * full["fetched_bytes_per_step"])
        self.assertGreater(infinigen["sketch_bytes"], 0)

    def test_full_is_compared_with_also_where_it_is_not_asked_for(self):
        both = self.compare("--kv", "full,infinigen", "--n", 0, "--limit-tokens", 300, "--json", *SMALL).json()
        one = self.compare("--kv", "infinigen", "--n", 0, "--limit-tokens", 300, "--json", *SMALL).json()
        self.assertEqual(len(one["results"]), 1)
        for field in ("ppl", "ppl_vs_full", "kld_mean", "top1_agree"):
            self.assertEqual(one["results"][0][field], both["results"][1][field], field)
        self.assertEqual(one["full"]["ppl"], both["results"][0]["ppl"])
        self.assertGreater(one["results"][0]["tok_s_vs_full"], 0)
        stepped = self.compare("--kv", "infinigen", "--n", 0, "--limit-tokens", 300, "--gen", 0, "--mode", "step", "--json", *SMALL).json()
        for field in ("ppl", "nll", "kld_mean", "top1_agree"):
            self.assertEqual(stepped["results"][0][field], one["results"][0][field], field)

    def test_formats_hold_the_same(self):
        arguments = ("--kv", "full,infinigen", "--limit-tokens", CTX, "--facts", "1,2", "--n", 1, "--gen", 4, *SMALL)
        table = self.compare("--json", *arguments).json()["results"]
        rows = list(csv.DictReader(io.StringIO(self.compare("--format", "csv", *arguments).out)))
        self.assertEqual([row["kv"] for row in rows], ["full", "infinigen"])
        for row, result in zip(rows, table):
            for field in ("ppl", "ppl_vs_full", "kld_mean", "top1_agree", "tokens_scored", "depth"):
                self.assertEqual(float(row[field]), result[field], field)
            for field in ("attended_ratio", "fetched_bytes_per_step", "evicted", "pool_peak_bytes", "sketch_bytes"):
                self.assertEqual(float(row[field]), result["kv_stats"][field], field)
            found = [int(row[f"facts_{facts}_found"]) for facts in (1, 2)]
            self.assertEqual(found, [cell["found"] for cell in result["cells"]])
            self.assertEqual(row["error"], "")
            self.assertGreater(float(row["tok_s"]), 0)
        run = self.compare(*arguments)
        self.assertIn(f"4 steps after {CTX - 4} tokens", run.err)
        lines = run.out.splitlines()
        self.assertTrue(lines[0].startswith("| kv | ppl | against full | KL | same top token | 1 fact | 2 facts | attended | read a step |"), lines)
        self.assertTrue(lines[0].endswith("| tok/s | against full |"), lines)
        self.assertEqual({line.count("|") for line in lines}, {lines[0].count("|")})
        self.assertIn(f"| infinigen | {table[1]['ppl']:.3f} |", lines[3])

    def test_every_preset_without_being_told(self):
        run = Run("eval", "compare", "-m", MODEL, "--ctx", 128, "--n", 0, "--gen", 2, "--json")
        self.assertEqual((run.code, run.err), (0, ""), run)
        table = run.json()
        refused = Run("eval", "ppl", "-m", MODEL, "-f", self.write("t", TEXT), "--kv", "quest").err
        if "available: " in refused:
            self.assertEqual([row["kv"] for row in table["results"]], refused.split("available: ")[1].strip().split(", "))
        self.assertLessEqual({"full", "infinigen", "oracle"}, {row["kv"] for row in table["results"]})
        self.assertEqual((table["results"][0]["tokens_scored"], table["file"]), (128, None))

    def test_a_refused_method_does_not_stop_the_others(self):
        # A guess needs a dense layer, which full does without.
        arguments = ("--kv", "infinigen,full", "--kv-from", "prev-layer", "--kv-dense-layers", 0, "--limit-tokens", 200, "--n", 1, "--gen", 2)
        run = self.compare(*arguments, "--json")
        self.assertEqual((run.code, run.err), (0, ""), run)
        infinigen, full = run.json()["results"]
        self.assertIn("--kv-dense-layers 1", infinigen["error"])
        self.assertNotIn("ppl", infinigen)
        self.assertIsNone(full["error"])
        self.assertGreater(full["ppl"], 1)
        lines = self.compare(*arguments).out.splitlines()
        self.assertIn("not measured because", lines[0])
        self.assertRegex(lines[2], r"^\| infinigen \|  \|.*the first layer must be dense")
        self.assertRegex(lines[3], r"^\| full \| \d.* \|  \|$")
        rows = list(csv.DictReader(io.StringIO(self.compare(*arguments, "--format", "csv").out)))
        self.assertEqual([row["error"] for row in rows], [infinigen["error"], ""])
        # Only the perplexity needs an empty cache: the rest is there.
        row = self.compare("--kv", "infinigen", "--kv-columns", "prompt", "--n", 1, "--gen", 2, "--json", *SMALL).json()["results"][0]
        self.assertIn("empty cache", row["error"])
        self.assertNotIn("ppl", row)
        self.assertGreater(row["tok_s"], 0)
        self.assertEqual(row["n"], 1)

    def test_errors(self):
        self.assert_error(self.compare("--kv-limit", 1000, "--n", 0), 1, "no method could be measured", "full: --kv-limit")
        self.assert_error(self.compare("--kv", "frob"), 2, "frob")
        self.assert_error(self.compare("--no-ppl", "--n", 0, "--gen", 0), 2, "nothing to measure")
        self.assert_error(self.compare("--format", "xml"), 2, "csv")
        self.assert_error(self.compare("--ctx", 4096), 1, "longer file", "--n 0")
        self.assert_error(Run("eval", "compare", "-m", MODEL, "-f", self.path("none")), 1, "none")
        self.assert_error(Run("eval", "compare", "-m", MODEL, "-f", self.write("empty", ""), "--n", 0), 1, "too few")
        self.assertIn("compare", Run("eval", "-h").out)
        self.assertIn("--limit-tokens", Run("eval", "compare", "-h").out)

    def test_interrupt_keeps_what_is_done(self):
        for form in ("json", "md"):
            process = subprocess.Popen([cli_test.BINARY, "eval", "compare", "-m", MODEL, "--ctx", "256", "--n", "100000", "--gen", "4", "--format", form],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            time.sleep(2)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130)
            if form == "md":
                self.assertRegex(err.decode(), r"infinigen: interrupted: .*\n$")
                self.assertIn(b"| full |", out)
                continue
            self.assertEqual(err, b"")
            table = cli_test.json.loads(out)
            self.assertFalse(table["complete"])
            self.assertGreater(table["results"][0]["tok_s"], 0)
            self.assertNotIn("accuracy", table["results"][0], "half of the cases cannot be compared with all of them")


if __name__ == "__main__":
    cli_test.BINARY, MODEL = sys.argv[1], sys.argv[2]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
