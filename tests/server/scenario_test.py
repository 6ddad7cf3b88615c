#!/usr/bin/env python3
"""Scenarios of docs/reliability.md that no other test has: numbers at their limits, broken text, regression files of loaders,
paths that lead elsewhere, leaving by the hundred, SIGTERM under mixed load. Standard library only.

usage: scenario_test.py INFINIGEN [unittest arguments]
"""

import json
import os
import resource
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

import served
from served import Server, text_of
from wire import request

BINARY = ""
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SHIPPED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/infinigen-mini")


class Requests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(BINARY, "-c", 512, "--batch", 4, "--queue", 8, "--quiet")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def golden(self):
        reply = self.server.post(TEXT, {"prompt": "The old house", "max_tokens": 8, "temperature": 0})
        self.assertEqual(reply.status, 200, reply.body)
        return reply.json["choices"][0]["text"]

    def test_prompts_around_the_context(self):
        """n_ctx - 1, n_ctx, n_ctx + 1 and ten times as many tokens. A prompt that fills the context gets one token."""
        token = self.server.post("/tokenize", {"content": " house"}).json["tokens"][-1]
        for count, status in ((510, 200), (511, 200), (512, 200), (513, 400), (5120, 400)):
            reply = self.server.post(TEXT, {"prompt": [token] * count, "max_tokens": 1, "temperature": 0})
            self.assertEqual(reply.status, status, (count, reply.body[:200]))
            if status == 400:
                self.assertEqual(reply.error["code"], "context_length_exceeded")
                self.assertIn("512", reply.error["message"])

    def test_no_memory_in_proportion_to_what_is_refused(self):
        """Prompts of 10, 100 and 1,000 contexts, and a body of 64 MiB: memory grows by the body and its parsed form at most, and is
        given back; the large body is refused by its length, before it is read."""
        token = self.server.post("/tokenize", {"content": " house"}).json["tokens"][-1]
        before = self.server.memory("RssAnon")
        for contexts in (10, 100, 1000):
            body = json.dumps({"prompt": [token] * (512 * contexts), "max_tokens": 1}).encode()
            reply = self.server.post(TEXT, body)
            self.assertEqual((reply.status, reply.error["code"]), (400, "context_length_exceeded"))
            allowed = 24 + 48 * len(body) / 2**20  # MiB; a number of 4 bytes is a value of 16, twice while the list grows
            self.assertLess(self.server.memory("VmHWM") - before, allowed + self.server.memory("RssFile"), contexts)
        answer = self.server.raw(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (TEXT.encode(), 64 << 20))
        self.assertRegex(answer, rb"^HTTP/1\.1 413 ")
        self.assertLess(self.server.memory("RssAnon"), before + 32)

    def test_integers_at_their_limits(self):
        before, known = self.server.memory(), self.golden()
        numbers = (-1, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -2**63, 10**30)
        for field in ("max_tokens", "n", "seed", "top_k", "logprobs", "best_of"):
            for number in numbers:
                body = {"prompt": "a", "max_tokens": 1, "temperature": 0, field: number}
                reply = self.server.post(TEXT, {**body, "logit_bias": {"5": 100}} if field == "max_tokens" else body)
                self.assertIn(reply.status, (200, 400), (field, number, reply.body))
                if reply.status == 400:
                    self.assertIn(field, reply.error["message"] + str(reply.error["param"]), reply.body)
        for body in (b'{"prompt":[%d]}' % 2**31, b'{"prompt":[-1]}', b'{"prompt":[1e999]}', b'{"prompt":[1.5]}'):
            self.assertEqual(self.server.post(TEXT, body).status, 400, body)
        self.assertEqual(self.golden(), known)
        self.assertLess(self.server.memory(), before + 32, "MiB: nothing is allocated in proportion to a number")

    def test_broken_text(self):
        """Malformed UTF-8 and lone surrogates are refused; a zero character and split characters are text. Stream = whole."""
        for body in (b'{"prompt":"\xff"}', b'{"prompt":"\xc3"}', b'{"prompt":"\xed\xa0\x80"}', b'{"prompt":"\\ud800"}',
                     b'{"prompt":"\\udc00x"}', b'{"prompt":"a\x00b"}', b'{"prompt":"\xf4\x90\x80\x80"}'):
            self.assertEqual(self.server.post(TEXT, body).status, 400, body)
        half = self.server.post("/tokenize", {"content": "🙂"}).json["tokens"]
        for prompt in ("a\0b", "🙂é", half[:-1] if len(half) > 1 else half, "\ufffd\u202e"):
            body = {"prompt": prompt, "max_tokens": 24, "temperature": 1.4, "seed": 3, "echo": True}
            whole = self.server.post(TEXT, body)
            self.assertEqual(whole.status, 200, whole.body)
            events, done = self.server.stream(TEXT, body)
            self.assertTrue(done)
            self.assertEqual(text_of(events), whole.json["choices"][0]["text"])

    def test_paths_that_lead_elsewhere(self):
        for path in ("/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/..\\..\\etc\\passwd", "/app.js/../../x",
                     "/%00", "/v1/models/../../etc/passwd", "/v1/models/..%2f..%2fetc%2fpasswd", "/etc/passwd"):
            answer = self.server.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            self.assertRegex(answer, rb"^HTTP/1\.1 40[04] ", path)
            self.assertNotIn(b"root:", answer)
        reply = self.server.post(TEXT, {"prompt": "a", "max_tokens": 1, "model": "../../../etc/passwd"})
        self.assertEqual(reply.status, 200)  # a name, never a path
        self.assertNotIn(b"root:", reply.body)

    def test_leaving_by_the_hundred(self):
        known = self.golden()
        for i in range(300):
            connection = self.server.socket()
            connection.sendall(request("POST", TEXT, {"prompt": "The lamp was lit. " * (60 if i % 3 == 0 else 1), "max_tokens": 400,
                                                      "stream": True, "ignore_eos": True}))
            if i % 3 == 1:
                connection.recv(100)
            if i % 2:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            self.server.await_metric(name, 0)
        self.assertEqual(self.golden(), known)


