#!/usr/bin/env python3
"""The binary as a user meets it: exit codes, one-line errors, tokens of the golden models, damaged files, Ctrl-C.

usage: cli_test.py INFINIGEN GOLDEN_MODELS [--terminal | --no-terminal] [unittest arguments]. Standard library only. The models are
copied first: a run that selects leaves a skew file beside the model.
"""

import atexit
import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import terminal

BINARY, MODELS = "", ""
SANITIZED = False  # a sanitizer's own memory is not ours to bound
MIB = 1 << 20


class Run:
    """One finished process: exit code (negative: a signal), both streams, peak memory."""

    def __init__(self, *arguments, stdin=b"", env=None):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("INFINIGEN_")}
        environment.update(env or {})
        if "INFINIGEN_CACHE" not in environment:
            environment.setdefault("INFINIGEN_FULL_CACHE", "0")  # nothing of a test stays in the user's cache
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as feed:
            feed.write(stdin)
            feed.seek(0)
            command = [BINARY, *map(str, arguments)]
            process = subprocess.Popen(command, stdin=feed, stdout=out, stderr=err, env=environment)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = self.code = os.waitstatus_to_exitcode(status)
            self.peak_bytes = usage.ru_maxrss * 1024
            out.seek(0)
            err.seek(0)
            self.out = out.read().decode("utf-8", "surrogateescape")
            self.err = err.read().decode("utf-8", "surrogateescape")

    def json(self):
        return json.loads(self.out)

    def __repr__(self):
        return f"exit {self.code}\n{self.out[-500:]}\n{self.err[-500:]}"


def read(path):
    with open(path, "rb") as file:
        return file.read()


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)


def golden(name):
    return json.loads(read(os.path.join(MODELS, name, "golden.json")))


def model(name):
    return os.path.join(MODELS, name)


def ids(tokens):
    return ",".join(map(str, tokens))


def greedy(name, prompt, n, *more):
    return Run("generate", "-m", model(name), "--prompt-ids", ids(prompt), "-n", n, "--temp", 0, "--json", *more)


LLAMA, OPT = "llama_gqa_tied", "opt_pre_norm"


class Case(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.directory)

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, text):
        write(self.path(name), text if isinstance(text, bytes) else text.encode())
        return self.path(name)

    def copy(self, name):
        target = self.path("copy_" + name)
        shutil.copytree(model(name), target)
        return target

    def assert_error(self, run, code, *parts):
        self.assertEqual(run.code, code, run)
        self.assertEqual(run.err.count("\n"), 1, f"not one line: {run!r}")
        self.assertTrue(run.err.startswith("infinigen: "), run)
        self.assertEqual(run.out, "", run)
        for part in parts:
            self.assertIn(str(part), run.err)


