"""A running `infinigen serve` for tests: started on a free port, asked, stopped."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

import wire

SLOW = 1  # how much longer a sanitizer may take


class Server:
    def __init__(self, binary, *arguments, wait=True):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("INFINIGEN_")}
        self.process = subprocess.Popen([binary, "serve", "--port", "0", "-t", "2", *map(str, arguments)],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True)
        line = self.process.stdout.readline()
        found = re.match(r"listening on (https?)://(.*):(\d+)$", line)
        if not found:
            raise RuntimeError(f"no port: {line!r} {self.process.stderr.read()}")
        self.port = int(found[3])
        self.log = []
        self.reader = threading.Thread(target=self.read_log, daemon=True)
        self.reader.start()
        if wait:
            self.await_ready()

    def read_log(self):
        for line in self.process.stderr:
            self.log.append(line)

    def await_log(self, text, seconds=5):
        deadline = time.monotonic() + seconds * SLOW
        while not any(text in line for line in self.log):
            if time.monotonic() > deadline:
                raise AssertionError(f"no line of the log has {text!r}: {self.log[-5:]}")
            time.sleep(0.02)

    def await_ready(self):
        deadline = time.monotonic() + 60 * SLOW
        while self.get("/health").status != 200:
            if time.monotonic() > deadline:
                raise RuntimeError("not ready")
            time.sleep(0.05)

    def wire(self, timeout=60):
        return wire.Wire(self.port, timeout * SLOW)

    def socket(self, timeout=20):
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout * SLOW)

    def ask(self, method, path, body=None, headers=None, timeout=60):
        return wire.ask(self.port, method, path, body, timeout=timeout * SLOW, headers=headers or {})

    def get(self, path, headers=None):
        return self.ask("GET", path, None, headers)

    def post(self, path, body, headers=None, timeout=60):
        return self.ask("POST", path, body, headers, timeout)

    def stream(self, path, body, headers=None):
        """The events of a stream as objects, and whether it ended with [DONE]."""
        reply = self.post(path, {**body, "stream": True}, headers)
        if reply.status != 200:
            raise AssertionError(f"{reply.status} {reply.body}")
        if reply.headers["Content-Type"] != "text/event-stream":
            raise AssertionError(reply.headers["Content-Type"])
        data = [event.decode() for event in wire.events_of([reply.body])]
        done = data[-1] == "[DONE]"
        return [json.loads(text) for text in (data[:-1] if done else data)], done

    def raw(self, data, seconds=5):
        """Bytes to the port, and all that comes back until it is closed or silent."""
        with self.socket() as connection:
            connection.sendall(data)
            connection.settimeout(seconds * SLOW)
            answer = b""
            try:
                while chunk := connection.recv(65536):
                    answer += chunk
            except (TimeoutError, ConnectionResetError):
                pass
            return answer

    def metric(self, name, headers=None):
        for line in self.get("/metrics", headers).body.decode().splitlines():
            if line.startswith(f"infinigen_{name} "):
                return float(line.split()[-1])
        raise AssertionError(f"no metric {name}")

    def replies(self):
        """How many were counted, of every status."""
        lines = self.get("/metrics").body.decode().splitlines()
        return sum(int(line.split()[-1]) for line in lines if line.startswith("infinigen_http_replies_total{"))

    def await_metric(self, name, value, seconds=10):
        deadline = time.monotonic() + seconds * SLOW
        while (now := self.metric(name)) != value:
            if time.monotonic() > deadline:
                raise AssertionError(f"{name} is {now}, not {value}")
            time.sleep(0.02)

    def memory(self, what="VmRSS"):
        """Of the process, in MiB; VmHWM is its peak."""
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(what)) / 1024

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, seconds=30):
        code = self.process.wait(seconds * SLOW)
        self.reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return code

    def stop(self):
        if self.process.poll() is None:
            self.signal()
        return self.wait()


def text_of(events, index=0):
    """What a stream said for one choice."""
    parts = []
    for event in events:
        for choice in event.get("choices", []):
            if choice["index"] == index:
                parts.append(choice["text"] if "text" in choice else choice["delta"].get("content") or "")
    return "".join(parts)
