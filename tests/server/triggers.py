#!/usr/bin/env python3
"""What once harmed a server, tried again: prints a table of each trigger with the figure now. docs/serving-safety.md has the
figures before. Not a test (those are in network_test.py and beside it), but the way to see the figures.

usage: triggers.py INFINIGEN
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

from served import Server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def private_use(server):
    def seconds(size):
        text = "".join(chr(0xE000 + i % 6400) for i in range(size // 3))
        start = time.monotonic()
        reply = server.post(CHAT, {"messages": [{"role": "user", "content": text}], "max_tokens": 1})
        return time.monotonic() - start, reply.status
    return "; ".join("{:.0f} ms, {}".format(t * 1e3, status) for t, status in (seconds(16 << 10), seconds(1 << 20)))


def read_ahead(server):
    before, wires = server.memory("RssAnon"), []
    big = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n" + b" " * 7_900_000
    for _ in range(36):
        wire = server.socket()
        wire.settimeout(0.5)
        wires.append(wire)
        try:
            wire.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000 + big)
        except OSError:
            pass
    peak = server.memory("RssAnon") - before
    for wire in wires:
        wire.close()
    server.await_metric("http_connections", 1)
    time.sleep(1)
    return f"{peak:.0f} MiB with 36 connections, {server.memory('RssAnon') - before:.0f} MiB after they left"


def large(binary, path, body):
    server = Server(binary, "--quiet")  # of its own: a peak is that of a process
    try:
        before = server.memory()
        reply = server.post(path, body)
        time.sleep(1)
        return f"{reply.status}, peak {server.memory('VmHWM') - before:+.0f} MiB, kept {server.memory() - before:+.0f} MiB"
    finally:
        server.stop()


def logprobs(server):
    """The longest gap of a stream while a long answer with logprobs beside it is made."""
    done = threading.Event()

    def ask():
        server.post(TEXT, {"prompt": "a", "max_tokens": 3000, "ignore_eos": True, "logprobs": 20}, timeout=300)
        done.set()

    threading.Thread(target=ask).start()
    gap, last = 0, None
    while not done.is_set():
        with server.socket(60) as wire:
            body = json.dumps({"prompt": "b", "max_tokens": 2000, "ignore_eos": True, "stream": True}).encode()
            wire.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (TEXT.encode(), len(body)) + body)
            last = None
            data = b""
            while not done.is_set() and b"[DONE]" not in data and (data := wire.recv(65536)):
                now = time.monotonic()
                gap, last = max(gap, now - (last or now)), now
    return f"longest gap {gap * 1e3:.0f} ms"


def full_pipe(binary):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("INFINIGEN_")}
    with subprocess.Popen([binary, "serve", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        port = int(process.stdout.readline().decode().rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port), timeout=30) as wire:
            answers = 0
            for _ in range(30):
                wire.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
                text = b""
                while text.count(b"HTTP/1.1 ") < 100 or not text.endswith(b"}"):
                    text += wire.recv(65536)
                answers += 100
        process.terminate()
        return f"{answers} answers with the pipe unread, then exit {process.wait(30)}"


def shrunk(binary):
    with tempfile.TemporaryDirectory() as folder:
        shipped = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/infinigen-mini")
        shutil.copytree(shipped, folder, dirs_exist_ok=True)
        server = Server(binary, "-m", folder, "--quiet")
        os.truncate(os.path.join(folder, "model-00001-of-00003.safetensors"), 4096)
        try:
            server.post(TEXT, {"prompt": "a", "max_tokens": 8})
        except OSError:
            pass
        code = server.wait()
        return f"exit {code}, {'the file is named' if any('safetensors' in line for line in server.log) else 'no message'}"


def tenants(binary):
    server = Server(binary, "--api-key", "one", "--api-key", "two", "--quiet")
    try:
        body = {"prompt": "The lamp in the hall was lit. " * 100, "max_tokens": 1}
        seen = [server.post(TEXT, body, {"Authorization": f"Bearer {key}"}).json["usage"]["prompt_tokens_details"]["cached_tokens"]
                for key in ("one", "one", "two")]
        return f"cached tokens: the same key {seen[1]}, another {seen[2]}"
    finally:
        server.stop()


def main():
    binary = sys.argv[1]
    server = Server(binary, "--quiet")
    rows = [("chat of private-use characters, 16 KiB; 1 MiB", lambda: private_use(server)),
            ("pipelined requests, unread, and a large body", lambda: read_ahead(server)),
            ("logprobs of 3,000 tokens beside a stream", lambda: logprobs(server)),
            ("8 MiB of nested JSON", lambda: large(binary, TEXT, b'{"prompt":"a","x":[' + b"[]," * 2_700_000 + b"[]]}")),
            ("8 MiB of spaces to /tokenize", lambda: large(binary, "/tokenize", {"content": " " * 8_000_000})),
            ("/detokenize of 4.2 M ids", lambda: large(binary, "/detokenize", b'{"tokens":[' + b"9," * 4_190_000 + b"9]}")),
            ("stderr is a full pipe", lambda: full_pipe(binary)), ("a model file is truncated", lambda: shrunk(binary)),
            ("a second key sends the same prompt", lambda: tenants(binary))]
    for name, figure in rows:
        print(f"{name:<48} {figure()}", flush=True)
    return server.stop()


if __name__ == "__main__":
    sys.exit(main())
