#!/usr/bin/env python3
"""GGUF files as a user meets them: golden models as GGUF, refusals, skew files, `quantize`, damaged files.

usage: gguf_cli_test.py INFINIGEN GOLDEN_MODELS MAKE_GGUF [--real] [--mutations N] [--seed N] [unittest arguments]. Standard library only.
MAKE_GGUF is tools/make_gguf.py, which writes files independently of the program's own writer. --real: only the tests of SmolLM2, the
model of scripts/get_model.sh ($INFINIGEN_SMOLLM2, or the cache); exit status 77 without it.
"""

import importlib.util
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

BINARY, MODELS, MUTATIONS, SEED = "", "", 150, 0
gguf = None  # tools/make_gguf.py
LLAMA = "llama_gqa_tied"


def smollm2():
    cache = os.environ.get("INFINIGEN_CACHE", os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "infinigen"))
    path = os.environ.get("INFINIGEN_SMOLLM2", os.path.join(cache, "models", "SmolLM2-135M-Instruct.Q4_1.gguf"))
    return path if os.path.exists(path) else None


def run(*arguments, env=None, prepare=None):
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, errors="surrogateescape",
                          env={**os.environ, **(env or {})}, preexec_fn=prepare, stdin=subprocess.DEVNULL)


def golden(name):
    with open(os.path.join(MODELS, name, "golden.json")) as file:
        return json.load(file)


def greedy(path, prompt, count, *more):
    return run("generate", "-m", path, "--prompt-ids", ",".join(map(str, prompt)), "-n", count, "--temp", 0, "--json",
               "--ignore-eos", *more)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def convert(self, name, kind="stored", parts=1, tokenizer=False, file="m.gguf"):
        metadata, tensors = gguf.convert(os.path.join(MODELS, name), kind, tokenizer)
        gguf.write_model(self.path(file), metadata, tensors, parts)
        return self.path(file if parts == 1 else f"{file[:-5]}-00001-of-{parts:05}.gguf")

    def write(self, metadata, tensors, file="m.gguf"):
        gguf.write(self.path(file), gguf.file_bytes(metadata, tensors))
        return self.path(file)

    def assert_refused(self, result, *parts):
        self.assertEqual(result.returncode, 1, result)
        lines = result.stderr.strip().split("\n")
        self.assertEqual(len(lines), 1, result)
        for part in parts:
            self.assertIn(part, lines[0])


