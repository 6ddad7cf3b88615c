#!/usr/bin/env python3
"""The experiments' own machinery: what counts as the same result, that one failure leaves the others, that the program takes
every command line, and that what is committed (results, plots, tables) belongs together.

usage: experiments_test.py INFINIGEN [unittest arguments]. Standard library only; texts are made up, nothing long is measured.
"""
import contextlib
import copy
import io
import json
import lzma
import os
import pathlib
import re
import sys
import tempfile
import time
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "experiments"))
import common
import run_all

BINARY = ""
EVERY = run_all.ACCURACY + run_all.SPEED

# Answers `bench` and `generate` as the program does; fails for one shape, takes for ever for another.
STAND_IN = '''#!/usr/bin/env python3
import json, sys, time
flag = lambda name, other=None: sys.argv[sys.argv.index(name) + 1] if name in sys.argv else other
if flag("--shape") == "opt-6.7b": sys.exit("infinigen: no room")
if flag("--shape") == "opt-30b": time.sleep(60)
device = {"name": "A GPU", "backend": "cuda"}
if sys.argv[1] == "generate":
    print(json.dumps({"device": device, "prompt_tokens": 7600, "generated_tokens": 400,
                      "kv_stats": {"hit_ratio": 0.8, "fetched_bytes_per_step": 1000, "hot_bytes": 1}}))
    sys.exit()
count = int(flag("--kv-force-count", 0))
print(json.dumps({"device": device, "ceilings": {"device_gb_per_s": 4000}, "results": [
    {"kv": kv, "depth": int(depth), "batch": int(flag("--batch")),
     "timing": {"prefill_s": 2.0, "decode_step_ms_median": 20.0 if kv == "infinigen" else 500.0},
     "kv_options": {"home": flag("--kv-home", "host")} | ({"force_count": count} if count and kv == "infinigen" else {}),
     "step_ms_by_kind": {"products": 8.0, "fetch": 10.0}, "no_fetch_step_ms": 10.0, "no_compute_step_ms": 15.0}
    for kv in flag("--kv").split(",") for depth in flag("--depth", flag("--prompt")).split(",")]}))
'''


def made_up_corpus(folder):
    """Texts where the experiments look for theirs."""
    words = "the old man went down to the sea again and nobody knew why he had come".split()
    sentences = (" ".join(words[(i * k) % len(words)] for k in range(1, 12)).capitalize() + "." for i in range(3000))
    packed = lzma.compress(" ".join(sentences).encode(), preset=0)
    for text in (common.WALDEN, *common.BOOKS):
        path = pathlib.Path(folder) / "eval" / f"{text.name}.xz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(packed)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def quiet(self):
        stack = contextlib.ExitStack()
        self.out = stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        return stack

    def stand_in(self):
        path = self.folder / "stand_in.py"
        path.write_text(STAND_IN)
        path.chmod(0o755)
        return path


