#!/usr/bin/env python3
"""`--kv` as a user meets it: what is selected, what is reported, what is refused.

usage: kv_cli_test.py INFINIGEN GOLDEN_MODELS SHIPPED_MODEL [unittest arguments]. Standard library only. The golden models are copied
first: a run that selects leaves a skew file beside the model.
"""

import csv
import json
import os
import random
import statistics
import sys
import unittest

import cli_test
from cli_test import LLAMA, Case, Run, greedy, ids, model

SHIPPED = ""
SOURCES = ("self", "prev-layer", "prev-mid", "prev-step")
LAYERS, HEADS, HEAD_DIM = 2, 2, 8  # of LLAMA, in f32
ENTRY_BYTES = 2 * HEAD_DIM * 4  # key and value
INT4_BYTES = (4 + HEAD_DIM // 2 + 8) + (4 + HEAD_DIM // 2)  # a key of 6 bits, the high ones padded to 8 bytes; a value of 4 bits
# A key of 8 numbers in 4 bits with a scale, a value likewise, and a 64th of the block's mean (8 numbers and a scale, padded to 16).
SKETCH_BYTES = (4 + 2) + (4 + 2) + 16 / 64
# The golden models hold 512 tokens, fewer than the default window.
SMALL = ("--kv-window", 8, "--kv-min", 4, "--kv-cap", 0.2, "--kv-sinks", 2)


def prompt(tokens, seed=1):
    chance = random.Random(seed)
    return [chance.randrange(160) for _ in range(tokens)]


class Selecting(Case):
    def stats(self, tokens, n, *more):
        run = greedy(LLAMA, prompt(tokens), n, "--ignore-eos", *SMALL, *more)
        self.assertEqual(run.code, 0, run)
        return run.json()["kv_stats"]

    def test_everything_selected_is_full(self):
        expected = greedy(LLAMA, prompt(300), 40, "--ignore-eos", "--kv", "full").json()
        self.assertEqual(expected["kv_stats"]["attended_ratio"], 1)
        everything = ("--ignore-eos", *SMALL, "--kv-alpha", "inf", "--kv-cap", 1)
        for more in (*(("--kv-from", source, "--kv-dense-layers", 1) for source in SOURCES), ("--kv-sketch-type", "int4"),
                     ("--kv-sketch-type", "bf16", "--kv-counts", "mean"), ("--kv-projection", "none"),
                     ("--kv-projection", "pair"), ("--kv-columns", "prompt"), ("--kv-select", "oracle"),
                     ("--kv-select", "quest"), ("--kv-select", "quest", "--kv-from", "prev-mid", "--kv-dense-layers", 1)):
            result = greedy(LLAMA, prompt(300), 40, *everything, *more).json()
            self.assertEqual(result["tokens"], expected["tokens"], more)
            self.assertEqual(result["kv_stats"]["attended_ratio"], 1, more)
            self.assertNotEqual(result["kv"]["select"], "all", more)
        few = greedy(LLAMA, prompt(300), 40, "--ignore-eos", *SMALL, "--kv-cap", 0.01).json()
        self.assertNotEqual(few["tokens"], expected["tokens"], "or nothing above could fail")

    def test_neighbours_change_nothing(self):
        prompts = [prompt(length, seed=length) for length in (30, 90, 200)]
        file = self.write("three.jsonl", "\n".join(map(json.dumps, prompts)))
        for source in SOURCES:
            flags = ("--ignore-eos", *SMALL, "--kv-from", source, "--kv-dense-layers", 1)
            together = Run("generate", "-m", model(LLAMA), "--prompts", file, "-n", 20, "--temp", 0, "--json", *flags)
            self.assertEqual(together.code, 0, together)
            for one, result in zip(prompts, together.json()["results"]):
                alone = greedy(LLAMA, one, 20, *flags, "-t", 1).json()
                self.assertEqual(alone["tokens"], result["tokens"], source)
                self.assertLess(alone["kv_stats"]["attended_ratio"], 1)

    def test_statistics_count_rows(self):
        stats = self.stats(200, 11)
        rows = sum(range(201, 211))  # ten steps; the first token comes from the prompt
        retained = rows * LAYERS * HEADS
        attended = round(stats["attended_ratio"] * retained)
        self.assertAlmostEqual(attended, stats["attended_ratio"] * retained, places=6)
        self.assertAlmostEqual(stats["selected_ratio"] + stats["extra_ratio"], stats["attended_ratio"])
        self.assertEqual(stats["fetched_bytes"], attended * ENTRY_BYTES)
        self.assertEqual(stats["fetched_bytes_per_step"], stats["fetched_bytes"] // 10)
        self.assertEqual(stats["pool_peak_bytes"], 210 * LAYERS * HEADS * ENTRY_BYTES)
        self.assertEqual(stats["sketch_bytes"], 210 * LAYERS * HEADS * SKETCH_BYTES)
        self.assertTrue(0 < stats["selected_ratio"] <= 0.2 and 0 < stats["extra_ratio"] <= 11 / 200, stats)
        self.assertEqual(stats["hit_ratio"], None)
        self.assertEqual(self.stats(200, 11, "--kv", "full")["sketch_bytes"], 0)

    def test_pages(self):
        stats = self.stats(200, 11, "--kv-select", "quest", "--kv-window", 0, "--kv-sinks", 0, "--kv-alpha", "inf")
        # A fifth of 201 to 210 rows is 40 to 42, two pages; after the last complete page come rows 192 and 208 on.
        attended = sum(32 + current % 16 + 1 for current in range(200, 210))
        self.assertAlmostEqual(stats["attended_ratio"], attended / sum(range(201, 211)), places=12)
        self.assertEqual(stats["sketch_bytes"], 210 * LAYERS * HEADS * HEAD_DIM // 4)
        preset = greedy(LLAMA, prompt(100), 2, "--kv", "quest", "--kv-dense-layers", 1).json()["kv"]
        self.assertEqual([preset[name] for name in ("select", "alpha", "sinks", "window", "dense_layers", "page")],
                         ["quest", "inf", 0, 0, 1, 16])

    def test_exactly_as_many_as_are_forced(self):
        stats = self.stats(200, 11, "--kv-force-count", 31)
        self.assertAlmostEqual(stats["attended_ratio"], 31 * 10 / sum(range(201, 211)), places=12)
        stats = self.stats(200, 11, "--kv-force-count", 31, "--kv-dense-layers", 1)
        self.assertAlmostEqual(stats["attended_ratio"], (1 + 31 * 10 / sum(range(201, 211))) / 2, places=12)

    def test_a_limit_holds_and_is_told(self):
        for flags, evict in ((("--kv", "h2o", "--kv-limit", "25%"), "h2o"), (("--kv", "streaming", "--kv-limit", "25%"), "streaming"),
                             (("--kv-limit", "25%"), "counter"), (("--kv-limit", "25%", "--kv-evict", "lru"), "lru"),
                             (("--kv", "int8", "--kv-limit", "25%", "--kv-evict", "fifo"), "fifo")):
            run = greedy(LLAMA, prompt(180), 20, *flags).json()
            self.assertEqual(run["kv"]["evict"], evict)
            self.assertLessEqual(run["kv_stats"]["pool_peak_bytes"], run["kv"]["limit_bytes"], flags)
            self.assertGreater(run["kv_stats"]["evicted"], 0, flags)
            whole = greedy(LLAMA, prompt(180), 20, *(("100%" if f == "25%" else f) for f in flags)).json()
            free = greedy(LLAMA, prompt(180), 20, "--kv-type", run["kv"]["type"],
                          "--kv", "full" if run["kv"]["select"] == "all" else "infinigen").json()
            self.assertEqual(whole["tokens"], free["tokens"], flags)
            self.assertEqual(whole["kv_stats"]["evicted"], 0, flags)

    def test_layers_and_mass_on_request(self):
        plain = self.stats(200, 11)
        self.assertNotIn("layers", plain)
        self.assertNotIn("mass_recall", plain)
        stats = self.stats(200, 11, "--kv-dense-layers", 1, "--stats-per-layer", "--mass-recall")
        dense, sparse = stats["layers"]
        self.assertEqual((dense["layer"], dense["selects"], dense["attended_ratio"]), (0, False, 1))
        self.assertEqual((sparse["layer"], sparse["selects"]), (1, True))
        self.assertEqual(sparse["selected_ratio"], stats["selected_ratio"], "ratios of selecting layers")
        self.assertAlmostEqual((dense["attended_ratio"] + sparse["attended_ratio"]) / 2, stats["attended_ratio"])
        self.assertEqual(sparse["mass_recall"], stats["mass_recall"])
        self.assertTrue(0 < stats["mass_recall"]["p5"] <= stats["mass_recall"]["mean"] < 1, stats)
        whole = self.stats(200, 11, "--mass-recall", "--kv-alpha", "inf", "--kv-cap", 1)["mass_recall"]
        self.assertAlmostEqual(whole["mean"], 1, places=4)
        oracle = self.stats(200, 11, "--mass-recall", "--kv", "oracle", "--kv-force-count", 30)["mass_recall"]
        guessed = self.stats(200, 11, "--mass-recall", "--kv-projection", "none", "--kv-sketch-type", "int4", "--kv-from",
                             "prev-layer", "--kv-dense-layers", 1, "--kv-force-count", 30)["mass_recall"]
        self.assertGreater(oracle["mean"], guessed["mean"])

    def test_missed_attention_is_estimated_and_measured_over_the_same_steps(self):
        # Sketches of all numbers in bf16 are nearly exact. The first steps attend to everything: they miss nothing, and count.
        stats = self.stats(4, 30, "--kv-tail", "on", "--kv-sketch", "8x16", "--kv-dense-layers", 1, "--mass-recall", "--stats-per-layer")
        dense, sparse = stats["layers"]
        missed = stats["missed_mass"]
        self.assertNotIn("missed_mass", dense)
        self.assertEqual(sparse["missed_mass"], missed)
        self.assertEqual(missed["estimated"], stats["tail_mass"]["mean"])
        self.assertAlmostEqual(missed["true"], 1 - stats["mass_recall"]["mean"])
        self.assertGreater(missed["true"], 0.01)
        self.assertAlmostEqual(missed["estimated"] / missed["true"], 1, delta=0.05)
        self.assertNotIn("missed_mass", self.stats(4, 30, "--kv-tail", "on"), "the truth was not measured")
        self.assertNotIn("missed_mass", self.stats(4, 30, "--kv-tail", "off", "--mass-recall"), "nothing was estimated")

    def test_parameters_are_reported(self):
        result = greedy(LLAMA, prompt(100), 3, *SMALL, "--kv-alpha", 2.5, "--kv-from", "prev-step", "--kv-dense-layers", 1,
                        "--kv-counts", "mean", "--kv-sketch-type", "int4").json()["kv"]
        expected = {"preset": "infinigen", "alpha": 2.5, "cap": 0.2, "ratio": 1.0, "from": "prev-step", "evict": "none",
                    "type": "f32", "home": "host", "select": "sketch", "min": 4, "sinks": 2, "window": 8, "dense_layers": 1,
                    "counts": "mean", "sketch_type": "int4", "sketch_dims": HEAD_DIM}
        self.assertEqual({name: result[name] for name in expected}, expected)
        self.assertEqual(greedy(LLAMA, prompt(100), 3, *SMALL, "--kv-alpha", "inf").json()["kv"]["alpha"], "inf")
        short = greedy(LLAMA, prompt(100), 3).json()
        self.assertEqual((short["kv"]["alpha"], short["kv"]["select"]), (5, "all"))
        self.assertEqual(short["kv_stats"]["attended_ratio"], 1)
        full = greedy(LLAMA, prompt(100), 3, "--kv", "full").json()["kv"]
        self.assertEqual([full[name] for name in ("alpha", "cap", "ratio", "from")], [None] * 4)

    def test_quantised_entries(self):
        """Every selection on every store: everything selected is `full` on that store, and bytes are those of the store."""
        everything = ("--ignore-eos", *SMALL, "--kv-alpha", "inf", "--kv-cap", 1)
        tokens = {}
        for name, entry_bytes in (("f32", ENTRY_BYTES), ("int8", 2 * (4 + HEAD_DIM)), ("int4", INT4_BYTES)):
            full = greedy(LLAMA, prompt(300), 40, "--ignore-eos", "--kv", "full", "--kv-type", name).json()
            self.assertEqual((full["kv"]["preset"], full["kv"]["type"]), ("full", name))
            self.assertEqual(full["kv_stats"]["pool_peak_bytes"], 339 * LAYERS * HEADS * entry_bytes)
            self.assertEqual(full["kv_stats"]["fetched_bytes"], sum(range(301, 340)) * LAYERS * HEADS * entry_bytes)
            for more in (("--kv-from", "self"), ("--kv", "oracle"), ("-t", 1)):
                result = greedy(LLAMA, prompt(300), 40, *everything, "--kv-type", name, *more).json()
                self.assertEqual(result["tokens"], full["tokens"], (name, more))
                self.assertNotEqual(result["kv"]["select"], "all")
            tokens[name] = full["tokens"]
            if name != "f32":
                preset = greedy(LLAMA, prompt(300), 40, "--ignore-eos", "--kv", name).json()
                self.assertEqual(preset["tokens"], full["tokens"])
                self.assertEqual([preset["kv"][key] for key in ("preset", "type", "select", "alpha")], [name, name, "all", None])
        self.assertNotEqual(tokens["int4"], tokens["f32"], "or the store was not used")

    def test_text_says_what_was_attended(self):
        command = ("generate", "-m", model(LLAMA), "--prompt-ids", ids(prompt(200)), "-n", 9, "--temp", 0, "--ignore-eos")
        self.assertRegex(Run(*command, *SMALL).err, r"\nattended to \d+\.\d % of the cache \(selected ")
        self.assertNotIn("attended", Run(*command, "--kv", "full").err)
        run = Run(*command, *SMALL, "--stats-per-layer", "--mass-recall")
        self.assertIn("| layer | selected | extra | attended | mass recall |", run.err)

    def test_environment_twins(self):
        env = {"INFINIGEN_KV_ALPHA": "3", "INFINIGEN_KV_CAP": "7%", "INFINIGEN_KV_WINDOW": "9", "INFINIGEN_STATS_PER_LAYER": "1"}
        result = Run("generate", "-m", model(LLAMA), "--prompt-ids", ids(prompt(100)), "-n", 3, "--json", "--kv-min", 4, env=env).json()
        self.assertEqual([result["kv"][name] for name in ("alpha", "cap", "window")], [3, 0.07, 9])
        self.assertEqual(len(result["kv_stats"]["layers"]), LAYERS)

    def test_refusals(self):
        good = ("generate", "-m", model(LLAMA), "--prompt-ids", "1")
        for flags, words in ((("--kv", "nosuch"), "infinigen"), (("--kv-alpha", "-1"), "inf"), (("--kv-cap", "2"), "share"),
                             (("--kv-from", "next"), "prev-mid"), (("--kv-ratio", "0"), "above 0"),
                             (("--kv-select", "x"), "sketch"), (("--kv-force-count", "0"), "1")):
            self.assert_error(Run(*good, *flags), 2, flags[0], words)
        for flags, words in ((("--kv-select", "quest", "--kv-columns", "prompt"), "quest"),
                             (("--kv-evict", "lru"), "lru"), (("--kv-hot", "1GiB"), "--device cuda"),
                             (("--kv-force-hits", "0.5"), "--device cuda"), (("--kv-from", "prev-mid", "--kv-dense-layers", "0"), "dense"),
                             (("--kv-columns", "prompt", "--kv-projection", "pair"), "rotation"),
                             (("-c", "400", *SMALL, "--kv-skew", self.path("none.skew")), "none.skew")):
            self.assert_error(Run(*good, *flags), 1, words)


    def test_flags_of_benchmarks_are_flags_of_bench_alone(self):
        for flag in ("--no-fetch", "--no-compute"):
            for command in (("generate",), ("chat",), ("serve",), ("eval", "ppl"), ("eval", "needle"), ("eval", "choice"), ("eval", "compare")):
                self.assert_error(Run(*command, flag), 2, f"'{flag}' is not a flag of {' '.join(command)}")
            self.assert_error(Run("bench", "-m", model(LLAMA), flag), 1, flag, "--device cuda")


class FirstUse(Case):
    """The skew file: made once, beside the model, and only where a sketch needs it."""

    def run_once(self, directory, *more):
        return Run("generate", "-m", directory, "--prompt-ids", ids(prompt(100)), "-n", 2, "--temp", 0, "--json", *SMALL, *more)

    def test_made_once_and_only_when_needed(self):
        copied = self.copy(LLAMA)
        file = os.path.join(copied, "infinigen.skew")
        if os.path.exists(file):
            os.remove(file)
        for more in (("--kv", "full"), ("--kv", "oracle"), ("--kv-select", "quest"), ("--kv-projection", "none"),
                     ("--kv-window", 400), ("--dry-run",)):
            run = self.run_once(copied, *more)
            self.assertEqual((run.code, run.err), (0, ""), run)
            self.assertFalse(os.path.exists(file), more)
        first = self.run_once(copied)
        self.assertEqual(first.code, 0, first)
        self.assertRegex(first.err, r"^calibrating \S+ on random token ids \(once per model\)\n$")
        self.assertTrue(os.path.exists(file))
        second = self.run_once(copied)
        self.assertEqual(second.err, "")
        self.assertEqual(second.json()["tokens"], first.json()["tokens"])
        self.assert_error(Run("generate", "-m", model("llama_bf16"), "--prompt-ids", ids(prompt(100)), *SMALL, "--kv-skew", file), 1,
                          file, "another model")


class Plan(Case):
    def plan(self, *more):
        run = Run("generate", "-m", model(LLAMA), "--dry-run", "--json", "-c", 512, "--batch", 2, *more)
        self.assertEqual((run.code, run.err), (0, ""), run)
        return run.json()["plan"]

    def test_sketches_are_planned(self):
        plan = self.plan(*SMALL)
        self.assertEqual(plan["sketch_bytes"], 2 * 512 * LAYERS * HEADS * SKETCH_BYTES)
        self.assertEqual(self.plan(*SMALL, "--kv-dense-layers", 1)["sketch_bytes"] * 2, plan["sketch_bytes"])
        self.assertGreater(self.plan(*SMALL, "--kv-sketch-type", "bf16")["sketch_bytes"], plan["sketch_bytes"])
        self.assertEqual(self.plan("--kv", "full")["sketch_bytes"], 0)
        text = Run("generate", "-m", model(LLAMA), "--dry-run", "-c", 512, "--batch", 2, *SMALL).out
        self.assertRegex(text, r"\n  sketches +49\.0 KiB\n")
        self.assertRegex(Run("generate", "-m", SHIPPED, "--dry-run").out, r"\n  sketches +[1-9][\d.]* MiB\n")

    def test_every_command_that_runs_a_model_has_one(self):
        text = self.write("text.txt", "It was late. " * 400)
        for arguments, context, batch in ((("chat", "-c", 1200), 1200, 1), (("bench", "--prompt", 1200, "--gen", 24, "--batch", 3), 1224, 3),
                                          (("eval", "ppl", "-f", text, "-c", 1200), 1200, 1),
                                          (("eval", "needle", "--lengths", "500,1200", "--n", 4), 1200, 4),
                                          (("eval", "compare", "-f", text, "-c", 1200, "--kv", "infinigen", "--n", 4), 1200, 4)):
            run = Run(*arguments, "-m", SHIPPED, "--dry-run")
            self.assertEqual((run.code, run.err), (0, ""), (arguments, run))
            self.assertRegex(run.out, rf"^memory plan: \S+, context {context} tokens, batch {batch}, --kv infinigen")
            self.assertRegex(run.out, r"\n  sketches +[1-9][\d.]* [KM]iB\n")
            if arguments[0] != "chat":
                plan = Run(*arguments, "-m", SHIPPED, "--dry-run", "--json").json()["plan"]
                self.assertEqual((plan["context"], plan["batch"], plan["fits"]), (context, batch, True))
        for arguments in (("bench", "--prompt", 1200), ("eval", "compare", "-c", 1200)):
            plans = Run(*arguments, "-m", SHIPPED, "--kv", "infinigen,full", "--dry-run", "--json").json()["plans"]
            self.assertEqual([entry["kv"]["preset"] for entry in plans], ["infinigen", "full"])
            self.assertGreater(plans[0]["plan"]["sketch_bytes"], plans[1]["plan"]["sketch_bytes"])
        self.assertEqual(Run("chat", "-m", SHIPPED, "-c", 1 << 30, "--dry-run").code, 1)


    def test_the_pool_is_planned_in_its_store(self):
        for name, row_bytes in (("int8", 4 * 2 * 12), ("int4", 4 * INT4_BYTES)):
            for flags in (("--kv", name), ("--kv-type", name)):
                plan = self.plan(*flags)
                self.assertEqual((plan["pool_bytes_per_token"], plan["pool_bytes"]), (row_bytes, 2 * 512 * row_bytes))
        self.assertIn("entries in int4", Run("generate", "-m", model(LLAMA), "--dry-run", "--kv", "int4").out)
        self.assertEqual(greedy(LLAMA, [1], 4, "--kv", "int8", "--kv-limit", 4 * 96).code, 0, "four rows of 96 bytes")
        self.assert_error(greedy(LLAMA, [1], 5, "--kv", "int8", "--kv-limit", 4 * 96), 1, "--kv-limit")


class Bench(Case):
    def test_stores(self):
        run = Run("bench", "-m", model(LLAMA), "--kv", "full,int8,int4", "--fill", "synthetic", "--depth", 300, "--gen", 5, "--json")
        self.assertEqual(run.code, 0, run)
        entry_bytes = {"full": ENTRY_BYTES, "int8": 24, "int4": INT4_BYTES}
        for result in run.json()["results"]:
            rows = sum(range(301, 306)) * LAYERS * HEADS
            self.assertEqual(result["kv_stats"]["fetched_bytes"], rows * entry_bytes[result["kv"]], result["kv"])

    def test_forced_counts_on_a_synthetic_context(self):
        run = Run("bench", "-m", model(LLAMA), "--kv", "full,infinigen", "--fill", "synthetic", "--depth", "200,400", "--gen", 5,
                  "--batch", 2, "--kv-window", 8, "--kv-force-count", 50, "--json")
        self.assertEqual(run.code, 0, run)
        result = run.json()
        self.assertEqual(result["fill"], "synthetic")
        by = {(r["kv"], r["depth"]): r for r in result["results"]}
        self.assertEqual(set(by), {(kv, depth) for kv in ("full", "infinigen") for depth in (200, 400)})
        for depth in (200, 400):
            full, ours = by["full", depth], by["infinigen", depth]
            rows = sum(range(depth + 1, depth + 6))
            self.assertEqual(full["kv_stats"]["attended_ratio"], 1)
            self.assertAlmostEqual(ours["kv_stats"]["attended_ratio"], 50 * 5 / rows, places=12)
            self.assertEqual(full["kv_stats"]["fetched_bytes"], 2 * rows * LAYERS * HEADS * ENTRY_BYTES)
            self.assertEqual(ours["kv_stats"]["fetched_bytes"], 2 * 5 * 50 * LAYERS * HEADS * ENTRY_BYTES)
            # What a step reads: the weights in either case, then entries, or fewer entries and all sketches.
            sketches = 2 * rows * LAYERS * HEADS * SKETCH_BYTES
            less = full["kv_stats"]["fetched_bytes"] - ours["kv_stats"]["fetched_bytes"] - sketches
            self.assertAlmostEqual(full["step_bytes"] - ours["step_bytes"], less / 5, delta=1)
            self.assertEqual(ours["kv_options"]["force_count"], 50)
            self.assertIsNone(ours["timing"]["prefill_tok_s"])
        table = Run("bench", "-m", model(LLAMA), "--kv", "full,infinigen", "--fill", "synthetic", "--depth", 400, "--gen", 5,
                    "--kv-window", 8, "--kv-force-count", 50, "--format", "csv").out.splitlines()
        self.assertEqual([line["attended_ratio"] for line in csv.DictReader(table)], ["1.0000", f"{50 / 403:.4f}"])

    def lines(self, text):
        """A Markdown table's lines as dictionaries."""
        head, _, *rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in text.splitlines()]
        return [dict(zip(head, row, strict=True)) for row in rows]

    def test_every_format_has_every_method_depth_and_repetition(self):
        command = ("bench", "-m", model(LLAMA), "--kv", "infinigen,full", "--fill", "synthetic", "--depth", "200,300", "--gen", 4, "--repeat", 3,
                   "--batch", 2, "--kv-window", 8, "--kv-force-count", 50)
        results = Run(*command, "--format", "json").json()
        self.assertEqual((results["repeat"], results["complete"]), (3, True))
        medians = {(r["kv"], r["depth"]): r["timing"]["decode_step_ms_median"] for r in results["results"]}
        self.assertEqual(list(medians), [("infinigen", 200), ("infinigen", 300), ("full", 200), ("full", 300)])
        for result in results["results"]:
            timing, runs = result["timing"], result["timing"]["decode_tok_s_runs"]
            self.assertEqual(len(runs), 3)
            self.assertAlmostEqual(timing["decode_tok_s"] / statistics.mean(runs), 1, 9)
            self.assertAlmostEqual(timing["decode_tok_s_sd"] / statistics.stdev(runs), 1, 6)
            self.assertAlmostEqual(timing["decode_s"], sum(2 * 4 / rate for rate in runs), 9)
            self.assertGreater(timing["decode_step_ms_sd"], 0)
            self.assertIsNone(timing["prefill_tok_s_sd"], "nothing was prefilled")
            ratio = medians["infinigen", result["depth"]] / medians[result["kv"], result["depth"]]
            self.assertAlmostEqual(result["speedup_vs_first"], ratio, 9)
        # What is counted and not timed is the same in every format.
        table = list(csv.DictReader(Run(*command, "--format", "csv").out.splitlines()))
        markdown = self.lines(Run(*command).out)
        for result, line, row in zip(results["results"], table, markdown, strict=True):
            self.assertEqual((line["kv"], int(line["depth"]), line["gen"], line["repeat"]), (result["kv"], result["depth"], "4", "3"))
            self.assertEqual((row["kv"], int(row["depth"]), row["gen"]), (result["kv"], result["depth"], "3 x 4"))
            for field in ("fetched_bytes", "pool_peak_bytes", "sketch_bytes", "evicted"):
                self.assertEqual(int(line[field]), result["kv_stats"][field])
            self.assertEqual(int(line["step_bytes"]), result["step_bytes"])
            self.assertEqual((line["prefill_tok_s"], row["prefill tok/s"], line["hit_ratio"]), ("", "-", ""))
            self.assertRegex(row["decode tok/s"], r"^\d+\.\d\d ± \d+\.\d\d$")
            self.assertRegex(row["step ms"], r"^\d+\.\d\d ± \d+\.\d\d$")
            self.assertRegex(row["against infinigen"], r"^\d+\.\d\dx$")
            for field in ("step_ms_sd", "step_ms_median", "decode_tok_s_sd", "speedup_vs_first"):
                self.assertGreater(float(line[field]), 0)
        self.assertEqual([row["against infinigen"] for row in markdown[:2]], ["1.00x", "1.00x"])

    def test_one_repetition_has_no_deviation_and_no_step_no_speed(self):
        command = ("bench", "-m", model(LLAMA), "--prompt", 9, "--kv", "full")
        once = Run(*command, "--gen", 3, "--json").json()["results"][0]["timing"]
        self.assertIsNone(once["decode_tok_s_sd"])
        self.assertGreater(once["prefill_tok_s"], 0)
        none = Run(*command, "--gen", 0, "--json").json()["results"][0]
        self.assertEqual((none["speedup_vs_first"], none["timing"]["decode_tok_s"], none["timing"]["decode_step_ms_sd"]), (None, None, None))
        row = self.lines(Run(*command, "--gen", 0).out)[0]
        self.assertEqual((row["decode tok/s"], row["step ms"], row["against full"]), ("-", "-", "-"))


class Shipped(Case):
    """The built-in model, with its own skew file."""

    def test_everything_selected_is_full_on_a_long_prompt(self):
        sentence = "The old man closed the door and looked at the sea. It was a cold morning, and nobody had come. "
        words = [f"In the year {year} there were {year * 7 % 97} boats in the harbour. " + sentence for year in range(1800, 1840)]
        file = self.write("long.txt", "".join(words))
        command = ("generate", "-m", SHIPPED, "-f", file, "-n", 24, "--temp", 0, "--ignore-eos", "--json")
        full = Run(*command, "--kv", "full").json()
        self.assertGreater(full["prompt_tokens"], 1500)
        everything = Run(*command, "--kv-alpha", "inf", "--kv-cap", 1).json()
        self.assertEqual(everything["tokens"], full["tokens"])
        self.assertEqual(everything["kv_stats"]["selected_ratio"], 1)
        self.assertEqual(everything["kv"]["select"], "sketch")
        default = Run(*command)
        self.assertEqual((default.code, default.err), (0, ""), default)
        stats = default.json()["kv_stats"]
        self.assertLess(stats["attended_ratio"], 0.7)
        self.assertLess(stats["fetched_bytes"], full["kv_stats"]["fetched_bytes"])
        self.assertEqual(default.json()["kv"]["preset"], "infinigen", "the default")

    def test_columns_by_the_prompt(self):
        columns = ("--kv-columns", "prompt", "--kv-window", 32, "--kv-min", 16)
        text = self.write("t.txt", "The old man closed the door and looked at the sea. " * 30)
        run = Run("generate", "-m", SHIPPED, "-f", text, "-n", 5, "--temp", 0, "--json", *columns)
        self.assertEqual(run.code, 0, run)
        self.assertEqual(run.json()["kv"]["columns"], "prompt")
        needle = Run("eval", "needle", "-m", SHIPPED, "--lengths", 600, "--n", 4, "--json", *columns)
        self.assertEqual(needle.code, 0, needle)
        self.assertGreaterEqual(needle.json()["accuracy"], 0.75)
        self.assertLess(needle.json()["kv_stats"]["attended_ratio"], 0.6)
        self.assert_error(Run("chat", "-m", SHIPPED, *columns, stdin=b"Hello\n"), 1, "--kv-columns prompt")
        self.assert_error(Run("eval", "ppl", "-m", SHIPPED, "-f", text, *columns), 1, "--kv-columns prompt", "needle")
        self.assertEqual(Run("eval", "ppl", "-m", SHIPPED, "-f", text, "--kv", "full", *columns).code, 0, "full has no columns")

    def test_late_rows(self):
        text = self.write("t.txt", "The old man closed the door and looked at the sea. " * 40)
        command = ("generate", "-m", SHIPPED, "-f", text, "-n", 6, "--temp", 0, "--ignore-eos", "--json", "--kv-min", 32)
        guess = ("--kv-tail", "on", "--kv-from", "prev-layer")
        late, none, usual = (Run(*command, *guess, *flags) for flags in (("--kv-late", 7), ("--kv-late", 0), ()))
        self.assertEqual((late.code, none.code, usual.code), (0, 0, 0), (late, none, usual))
        self.assertEqual([run.json()["kv"]["late"] for run in (late, none, usual)], [7, 0, 16])
        self.assertNotIn("late_ratio", none.json()["kv_stats"])
        stats, tokens = late.json()["kv_stats"], late.json()["prompt_tokens"]
        rows = sum(range(tokens + 1, tokens + 6))  # five steps; the first token comes from the prompt
        self.assertAlmostEqual(stats["late_ratio"], 7 * 5 / rows)
        self.assertGreater(stats["selected_ratio"], none.json()["kv_stats"]["selected_ratio"])
        self.assertLess(stats["tail_mass"]["mean"], none.json()["kv_stats"]["tail_mass"]["mean"])
        for flags, words in (
            (("--kv-tail", "on"), ("--kv-late 7", "--kv-from self")),
            (("--kv-tail", "off", "--kv-from", "prev-mid"), ("--kv-late 7", "--kv-tail off")),
            (("--kv", "quest", "--kv-from", "prev-mid"), ("--kv-late 7", "quest")),
            (("--kv-select", "page-mean", "--kv-from", "prev-mid"), ("--kv-late 7", "page-mean")),
            (("--kv-select", "oracle"), ("--kv-late 7", "oracle")),
            (("--kv-projection", "none", *guess), ("--kv-tail on", "--kv-projection none")),
        ):
            self.assert_error(Run(*command, *flags, "--kv-late", 7), 1, *words)

    def test_chat_tells_what_it_does(self):
        run = Run("chat", "-m", SHIPPED, "--temp", 0, "-n", 30, "--kv-window", 8, "--kv-min", 4, "--stats-per-layer",
                  stdin=b"Who are you?\n/kv\n/stats\n")
        self.assertEqual(run.code, 0, run)
        self.assertIn("--kv infinigen", run.out)
        self.assertIn("a window of 8", run.out)
        self.assertRegex(run.out, r"attended to \d+\.\d % of the cache")
        self.assertIn("| layer | selected |", run.out)


if __name__ == "__main__":
    cli_test.BINARY, cli_test.MODELS = os.path.abspath(sys.argv[1]), cli_test.private(os.path.abspath(sys.argv[2]))
    SHIPPED = os.path.abspath(sys.argv[3])
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