class Golden(Case):
    def test_greedy_tokens_are_those_of_transformers(self):
        # Metadata does not express the others: windows of Qwen2 and Mistral, lists of layers, other scales of scores.
        others = ("opt", "qwen2_window", "mistral_window", "gemma2_new", "gemma3_new")
        names = [name for name in sorted(os.listdir(MODELS)) if not name.startswith(others) and name != "smollm3"]
        self.assertGreater(len(names), 20)
        self.assertTrue({"qwen3_yarn_bf16", "smollm3_interval", "phi3_longrope", "gemma2", "gemma3"} <= set(names))
        for name in names:
            path = self.convert(name)
            for prompt in golden(name)["prompts"]:
                result = greedy(path, prompt["ids"], len(prompt["greedy"]), "--kv-type", "f32")
                self.assertEqual(result.returncode, 0, (name, result))
                self.assertEqual(json.loads(result.stdout)["tokens"], prompt["greedy"], (name, prompt["name"]))

    def test_parts_give_the_same_tokens(self):
        prompt = golden(LLAMA)["prompts"][1]
        path = self.convert(LLAMA, parts=3)
        result = greedy(path, prompt["ids"], 32, "--kv-type", "f32")
        self.assertEqual(json.loads(result.stdout)["tokens"], prompt["greedy"][:32], result)
        self.assertEqual(json.loads(result.stdout)["model"]["name"], "m")

    def test_a_directory_with_one_file_is_that_file(self):
        prompt = golden(LLAMA)["prompts"][1]
        self.convert(LLAMA, parts=2)
        result = greedy(self.folder.name, prompt["ids"], 8, "--kv-type", "f32")
        self.assertEqual(json.loads(result.stdout)["tokens"], prompt["greedy"][:8], result)
        self.convert(LLAMA, file="other.gguf")
        self.assert_refused(greedy(self.folder.name, prompt["ids"], 8), "holds 2 GGUF models")

    def test_a_file_without_the_usual_name_is_found_by_its_content(self):
        shutil.move(self.convert(LLAMA), self.path("sha256-1234"))
        self.assertEqual(run("inspect", "-m", self.path("sha256-1234")).returncode, 0)

    def test_text_in_and_out(self):
        path = self.convert(LLAMA, "q8_0", tokenizer=True)
        ids = run("tokenize", "-m", path, "-p", "the cat <|end|>").stdout.split()
        vocab = 160
        self.assertEqual(ids[0], str(vocab - 2), "BOS")
        self.assertEqual(ids[-1], str(vocab - 1), "the special token")
        self.assertEqual(run("tokenize", "-m", path, "--ids", ",".join(ids[1:])).stdout, "the cat <|end|>\n")
        result = run("generate", "-m", path, "-p", "the cat", "-n", 4, "--temp", 0)
        self.assertEqual(result.returncode, 0, result)
        result = run("inspect", "-m", path, "--json")
        shown = json.loads(result.stdout)
        self.assertEqual(shown["metadata"]["general.architecture"]["value"], "'llama'")
        self.assertIn("Q8_0", shown["types"])
        self.assertTrue(shown["tokenizer"]["chat_template"])
        self.assertEqual(shown["eos_ids"], [vocab - 1])

    def test_the_skew_file_lies_beside_the_file_or_in_the_cache(self):
        path = self.convert(LLAMA)
        result = run("calibrate", "-m", path)
        self.assertIn(self.path("m.skew"), result.stdout, result)
        self.assertTrue(os.path.exists(self.path("m.skew")))
        prompt = golden(LLAMA)["prompts"][3]["ids"]
        self.assertEqual(greedy(path, prompt, 4, "--kv", "infinigen").returncode, 0)
        os.remove(self.path("m.skew"))
        cache = tempfile.TemporaryDirectory()
        self.addCleanup(cache.cleanup)
        os.chmod(cache.name, 0o777)
        os.chmod(self.folder.name, 0o555)
        self.addCleanup(os.chmod, self.folder.name, 0o755)

        def without_rights():  # root writes into read-only directories
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)

        try:
            run("--version", prepare=without_rights)
        except OSError:
            self.skipTest("other users cannot run the program")
        env = {"XDG_CACHE_HOME": cache.name, "INFINIGEN_CACHE": "", "HOME": cache.name}
        result = run("calibrate", "-m", path, env=env, prepare=without_rights)
        self.assertEqual(result.returncode, 0, result)
        self.assertFalse(os.path.exists(self.path("m.skew")))
        skews = [os.path.join(folder, name) for folder, _, names in os.walk(cache.name) for name in names if name.endswith(".skew")]
        self.assertEqual(len(skews), 1, result)
        self.assertIn(skews[0], result.stdout)


