#!/usr/bin/env python3
"""Models by name, as a user meets them: hf: names against a local hub (hub_server.py) that cuts, stalls, lies and refuses.

usage: hub_test.py INFINIGEN LIBRARY GOLDEN_MODELS MINI MAKE_GGUF [unittest arguments]. Standard library only; tests of TLS also need the
program openssl. LIBRARY is libinfinigen.so, MINI the built-in model, MAKE_GGUF tools/make_gguf.py.
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from hub_server import Fault, Hub, commit_of, entry

BINARY, LIBRARY, MODELS, MINI = "", "", "", ""
gguf = None  # tools/make_gguf.py
TOKEN = "hf_secret"


def read(path):
    with open(path, "rb") as file:
        return file.read()


def files_of(directory):
    return {name: read(os.path.join(directory, name)) for name in os.listdir(directory)}


def blob_name(data):
    made = entry("", data)
    return made["lfs"]["sha256"] if "lfs" in made else made["blobId"]


class Case(unittest.TestCase):
    certificate = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.hub = Hub(self.certificate)
        self.addCleanup(self.hub.close)
        self.tiny = files_of(os.path.join(MODELS, "llama_gqa_tied"))
        self.hub.repositories["org/tiny"] = self.tiny
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("INFINIGEN_", "HF_", "SSL_"))}
        self.env = {**clean, "HF_ENDPOINT": self.hub.url, "HF_HOME": self.path("hf"), "INFINIGEN_CACHE": self.path("own"),
                    "HOME": self.path("home"), "XDG_CACHE_HOME": self.path("xdg")}

    def path(self, name):
        return os.path.join(self.folder, name)

    def repository(self, name="org/tiny", cache="own/hub"):
        return self.path(os.path.join(cache, "models--" + name.replace("/", "--")))

    def blob(self, data, name="org/tiny"):
        return os.path.join(self.repository(name), "blobs", blob_name(data))

    def run_program(self, *arguments, **env):
        return subprocess.run([BINARY, *arguments], capture_output=True, text=True, env={**self.env, **env},
                              stdin=subprocess.DEVNULL, timeout=60)

    def start_program(self, *arguments, **env):
        return subprocess.Popen([BINARY, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**self.env, **env}, stdin=subprocess.DEVNULL)

    def inspect(self, name="hf:org/tiny", **env):
        return self.run_program("inspect", "--json", "-m", name, **env)

    def assert_opens(self, name="hf:org/tiny", **env):
        run = self.inspect(name, **env)
        self.assertEqual(run.returncode, 0, run)
        return json.loads(run.stdout)

    def assert_refused(self, run, *parts):
        self.assertEqual(run.returncode, 1, run)
        lines = run.stderr.splitlines()
        # The notice that a download begins may come before the error.
        self.assertTrue(len(lines) == 1 or (len(lines) == 2 and lines[0].startswith("downloading ")), run)
        self.assertTrue(lines[-1].startswith("infinigen: "), run)
        self.assertEqual(run.stdout, "")
        for part in parts:
            self.assertIn(part, lines[-1])

    def await_size(self, path, size):
        deadline = time.monotonic() + 30
        while not os.path.exists(path) or os.path.getsize(path) < size:
            self.assertLess(time.monotonic(), deadline, path)
            time.sleep(0.01)

    def models(self, **env):
        return json.loads(self.run_program("models", "--json", **env).stdout)["models"]


class Download(Case):
    def test_cut_twice_then_the_text_of_the_directory(self):
        self.hub.repositories["InfiniGen/mini"] = mini = files_of(MINI)
        shards = [mini[f"model-0000{i}-of-00003.safetensors"] for i in (1, 2, 3)]
        self.hub.faults += [Fault("cdn/" + blob_name(shards[1]), cut=5_000_000), Fault("cdn/" + blob_name(shards[2]), cut=3_000_001)]
        text = ("generate", "-p", "Once upon a time", "-n", "24", "--temp", "0", "--kv", "full", "-m")
        downloaded = self.run_program(*text, "hf:InfiniGen/mini")
        self.assertEqual(downloaded.returncode, 0, downloaded)
        self.assertEqual(downloaded.stdout, self.run_program(*text, MINI).stdout)
        self.assertGreater(len(downloaded.stdout), 40)
        ranges = [head["Range"] for _, _, head in self.hub.requests if "Range" in head]
        # Each cut is continued: the hub and then the second host are asked for the rest.
        self.assertEqual(ranges, ["bytes=5000000-"] * 2 + ["bytes=3000001-"] * 2)
        self.assertEqual(len(self.hub.paths("/api/models/")), 1)
        self.assertFalse(self.hub.paths("README.md") + self.hub.paths("train_log") + self.hub.paths("skew"))
        self.assertFalse([name for name in os.listdir(self.repository("InfiniGen/mini") + "/blobs") if "incomplete" in name])
        # The configuration and the index, then small files: complete weights imply that all is there.
        asked = [path.rpartition("/")[2] for path in self.hub.paths("/resolve/")]
        self.assertEqual(asked[:2], ["config.json", "model.safetensors.index.json"])
        self.assertLess(asked.index("tokenizer.json"), asked.index("model-00001-of-00003.safetensors"))

        before = len(self.hub.requests)
        info = self.assert_opens("hf:InfiniGen/mini")
        self.assertEqual(info["name"], "mini")
        self.assertEqual(info["tokenizer"]["file"], "tokenizer.json")
        self.assert_opens("hf:InfiniGen/mini", HF_HUB_OFFLINE="1")
        self.assertEqual(len(self.hub.requests), before, "a complete model needs no connection")
        skews = [name for _, _, names in os.walk(self.repository("InfiniGen/mini")) for name in names if "skew" in name]
        self.assertFalse(skews)

    def test_a_model_that_is_not_supported_is_refused_before_its_weights(self):
        config = json.loads(self.tiny["config.json"])
        for change in ({"model_type": "mixtral"}, {"hidden_act": "relu"}):
            files = {**self.tiny, "config.json": json.dumps({**config, **change}).encode()}
            self.hub.repositories["org/other"] = files
            self.hub.requests.clear()
            run = self.inspect("hf:org/other")
            self.assert_refused(run, "config.json", *map(str, change.values()))
            self.assertEqual([path.rpartition("/")[2] for path in self.hub.paths("/resolve/")], ["config.json"], run)
        # With a configuration that is supported, the same repository is downloaded.
        self.hub.repositories["org/other"] = self.tiny
        self.assert_opens("hf:org/other")

    def test_killed_and_interrupted_processes_are_continued(self):
        weights = self.tiny["model.safetensors"]
        for signal_sent, code, begin, at in ((signal.SIGKILL, -signal.SIGKILL, 0, 70_000), (signal.SIGINT, 130, 70_000, 140_000)):
            self.hub.faults.append(Fault("cdn/", stall=at - begin))
            process = self.start_program("generate", "--prompt-ids", "1", "-n", "1", "-m", "hf:org/tiny")
            self.await_size(self.blob(weights) + ".incomplete", at)
            process.send_signal(signal_sent)
            _, errors = process.communicate(timeout=30)
            self.assertEqual(process.returncode, code, errors)
            self.assertEqual(read(self.blob(weights) + ".incomplete"), weights[:at])
            partial = [model for model in self.models() if not model["complete"]]
            self.assertEqual([(model["name"], model["cache"]) for model in partial], [("hf:org/tiny", "infinigen")])
        self.assertIn("partial", self.run_program("models").stdout)
        self.hub.requests.clear()
        self.assert_opens()
        self.assertEqual([head["Range"] for host, _, head in self.hub.requests if host == "cdn"], ["bytes=140000-"])
        self.assertEqual(read(self.blob(weights)), weights)
        self.assertTrue(all(model["complete"] for model in self.models()))

    def test_interrupted_while_bytes_come(self):
        weights = self.tiny["model.safetensors"]
        self.hub.faults.append(Fault("cdn/", stall=1000, drip=True))
        process = self.start_program("generate", "--prompt-ids", "1", "-n", "1", "-m", "hf:org/tiny")
        self.await_size(self.blob(weights) + ".incomplete", 1005)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130, errors)
        kept = read(self.blob(weights) + ".incomplete")
        self.assertEqual(kept, weights[:len(kept)])
        self.assert_opens()

    def test_two_processes_download_once(self):
        weights = self.tiny["model.safetensors"]
        self.hub.faults.append(Fault("cdn/", stall=100_000))
        first = self.start_program("inspect", "-m", "hf:org/tiny")
        self.await_size(self.blob(weights) + ".incomplete", 100_000)
        second = self.start_program("inspect", "-m", "hf:org/tiny")
        self.assertIn("downloading", second.stderr.readline())
        self.assertIn("another process downloads it", second.stderr.readline())
        self.hub.released.set()  # which ends the connection of the first
        for process in (first, second):
            output, errors = process.communicate(timeout=30)
            self.assertEqual(process.returncode, 0, errors)
            self.assertIn("llama", output)
        asked = [head.get("Range") for host, _, head in self.hub.requests if host == "cdn"]
        self.assertEqual(asked, [None, "bytes=100000-"])
        self.assertEqual(read(self.blob(weights)), weights)
        self.assertEqual(os.listdir(os.path.dirname(self.blob(weights))).count(blob_name(weights) + ".incomplete"), 0)

    def test_a_server_without_ranges_sends_all_again(self):
        self.hub.faults += [Fault("cdn/", cut=100_000), Fault("cdn/", ignore_range=True)]
        self.assert_opens()

    def test_trouble_that_passes_is_retried(self):
        busy = {"Retry-After": "0"}
        self.hub.faults += [Fault("/api/", times=2, status=503, headers=busy), Fault("config.json", status=429, headers=busy),
                            Fault("cdn/", times=3, status=502, headers=busy)]
        self.assert_opens()

    def test_a_stalled_connection_is_cut_and_continued(self):
        self.hub.faults.append(Fault("cdn/", stall=100_000))
        self.assert_opens(HF_HUB_DOWNLOAD_TIMEOUT="1")
        self.assertIn("bytes=100000-", [head.get("Range") for _, _, head in self.hub.requests])

    def test_a_damaged_beginning_is_read_again(self):
        weights = self.tiny["model.safetensors"]
        os.makedirs(os.path.dirname(self.blob(weights)))
        with open(self.blob(weights) + ".incomplete", "wb") as file:
            file.write(b"x" * 50_000)
        self.assert_opens()
        self.assertEqual(read(self.blob(weights)), weights)

    def test_a_new_commit_replaces_the_old_one_when_it_is_complete(self):
        self.assert_opens()
        old = commit_of(self.tiny)
        changed = {**self.tiny, "model.safetensors": self.tiny["model.safetensors"][:-4] + b"\0\0\0\0"}
        self.hub.repositories["org/tiny"] = changed
        self.hub.corrupt["model.safetensors"] = b"\0" * len(changed["model.safetensors"])
        ref = os.path.join(self.repository(), "refs/main")
        os.remove(os.path.join(self.repository(), "snapshots", old, "config.json"))  # so that the server is asked
        self.assert_refused(self.inspect(), "SHA-256")
        self.assertEqual(read(ref).decode(), old)
        self.hub.corrupt.clear()
        before = len(self.hub.paths("config.json"))
        self.assert_opens()
        self.assertEqual(read(ref).decode(), commit_of(changed))
        self.assertEqual(len(self.hub.paths("config.json")), before, "unchanged files are linked")
        self.assert_opens("hf:org/tiny@" + commit_of(changed))

    def test_listed_sizes_must_fit_on_the_disk(self):
        def huge(listing):
            for file in listing["siblings"]:
                if file["rfilename"] == "model.safetensors":
                    file["size"] = file["lfs"]["size"] = 1 << 49
            return listing
        self.hub.change_listing = huge
        self.assert_refused(self.inspect(), "512.0 TiB", "free", "INFINIGEN_CACHE")
        self.assertEqual([path.rpartition("/")[2] for path in self.hub.paths("/resolve/")], ["config.json"])

    def test_the_library_reports_and_cancels(self):
        code = """