class Compared(Case):
    KEPT = {"ppl": 36.1, "kld": 0.007, "found": 9, "kv": "infinigen", "chunks": [3.5, 3.6]}

    def changed(self, **values):
        return common.differences([self.KEPT], [self.KEPT | values], exact=False), common.differences([self.KEPT], [self.KEPT | values], exact=True)

    def test_the_same_is_the_same(self):
        self.assertEqual(self.changed(), ([], []))

    def test_a_last_bit_counts_on_the_same_processor_alone(self):
        near, exact = self.changed(ppl=36.100000000000001 + 1e-9)
        self.assertEqual((len(near), len(exact)), (0, 1))
        self.assertIn("ppl", exact[0])

    def test_a_tenth_of_a_percent_is_the_limit_elsewhere(self):
        self.assertEqual(self.changed(ppl=36.1 * 1.0009)[0], [])
        self.assertEqual(len(self.changed(ppl=36.1 * 1.0011)[0]), 1)
        self.assertEqual(len(self.changed(kld=0.007 + 0.0011)[0]), 1, "a hundredth of a percent of a perplexity in nats")
        self.assertEqual(len(self.changed(kld=0.007 + 0.0002)[0]), 1)

    def test_counts_and_words_are_exact_everywhere(self):
        for values in ({"found": 8}, {"kv": "quest"}, {"chunks": [3.5]}, {"chunks": [3.5, 3.7]}, {"more": 1}, {"ppl": None}):
            self.assertEqual(len(self.changed(**values)[0]), 1, values)

    def test_a_gpu_has_a_wider_tolerance(self):
        differ = lambda gpu, **values: common.differences([self.KEPT], [self.KEPT | values], exact=False, gpu=gpu)
        self.assertEqual((len(differ(False, ppl=36.1 * 1.02)), len(differ(True, ppl=36.1 * 1.02))), (1, 0))
        self.assertEqual(len(differ(True, ppl=36.1 * 1.04)), 1)
        self.assertEqual((len(differ(False, found=8)), len(differ(True, found=8)), len(differ(True, found=7))), (1, 0, 1))

    def test_a_loss_has_the_tolerance_of_its_perplexity(self):
        differ = lambda now: common.differences([{"loss": 0.35}], [{"loss": now}], exact=False)
        self.assertEqual((len(differ(0.44)), len(differ(0.46))), (0, 1))

    def test_which_processor_decides(self):
        here = common.machine()
        self.assertIn(here["simd"], ("avx512", "avx2", "portable"))
        self.assertTrue(common.same_place(here, here | {"cores": 99}), "threads change no bit")
        self.assertFalse(common.same_place(here, here | {"simd": "other"}))
        self.assertFalse(common.same_place(here | {"gpu": "a"}, here | {"gpu": "a"}), "a GPU promises no bits")