class Refusals(Case):
    def changed(self, changes, drop=(), more_tensors=()):
        metadata, tensors = gguf.tiny_model("llama", False)
        metadata = [entry for entry in metadata if entry[0] not in drop and entry[0] not in {c[0] for c in changes}]
        return self.write(metadata + list(changes), tensors + list(more_tensors))

    def refused(self, path, *parts):
        self.assert_refused(run("generate", "-m", path, "--prompt-ids", 1, "-n", 1), path, *parts)

    def test_each_by_name(self):
        u32, string = gguf.U32, gguf.STRING
        self.assertEqual(run("generate", "-m", self.changed([]), "--prompt-ids", 1, "-n", 1).returncode, 0)
        self.refused(self.changed([("general.architecture", string, "opt")]), "'opt' is not supported", "llama, qwen2")
        self.refused(self.changed([], drop=["general.architecture"]), "'general.architecture' is missing")
        self.refused(self.changed([], drop=["llama.block_count"]), "'llama.block_count' is missing")
        self.refused(self.changed([("llama.block_count", u32, 2)]), "'blk.1.attn_norm.weight' is missing")
        self.refused(self.changed([("llama.feed_forward_length", u32, 64)]), "but the metadata implies")
        self.refused(self.changed([("llama.expert_count", u32, 8)]), "llama.expert_count", "mixture-of-experts")
        self.refused(self.changed([("llama.attention.head_count_kv", gguf.ARRAY, (u32, [1, 2]))]), "layer to layer")
        self.refused(self.changed([("llama.future", u32, 1)]), "'llama.future' (1) is not supported")
        self.refused(self.changed([("llama.rope.scaling.type", string, "exotic")]), "exotic")
        self.refused(self.changed([("llama.attention.value_length", u32, 8)]), "value_length")
        self.refused(self.changed([("llama.rope.dimension_count", u32, 7)]), "rotary_dims 7")
        self.refused(self.changed([("tokenizer.ggml.model", string, "t5")]), "the tokenizer model 't5'")
        self.refused(self.changed([("tokenizer.ggml.pre", string, "never")]), "the pre-tokenizer 'never'")
        self.refused(self.changed([("tokenizer.ggml.merges", gguf.ARRAY, (string, ["Ġ zz"]))]), "zz")
        self.refused(self.changed([], drop=["tokenizer.ggml.merges"]), "'tokenizer.ggml.merges' is missing", "'Ġt'")
        self.refused(self.changed([("tokenizer.ggml.merges", gguf.ARRAY, (string, ["Ġ  t"]))]), ": merge 0 must be two tokens")
        self.refused(self.changed([("tokenizer.ggml.token_type", gguf.ARRAY, (gguf.I32, [77] + [1] * 299))]), "token 0 has the type 77")
        self.refused(self.changed([], more_tensors=[("blk.0.extra.weight", 31, [32], bytes(18))]), "Q4_0_4_4", "withdrawn")
        self.refused(self.changed([], more_tensors=[("blk.0.extra.weight", 0, [4], bytes(16))]), "blk.0.extra.weight")

    def test_broken_numbers(self):
        path = shutil.copytree(os.path.join(MODELS, "llama_mha"), self.path("broken"))
        file = os.path.join(path, "model.safetensors")
        with open(file, "rb") as old:
            content = old.read()
        with open(file, "wb") as new:  # the last number of the last tensor becomes NaN
            new.write(content[:-4] + b"\0\0\xc0\x7f")
        self.refused(path, "model.safetensors: tensor '", "NaN or infinite")
        self.assert_refused(run("quantize", "-m", path, "--type", "q8_0", "-o", self.path("out.gguf")), "not finite", "row")

    def test_numbers_too_large_for_the_type(self):
        for magnitude, kinds in ((1e20, ("f16", "q8_0", "q6_k", "q4_k_m")), (1e13, ("q6_k", "q4_k_m")), (3e38, ("q6_k", "q4_k_m"))):
            metadata, tensors = gguf.tiny_model("llama", False)
            metadata = [(k, t, 256 if k == "llama.feed_forward_length" else v) for k, t, v in metadata]
            tensors = [t for t in tensors if "ffn_" not in t[0] or "norm" in t[0]]
            numbers = gguf.struct.pack("<f", 0.25) * (3 * 256 + 7) + gguf.struct.pack("<f", magnitude)
            numbers += gguf.struct.pack("<f", 0.25) * (32 * 256 - 3 * 256 - 8)
            tensors += [("blk.0.ffn_down.weight", 0, [256, 32], numbers)]
            tensors += [(f"blk.0.ffn_{x}.weight", 0, [32, 256], bytes(4 * 32 * 256)) for x in ("gate", "up")]
            path = self.write(metadata, tensors)
            for kind in kinds:
                self.assert_refused(run("quantize", "-m", path, "-o", self.path("out.gguf"), "--type", kind), path,
                                    "'blk.0.ffn_down.weight'", "row 3, from column", "too large for")
        self.assertEqual(os.listdir(self.folder.name), ["m.gguf"])

    def test_configurations_of_directories(self):
        for name, change, parts in (("phi3_window", {"partial_rotary_factor": 2.0}, ("partial_rotary_factor", "expected at most 1")),
                                    ("llama_mha", {"model_type": "qwen3_5"}, ("qwen3_5", "also takes images")),
                                    ("llama_mha", {"model_type": "qwen3_5_moe_text"}, ("mixture of experts",))):
            path = shutil.copytree(os.path.join(MODELS, name), self.path("changed"))
            with open(os.path.join(path, "config.json"), "r+") as file:
                config = {**json.load(file), **change}
                file.seek(0)
                file.truncate()
                json.dump(config, file)
            self.refused(path, "config.json", *parts)
            shutil.rmtree(path)

    def test_types_without_arithmetic(self):
        metadata, tensors = gguf.tiny_model("llama", False)
        metadata = [(k, t, 256 if k == "llama.feed_forward_length" else v) for k, t, v in metadata]
        tensors = [t for t in tensors if "ffn_" not in t[0] or "norm" in t[0]]
        tensors += [("blk.0.ffn_down.weight", gguf.TYPES["IQ2_XS"], [256, 32], bytes(74 * 32))]
        tensors += [(f"blk.0.ffn_{x}.weight", 0, [32, 256], bytes(4 * 32 * 256)) for x in ("gate", "up")]
        self.refused(self.write(metadata, tensors), "blk.0.ffn_down.weight", "IQ2_XS")