class Tokens(Case):
    def test_greedy_tokens_are_those_of_transformers(self):
        for name in sorted(os.listdir(MODELS)):
            for prompt in golden(name)["prompts"]:
                # The reference ran in float32 throughout, so entries are kept in it too.
                run = greedy(name, prompt["ids"], len(prompt["greedy"]), "--kv-type", "f32")
                self.assertEqual(run.code, 0, run)
                result = run.json()
                self.assertEqual(result["tokens"], prompt["greedy"], (name, prompt["name"]))
                self.assertEqual(result["prompt_ids"], prompt["ids"])
                self.assertEqual(result["finish_reason"], "length")

    def test_reference_backend_agrees(self):
        prompt = golden(LLAMA)["prompts"][1]
        run = greedy(LLAMA, prompt["ids"], 16, "--device", "reference")
        self.assertEqual(run.json()["tokens"], prompt["greedy"][:16])
        self.assertEqual(run.json()["device"]["backend"], "reference")

    def test_threads_and_neighbours_change_nothing(self):
        for name in (LLAMA, OPT, "llama_bf16"):
            prompts = [p["ids"] for p in golden(name)["prompts"]]
            prompts.append(prompts[1] + prompts[2])
            lines = "\n".join(map(json.dumps, prompts))
            together = Run("generate", "-m", model(name), "--prompts", self.write("five.jsonl", lines), "-n", 48,
                           "--temp", 0, "--json", "-t", 2)
            self.assertEqual(together.code, 0, together)
            results = together.json()["results"]
            self.assertEqual(len(results), 5)
            for prompt, result in zip(prompts, results):
                one = greedy(name, prompt, 48, "-t", 1).json()
                two = greedy(name, prompt, 48, "-t", 2).json()
                self.assertEqual(one["tokens"], two["tokens"], name)
                self.assertEqual(one["tokens"], result["tokens"], name)
                self.assertEqual(result["prompt_ids"], prompt)

    def test_batch_limits_change_nothing(self):
        prompts = [p["ids"] for p in golden(LLAMA)["prompts"]]
        prompts = prompts * (1 + 64 // len(prompts))  # at least 64
        file = self.write("many.jsonl", "\n".join(map(json.dumps, prompts)))
        common = ("generate", "-m", model(LLAMA), "--prompts", file, "-n", 12, "--temp", 0, "--json")
        expected = [r["tokens"] for r in Run(*common).json()["results"]]
        # Room for the longest sequence and no row more (256 bytes each): the others wait for it.
        rows = max(map(len, prompts)) + 12 - 1
        for more in (("--batch", 1), ("--batch", 3), ("--batch", 64), ("--kv-limit", rows * 256)):
            run = Run(*common, *more)
            self.assertEqual(run.code, 0, run)
            self.assertEqual([r["tokens"] for r in run.json()["results"]], expected)

    def test_seeds(self):
        def sample(*more):
            run = Run("generate", "-m", model(LLAMA), "--prompt-ids", "10,18,68", "-n", 40, "--temp", 1.5, "--top-k", 0,
                      "--min-p", 0, "--top-p", 1, "--json", *more)
            self.assertEqual(run.code, 0, run)
            return run.json()

        first = sample("-s", 7)
        self.assertEqual(first["seed"], 7)
        self.assertEqual(first["tokens"], sample("-s", 7)["tokens"])
        self.assertNotEqual(first["tokens"], sample("-s", 8)["tokens"])
        free = sample()
        self.assertEqual(free["tokens"], sample("-s", free["seed"])["tokens"])
        file = self.write("seeds.jsonl", '{"prompt_ids": [10,18,68], "seed": 7, "n": 40}\n[10,18,68]\n')
        run = Run("generate", "-m", model(LLAMA), "--prompts", file, "-n", 5, "-s", 8, "--temp", 1.5, "--top-k", 0,
                  "--min-p", 0, "--top-p", 1, "--json").json()["results"]
        self.assertEqual(run[0]["tokens"], first["tokens"])
        self.assertEqual((run[0]["seed"], run[1]["seed"]), (7, 8))
        self.assertEqual(len(run[1]["tokens"]), 5)

    def test_top_k_one_is_greedy(self):
        prompt = golden(LLAMA)["prompts"][1]
        run = Run("generate", "-m", model(LLAMA), "--prompt-ids", ids(prompt["ids"]), "-n", 20, "--top-k", 1, "--json")
        self.assertEqual(run.json()["tokens"], prompt["greedy"][:20])

    def test_end_of_text(self):
        copied = self.copy(LLAMA)
        prompt = golden(LLAMA)["prompts"][0]
        config = json.loads(read(os.path.join(copied, "config.json")))
        config["eos_token_id"] = prompt["greedy"][2]
        write(os.path.join(copied, "config.json"), json.dumps(config).encode())
        os.remove(os.path.join(copied, "generation_config.json"))
        common = ("generate", "-m", copied, "--prompt-ids", ids(prompt["ids"]), "--temp", 0, "--json", "-n")
        run = Run(*common, 64).json()
        self.assertEqual(run["tokens"], prompt["greedy"][:2])
        self.assertEqual(run["finish_reason"], "stop")
        run = Run(*common, 64, "--ignore-eos").json()
        self.assertEqual(run["tokens"], prompt["greedy"])
        self.assertEqual(Run(*common, 0).json()["tokens"], [])

    def test_until_the_context_is_full(self):
        run = greedy(LLAMA, [62], -1, "--ignore-eos", "-c", 100)
        self.assertEqual(run.code, 0, run)
        self.assertEqual(len(run.json()["tokens"]), 100, "99 rows of its own, and the token after the last row")
        self.assertEqual(run.json()["finish_reason"], "length")


class Text(Case):
    """A golden model with a tokenizer of one token for each of 160 characters."""

    def setUp(self):
        super().setUp()
        self.model = self.copy(LLAMA)
        characters = [chr(c) for c in range(33, 127)] + [chr(c) for c in range(0xA1, 0xA1 + 12)]
        # Bytes as byte-level BPE spells them: a space is U+0120, the bytes from 0xA1 on stand for themselves.
        characters += ["\u0120", "\u010a"] + [chr(c) for c in range(0xAE, 0xAE + 52)]
        vocab = {c: i for i, c in enumerate(characters[:160])}
        self.assertEqual(len(vocab), 160)
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                     "pre_tokenizer": level, "post_processor": None, "decoder": level,
                     "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                               "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                               "merges": []}}
        write(os.path.join(self.model, "tokenizer.json"), json.dumps(tokenizer).encode())
        self.vocab = vocab
        self.common = ("generate", "-m", self.model, "-p", "Hello, you!", "-n", 40, "--temp", 0)

    def test_every_source_is_the_same_prompt(self):
        expected = Run(*self.common, "--json")
        self.assertEqual(expected.code, 0, expected)
        text = "Hello, you!"
        self.assertEqual(expected.json()["prompt_ids"], [self.vocab[c.replace(" ", "\u0120")] for c in text])
        rest = ("-n", 40, "--temp", 0, "--json")
        file = self.write("prompt.txt", text)
        lines = self.write("prompts.jsonl", json.dumps({"prompt": text}))
        for run in (Run("generate", "-m", self.model, "-f", file, *rest),
                    Run("generate", "-m", self.model, "-f", "-", *rest, stdin=text.encode()),
                    Run("generate", "-m", self.model, *rest, stdin=text.encode()),
                    Run("generate", "-m", self.model, *rest, env={"INFINIGEN_PROMPT": text})):
            self.assertEqual(run.code, 0, run)
            self.assertEqual(run.json()["tokens"], expected.json()["tokens"])
            self.assertEqual(run.json()["text"], expected.json()["text"])
        many = Run("generate", "-m", self.model, "--prompts", lines, *rest)
        self.assertEqual(many.json()["results"][0]["text"], expected.json()["text"])

    def test_streamed_text_is_the_text_of_the_json(self):
        expected = Run(*self.common, "--json").json()["text"]
        run = Run(*self.common)
        self.assertEqual(run.out, expected + "\n")
        self.assertEqual(run.err.count("\n"), 2, "two lines of statistics")
        self.assertIn("tok/s", run.err)
        self.assertIn("memory", run.err)

    def test_many_are_printed_in_order(self):
        lines = self.write("p.jsonl", '"ab"\n\n"Hello, you!"\n"c"\n')
        run = Run("generate", "-m", self.model, "--prompts", lines, "-n", 40, "--temp", 0)
        self.assertEqual(run.code, 0, run)
        self.assertTrue(run.out.startswith("==> prompt 1 <==\n"))
        second = run.out.split("==> prompt 2 <==\n")[1].split("\n==> prompt 3 <==")[0]
        self.assertEqual(second, Run(*self.common, "--json").json()["text"])

    def test_stop_strings(self):
        whole = Run(*self.common, "--json").json()
        stop = whole["text"][10:13]
        cut = Run(*self.common, "--stop", "nowhere to be found", "--stop", stop, "--json").json()
        self.assertEqual(cut["text"], whole["text"][:whole["text"].index(stop)])
        self.assertEqual(cut["finish_reason"], "stop")
        self.assertLess(len(cut["tokens"]), len(whole["tokens"]))
        self.assertEqual(Run(*self.common, "--stop", stop).out, cut["text"] + "\n")

    def test_tokenize(self):
        run = Run("tokenize", "-m", self.model, "-p", "a b")
        expected = [self.vocab[c] for c in ("a", "\u0120", "b")]
        self.assertEqual(run.out, " ".join(map(str, expected)) + "\n")
        run = Run("tokenize", "-m", self.model, "--json", stdin=b"a b").json()
        self.assertEqual(run, {"ids": expected, "tokens": ["a", "\u0120", "b"], "count": 3})
        self.assertEqual(Run("tokenize", "-m", self.model, "--ids", ids(expected)).out, "a b\n")
        self.assert_error(Run("tokenize", "-m", self.model, "--ids", "160"), 1, 160, 159)

    def test_closed_pipe_ends_quietly(self):
        command = [BINARY, "generate", "-m", self.model, "-p", "a", "-n", "-1", "-c", "200000", "--ignore-eos"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.read(5)
        process.stdout.close()
        error = process.stderr.read().decode()
        self.assertEqual(process.wait(60), 0)
        process.stderr.close()
        self.assertEqual([line for line in error.splitlines() if "warning" not in line], [])

    def test_full_disk_is_an_error(self):
        with open("/dev/full", "wb") as full:
            process = subprocess.run([BINARY, *map(str, self.common)], stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(process.returncode, 1)
        self.assertEqual(process.stderr.count(b"\n"), 1)
        self.assertIn(b"standard output", process.stderr)

    def test_nobody_hears_what_is_said_beside(self):
        """stderr on a full disk, closed, or a pipe that is not read: stdout and the exit code do not change."""
        expected = subprocess.run([BINARY, *map(str, self.common)], capture_output=True).stdout
        with open("/dev/full", "wb") as full:
            process = subprocess.run([BINARY, *map(str, self.common)], stdout=subprocess.PIPE, stderr=full)
            self.assertEqual((process.returncode, process.stdout), (0, expected))
            self.assertEqual(subprocess.run([BINARY, "inspect", "-m", "/nowhere"], stderr=full).returncode, 1)
        self.assertEqual(subprocess.run(["sh", "-c", '"$0" inspect -m /nowhere 2>&-', BINARY]).returncode, 1)
        read, write = os.pipe()
        os.close(read)
        process = subprocess.run([BINARY, *map(str, self.common)], stdout=subprocess.PIPE, stderr=write)
        os.close(write)
        self.assertEqual((process.returncode, process.stdout), (0, expected))


class Contract(Case):
    def test_json_fields(self):
        result = greedy(LLAMA, [1, 2, 3], 4).json()
        self.assertEqual(result["prompt_tokens"], 3)
        self.assertEqual(result["generated_tokens"], 4)
        for group, names in {
            "model": ("name", "arch", "params", "dtype"),
            "device": ("name", "backend", "threads"),
            "kv": ("preset", "alpha", "cap", "ratio", "from", "evict", "limit_bytes", "type", "home"),
            "timing": ("load_s", "prefill_s", "prefill_tok_s", "decode_s", "decode_tok_s", "decode_step_ms_mean",
                       "decode_step_ms_p99", "decode_step_ms_median"),
            "kv_stats": ("selected_ratio", "extra_ratio", "attended_ratio", "fetched_bytes", "fetched_bytes_per_step",
                         "hit_ratio", "fetch_stall_s", "evicted", "pool_bytes", "pool_peak_bytes", "sketch_bytes", "hot_bytes"),
            "memory": ("host_peak_bytes", "device_peak_bytes"),
        }.items():
            self.assertEqual(tuple(result[group])[:len(names)], names)  # more may follow
        self.assertEqual(result["model"], {"name": LLAMA, "arch": "llama", "params": 49472, "dtype": "f32"})
        # Rows of the prompt and of what was made but its last token: 2 layers x 2 heads x (key, value) x 8 numbers x 4 bytes.
        self.assertEqual(result["kv_stats"]["pool_peak_bytes"], (3 + 4 - 1) * 2 * 2 * 2 * 8 * 4)
        self.assertEqual(result["kv_stats"]["pool_bytes"], result["kv_stats"]["pool_peak_bytes"])
        self.assertEqual(greedy(LLAMA, [1], 1, "--kv-type", "f16").json()["kv"]["type"], "f16")
        self.assertEqual(greedy("llama_bf16", [1], 1).json()["kv"]["type"], "bf16", "auto is the model's")

    def test_help_and_version(self):
        for arguments in (["-h"], ["--help"], ["help"], ["generate", "-h"], ["bench", "--help"], ["inspect", "-h"],
                          ["tokenize", "-h"], ["chat", "-h"], ["serve", "-h"]):
            run = Run(*arguments)
            self.assertEqual((run.code, run.err), (0, ""), arguments)
            self.assertIn("usage:", run.out)
            self.assertLessEqual(max(map(len, run.out.splitlines())), 120)
        self.assertRegex(Run("--version").out, r"^infinigen \d+\.\d+\.\d+\n$")

    def test_usage_errors(self):
        good = ("generate", "-m", model(LLAMA), "--prompt-ids", "1")
        for arguments in ([], ["frobnicate"], ["serve", "stray"], ["eval"], ["calibrate", "stray"],
                          [*good, "--nosuch"], [*good, "stray"], [*good, "-n", "x"], [*good, "-n", "-2"],
                          [*good, "--temp", "-1"], [*good, "--temp", "nan"], [*good, "--top-p", "0"],
                          [*good, "--top-p", "1.1"], [*good, "--min-p", "2"], [*good, "-c", "0"], [*good, "-t", "0"],
                          [*good, "--batch", "0"], [*good, "--kv", "nosuch"], [*good, "--kv-type", "f64"],
                          [*good, "--kv-limit", "many"], [*good, "--device", "tpu"], [*good, "-p", "text"], [*good, "-n"],
                          ["generate", "-m", model(LLAMA), "--prompt-ids", "1,,2"],
                          ["bench", "-m", "x", "--shape", "y"], ["chat", "--nosuch"]):
            self.assert_error(Run(*arguments), 2)

    def test_refused_by_name(self):
        good = ("generate", "-m", model(LLAMA), "--prompt-ids", "1")
        for flag, value, text in (("--device", "cuda", "--device cuda: "), ("--kv-evict", "lru", "--kv-limit"),
                                  ("--kv-home", "device", "device"),
                                  ("--kv-home", "disk:/tmp", "disk")):
            self.assert_error(Run(*good, flag, value), 1, text)
        self.assert_error(Run("inspect", "-m", self.write("x.gguf", b"GGUF")), 1, "GGUF")

    def test_environment_twins(self):
        prompt = golden(LLAMA)["prompts"][0]
        env = {"INFINIGEN_MODEL": model(LLAMA), "INFINIGEN_PROMPT_IDS": ids(prompt["ids"]), "INFINIGEN_TEMP": "0",
               "INFINIGEN_PREDICT": "6", "INFINIGEN_JSON": "1"}
        self.assertEqual(Run("generate", env=env).json()["tokens"], prompt["greedy"][:6])
        self.assertEqual(Run("generate", "-n", 3, env=env).json()["tokens"], prompt["greedy"][:3], "the flag wins")
        env["INFINIGEN_TOP_P"] = "7"
        self.assert_error(Run("generate", env=env), 2, "INFINIGEN_TOP_P")

    def test_context_overflow_has_both_numbers(self):
        self.assert_error(greedy(LLAMA, [1] * 513, 1), 1, 513, 512)
        self.assert_error(greedy(LLAMA, [1] * 40, 1, "-c", 39), 1, 40, 39)
        self.assertEqual(greedy(LLAMA, [1] * 512, 1).code, 0, "a prompt may fill the context")
        file = self.write("p.jsonl", json.dumps([1]) + "\n\n" + json.dumps([1] * 600))
        self.assert_error(Run("generate", "-m", model(LLAMA), "--prompts", file), 1, file + ":3", 600, 512)
        learned = json.loads(read(os.path.join(model(OPT), "config.json")))["max_position_embeddings"]
        self.assert_error(greedy(OPT, [5], 1, "-c", learned + 1), 1, learned, learned + 1)
        beyond = greedy(LLAMA, [1], 1, "-c", 600, "--kv", "full")
        self.assertEqual(beyond.code, 0)
        self.assertIn("warning", beyond.err)
        self.assertEqual(beyond.err.count("\n"), 1)

    def test_bad_prompts(self):
        self.assert_error(greedy(LLAMA, [160], 1), 1, 160, 159)
        self.assert_error(Run("generate", "-m", model(LLAMA), "-p", "text"), 1, "--prompt-ids")
        self.assert_error(Run("generate", "-m", model(LLAMA), "-f", self.path("none")), 1, "none")
        self.assert_error(Run("generate", "-m", model(LLAMA), "-f", self.directory), 1, self.directory)
        file = self.write("p.jsonl", '[1]\n[1]\n{"prompt_ids": [1], "n": "x"}\n')
        self.assert_error(Run("generate", "-m", model(LLAMA), "--prompts", file), 1, file + ":3")
        self.assert_error(Run("generate", "-m", model(LLAMA), "--prompts", self.write("e.jsonl", "\n")), 1, "no prompt")
        nested = self.write("n.jsonl", b"[" * (8 * MIB))
        run = Run("generate", "-m", model(LLAMA), "--prompts", nested)
        self.assert_error(run, 1, nested + ":1")
        if not SANITIZED:
            self.assertLess(run.peak_bytes, 8 * MIB + 64 * MIB)

    def test_dry_run(self):
        run = Run("generate", "-m", model(LLAMA), "--dry-run")
        self.assertEqual((run.code, run.err), (0, ""), run)
        for word in ("weights", "sketches", "hot set", "pool", "workspace", "largest context"):
            self.assertIn(word, run.out)
        plan = Run("generate", "-m", model(LLAMA), "--dry-run", "--json", "-c", 512, "--batch", 3).json()["plan"]
        self.assertEqual((plan["context"], plan["batch"], plan["fits"]), (512, 3, True))
        self.assertEqual(plan["pool_bytes"], 3 * 512 * 256)
        self.assertEqual(plan["pool_bytes_per_token"], 256)
        self.assertGreater(plan["largest_context"], 512)
        huge = Run("generate", "-m", model(LLAMA), "--dry-run", "-c", 1 << 30, "--batch", 1000)
        self.assertEqual(huge.code, 1)
        self.assertEqual(huge.err.count("\n"), 1)
        self.assertIn("largest context", huge.out)
        # The same check before a real run, in one line and without output.
        many = self.write("many.jsonl", "[1]\n" * 1000)
        run = Run("generate", "-m", model(LLAMA), "--prompts", many, "-c", 1 << 30, "--batch", 1000)
        self.assert_error(run, 1, "not enough memory", 1 << 30)
        self.assertEqual(greedy(LLAMA, [1], 4, "--kv-limit", "1KiB").code, 0, "four rows of 256 bytes")
        self.assert_error(greedy(LLAMA, [1], 5, "--kv-limit", "1KiB"), 1, "--kv-limit", "1.25 KiB")

    def test_inspect(self):
        run = Run("inspect", "-m", model(LLAMA), "--json", "--tensors").json()
        self.assertEqual((run["layers"], run["heads"], run["kv_heads"], run["vocab"]), (2, 8, 2, 160))
        self.assertEqual(run["kv_bytes_per_token"], {"f32": 256, "f16": 128, "bf16": 128, "int8": 96, "int4": 96})
        self.assertEqual(len(run["tensors"]), sum(t["tensors"] for t in run["types"].values()))
        for name in os.listdir(MODELS):
            self.assertEqual(Run("inspect", "-m", model(name)).code, 0)

    def test_bench_of_nothing(self):
        for few in (("--prompt", 1, "--gen", 0), ("--depth", "0,1", "--gen", 0)):
            self.assertEqual(Run("bench", "-m", model(LLAMA), *few).code, 0, few)

    def test_bench(self):
        run = Run("bench", "-m", model(LLAMA), "--depth", "3,40", "--gen", 5, "--batch", 2, "--json", "--kv", "full,infinigen")
        self.assertEqual(run.code, 0, run)
        results = run.json()["results"]
        self.assertEqual([(r["kv"], r["depth"]) for r in results],
                         [("full", 3), ("full", 40), ("infinigen", 3), ("infinigen", 40)])
        for result in results:
            self.assertGreater(result["timing"]["decode_tok_s"], 0)
            self.assertGreater(result["step_bytes"], 0)
            self.assertIn("memory", result)
            self.assertIn("kv_stats", result)
        self.assertEqual(Run("bench", "-m", model(OPT), "--format", "csv", "--gen", 2, "--prompt", 9).out.count("\n"), 2)
        self.assertTrue(Run("bench", "-m", model(OPT), "--gen", 2, "--prompt", 9).out.startswith("| model |"))


class Interrupt(Case):
    def setUp(self):
        super().setUp()
        self.assertEqual(Run("calibrate", "-m", model(LLAMA)).code, 0, "or the interrupt would meet the calibration")

    def interrupted(self, sent, *more):
        command = [BINARY, "generate", "-m", model(LLAMA), "--prompt-ids", "62", "-n", "-1", "-c", "300000",
                   "--ignore-eos", "--temp", "0", *more]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if "--json" in more:
            process.stderr.readline()  # the warning about the context: loading is over
        else:
            process.stdout.read(20)
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        return out.decode(), err.decode()

    def test_text_stays_and_statistics_follow(self):
        for sent in (signal.SIGINT, signal.SIGTERM):
            out, err = self.interrupted(sent)
            self.assertTrue(out.endswith("\n"))
            self.assertIn("generated", err)
            self.assertIn("memory", err)

    def test_json_is_whole(self):
        out, _ = self.interrupted(signal.SIGINT, "--json")
        self.assertEqual(json.loads(out)["finish_reason"], "cancelled")

    def test_waiting_for_input(self):
        process = subprocess.Popen([BINARY, "generate", "-m", model(LLAMA)], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        asleep = 0  # once it only sleeps, it waits for its input
        while asleep < 20:
            asleep = asleep + 1 if state(process.pid) == "S" else 0
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        process.wait(60)
        self.assertEqual(process.returncode, 130)
        self.assertEqual((process.stdout.read(), process.stderr.read()), (b"", b""))
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()


def state(pid):
    return read(f"/proc/{pid}/stat").rsplit(b")", 1)[1].split()[0].decode()


@terminal.needs_terminal
class Terminal(Case):
    def test_progress_of_a_long_prefill(self):
        tokens = 6000 if SANITIZED else 24000  # a few seconds
        file = self.write("long.jsonl", json.dumps([7] * tokens))
        master, slave = pty.openpty()
        command = [BINARY, "generate", "-m", model(LLAMA), "--prompts", file, "-n", "1", "-c", str(tokens), "-t", "1"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=slave)
        os.close(slave)
        screen = b""
        while chunk := read_terminal(master):
            screen += chunk
        os.close(master)
        self.assertEqual(process.wait(60), 0, screen)
        bars = [part for part in screen.split(b"\r\x1b[K") if part.startswith(b"prefill")]
        self.assertTrue(bars, screen)
        self.assertIn(b"tok/s", bars[-1])
        self.assertIn(b"ETA", bars[-1])
        self.assertTrue(screen.rsplit(b"\r\x1b[K", 1)[1].startswith(b"prompt %d tokens" % tokens), "erased afterwards")


def read_terminal(master):
    try:
        return os.read(master, 65536)
    except OSError:  # how a pty says that the other end is closed
        return b""


class Damage(Case):
    """Damaged and hostile files: exit 0 or 1, one line, bounded memory, never a signal."""

    def assert_survives(self, run, size, what):
        self.assertIn(run.code, (0, 1), f"{what}: {run!r}")
        if run.code == 1:
            self.assertEqual(run.err.count("\n"), 1, f"{what}: {run!r}")
            if not SANITIZED:
                self.assertLess(run.peak_bytes, size + 64 * MIB, what)

    def generate(self, directory):
        return Run("generate", "-m", directory, "--prompt-ids", "1,2,3", "-n", 2, "--json")

    def test_missing_pieces(self):
        self.assert_error(self.generate(self.path("nowhere")), 1, "nowhere")
        self.assert_error(self.generate(self.directory), 1, "config.json")
        copied = self.copy(LLAMA)
        os.remove(os.path.join(copied, "model.safetensors"))
        self.assert_error(self.generate(copied), 1, "safetensors")

    def test_truncated(self):
        copied = self.copy(LLAMA)
        path = os.path.join(copied, "model.safetensors")
        whole = read(path)
        for size in (0, 1, 7, 8, 9, 100, 1000, len(whole) // 2, len(whole) - 1):
            write(path, whole[:size])
            run = self.generate(copied)
            self.assert_error(run, 1, "model.safetensors")
            self.assert_survives(run, size, f"cut at {size}")

    def test_bit_flips(self):
        for name, seed in ((LLAMA, 1), (OPT, 2), ("llama_sharded", 3)):
            copied = self.copy(name)
            chance = random.Random(seed)
            files = sorted(f for f in os.listdir(copied) if not f.startswith("golden"))
            for file in files:
                path = os.path.join(copied, file)
                whole = read(path)
                # Most flips where the structure is: the first 2 KiB hold headers and all of the JSON.
                for turn in range(40 if len(files) < 6 else 12):
                    damaged = bytearray(whole)
                    reach = min(len(whole), 2048) if turn % 4 else len(whole)
                    flips = [(chance.randrange(reach), chance.randrange(8)) for _ in range(chance.choice((1, 1, 3)))]
                    for at, bit in flips:
                        damaged[at] ^= 1 << bit
                    write(path, damaged)
                    self.assert_survives(self.generate(copied), len(whole), (name, file, flips))
                write(path, whole)
            self.assertEqual(self.generate(copied).code, 0, "the undamaged copy works")

    def test_hostile_files(self):
        copied = self.copy(LLAMA)
        config = json.loads(read(os.path.join(copied, "config.json")))
        weights = os.path.join(copied, "model.safetensors")
        for text in (b"[" * (1 << 20), b'{"a":' * (1 << 18), b"\0" * 4096, b'"' + b"a" * (2 * MIB), b"{}", b"",
                     *(json.dumps({**config, field: value}).encode() for field in
                       ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "num_attention_heads",
                        "num_key_value_heads", "head_dim", "max_position_embeddings")
                       for value in (-1, 0, 1 << 31, 1 << 62, 1e300, "512", None, [1]))):
            write(os.path.join(copied, "config.json"), text)
            self.assert_survives(self.generate(copied), len(text) + os.path.getsize(weights), text[:80])
        write(os.path.join(copied, "config.json"), json.dumps(config).encode())
        for header in (b"\xff" * 8, (1 << 62).to_bytes(8, "little"), (99 * MIB).to_bytes(8, "little") + b" " * 1000,
                       MIB.to_bytes(8, "little") + b"[" * MIB, MIB.to_bytes(8, "little") + b'{"a":' * (MIB // 5),
                       (2).to_bytes(8, "little") + b"{}"):
            write(weights, header)
            run = self.generate(copied)
            self.assert_error(run, 1, "model.safetensors")
            self.assert_survives(run, len(header), header[:20])

    def test_hostile_tokenizers(self):
        copied = self.copy(LLAMA)
        for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json"):
            path = os.path.join(copied, name)
            for text in (b"", b"{}", b"[" * MIB, b'{"model":' * 100000, b"\x0a\xff\xff\xff\xff\x0f" * 1000, b"\0" * MIB):
                write(path, text)
                self.assert_survives(self.generate(copied), MIB, (name, text[:10]))
            os.remove(path)


def private(directory):
    """A copy of `directory`, and a cache directory beside it for everything that runs from here on."""
    home = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, home)
    os.environ["XDG_CACHE_HOME"] = os.path.join(home, "cache")
    return shutil.copytree(directory, os.path.join(home, os.path.basename(directory)))


if __name__ == "__main__":
    BINARY, MODELS = os.path.abspath(sys.argv[1]), private(os.path.abspath(sys.argv[2]))
    content = read(BINARY)
    SANITIZED = b"__asan_init" in content or b"__tsan_init" in content
    terminal.main(sys.argv[3:])