class Measured(Case):
    """A small experiment with the program itself."""

    def experiment(self):
        made_up_corpus(self.folder)
        file = self.folder / "small" / "run.py"
        file.parent.mkdir()
        return common.Experiment(file=str(file), question="Small?", plot=lambda rows: f"<svg>{len(rows)}</svg>", table=lambda rows: str(len(rows)),
                                 read=lambda output, keys: [common.scored(output, keys) | {"nll": [c["nll"] for c in output["chunks"]]}],
                                 commands=[common.command("eval ppl -f TEXT -c 256 --limit-tokens 256 --chunk 64 --kv-window 8 --kv-min 8", common.WALDEN, name="a"),
                                           common.command("eval ppl -f TEXT --no-such-flag", common.WALDEN, name="b")])

    def test_a_result_comes_out_again_and_a_failure_is_kept_beside_it(self):
        experiment = self.experiment()
        with unittest.mock.patch.dict(os.environ, INFINIGEN_DATA=str(self.folder), INFINIGEN_FULL_CACHE="0"), self.quiet():
            result = experiment.measure(common.Runner(BINARY))
            self.assertEqual(len(experiment.rows(result)), 1)
            self.assertEqual(len(experiment.rows(result)[0]["nll"]), 4)
            self.assertIn("exit code 2", result["runs"][1]["error"])
            self.assertEqual(result["runs"][0]["command"].split()[:4], ["infinigen", "eval", "ppl", "-f"], "no path of a machine")
            self.assertNotIn(str(self.folder), json.dumps(result))
            self.assertEqual(experiment.check(result), 1, "nothing was kept")
            experiment.write(result)
            self.assertEqual(experiment.kept(), result)
            self.assertEqual(experiment.check(experiment.measure(common.Runner(BINARY))), 0)
            other = copy.deepcopy(result)
            other["runs"][0]["rows"][0]["ppl"] *= 1.01
            self.assertEqual(experiment.check(other), 1)
            self.assertIn("ppl: was", self.out.getvalue())

    def test_a_missing_model_is_skipped_and_said(self):
        experiment = self.experiment()
        experiment.commands = [experiment.commands[0], common.command("eval ppl -f TEXT -m MODEL", common.WALDEN, common.SMOLLM2)]
        missing = {"INFINIGEN_DATA": str(self.folder), "INFINIGEN_FULL_CACHE": "0", common.SMOLLM2.variable: str(self.folder / "none.gguf")}
        with unittest.mock.patch.dict(os.environ, missing), self.quiet():
            result = experiment.measure(common.Runner(BINARY))
            self.assertIn("get_model.sh", result["runs"][1]["skipped"])
            self.assertNotIn(str(self.folder), json.dumps(result))
            self.assertIsNone(common.Runner(BINARY).refused(experiment.commands[1]))
            kept = copy.deepcopy(result)
            del kept["runs"][1]["skipped"]
            kept["runs"][1]["rows"] = [{"ppl": 20.0}]
            experiment.write(kept)
            self.assertEqual(experiment.check(result), 0)
            self.assertIn("1 of 2 commands skipped", self.out.getvalue())
            kept["runs"][0]["rows"][0]["ppl"] *= 1.01
            experiment.write(kept)
            self.assertEqual(experiment.check(result), 1, "what was measured is still compared")

    def test_a_gpu_gets_the_commands_that_name_no_device(self):
        made_up_corpus(self.folder)
        here, there = common.command("eval ppl -f TEXT", common.WALDEN), common.command("bench --device cuda --shape opt-13b")
        with unittest.mock.patch.dict(os.environ, INFINIGEN_DATA=str(self.folder)):
            runner = common.Runner(BINARY, device="cuda")
            self.assertEqual(runner.line(here)[-4:], ["--device", "cuda", "--kv-home", "device"])
            self.assertEqual(runner.line(there)[1:], ["bench", "--device", "cuda", "--shape", "opt-13b"])
            self.assertIsNone(runner.refused(here), "a missing GPU is no refusal")
            self.assertNotIn("cuda", common.Runner(BINARY).line(here))

    def test_several_at_a_time_measure_the_same(self):
        experiment = self.experiment()
        with unittest.mock.patch.dict(os.environ, INFINIGEN_DATA=str(self.folder), INFINIGEN_FULL_CACHE="0"), self.quiet():
            runner = common.Runner(BINARY, jobs=2)
            runner.start(experiment.commands)
            self.assertEqual(sorted(runner.answers), sorted(str(c) for c in experiment.commands))
            several, one = experiment.measure(runner), experiment.measure(common.Runner(BINARY))
        self.assertEqual(several["runs"][0], one["runs"][0])
        self.assertIn("exit code 2", several["runs"][1]["error"])

    def test_without_a_corpus_it_says_so(self):
        with unittest.mock.patch.dict(os.environ, INFINIGEN_DATA=str(self.folder / "nowhere")), self.quiet():
            _, why = common.Runner(BINARY).json(common.command("eval ppl -f TEXT", common.WALDEN))
        self.assertIn("no corpus", why)