class Quantize(Case):
    def test_files_of_the_same_type_compute_the_same(self):
        for name in ("llama_f16", "llama_rope_llama3", "llama_rope_linear", "llama_bias", "qwen2_gqa_tied", "qwen3_tied",
                     "qwen3_yarn_bf16", "mistral_plain", "smollm3_interval", "phi3_window", "phi3_longrope", "phi3_longrope_new",
                     "gemma2", "gemma3"):
            prompt = golden(name)["prompts"][3]
            source = os.path.join(MODELS, name)
            first, second = self.path("a.gguf"), self.path("b.gguf")
            self.assertEqual(run("quantize", "-m", source, "-o", first, "--type", "f16").returncode, 0)
            self.assertEqual(run("quantize", "-m", first, "-o", second, "--type", "f16").returncode, 0)
            tokens = [json.loads(greedy(path, prompt["ids"], 32, "--kv-type", "f32").stdout)["tokens"]
                      for path in (first, second)]
            self.assertEqual(tokens[0], tokens[1], name)
            if name == "llama_f16":
                self.assertEqual(tokens[0], prompt["greedy"][:32], "f16 weights are stored unchanged")

    def test_the_output_is_not_the_model_and_no_device(self):
        model = self.path("model.gguf")
        self.assertEqual(run("quantize", "-m", os.path.join(MODELS, "llama_f16"), "-o", model, "--type", "f16").returncode, 0)
        before = open(model, "rb").read()
        link, pipe = self.path("link.gguf"), self.path("pipe")
        os.symlink(model, link)
        os.mkfifo(pipe)
        for output, reason in ((model, "the output is the model itself"), (link, "the output is the model itself"),
                               (pipe, "not a regular file")):
            result = run("quantize", "-m", model, "-o", output, "--type", "q8_0")
            self.assertEqual(result.returncode, 1)
            self.assertIn(reason, result.stderr)
        self.assertEqual(open(model, "rb").read(), before)

    def test_the_output_is_no_file_of_the_model(self):
        def content():
            found = {}
            for folder, _, names in os.walk(self.folder.name):
                for name in names:
                    with open(os.path.join(folder, name), "rb") as file:
                        found[os.path.join(folder, name)] = file.read()
            return found

        def refused(model, output):
            before = content()
            result = run("quantize", "-m", model, "-o", output, "--type", "f16")
            self.assert_refused(result, output, "the output is a file of the model")
            self.assertEqual(content(), before)

        os.mkdir(self.path("one"))
        one = self.convert(LLAMA, file="one/m.gguf")
        refused(os.path.dirname(one), one)
        os.mkdir(self.path("parts"))
        first = self.convert(LLAMA, parts=3, file="parts/m.gguf")
        refused(first, first.replace("00001-of", "00002-of"))
        refused(first.replace("00001-of", "00003-of"), first)
        directory = shutil.copytree(os.path.join(MODELS, "llama_f16"), self.path("directory"))
        for name in ("model.safetensors", "config.json"):
            refused(directory, os.path.join(directory, name))
        os.symlink(os.path.join(directory, "model.safetensors"), self.path("link.gguf"))
        refused(directory, self.path("link.gguf"))
        # Files that the model does not read may be replaced.
        for _ in range(2):
            result = run("quantize", "-m", directory, "-o", os.path.join(directory, "m.gguf"), "--type", "f16")
            self.assertEqual(result.returncode, 0, result)
        self.assertEqual(run("quantize", "-m", one, "-o", self.path("one/other.gguf"), "--type", "f16").returncode, 0)

    def test_files_of_every_family_are_copied(self):
        """Files with fused tensors, longrope, soft caps."""
        for name in ("phi3_longrope", "gemma2", "gemma3"):
            prompt = golden(name)["prompts"][1]
            source, copy = self.convert(name, "f16"), self.path("copy.gguf")
            self.assertEqual(run("quantize", "-m", source, "-o", copy, "--type", "f16").returncode, 0, name)
            tokens = [json.loads(greedy(path, prompt["ids"], 16, "--kv-type", "f32").stdout)["tokens"]
                      for path in (source, copy)]
            self.assertEqual(tokens[0], tokens[1], name)
            self.assertEqual(tensors_of(source), tensors_of(copy), name)

    def test_every_type_keeps_the_model(self):
        """Types of tensors, and how far the numbers are from those of the model. The file is read back as f16."""
        name = "llama_bf16"
        prompt = golden(name)["prompts"][2]
        exact = tensors_of(self.convert(name, "f16"))
        # Rows of 64 are no multiple of 256: q8_0 replaces q6_k and q5_0 replaces q4_k.
        for kind, types, least, most in (("f16", {"F16"}, 0, 0), ("q8_0", {"Q8_0"}, 1e-3, 0.01), ("q6_k", {"Q8_0"}, 1e-3, 0.01),
                                         ("q4_k_m", {"Q5_0", "Q8_0"}, 0.01, 0.06)):
            path, back = self.path(f"{kind}.gguf"), self.path("back.gguf")
            result = run("quantize", "-m", os.path.join(MODELS, name), "-o", path, "--type", kind, "--json")
            self.assertEqual(result.returncode, 0, result)
            self.assertEqual(json.loads(result.stdout)["bytes"], os.path.getsize(path))
            self.assertLessEqual(types, set(json.loads(result.stdout)["tensors"]), kind)
            self.assertEqual(run("quantize", "-m", path, "-o", back, "--type", "f16").returncode, 0)
            found = tensors_of(back)
            self.assertEqual(found.keys(), exact.keys())
            errors = [relative_error(found[tensor], exact[tensor]) for tensor in exact]
            self.assertGreaterEqual(max(errors), least, kind)
            self.assertLessEqual(max(errors), most, kind)
            tokens = json.loads(greedy(path, prompt["ids"], 8, "--kv-type", "f32").stdout)["tokens"]
            if kind in ("f16", "q8_0", "q6_k"):
                self.assertEqual(tokens[:2], prompt["greedy"][:2], kind)

    def test_blocks_of_256(self):
        metadata, tensors = gguf.tiny_model("llama", False)
        metadata = [(k, t, 256 if k == "llama.feed_forward_length" else v) for k, t, v in metadata]
        tensors = [t for t in tensors if "ffn_" not in t[0] or "norm" in t[0]]
        chance = random.Random(3)
        numbers = gguf.struct.pack("<8192f", *(chance.gauss(0, 0.02) for _ in range(8192)))
        tensors += [("blk.0.ffn_down.weight", 0, [256, 32], numbers)]
        tensors += [(f"blk.0.ffn_{x}.weight", 0, [32, 256], bytes(4 * 32 * 256)) for x in ("gate", "up")]
        path, small, back = self.write(metadata, tensors), self.path("small.gguf"), self.path("back.gguf")
        # The only layer is the last eighth of the layers: its down matrix has more bits in q4_k_m.
        for kind in ("q6_k", "q4_k_m"):
            result = run("quantize", "-m", path, "-o", small, "--type", kind, "--json")
            self.assertEqual(json.loads(result.stdout)["tensors"].get("Q6_K"), 1, result)
            self.assertEqual(run("quantize", "-m", small, "-o", back, "--type", "f16").returncode, 0)
            error = relative_error(tensors_of(back)["blk.0.ffn_down.weight"], (0, [256, 32], numbers))
            self.assertGreater(error, 0.003)
            self.assertLess(error, 0.03)

    def test_a_shape_has_no_tokenizer(self):
        path = self.path("x.gguf")
        self.assert_refused(run("quantize", "-m", "shape:nothing", "-o", path), "unknown shape 'nothing'")
        # Refused before 60 GB of weights are made.
        self.assert_refused(run("quantize", "-m", "shape:opt-30b", "-o", path), "shape:opt-30b", "cannot be stored as GGUF")
        self.assertEqual(os.listdir(self.folder.name), [])
        result = run("quantize", "-m", "shape:qwen2.5-0.5b", "-o", path, "--type", "q4_k_m", "--json")
        self.assertEqual(result.returncode, 0, result)
        shown = json.loads(run("inspect", "-m", path, "--json").stdout)
        self.assertEqual((shown["layers"], shown["heads"], shown["kv_heads"]), (24, 14, 2))
        self.assertIsNone(shown["tokenizer"])
        self.assertEqual(shown["metadata"]["tokenizer.ggml.model"]["value"], "'no_vocab'")
        result = run("generate", "-m", path, "-p", "text", "-n", 1, "--kv", "full")
        self.assert_refused(result, "has no tokenizer")

    def test_tensors_equal_those_of_the_independent_writer(self):
        for name in ("llama_f16", "llama_bias", "llama_rope_llama3", "qwen2_gqa_tied", "qwen3_tied", "mistral_plain",
                     "smollm3_interval", "phi3_window", "phi3_longrope", "gemma2", "gemma3"):
            expected = self.convert(name, "f16")
            made = self.path("made.gguf")
            self.assertEqual(run("quantize", "-m", os.path.join(MODELS, name), "-o", made, "--type", "f16").returncode, 0)
            self.assertEqual(tensors_of(made).keys(), tensors_of(expected).keys(), name)
            for tensor, content in tensors_of(made).items():
                if tensor != "rope_freqs.weight":  # computed in f32 here, in f64 there
                    self.assertEqual(content, tensors_of(expected)[tensor], (name, tensor))

    def test_a_full_disk_leaves_nothing(self):
        def small_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        result = run("quantize", "-m", os.path.join(MODELS, LLAMA), "-o", self.path("x.gguf"), "--type", "f16",
                     prepare=small_files)
        self.assert_refused(result, self.path("x.gguf"), "cannot write")
        self.assertEqual(os.listdir(self.folder.name), [])

    def test_what_cannot_be_written_is_refused(self):
        out = self.path("x.gguf")
        self.assert_refused(run("quantize", "-m", os.path.join(MODELS, "opt_f16"), "-o", out, "--type", "f16"), "opt")
        self.assert_refused(run("quantize", "-m", os.path.join(MODELS, LLAMA), "-o", "/nowhere/x.gguf", "--type", "f16"),
                            "/nowhere/x.gguf")
        # A reader of the metadata would compute these otherwise.
        for name, what in (("mistral_window", "sliding windows"), ("qwen2_window", "sliding windows"),
                           ("gemma2_new", "its "), ("gemma3_new", "its "), ("smollm3", "which of its layers use which RoPE")):
            self.assert_refused(run("quantize", "-m", os.path.join(MODELS, name), "-o", out, "--type", "f16"), name, "cannot express", what)
        self.assertEqual(run("quantize", "-m", os.path.join(MODELS, LLAMA)).returncode, 2)
        self.assertEqual(os.listdir(self.folder.name), [])


