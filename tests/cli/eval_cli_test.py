#!/usr/bin/env python3
"""`infinigen eval` as a user meets it: JSON, tables, the screen of --show, errors in one line, Ctrl-C.

usage: eval_cli_test.py INFINIGEN MODEL [--terminal | --no-terminal] [unittest arguments]. Standard library only; MODEL is the
shipped one.
"""

import array
import ast
import math
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

import cli_test
import terminal
from cli_test import Case, Run

MODEL = ""
TEXT = "The old man closed the door and looked at the sea. It was a cold morning, and nobody had come. " * 40
COMMON = {"model": ("name", "arch", "params", "dtype"), "device": ("name", "backend", "threads"),
          "timing": ("load_s", "prefill_s", "prefill_tok_s", "decode_s", "decode_tok_s", "decode_step_ms_mean", "decode_step_ms_p99", "decode_step_ms_median"),
          "memory": ("host_peak_bytes", "device_peak_bytes")}


class Ppl(Case):
    def ppl(self, *more):
        return Run("eval", "ppl", "-m", MODEL, "-f", self.write("text.txt", TEXT), "--ctx", 128, *more)

    def test_json(self):
        run = self.ppl("--json")
        self.assertEqual((run.code, run.err), (0, ""), run)
        result = run.json()
        for group, names in COMMON.items():
            self.assertEqual(tuple(result[group]), names)
        self.assertEqual(result["bytes"], len(TEXT))
        self.assertEqual(result["windows"], -(-result["tokens_scored"] // 128))
        self.assertTrue(result["complete"])
        self.assertGreater(result["ppl"], 1)
        self.assertGreater(result["bits_per_byte"], 0)
        step = self.ppl("--json", "--mode", "step", "--batch", 3).json()
        self.assertEqual((step["nll"], step["ppl"]), (result["nll"], result["ppl"]), "the same bits")
        self.assertIn(f"ppl {result['ppl']:.4f}", self.ppl().out)

    def test_both_modes_are_the_same_bits_under_every_guess(self):
        small = ("--json", "--limit-tokens", 160, "--kv-window", 16, "--kv-min", 8, "--kv-sinks", 2, "--kv-cap", "10%", "--mass-recall")
        off, seen = ("--kv-tail", "off"), set()
        for more in (("--kv-from", "self", *off), ("--kv-from", "prev-layer", *off), ("--kv-from", "prev-mid", *off),
                     ("--kv-from", "prev-step", *off), ("--kv-counts", "mean", "--kv-sketch-type", "int4", *off), ("--kv", "oracle"),
                     ("--kv-type", "int4", *off), ("--kv-from", "self"), ("--kv-from", "prev-layer"), ("--kv-from", "prev-mid"),
                     ("--kv-from", "prev-layer", "--kv-late", 0)):
            step, batched = (self.ppl(*small, *more, "--mode", mode, "--batch", 3).json() for mode in ("step", "batched"))
            for field in ("ppl", "nll", "kld_mean", "top1_agree", "tokens_scored", "bits_per_byte"):
                self.assertEqual(step[field], batched[field], (more, field))
            for field in ("selected_ratio", "extra_ratio", "attended_ratio", "fetched_bytes"):
                self.assertEqual(step["kv_stats"][field], batched["kv_stats"][field], (more, field))
            for field in ("mean", "p5"):
                self.assertAlmostEqual(step["kv_stats"]["mass_recall"][field], batched["kv_stats"]["mass_recall"][field], 6, more)
            self.assertGreater(step["kld_mean"], 0, more)
            if not step["kv"].get("tail"):
                self.assertLess(step["top1_agree"], 1, more)
            self.assertLess(step["kv_stats"]["attended_ratio"], 0.7)
            seen.add(step["kld_mean"])
        self.assertEqual(len(seen), 11, "every method is one of its own")

    def test_both_modes_are_the_same_bits_after_a_prompt(self):
        small = ("--json", "--limit-tokens", 300, "--from", 70, "--kv-window", 8, "--kv-min", 8, "--kv-sinks", 2, "--kv-cap", "10%")
        full = self.ppl("--json", "--limit-tokens", 300, "--from", 70, "--kv", "full").json()
        self.assertEqual((full["from"], full["windows"], full["tokens_scored"]), (70, 2, 2 * 58), "the last window is too short")
        seen = set()
        for more in (("--kv-from", "self"), ("--kv-from", "prev-layer"), ("--kv-from", "prev-step"), ("--kv-columns", "prompt"), ("--kv", "h2o"),
                     ("--kv", "quest")):
            step, batched = (self.ppl(*small, *more, "--mode", mode, "--batch", 3).json() for mode in ("step", "batched"))
            for field in ("ppl", "nll", "ppl_against", "ppl_delta_percent", "ppl_delta_stderr", "kld_mean", "kld_stderr", "top1_agree", "tokens_scored"):
                self.assertEqual(step[field], batched[field], (more, field))
            self.assertEqual(batched["tokens_scored"], full["tokens_scored"], more)
            self.assertEqual(batched["ppl_against"], full["ppl"], "both sides score the same positions")
            self.assertAlmostEqual(batched["ppl_delta_percent"], 100 * (batched["ppl"] / full["ppl"] - 1), 9)
            self.assertGreater(batched["kld_mean"], 0, more)
            seen.add(batched["kld_mean"])
        self.assertEqual(len(seen), 6)
        # The prompt is dense: of 58 scored rows the first attends to 71, so a window of 64 rows and a cap of 10 % lose little.
        whole = self.ppl("--json", "--limit-tokens", 256, "--kv-window", 8, "--kv-min", 8, "--kv-cap", "10%", "--chunk", 70).json()
        after = self.ppl("--json", "--limit-tokens", 256, "--kv-window", 8, "--kv-min", 8, "--kv-cap", "10%", "--chunk", 70, "--from", 70).json()
        self.assertEqual([chunk["tokens"] for chunk in after["chunks"]], [0, 116])
        self.assertNotEqual(whole["chunks"][1]["nll"], after["chunks"][1]["nll"])
        self.assertIn("windows of 128 tokens after a prompt of 70, batched", self.ppl("--limit-tokens", 300, "--from", 70, "--kv", "full").out)

    def test_from_errors(self):
        self.assert_error(self.ppl("--from", 128), 1, "--from 128", "window of 128")
        self.assert_error(self.ppl("--from", 100, "--limit-tokens", 90), 1, "90 tokens are too few to score after the first 100")
        self.assert_error(self.ppl("--from", -1), 2, "--from")
        self.assert_error(self.ppl("--kv-columns", "prompt"), 1, "--from N")

    def test_several_texts_with_standard_errors(self):
        other = self.write("other.txt", "A dog ran over the hill, and the boy followed it to the river. " * 40)
        flags = ("--kv-window", 8, "--kv-min", 8, "--kv-cap", "10%", "--windows", 2, "--from", 64)
        both = self.ppl("-f", other, "--json", *flags).json()
        alone = [self.ppl("--json", *flags).json(), Run("eval", "ppl", "-m", MODEL, "-f", other, "--ctx", 128, "--json", *flags).json()]
        self.assertEqual((both["windows"], both["file"], both["tokens_scored"]), (4, None, 4 * 64))
        self.assertEqual(alone[1]["file"], other)
        for part, one in zip(both["files"], alone):
            for field in ("windows", "tokens_scored", "ppl", "ppl_delta_percent", "ppl_delta_stderr", "kld_mean"):
                self.assertEqual(part[field], one[field], field)
            self.assertEqual(part, one["files"][0])
        self.assertGreater(both["ppl_delta_stderr"], 0)
        self.assertGreater(both["kld_stderr"], 0)
        self.assertIsNone(self.ppl("--json", "--limit-tokens", 128, "--kv-window", 8, "--kv-min", 8).json()["ppl_delta_stderr"], "one window has no spread")
        out = self.ppl("-f", other, *flags).out
        self.assertRegex(out, r"against full: perplexity [+-]\d+\.\d\d ± \d+\.\d\d %, KL divergence")
        self.assertIn(f"| {other} | 2 |", out)

    def test_full_is_read_once(self):
        cache = self.path("cache")
        text = self.write("text.txt", TEXT)

        def ppl(*more):
            run = Run("eval", "ppl", "-m", MODEL, "-f", text, "--ctx", 128, "--windows", 3, "--kv-window", 8, "--kv-min", 8, "--json", *more,
                      env={"INFINIGEN_CACHE": cache})
            self.assertEqual(run.code, 0, run)
            return run

        same = ("ppl", "ppl_against", "ppl_delta_percent", "ppl_delta_stderr", "kld_mean", "top1_agree", "top1_agree_clear", "clear")
        values = lambda run: [run.json()[field] for field in same]
        none = ppl("--full-cache", 0)
        self.assertFalse(os.path.exists(os.path.join(cache, "full")))
        first, second, step = ppl(), ppl(), ppl("--mode", "step", "--batch", 3)
        self.assertEqual([run.json()["full_kept_windows"] for run in (none, first, second, step)], [0, 0, 3, 3])
        for run in (first, second, step):
            self.assertEqual(values(run), values(none), "the same bits")
        self.assertEqual(ppl("--kv-cap", "5%").json()["full_kept_windows"], 3, "another method, the same full")
        self.assertEqual(ppl("--kv-type", "f32").json()["full_kept_windows"], 0, "another full")
        self.assertEqual(ppl("--from", 64).json()["full_kept_windows"], 0)
        self.assertEqual(ppl("--against", "cpu").json()["full_kept_windows"], 0)
        names = [os.path.join(cache, "full", name) for name in os.listdir(os.path.join(cache, "full"))]
        self.assertEqual(len(names), 9)
        for name in names:
            with open(name, "r+b") as file:
                file.seek(40)
                file.write(b"damage")
        again = ppl()
        self.assertEqual(values(again), values(none))
        self.assertEqual(again.err.count("damaged; it is made again"), 3, again)
        self.assertEqual(ppl().err, "")
        self.assert_error(self.ppl("--full-cache", "much"), 2, "--full-cache")

    def test_what_it_is_compared_with(self):
        full = self.ppl("--json", "--limit-tokens", 300, "--kv", "full").json()
        self.assertEqual((full["kld_mean"], full["top1_agree"]), (0, 1))
        everything = self.ppl("--json", "--limit-tokens", 300, "--kv-window", 8, "--kv-min", 8, "--kv-alpha", "inf", "--kv-cap", 1).json()
        self.assertEqual((everything["ppl"], everything["kld_mean"], everything["top1_agree"]), (full["ppl"], 0, 1))
        int8, int4 = (self.ppl("--json", "--limit-tokens", 300, "--kv", store).json() for store in ("int8", "int4"))
        self.assertTrue(0 < int8["kld_mean"] < int4["kld_mean"], "with full in the model's type, not with itself")
        self.assertTrue(int4["top1_agree"] < 1)
        run = self.ppl("--limit-tokens", 300, "--kv-window", 8, "--kv-min", 8, "--kv-cap", "10%", "--stats-per-layer")
        self.assertRegex(run.out, r"against full: perplexity [+-]\d+\.\d\d ± \d+\.\d\d %, KL divergence 0\.\d+, the same most likely token in \d+\.\d+ %\nattended to ")
        self.assertIn("| layer | selected |", run.out)

    def test_against_the_cpu(self):
        # Where a method runs on the CPU itself, it is compared with itself.
        flags = ("--limit-tokens", 128, "--kv-window", 8, "--kv-min", 8, "--kv-cap", "10%", "--against", "cpu", "--selection-overlap")
        for mode in ("batched", "step"):
            run = self.ppl("--mode", mode, "--json", *flags).json()
            self.assertEqual((run["top1_agree"], run["top1_agree_clear"], run["selection_overlap"], run["kld_mean"]), (1, 1, 1, 0))
        run = self.ppl("--device", "reference", "--json", *flags).json()
        self.assertTrue(0.9 < run["selection_overlap"] <= 1, run)
        self.assertIn("% of the selected rows are the same", self.ppl(*flags).out)
        self.assertIsNone(self.ppl("--kv", "full", "--json", "--limit-tokens", 64, "--against", "cpu").json()["selection_overlap"])
        self.assert_error(self.ppl("--selection-overlap"), 1, "--against cpu")

    def test_along_the_window_and_from_step_to_step(self):
        flags = ("--limit-tokens", 256, "--kv-window", 8, "--kv-min", 8, "--kv-cap", "10%", "--chunk", 64, "--step-overlap")
        for mode in ("batched", "step"):
            run = self.ppl("--json", "--mode", mode, *flags).json()
            self.assertEqual([chunk["tokens"] for chunk in run["chunks"]], [128, 128])
            self.assertAlmostEqual(sum(chunk["nll"] for chunk in run["chunks"]) / 2, run["nll"], 9)
            self.assertAlmostEqual(sum(chunk["kld_mean"] for chunk in run["chunks"]) / 2, run["kld_mean"], 9)
            overlap = run["step_overlap"]
            self.assertEqual(overlap["steps"], [1, 2, 4, 8, 16, 32, 64])
            self.assertTrue(all(0 < share < 1 for share in overlap["share"]), overlap)
            self.assertEqual(len(overlap["layers"]), 12)
        text = self.ppl(*flags).out
        self.assertIn("| 64-127 |", text)
        self.assertIn("share of a step's selection that was selected before too:", text)
        self.assertNotIn("chunks", self.ppl("--json", "--limit-tokens", 64).json())
        self.assert_error(self.ppl("--kv", "full", "--step-overlap"), 1, "select")
        self.assert_error(self.ppl("--kv", "h2o", "--step-overlap"), 1, "evicts nothing")

    def test_logits_are_a_numpy_file(self):
        path = self.path("logits.npy")
        result = self.ppl("--json", "--limit-tokens", 200, "--kv", "full", "--logits", path).json()
        with open(path, "rb") as file:
            data = file.read()
        self.assertEqual(data[:8], b"\x93NUMPY\x01\x00")
        start = 10 + int.from_bytes(data[8:10], "little")
        self.assertEqual((start % 64, data[start - 1:start]), (0, b"\n"))
        header = ast.literal_eval(data[10:start].decode())
        rows, vocab = header["shape"]
        self.assertEqual((header["descr"], header["fortran_order"], rows), ("<f4", False, result["tokens_scored"]))
        self.assertEqual(len(data), start + 4 * rows * vocab)
        # The reported loss follows from the file.
        ids = Run("tokenize", "-m", MODEL, "-f", self.write("text.txt", TEXT), "--no-special").out.split()
        logits = array.array("f", data[start:])
        self.assertEqual(rows, 200, "this tokenizer opens texts, so every token is scored")
        nll = 0
        for i in range(rows):
            row = logits[i * vocab:(i + 1) * vocab]
            most = max(row)
            nll += most + math.log(sum(math.exp(x - most) for x in row)) - row[int(ids[i])]
        self.assertAlmostEqual(nll / rows, result["nll"], 5)
        self.assert_error(self.ppl("--logits", path, "--mode", "step"), 1, "--mode batched")
        self.assert_error(self.ppl("--logits", "/nowhere/x.npy", "--limit-tokens", 64), 1, "/nowhere/x.npy")

    def test_limit_and_environment(self):
        self.assertEqual(self.ppl("--json", "--limit-tokens", 200).json()["tokens_scored"], 200)
        env = {"INFINIGEN_FILE": self.write("t.txt", TEXT), "INFINIGEN_MODEL": MODEL, "INFINIGEN_LIMIT_TOKENS": "100", "INFINIGEN_JSON": "1"}
        self.assertEqual(Run("eval", "ppl", env=env).json()["tokens_scored"], 100)

    def test_errors(self):
        self.assert_error(Run("eval"), 2, "ppl")
        self.assert_error(Run("eval", "frob"), 2, "frob")
        self.assert_error(Run("eval", "ppl", "-m", MODEL), 2, "-f")
        self.assert_error(self.ppl("--mode", "fast"), 2, "batched")
        self.assert_error(self.ppl("--kv", "full", "--kv-limit", "20%"), 1, "--kv-evict")
        self.assert_error(Run("eval", "ppl", "-m", MODEL, "-f", self.path("none")), 1, "none")
        self.assert_error(Run("eval", "ppl", "-m", MODEL, "-f", self.write("empty", "")), 1, "too few")
        bare = os.path.join(os.path.dirname(cli_test.__file__), "../golden/models/llama_bf16")
        self.assert_error(Run("eval", "ppl", "-m", bare, "-f", self.write("t", TEXT)), 1, "no tokenizer")

    def interrupted(self, *more):
        file = self.write("long.txt", TEXT * 100)
        process = subprocess.Popen([cli_test.BINARY, "eval", "ppl", "-m", MODEL, "-f", file, "--ctx", "64", *more],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        return out.decode(), err.decode()

    def test_interrupt_keeps_what_is_done(self):
        out, err = self.interrupted("--json")
        self.assertEqual(err, "")
        result = cli_test.json.loads(out)
        self.assertFalse(result["complete"])
        self.assertGreater(result["windows"], 0)

    def test_interrupt_says_so(self):
        out, err = self.interrupted()
        self.assertRegex(err, r"^infinigen: interrupted: the results are for [1-9]\d* of \d+ windows\n$")
        self.assertRegex(out, r"^ppl \d")


class Needle(Case):
    def needle(self, *more):
        return Run("eval", "needle", "-m", MODEL, "--lengths", 300, "--n", 3, *more)

    def test_json(self):
        run = self.needle("--facts", "1,3", "--json")
        self.assertEqual((run.code, run.err), (0, ""), run)
        result = run.json()
        for group, names in COMMON.items():
            self.assertEqual(tuple(result[group]), names)
        self.assertEqual((result["accuracy"], result["n"], result["complete"]), (1.0, 6, True))
        self.assertEqual([(c["length"], c["facts"], c["n"], c["found"]) for c in result["cells"]], [(300, 1, 3, 3), (300, 3, 3, 3)])
        for cell in result["cells"]:
            self.assertEqual(sum(fifth["n"] for fifth in cell["by_depth"]), 3)
        self.assertGreater(result["kv_stats"]["pool_bytes"], 0)

    def test_table_does_not_depend_on_the_batch(self):
        tables = {self.needle("--batch", batch, "--form", "continuation").out for batch in (1, 2)}
        self.assertEqual(len(tables), 1)
        self.assertIn("| 300 | 1 | 3 | 3 | 100.0 % |", tables.pop())

    def test_real_text(self):
        sentences = [f"It was the {word} day, and the road went on." for word in "first second third fourth fifth sixth".split()]
        file = self.write("book.txt", " ".join(sentences * 60))
        self.assertEqual(self.needle("-f", file, "--json").json()["n"], 3)
        self.assert_error(self.needle("-f", self.write("short.txt", "One. Two. Three.")), 1, "longer file")

    @terminal.needs_terminal
    def test_show_is_plain_in_a_pipe_and_coloured_on_a_terminal(self):
        # Longer than the 1,024 tokens that are attended to whole.
        arguments = ["eval", "needle", "-m", MODEL, "--lengths", "1400", "--facts", "2", "--n", "1", "--show"]
        run = Run(*arguments)
        self.assertEqual((run.code, run.err), (0, ""), run)
        self.assertNotIn("\x1b", run.out)
        text, picture = run.out.split("\nWhat each layer attended to")
        self.assertLessEqual(text.count("\n"), 25)
        self.assertEqual(len(re.findall(r"^ +\d+ [ ·░▒▓█]+$", picture, re.M)), 12, picture)
        self.assertIn("^ the code", picture)
        self.assertRegex(run.out, r"Answer: \d{6}   <- right\n")
        parent, child = pty.openpty()
        process = subprocess.Popen([cli_test.BINARY, *arguments], stdout=child, stderr=child)
        os.close(child)
        seen = b""
        while True:
            try:
                piece = os.read(parent, 4096)
            except OSError:
                break
            if not piece:
                break
            seen += piece
        os.close(parent)
        self.assertEqual(process.wait(60), 0)
        self.assertIn(b"\x1b[1;30;43mThe access code for", seen)

    def test_families_in_one_run_with_agreement_and_a_picture(self):
        picture = self.path("map.svg")
        families = "single,multi-value,words"
        command = ("eval", "needle", "-m", MODEL, "--lengths", "200,260", "--n", 2, "--family", families, "--kv", "streaming", "--against", "full")
        run = Run(*command, "--heatmap", picture, "--json")
        self.assertEqual((run.code, run.err), (0, ""), run)
        result = run.json()
        streaming, full = result["results"]
        self.assertEqual((streaming["kv"]["preset"], full["kv"]["preset"]), ("streaming", "full"))
        self.assertEqual(result["families"], families.split(","))
        self.assertEqual((result["accuracy"], result["n"], result["cells"]), (streaming["accuracy"], 12, streaming["cells"]))
        self.assertTrue(result["complete"])
        self.assertLess(streaming["accuracy"], full["accuracy"])
        self.assertEqual(full["against_full"], {"n": 12, "same_answer": 1, "same_found": 1})
        self.assertLess(streaming["against_full"]["same_answer"], 1)
        for kv in result["results"]:
            self.assertEqual([(c["family"], c["length"], c["facts"], c["n"]) for c in kv["cells"]],
                             [(f, l, k, 2) for f, k in zip(families.split(","), (1, 4, 3)) for l in (200, 260)])
            self.assertAlmostEqual(kv["accuracy"], sum(c["accuracy"] for c in kv["cells"]) / 6)
            for cell in kv["cells"]:
                bins = [b for b in kv["heatmap"] if (b["family"], b["length"]) == (cell["family"], cell["length"])]
                self.assertEqual(len(bins), 1 if cell["family"] == "words" else 2)
                strings = 1 if cell["family"] == "single" else cell["facts"]
                self.assertEqual(sum(b["n"] for b in bins), 2 * strings)
                self.assertAlmostEqual(sum(b["found"] for b in bins) / (2 * strings), cell["accuracy"])
                if cell["family"] != "words":
                    self.assertEqual(sum(d["found"] for d in cell["by_depth"]), sum(b["found"] for b in bins))
        # One panel for each family and method; its numbers are the bins of the JSON, lengths from left to right.
        svg = "{http://www.w3.org/2000/svg}"
        panels = xml.etree.ElementTree.parse(picture).getroot().findall(svg + "g")
        self.assertEqual(len(panels), 6)
        for panel, (family, kv) in zip(panels, [(f, kv) for f in families.split(",") for kv in result["results"]]):
            self.assertTrue(panel.find(svg + "title").text.startswith(f"{family}, {kv['kv']['preset']}: "))
            bins = [b for b in kv["heatmap"] if b["family"] == family]
            self.assertEqual(len(panel.findall(svg + "rect")), len(bins))
            shown = [text.text for text in panel.findall(svg + "text") if text.get("class") in ("middle", "middle on-dark")]
            self.assertEqual(shown, [f"{100 * b['found'] / b['n']:.0f}" for b in bins if b["n"] > 0])

    def test_families_on_the_screen(self):
        run = Run("eval", "needle", "-m", MODEL, "--lengths", 200, "--n", 1, "--family", "multi-query,words", "--kv", "full", "--facts", 2, "--show")
        self.assertEqual((run.code, run.err), (0, ""), run)
        self.assertEqual(run.out.count("Question: "), 2)
        self.assertEqual(len(re.findall(r"   <- (right, all 2|\d of 2 right|wrong, they are)", run.out)), 2, run.out)
        self.assertNotIn("| context |", run.out)
        table = Run("eval", "needle", "-m", MODEL, "--lengths", 200, "--n", 1, "--family", "multi-key", "--facts", 2, "--kv", "full").out
        self.assertIn("| full | multi-key | 200 | 2 | 1 | 1 | 100.0 % |", table)
        single = Run("eval", "needle", "-m", MODEL, "--lengths", 200, "--n", 1, "--facts", 2, "--kv", "full", "--json").json()
        key = Run("eval", "needle", "-m", MODEL, "--lengths", 200, "--n", 1, "--family", "multi-key", "--facts", 2, "--kv", "full", "--json").json()
        self.assertEqual(single["cells"][0]["by_depth"], key["cells"][0]["by_depth"], "the same case")

    def test_depths_without_a_case_are_no_fractions(self):
        out = self.needle().out
        self.assertIn(" - |", out)
        self.assertNotIn("0/0", out)

    def test_interrupt_says_so(self):
        process = subprocess.Popen([cli_test.BINARY, "eval", "needle", "-m", MODEL, "--lengths", "300", "--n", "100000"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertRegex(err.decode(), r"interrupted: the results are for \d+ of 100000 cases")
        self.assertIn(b"| context |", out)

    def test_errors(self):
        self.assert_error(self.needle("--n", 0), 2)
        self.assert_error(self.needle("--lengths", "10"), 2, 64)
        self.assert_error(self.needle("--show", "--json"), 2, "cannot be combined")
        self.assert_error(self.needle("--lengths", 128, "--facts", 24), 1, "24 facts")
        self.assert_error(self.needle("--depth", "middle"), 2, "uniform")
        self.assert_error(self.needle("--family", "single,frob"), 2, "frob", "multi-value")
        self.assert_error(self.needle("--family", "words", "--facts", 17), 2, "words", 16)
        self.assert_error(self.needle("--family", "single,words,single"), 2, "'single' is given twice")
        self.assert_error(self.needle("--heatmap", self.path("none/map.svg")), 1, "none/map.svg")
        for name in ("map.png", "map", "map.svg.png"):
            self.assert_error(self.needle("--heatmap", self.path(name)), 2, name, "does not end in .svg")
        self.assert_error(self.needle("--family", "words", "--lengths", 100), 1, "too few for 3 facts")


if __name__ == "__main__":
    cli_test.BINARY, MODEL = sys.argv[1], sys.argv[2]
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        terminal.main(sys.argv[3:])