class OnSpeed(Case):
    def test_all_of_them_whatever_one_does(self):
        made_up_corpus(self.folder)
        experiments = [run_all.load(name) for name in run_all.SPEED]
        for experiment in experiments:
            experiment.commands = [common.Command(c.words, c.keys, 1 if "opt-30b" in c.words else 20) for c in experiment.commands]
        arguments = types.SimpleNamespace(binary=self.stand_in(), budget=60, check=False, out=self.folder / "out")
        with unittest.mock.patch.dict(os.environ, INFINIGEN_DATA=str(self.folder), INFINIGEN_FULL_CACHE="0"), self.quiet():
            self.assertEqual(run_all.run(experiments, arguments), 1, "not all was measured")
        for experiment in experiments:
            kept = experiment.kept(arguments.out / experiment.name)
            rows = experiment.rows(kept)
            self.assertTrue(rows, experiment.name)
            self.assertEqual(kept["machine"]["gpu"], "A GPU")
            self.assertTrue(experiment.plot(rows).startswith("<svg"))
            self.assertGreater(len(experiment.table(rows).splitlines()), 2)
            self.assertLessEqual(experiment.table(rows).splitlines()[0].count("|"), 5, "it has to fit on a phone")
        errors = [run.get("error", "") for run in experiments[-1].kept(arguments.out / "model_size")["runs"]]
        self.assertIn("no room", errors[0])
        self.assertEqual(errors[1], "")
        self.assertTrue(errors[2].startswith("took more than"), errors)

    def test_a_budget_ends_it(self):
        runner = common.Runner(self.stand_in(), deadline=time.monotonic() - 1)
        with self.quiet():
            self.assertEqual(runner.json(common.fetched_step()), (None, "no time was left"))

    def test_what_two_ask_is_asked_once(self):
        runner = common.Runner(self.stand_in())
        with self.quiet():
            self.assertIs(runner.json(common.fetched_step())[0], runner.json(common.fetched_step(other="key"))[0])

    def test_speed_is_shown_beside_what_was_kept(self):
        experiment = run_all.load("batch")
        row = {"kv": "full", "batch": 4, "step_ms": 100.0}
        old = {"machine": {"cpu": "a"}, "runs": [{"rows": [row]}]}
        with self.quiet():
            again = lambda gpu, *rows: experiment.compare_speed(old | {"machine": {"cpu": "a", "gpu": "one"}}, {"machine": {"cpu": "a", "gpu": gpu}, "runs": [{"rows": rows}]})
            self.assertEqual(again("another", row | {"step_ms": 50.0}), 0, "another GPU has its own times")
            self.assertIn("step_ms 100 50 0.500", self.out.getvalue())
            self.assertEqual(again("one", row | {"step_ms": 105.0}), 0)
            self.assertEqual(again("one", row | {"step_ms": 50.0}), 1, "as fast would be a surprise too")
            self.assertEqual(again("one", row | {"step_ms": 1000.0}), 1)
            self.assertEqual(again("one", row | {"kv": "int4"}), 1, "rows are paired by what they are of")
            self.assertEqual(again("one"), 1)


class Committed(Case):
    def test_the_program_takes_every_command(self):
        made_up_corpus(self.folder)
        with unittest.mock.patch.dict(os.environ, INFINIGEN_DATA=str(self.folder)):
            runner = common.Runner(BINARY)
            seen = {str(c): c for name in EVERY for c in run_all.load(name).commands}
            self.assertEqual({line: why for line, c in seen.items() if (why := runner.refused(c))}, {})
            self.assertIn("exit code 2", runner.refused(common.command("bench --device cuda --shape opt-13b --no-such-flag")))

    def test_every_folder_is_known_and_told_in_three_sentences(self):
        self.assertEqual(sorted(p.parent.name for p in (ROOT / "experiments").glob("*/run.py")), sorted(EVERY))
        for name in EVERY:
            told = (ROOT / "experiments" / name / "README.md").read_text()
            self.assertIn("?", told, f"{name}: the question")
            answer = told.split("<!-- end -->")[1]
            self.assertGreaterEqual(len(re.findall(r"[.:;](?:\s|$)", answer)), 2, f"{name}: the answer, and what it means")

    def test_results_are_those_of_the_scripts(self):
        for name in EVERY:
            experiment = run_all.load(name)
            kept = experiment.kept()
            if kept is None:
                continue
            with self.subTest(name):
                self.assertEqual([run["command"] for run in kept["runs"]], [str(c) for c in experiment.commands])
                self.assertEqual([run["error"] for run in kept["runs"] if "error" in run], [], "what failed is no result")
                self.assertEqual((experiment.folder / "plot.svg").read_text(), experiment.plot(experiment.rows(kept)))

    def test_tables_are_those_of_the_results(self):
        pages = [*sorted(ROOT.glob("docs/results-*.md")), *(ROOT / "experiments" / name / "README.md" for name in EVERY)]
        self.assertGreater(len(pages), len(EVERY))
        for page in pages:
            self.assertEqual(run_all.filled(page), page.read_text(), f"{page.name}: run experiments/run_all.py --tables")


if __name__ == "__main__":
    import unittest.mock
    BINARY = os.path.abspath(sys.argv[1])
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