def relative_error(got, expected):
    """Of two entries of tensors_of: root mean square error over the root mean square."""
    def numbers(entry):
        kind, _, data = entry
        if kind == 30:
            return [gguf.struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]
        return gguf.struct.unpack(f"<{len(data) // 4}f" if kind == 0 else f"<{len(data) // 2}e", data)

    a, b = numbers(got), numbers(expected)
    assert len(a) == len(b)
    return (sum((x - y) ** 2 for x, y in zip(a, b)) / sum(y * y for y in b)) ** 0.5


def tensors_of(path):
    """name -> (type, dimensions, bytes), read without the program."""
    with open(path, "rb") as file:
        data = file.read()
    at = 4

    def take(kind):
        nonlocal at
        if kind == gguf.STRING:
            length = take(gguf.U64)
            at += length
            return data[at - length:at].decode()
        if kind == gguf.ARRAY:
            element, count = take(gguf.U32), take(gguf.U64)
            return [take(element) for _ in range(count)]
        value = gguf.struct.unpack_from(gguf.PACK[kind], data, at)[0]
        at += gguf.struct.calcsize(gguf.PACK[kind])
        return value

    _, count, entries = take(gguf.U32), take(gguf.U64), take(gguf.U64)
    for _ in range(entries):
        take(gguf.STRING)
        take(take(gguf.U32))
    rows = []
    for _ in range(count):
        name = take(gguf.STRING)
        rows.append((name, [take(gguf.U64) for _ in range(take(gguf.U32))], take(gguf.U32), take(gguf.U64)))
    begin = at + -at % gguf.ALIGNMENT
    sizes = {0: 4, 1: 2, 30: 2}
    content = {}
    for name, dims, kind, offset in rows:
        numbers = 1
        for extent in dims:
            numbers *= extent
        content[name] = (kind, dims, data[begin + offset:begin + offset + numbers * sizes[kind]])
    return content


