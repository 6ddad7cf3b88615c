#!/usr/bin/env python3
"""What once harmed a server, tried again: prints a table of each trigger with the figure now. docs/serving-safety.md has the
figures before. Not a test (those are in network_test.py and beside it), but the way to see the figures.

usage: triggers.py INFINIGEN [WORD…]     those whose name has one of the words
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
from wire import Wire, request

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
            wire.sendall(request("POST", TEXT, {"prompt": "b", "max_tokens": 2000, "ignore_eos": True, "stream": True}))
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


def markers(server):
    """A chat of `<`, of which any may begin a special token."""
    start = time.monotonic()
    reply = server.post(CHAT, {"messages": [{"role": "user", "content": "<" * ((8 << 20) - 200)}], "max_tokens": 1})
    return f"{(time.monotonic() - start) * 1e3:.0f} ms, {reply.status}"


def heads(binary):
    """2,000 connections with heads of 16 KiB: as many fields as fit, and one long field."""
    figures = []
    for fields in (b"a:\r\n" * 4000, b"Authorization: " + b"k" * 20000):
        server = Server(binary, "--quiet")
        try:
            before = server.memory("RssAnon")
            start = b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n"
            wires = [server.socket() for _ in range(2000)]
            for wire in wires:
                try:
                    wire.sendall((start + fields)[:16380 - 16380 % 4] + b"\r\n\r\n")
                except OSError:
                    pass
            time.sleep(2)
            peak, counted = server.memory("RssAnon") - before, server.metric("http_memory_bytes") / 2**20
            for wire in wires:
                wire.close()
            time.sleep(2)
            figures.append(f"+{peak:.0f} MiB ({counted:.0f} counted), kept {server.memory('RssAnon') - before:+.0f} MiB")
        finally:
            server.stop()
    return "; ".join(figures)


def refusals(server):
    """The status of requests that were answered wrongly."""
    raw = {"OPTIONS without Origin": b"OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
           "Host: localhost:1@evil": b"GET /props HTTP/1.1\r\nHost: localhost:1@evil\r\nConnection: close\r\n\r\n",
           "HTTP/2.0": b"GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n",
           "gzip": b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
           "two lengths": b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}"}
    seen = {name: server.raw(data, 3).split()[1].decode() for name, data in raw.items()}
    seen["1e400"] = server.post(TEXT, b'{"prompt":"a","temperature":1e400}').status
    return ", ".join(f"{name}: {status}" for name, status in seen.items())


def watched(binary):
    """What a second key sees at /kv while the first one's request runs."""
    server = Server(binary, "--api-key", "one", "--api-key", "two", "--quiet")
    try:
        body = {"prompt": "a", "max_tokens": 3000, "ignore_eos": True, "stream": True}
        with server.socket() as wire, server.socket() as watcher:
            wire.sendall(request("POST", TEXT, body, "one"))
            wire.recv(65536)
            watcher.sendall(b"GET /kv HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer two\r\n\r\n")
            watcher.settimeout(2)
            seen = b""
            try:
                while b'"request"' not in seen:
                    seen += watcher.recv(65536)
            except TimeoutError:
                pass
        return "requests of another key: " + ("shown" if b'"request"' in seen else "not shown")
    finally:
        server.stop()


def connections(binary):
    """One key opens as many connections as it can."""
    server = Server(binary, "--api-key", "one", "--api-key", "two", "--quiet")
    wires, got = [], {}
    try:
        for _ in range(1200):
            wires.append(server.socket())
            wires[-1].sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer one\r\n\r\n")
            status = wires[-1].recv(65536).split()[1].decode()
            got[status] = got.get(status, 0) + 1
        return f"{got}; the other key gets {server.get('/v1/models', {'Authorization': 'Bearer two'}).status}"
    finally:
        for wire in wires:
            wire.close()
        server.stop()