import ctypes, sys
Said, Progress, Cancelled = (ctypes.CFUNCTYPE(*types) for types in ((None, ctypes.c_void_p, ctypes.c_char_p),
    (None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64), (ctypes.c_bool, ctypes.c_void_p)))
class Callbacks(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("context", ctypes.c_void_p), ("warning", Said), ("notice", Said), ("progress", Progress),
                ("cancelled", Cancelled)]
lib, model, seen = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p(), [(0, 0)]
for stop in (True, False):
    callbacks = Callbacks(ctypes.sizeof(Callbacks), None, Said(lambda c, t: print("warning", t)), Said(lambda c, t: print("notice", t.decode())),
                          Progress(lambda c, done, total: seen.append((done, total))), Cancelled(lambda c: stop))
    status = lib.infinigen_model_open_with_callbacks(b"hf:org/tiny", ctypes.byref(callbacks), ctypes.byref(model))
    print("status", status)
print("progress", *seen[-1], all(a[0] <= b[0] for a, b in zip(seen, seen[1:])))
"""
        run = subprocess.run([sys.executable, "-c", code, LIBRARY], capture_output=True, text=True, env=self.env)
        self.assertEqual(run.returncode, 0, run)
        total = sum(len(self.tiny[name]) for name in ("config.json", "generation_config.json", "model.safetensors"))
        self.assertRegex(run.stdout, f"^status [1-9]\\d*\nnotice downloading hf:org/tiny .*\nstatus 0\nprogress {total} {total} True\n$")

    def test_the_library_opens_names(self):
        code = ("import ctypes, sys; lib = ctypes.CDLL(sys.argv[1]); model = ctypes.c_void_p();"
                "status = lib.infinigen_model_open(sys.argv[2].encode(), ctypes.byref(model));"
                "lib.infinigen_last_error.restype = ctypes.c_char_p; print(status, lib.infinigen_last_error().decode())")
        for name, expected in (("hf:org/tiny", "0 \n"), ("hf:org/none", "HF_TOKEN")):
            run = subprocess.run([sys.executable, "-c", code, LIBRARY, name], capture_output=True, text=True, env=self.env, check=True)
            self.assertIn(expected, run.stdout)
        self.assertEqual(run.stderr, "")


class Refusals(Case):
    def test_each_status_says_what_to_do(self):
        now, later = {"Retry-After": "0"}, {"Retry-After": "3600"}
        for status, headers, parts in ((401, {}, ["HF_TOKEN", "check the name"]), (403, {}, ["accept the model's terms", "HF_TOKEN"]),
                                       (401, {"X-Error-Code": "GatedRepo"}, ["accept the model's terms"]),
                                       (404, {}, ["no such repository, revision or file"]), (429, now, ["too many requests", "wait"]),
                                       (429, later, ["too many requests"]), (503, now, ["try again later"]), (418, {}, ["answered 418"])):
            with self.subTest(status=status):
                self.hub.requests.clear()
                self.hub.faults = [Fault("/api/", times=99, status=status, headers=headers)]
                self.assert_refused(self.inspect(), f"org/tiny: {self.hub.url[7:]} answered {status}", *parts)
                self.assertEqual(len(self.hub.requests), 6 if headers == now else 1)
        self.hub.faults = []
        self.assert_refused(self.inspect("hf:org/none"), "org/none", "401")
        self.assert_refused(self.inspect("hf:org/tiny@v9"), "404")

    def test_redirects(self):
        self.hub.faults = [Fault("/api/", times=99, redirect="/api/models/org/tiny/revision/main?again")]
        self.assert_refused(self.inspect(), "more than 8 redirects")
        for target in ("ftp://127.0.0.1/x", "http://", "//", "http://user@127.0.0.1/", "http://127.0.0.1:99999/"):
            self.hub.faults = [Fault("/api/", redirect=target)]
            self.assert_refused(self.inspect(), "org/tiny")
        # A repository that was renamed.
        self.hub.faults = [Fault("/api/models/org/old", status=307, redirect="/api/models/org/tiny/revision/main"),
                           *(Fault("/org/old/resolve", status=307, redirect=f"/org/tiny/resolve/{commit_of(self.tiny)}/{name}")
                             for name in ("config.json", "generation_config.json", "model.safetensors"))]
        self.assert_opens("hf:org/old")

    def test_the_token_stays_with_its_host(self):
        self.assert_opens(HF_TOKEN=TOKEN)
        seen = {(host, head.get("Authorization")) for host, _, head in self.hub.requests}
        self.assertEqual(seen, {("hub", "Bearer " + TOKEN), ("cdn", None)})
        os.makedirs(self.path("hf"))
        with open(self.path("hf/token"), "w") as file:
            file.write("hf_of_file\n")
        self.hub.requests.clear()
        self.inspect("hf:org/none")
        self.assertEqual([head.get("Authorization") for _, _, head in self.hub.requests], ["Bearer hf_of_file"])
        self.assert_refused(self.inspect("hf:org/none", HF_TOKEN="two\r\nlines"), "HF_TOKEN")

    def test_contents_that_are_not_as_listed(self):
        weights = self.tiny["model.safetensors"]
        flipped = weights[:1000] + bytes([weights[1000] ^ 1]) + weights[1001:]
        for name, data, faults, part in (
                ("model.safetensors", flipped, [], "does not have the listed SHA-256"),
                ("model.safetensors", weights + b"x", [], "200000 bytes" if len(weights) == 199999 else "but lists"),
                ("model.safetensors", weights[:-1], [], "but lists"),
                ("model.safetensors", weights, [Fault("cdn/", chunked=b"x")], "more than the"),
                ("model.safetensors", weights, [Fault("/resolve/", times=9, headers={"X-Linked-Size": "5"})], "another file"),
                ("model.safetensors", weights, [Fault("cdn/", cut=9_000), Fault("cdn/", headers={"Content-Range": "bytes 0-8/9"})],
                 "asked for the bytes from 9000")):
            with self.subTest(part=part, bytes=len(data)):
                self.hub.corrupt, self.hub.faults = {name: data}, faults
                self.assert_refused(self.inspect(), "org/tiny: ", part)
                self.assertFalse(os.path.exists(self.blob(weights)))
                shutil.rmtree(self.repository())
        # Small files are checked by git's hash.
        self.hub.corrupt, self.hub.faults = {}, []
        config = self.tiny["config.json"]
        self.hub.change_listing = lambda listing: json.loads(json.dumps(listing).replace(blob_name(config), "0" * 40))
        self.assert_refused(self.inspect(), "org/tiny: config.json", "SHA-1")

    def test_listings_of_a_hostile_server(self):
        def named(path):
            return lambda listing: {**listing, "siblings": listing["siblings"] + [{**listing["siblings"][0], "rfilename": path}]}
        changes = [named(path) for path in ("../../escaped", "/etc/x", "a/../../b", "a//b", "a\\b", "a\0b", "", ".", "x" * 300, "new\nline")]
        changes += [lambda listing, body=body: body for body in (b"", b"<html>", b"[]", b"{}", b'"x"', b"[" * 10_000, b'{"siblings": 1}',
                                                               b'{"sha": "../x", "siblings": []}', b'{"siblings": [1]}')]
        changes += [lambda listing, sha=sha: {**listing, "sha": sha} for sha in ("../../../x", 5, None, "A" * 40)]
        for field, value in (("size", -1), ("size", 1.5), ("size", "9"), ("size", 1 << 60), ("blobId", "../x"), ("lfs", 7),
                             ("lfs", {"sha256": "../../x", "size": 3}), ("rfilename", 3)):
            changes.append(lambda listing, f=field, v=value: {**listing, "siblings": [{**listing["siblings"][0], "lfs": None, f: v}]})
        for change in changes:
            self.hub.change_listing = change
            self.assert_refused(self.inspect(), "org/tiny")
        self.assertFalse(os.path.exists(self.path("own")), "nothing was written")
        self.assertFalse(self.hub.paths("/resolve/"))

    def test_an_index_that_leads_out_of_the_directory(self):
        index = json.dumps({"weight_map": {"a": "../../../x.safetensors"}}).encode()
        self.hub.repositories["org/bad"] = {"config.json": self.tiny["config.json"], "model.safetensors.index.json": index}
        self.assert_refused(self.inspect("hf:org/bad"), "shard name", "is refused")
        index = json.dumps({"weight_map": {"a": "absent.safetensors"}}).encode()
        self.hub.repositories["org/bad"] = {"config.json": self.tiny["config.json"], "model.safetensors.index.json": index}
        self.assert_refused(self.inspect("hf:org/bad"), "no file 'absent.safetensors'")

    def test_names(self):
        for name in ("hf:", "hf:x", "hf:a/b/c", "hf:../b", "hf:a/..", "hf:a/b:../c", "hf:a/b:/c", "hf:a/b:", "hf:a/b@", "hf:a/b@../x",
                     "hf:a--b/c", "hf:a b/c", "hf:-a/b", "hf:a/b?x", "hf:a/%2e%2e"):
            self.assert_refused(self.inspect(name), "hf:ORG/NAME")
        self.assertFalse(self.hub.requests)
        self.assert_refused(self.inspect(HF_ENDPOINT="ftp://x"), "HF_ENDPOINT")
        self.assert_refused(self.inspect(HF_HUB_DOWNLOAD_TIMEOUT="soon"), "HF_HUB_DOWNLOAD_TIMEOUT")

    def test_a_server_that_is_not_there(self):
        self.hub.close()
        self.assert_refused(self.inspect(), "cannot connect")

    def test_offline_says_what_is_missing(self):
        run = self.inspect(HF_HUB_OFFLINE="1")
        self.assert_refused(run, "HF_HUB_OFFLINE", self.repository(cache="hf/hub"), self.repository(), "revision main is missing")
        self.assertFalse(self.hub.requests)


class Choices(Case):
    def setUp(self):
        super().setUp()
        metadata, tensors = gguf.convert(os.path.join(MODELS, "llama_gqa_tied"), "stored", False)
        gguf.write_model(self.path("m.gguf"), metadata, tensors, 1)
        gguf.write_model(self.path("m.gguf"), metadata, tensors, 3)
        self.whole = read(self.path("m.gguf"))
        self.parts = {f"big/m-Q8_0-0000{i}-of-00003.gguf": read(self.path(f"m-0000{i}-of-00003.gguf")) for i in (1, 2, 3)}
        self.hub.repositories["org/gguf"] = {"README.md": b"", "m-Q4_K_M.gguf": self.whole, "m-Q4_K_S.gguf": self.whole + b"\0" * 32,
                                             "mmproj-m-Q8_0.gguf": b"no model", **self.parts}

    def opened(self, name, **env):
        """Names of the files that were opened."""
        run = self.run_program("inspect", "--tensors", "-m", name, **env)
        self.assertEqual(run.returncode, 0, run)
        return sorted({os.path.basename(line) for line in run.stdout.splitlines() if line.startswith("/")})

    def test_quantisations_files_and_parts(self):
        split = [os.path.basename(path) for path in self.parts]
        for name, files in (("", ["m-Q4_K_M.gguf"]), (":q4_k_s", ["m-Q4_K_S.gguf"]), (":Q8_0", split), (":m-Q4_K_M.gguf", ["m-Q4_K_M.gguf"]),
                            (":big/m-Q8_0-00002-of-00003.gguf", split)):
            self.assertEqual(self.opened("hf:org/gguf" + name), files, name)
        names = [(model["name"], model["form"]) for model in self.models() if model["cache"] == "infinigen"]
        self.assertEqual(names, [("hf:org/gguf:Q4_K_M", "GGUF Q4_K_M"), ("hf:org/gguf:Q4_K_S", "GGUF Q4_K_S"), ("hf:org/gguf:Q8_0", "GGUF Q8_0")])
        for name, _ in names:
            self.opened(name, HF_HUB_OFFLINE="1")
        before = len(self.hub.requests)
        self.opened("hf:org/gguf:Q8_0")
        self.assertEqual(len(self.hub.requests), before)
        self.opened("hf:org/gguf")
        self.assertEqual(len(self.hub.requests), before + 1, "the server says which file is meant")

    def test_refusals_list_what_there_is(self):
        for name, parts in ((":Q2_K", ["no GGUF model", "m-Q4_K_M.gguf", "m-Q8_0-00001-of-00003.gguf"]), (":Q4", ["no GGUF model"]),
                            (":other.gguf", ["no GGUF model", "m-Q4_K_M.gguf"]), (":README.md", ["not a GGUF file"]),
                            (":m", ["several GGUF models", "m-Q4_K_M.gguf"])):
            self.assert_refused(self.inspect("hf:org/gguf" + name), "org/gguf: ", *parts)
        self.hub.repositories["org/gguf"] = {"a-Q5_0.gguf": self.whole, "b-Q6_K.gguf": self.whole}
        self.assert_refused(self.inspect("hf:org/gguf"), "a-Q5_0.gguf, b-Q6_K.gguf")
        self.hub.repositories["org/gguf"] = {"m-00001-of-00002.gguf": self.whole}
        self.assert_refused(self.inspect("hf:org/gguf"), "parts of the split model")
        self.hub.repositories["org/gguf"] = {"pytorch_model.bin": b"x", "config.json": b"{}"}
        self.assert_refused(self.inspect("hf:org/gguf"), "no model of a supported form", "pytorch_model.bin")

    def test_without_a_server_the_caches_decide(self):
        self.opened("hf:org/gguf:Q4_K_S")
        self.hub.close()
        run = self.inspect("hf:org/gguf")
        self.assertEqual(run.returncode, 0, run)
        self.assertIn("warning: org/gguf: ", run.stderr)
        self.assertIn("m-Q4_K_S.gguf", run.stderr)


class ForeignCache(Case):
    def fill(self, files, commit="1" * 40):
        """As other programs leave a repository in the hub's own cache."""
        repository = self.repository(cache="hf/hub")
        snapshot = os.path.join(repository, "snapshots", commit)
        for folder in ("refs", "blobs", f"snapshots/{commit}"):
            os.makedirs(os.path.join(repository, folder), exist_ok=True)
        with open(os.path.join(repository, "refs/main"), "w") as file:
            file.write(commit)
        for path, data in files.items():
            with open(os.path.join(repository, "blobs", blob_name(data)), "wb") as file:
                file.write(data)
            os.symlink(f"../../blobs/{blob_name(data)}", os.path.join(snapshot, path))
        return snapshot

    def test_a_model_of_the_hubs_cache_is_opened_in_place(self):
        mini = files_of(MINI)
        names = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json")
        kept = {path: data for path, data in mini.items() if path in names or path.startswith("model-")}
        snapshot = self.fill(kept)
        self.assertEqual(self.assert_opens()["name"], "tiny")
        self.assertFalse(self.hub.requests)
        found = [model for model in self.models() if model["cache"] == "hub"]
        self.assertEqual([(model["name"], model["form"], model["path"], model["bytes"]) for model in found],
                         [("hf:org/tiny", "safetensors", snapshot, sum(map(len, kept.values())))])
        os.remove(os.path.join(snapshot, "model-00002-of-00003.safetensors"))
        self.assert_refused(self.inspect(HF_HUB_OFFLINE="1"), "'model-00002-of-00003.safetensors' is missing")
        self.assertFalse([model for model in self.models() if model["cache"] == "hub"])

    def test_a_skew_goes_to_our_cache(self):
        snapshot = self.fill(self.tiny)
        run = self.run_program("calibrate", "-m", "hf:org/tiny", HF_HUB_OFFLINE="1")
        self.assertEqual(run.returncode, 0, run)
        self.assertEqual(sorted(os.listdir(snapshot)), sorted(self.tiny), "nothing is written into the hub's cache")
        self.assertEqual([name.rpartition(".")[2] for name in os.listdir(self.path("own"))], ["skew"])

    def test_blobs_of_the_hubs_cache_are_linked(self):
        self.fill({"model.safetensors": self.tiny["model.safetensors"]}, commit_of(self.tiny))
        self.assert_opens()
        self.assertFalse(self.hub.paths("model.safetensors"))
        self.assertTrue(self.hub.paths("config.json"))

    def test_nothing_there_says_how_to_get_one(self):
        run = self.run_program("models")
        self.assertEqual(run.returncode, 0)
        self.assertIn("infinigen chat -m hf:", run.stdout)
        self.assertIn(self.path("own/hub"), run.stdout)
        self.assertEqual([model["cache"] for model in self.models()], ["built-in"])