class DamageCase(Case):
    """Random damage: the program ends with 0, or with 1 and one line; it never dies of a signal or of a sanitizer."""

    SANITIZERS = {"ASAN_OPTIONS": "exitcode=99", "UBSAN_OPTIONS": "halt_on_error=1:exitcode=99"}
    COMMANDS = (("generate", "--prompt-ids", 1, "-n", 1, "--dry-run"), ("inspect",), ("tokenize", "-p", "Hello <|im_end|> \u00e9 12\n"))
    LOADED = ("generate", "--prompt-ids", 1, "-n", 1, "--kv", "full", "--temp", 0)

    def damage(self, path, first, last, count, seed, commands=COMMANDS):
        """Damages bytes of [first, last), `count` times; the file is whole again afterwards."""
        chance = random.Random(100 * SEED + seed)  # processes with different --seed share the work
        size = os.path.getsize(path)
        refused = 0
        for number in range(count):
            kind = chance.randrange(4)
            at = chance.randrange(first, min(last, size))
            with open(path, "r+b") as file:
                file.seek(at)
                length = 1 if kind == 0 else 8 if kind == 1 else chance.randrange(1, 33)
                before = file.read(length)
                if kind == 0:
                    after = bytes([before[0] ^ 1 << chance.randrange(8)])
                elif kind == 1:
                    extreme = chance.choice([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, size, size - 1, 255])
                    after = extreme.to_bytes(8, "little")[:len(before)]
                else:
                    after = chance.randbytes(len(before))
                file.seek(at)
                file.write(after)
            if kind == 3:  # cut off as well
                tail = self.cut(path, chance.randrange(size)) if size < 1 << 20 else b""
            command, *more = commands[number % len(commands)]
            result = run(command, "-m", path, *more, env=self.SANITIZERS)
            with open(path, "r+b") as file:
                if kind == 3 and tail:
                    file.seek(0, os.SEEK_END)
                    file.write(tail)
                file.seek(at)
                file.write(before)
            self.assertIn(result.returncode, (0, 1), (number, at, before, after, result))
            if result.returncode == 1:
                refused += 1
                self.assertEqual(result.stderr.count("\n"), 1, (number, at, before, after, result))
                self.assertTrue(result.stderr.startswith("infinigen: "), result)
        return refused

    def cut(self, path, length):
        with open(path, "r+b") as file:
            file.seek(length)
            tail = file.read()
            file.truncate(length)
        return tail