class Template(unittest.TestCase):
    def test_a_hostile_template_does_not_stop_others(self):
        """A template that computes until its limit: chats are refused, and once it is known to be slow they are rendered beside the
        threads that serve other clients."""
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir(SHIPPED):
                os.symlink(os.path.abspath(os.path.join(SHIPPED, name)), os.path.join(folder, name))
            path = os.path.join(folder, "chat_template.jinja")
            if os.path.lexists(path):
                os.remove(path)
            with open(path, "w", encoding="ascii") as file:
                file.write("{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}")
            server = Server(BINARY, "-m", folder, "--quiet")
            chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
            try:
                first = server.post(CHAT, chat)
                self.assertEqual(first.status, 400, first.body)
                self.assertIn("too many steps", first.error["message"])
                before = server.memory("RssAnon")
                wires = [server.wire() for _ in range(8)]
                for wire in wires:
                    wire.send(request("POST", CHAT, chat))
                self.assertEqual(server.get("/health").status, 200)
                answered, _, _ = select.select([wire.socket for wire in wires], [], [], 0)
                self.assertLessEqual(len(answered), 4, "/health was answered while chats were rendered")
                for wire in wires:
                    self.assertEqual(wire.reply().status, 400)
                    wire.close()
                self.assertLess(server.memory("RssAnon"), before + 64)
            finally:
                self.assertEqual(server.stop(), 0)


class Ending(unittest.TestCase):
    def test_under_mixed_load(self):
        """Streams, whole answers, an idle and a dripping connection, a watcher: what was begun ends whole, the code is 0."""
        server = Server(BINARY, "--batch", 4, "--quiet")
        body = {"prompt": "The old house", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
        known = server.post(TEXT, body).json["choices"][0]["text"]
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(text_of(server.stream(TEXT, body)[0]))) for _ in range(4)]
        threads += [threading.Thread(target=lambda: answers.append(server.post(TEXT, body).json["choices"][0]["text"]))
                    for _ in range(4)]
        others = [server.socket() for _ in range(3)]
        others[1].sendall(b"GET /hea")
        others[2].sendall(b"GET /kv HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for thread in threads:
            thread.start()
        server.await_metric("num_requests_running", 4)
        server.await_metric("num_requests_waiting", 4)
        server.signal()
        for thread in threads:
            thread.join()
        self.assertEqual(server.wait(), 0)
        self.assertEqual(answers, [known] * 8)
        for connection in others:
            connection.close()


class Files(unittest.TestCase):
    """Files that once broke loaders: one line with the file's name, exit code 1."""

    def fails(self, folder, *words):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run = subprocess.run([BINARY, "generate", "-m", folder, "-p", "a", "-n", "1"], capture_output=True, text=True, timeout=60,
                             check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.assertLess(seconds, 1 * served.SLOW, "of CPU time, which other processes do not change")
        self.assertEqual((run.returncode, run.stdout, run.stderr.count("\n")), (1, "", 1), run)
        for word in words:
            self.assertIn(word, run.stderr)

    def model(self, changed):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for name in os.listdir(SHIPPED):
            if name != changed:
                os.symlink(os.path.abspath(os.path.join(SHIPPED, name)), os.path.join(folder.name, name))
        if os.path.exists(os.path.join(SHIPPED, changed)):
            shutil.copy(os.path.join(SHIPPED, changed), folder.name)
        return folder.name, os.path.join(folder.name, changed)

    def test_safetensors(self):
        name = "model-00001-of-00003.safetensors"
        folder, path = self.model(name)
        with open(path, "rb") as file:
            data = file.read()
        length, = struct.unpack("<Q", data[:8])
        header = json.loads(data[8:8 + length])
        tensor = next(key for key in header if key != "__metadata__")
        for change in ({"shape": [2**42 + 1, 2**42 + 1]}, {"shape": [-1, 2]}, {"data_offsets": [0, 2**63]},
                       {"data_offsets": [8, 0]}, {"dtype": "F128"}, {"shape": "big"}):
            text = json.dumps({**header, tensor: {**header[tensor], **change}}).encode()
            with open(path, "wb") as file:
                file.write(struct.pack("<Q", len(text)) + text + data[8 + length:])
            self.fails(folder, name)

    def test_truncation_at_pages(self):
        name = "model-00003-of-00003.safetensors"
        folder, path = self.model(name)
        size = os.path.getsize(path)
        for cut in (size - 1, size - size % 4096, size // 2 // 4096 * 4096, 8192, 4096, 8, 7, 0):
            os.truncate(path, cut)
            self.fails(folder, name)

    def test_tokenizer(self):
        folder, path = self.model("tokenizer.json")
        with open(path, encoding="utf-8") as file:
            good = json.load(file)
        for change in ({"model": {**good["model"], "vocab": 5}}, {"model": {**good["model"], "merges": {"a": 1}}},
                       {"model": {**good["model"], "vocab": {"<0x-1>": -1}}}, {"added_tokens": [{"id": 2**40, "content": "x"}]}):
            with open(path, "w", encoding="utf-8") as file:
                json.dump({**good, **change}, file)
            self.fails(folder, "tokenizer.json")


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main()