@unittest.skipUnless(shutil.which("openssl"), "the program openssl is not installed")
class Tls(Case):
    @classmethod
    def setUpClass(cls):
        cls.keys = tempfile.TemporaryDirectory()
        for name, alternative in (("right", "IP:127.0.0.1"), ("wrong", "DNS:example.org")):
            path = os.path.join(cls.keys.name, name)
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1", "-subj",
                            "/CN=test", "-addext", f"subjectAltName={alternative}", "-keyout", path + ".key", "-out", path + ".pem"],
                           capture_output=True, check=True)
        cls.certificate = [os.path.join(cls.keys.name, "right" + end) for end in (".pem", ".key")]

    @classmethod
    def tearDownClass(cls):
        cls.keys.cleanup()

    def test_certificates(self):
        self.assert_refused(self.inspect(), "certificate is not trusted", "SSL_CERT_FILE")
        self.assertFalse(self.hub.requests)
        self.assert_opens(SSL_CERT_FILE=self.certificate[0])
        self.assertIn("cdn", [host for host, _, _ in self.hub.requests])
        wrong = [os.path.join(self.keys.name, "wrong" + end) for end in (".pem", ".key")]
        other = Hub(wrong)
        self.addCleanup(other.close)
        self.assert_refused(self.inspect("hf:org/none", HF_ENDPOINT=other.url, SSL_CERT_FILE=wrong[0]), "certificate is not trusted", "mismatch")
        self.assertFalse(other.requests)

    def test_no_step_from_https_to_http(self):
        plain = Hub()
        self.addCleanup(plain.close)
        self.hub.faults = [Fault("/api/", redirect=plain.url + "/api/models/org/tiny/revision/main")]
        self.assert_refused(self.inspect(SSL_CERT_FILE=self.certificate[0], HF_TOKEN=TOKEN), "from https to http")
        self.assertFalse(plain.requests)


def main():
    global BINARY, LIBRARY, MODELS, MINI, gguf
    BINARY, LIBRARY, MODELS, MINI = (os.path.abspath(path) for path in sys.argv[1:5])
    spec = importlib.util.spec_from_file_location("make_gguf", sys.argv[5])
    gguf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gguf)
    unittest.main(argv=[sys.argv[0], *sys.argv[6:]])


if __name__ == "__main__":
    main()