class Damaged(DamageCase):
    def test_tiny_files(self):
        for seed, (arch, spm) in enumerate((("llama", False), ("llama", True), ("qwen2", False))):
            path = self.write(*gguf.tiny_model(arch, spm))
            self.assertEqual(run("generate", "-m", path, "--prompt-ids", 1, "-n", 1, "--dry-run").returncode, 0)
            refused = self.damage(path, 0, 12000, MUTATIONS // 3, seed, (*self.COMMANDS, self.LOADED))
            self.assertGreater(refused, MUTATIONS // 30, "damage is noticed")


class RealDamaged(DamageCase):
    def test_the_real_file(self):
        path = shutil.copy(smollm2(), self.path("real.gguf"))
        os.chmod(path, 0o600)
        with open(path, "rb") as file:
            begin = file.read(4 << 20)
        table, end = begin.index(b"token_embd.weight") - 8, begin.index(b"output_norm.weight") + 64
        # The first kilobytes (sizes, names) and the tensor table behind the vocabulary are hit more often than tokens.
        self.assertGreater(self.damage(path, 0, 4096, MUTATIONS // 3, 11), 0)
        self.assertGreater(self.damage(path, table, end, MUTATIONS // 3, 12), 0)
        self.damage(path, 0, end, MUTATIONS // 3, 13)
        # Reading 90 MB takes longer than a header: a share of the runs load and compute, with damaged weights too.
        self.damage(path, table, end, max(MUTATIONS // 30, 1), 14, (self.LOADED,))
        self.damage(path, end, os.path.getsize(path), max(MUTATIONS // 30, 1), 15, (self.LOADED,))


class RealModel(Case):
    def setUp(self):
        super().setUp()
        self.model = smollm2()

    def test_it_speaks_english(self):
        result = run("generate", "-m", self.model, "-p", "The capital of France is", "-n", 8, "--temp", 0, "--kv", "full")
        self.assertEqual(result.returncode, 0, result)
        self.assertIn("Paris", result.stdout)

    def test_inspect_shows_types_and_template(self):
        shown = json.loads(run("inspect", "-m", self.model, "--json").stdout)
        self.assertEqual({name: entry["tensors"] for name, entry in shown["types"].items()},
                         {"F32": 61, "Q4_1": 210, "Q8_0": 1})
        self.assertEqual(shown["metadata"]["tokenizer.ggml.pre"]["value"], "'smollm'")
        self.assertTrue(shown["tokenizer"]["chat_template"])
        self.assertEqual((shown["layers"], shown["heads"], shown["kv_heads"], shown["context"]), (30, 9, 3, 8192))

    def test_quantize(self):
        path = self.path("q.gguf")
        result = run("quantize", "-m", self.model, "-o", path, "--type", "q4_k_m", "--json")
        self.assertEqual(result.returncode, 0, result)
        # Rows of 576 are no multiple of 256: q5_0 and q8_0 replace q4_k and q6_k; down has rows of 1536.
        self.assertEqual(json.loads(result.stdout)["tensors"],
                         {"F32": 61, "Q4_K": 16, "Q5_0": 166, "Q6_K": 14, "Q8_0": 15})
        result = run("generate", "-m", path, "-p", "The capital of France is", "-n", 4, "--temp", 0, "--kv", "full")
        self.assertIn("Paris", result.stdout, result)

    def test_known_ids(self):
        # As llama.cpp gives them for this file.
        result = run("tokenize", "-m", self.model, "-p", "Hello world, 123 it's <|im_end|> ok")
        self.assertEqual(result.stdout.split(), "19556 905 28 216 33 34 35 357 506 216 2 10907".split())


if __name__ == "__main__":
    BINARY, MODELS, tool = sys.argv[1:4]
    spec = importlib.util.spec_from_file_location("make_gguf", tool)
    gguf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gguf)
    rest = sys.argv[4:]
    if rest[:1] == ["--real"]:
        rest = rest[1:]
        if smollm2() is None:
            print("skipped: run scripts/get_model.sh smollm2, or set INFINIGEN_SMOLLM2")
            sys.exit(77)
        del Golden, Refusals, Quantize, Damaged
    else:
        del RealModel, RealDamaged
    if rest[:1] == ["--mutations"]:
        MUTATIONS, rest = int(rest[1]), rest[2:]
    if rest[:1] == ["--seed"]:
        SEED, rest = int(rest[1]), rest[2:]
    unittest.main(argv=[sys.argv[0], *rest])