def flood(binary):
    """Requests of one key, alone and while 40 clients of another keep the batch full."""
    server = Server(binary, "--api-key", "one", "--api-key", "two", "--quiet")
    stop = threading.Event()

    def median():
        times = []
        for _ in range(9):
            start = time.monotonic()
            server.post(TEXT, {"prompt": "The old house", "max_tokens": 32, "ignore_eos": True, "temperature": 0},
                        {"Authorization": "Bearer two"})
            times.append(time.monotonic() - start)
        return sorted(times)[4]

    def ask():
        while not stop.is_set():
            server.post(TEXT, {"prompt": "flood ", "max_tokens": 300, "ignore_eos": True}, {"Authorization": "Bearer one"}, timeout=120)

    try:
        alone = median()
        threads = [threading.Thread(target=ask) for _ in range(40)]
        for thread in threads:
            thread.start()
        time.sleep(4)
        beside = median()
        stop.set()
        for thread in threads:
            thread.join()
        return f"{alone * 1e3:.0f} ms alone, {beside * 1e3:.0f} ms beside the flood"
    finally:
        server.stop()


def slow_readers(binary):
    """The 99th percentile of the time between two tokens of three streams, beside four streams that are read at once, and beside the
    same four read at 1 KB a second and 200 connections whose header arrives byte by byte. Five rounds of each in turn."""
    server = Server(binary, "-t", "1", "--quiet")  # the other core is for the readers
    gaps = {False: [], True: []}

    def measured(slow):
        with server.wire() as wire:
            wire.send(request("POST", TEXT, {"prompt": "a", "max_tokens": 150, "ignore_eos": True, "stream": True}))
            wire.head()
            last = None
            for _ in wire.events():
                now = time.monotonic()
                gaps[slow] += [now - last] if last else []
                last = now

    def beside(slow, over):
        with Wire(server.port, 60, 4096 if slow else 0) as wire:
            wire.send(request("POST", TEXT, {"prompt": "b", "max_tokens": 400, "ignore_eos": True, "stream": True}))
            try:
                while not over.is_set():
                    if not wire.socket.recv(512 if slow else 65536):
                        return
                    if slow:
                        over.wait(0.5)
            except OSError:
                pass

    def round_of(slow):
        over = threading.Event()
        others = [threading.Thread(target=beside, args=(slow, over)) for _ in range(4)]
        drips = [server.socket() for _ in range(200)] if slow else []
        for drip in drips:
            drip.sendall(b"GET /health HTTP/1.1\r\n")
        for thread in others:
            thread.start()
        time.sleep(0.3)
        threads = [threading.Thread(target=measured, args=(slow,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            for drip in drips[:20]:
                try:
                    drip.sendall(b"x")
                except OSError:
                    pass
            time.sleep(0.1)
        over.set()
        for thread in others:
            thread.join()
        for drip in drips:
            drip.close()

    try:
        for i in range(10):
            round_of(i % 2 == 1)
        fast, slow = (sorted(gaps[kind])[int(len(gaps[kind]) * 0.99)] * 1e3 for kind in (False, True))
        return f"p99 between tokens {fast:.1f} ms beside quick readers, {slow:.1f} ms beside slow ones ({slow / fast - 1:+.1%})"
    finally:
        server.stop()


def raw_bytes(binary):
    """A byte that is no UTF-8 and an escape in a config.json."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "wb") as file:
            file.write(b'{"model_type": "\xff\x1b[31m')
        run = subprocess.run([binary, "inspect", "-m", folder], capture_output=True, check=False)
        raw = any(byte >= 0x80 or (byte < 32 and byte != 10) for byte in run.stderr)
        return f"exit {run.returncode}, raw bytes on stderr: {'yes' if raw else 'no'}"


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
            ("a second key sends the same prompt", lambda: tenants(binary)), ("a chat of 8 MiB of <", lambda: markers(server)),
            ("2,000 heads of 4,000 fields; of one long field", lambda: heads(binary)),
            ("requests that were answered wrongly", lambda: refusals(server)), ("a second key watches /kv", lambda: watched(binary)),
            ("40 clients of another key", lambda: flood(binary)), ("1,200 connections of one key", lambda: connections(binary)),
            ("foreign bytes in messages", lambda: raw_bytes(binary)),
            ("slow readers beside streams", lambda: slow_readers(binary))]
    chosen = sys.argv[2:]
    for name, figure in rows:
        if chosen and not any(word in name for word in chosen):
            continue
        print(f"{name:<48} {figure()}", flush=True)
    return server.stop()


if __name__ == "__main__":
    sys.exit(main())
