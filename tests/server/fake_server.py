#!/usr/bin/env python3
"""Stands in for `infinigen serve` where only the web page is looked at: the page's files under the real server's
Content-Security-Policy, and just enough of the API that every state of the page can be reached.

usage: fake_server.py [--port N] [--key KEY] [--pace SECONDS]

What the user writes decides the answer (ANSWERS below, and !busy, !long, !broken, !slow). Standard library only.
"""

import argparse
import http.server
import json
import math
import pathlib
import random
import threading
import time

WEB = pathlib.Path(__file__).resolve().parents[2] / "src" / "server" / "web"
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
CSP = ("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
       "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
LAYERS, CONTEXT, COLUMNS = 12, 8192, 256
POOL_LIMIT = 512 << 20

MARKDOWN = """Here is **bold**, *italic*, `code`, ~~gone~~ and a [link](https://example.org/a).

# A heading

1. first
2. second
   - inside
   - also inside
3. third

```python
def square(x):
    return x * x  # <b>not bold</b>
```

> A quote
> of two lines

| method | read |
|---|---:|
| full | 100 % |
| infinigen | 8 % |

The names snake_case_word and a_b_ stay, 2 * 3 * 4 too.
"""

HOSTILE = """<script>window.hacked = 1</script> <img src=x onerror="window.hacked = 2">

[one](javascript:window.hacked=3) [two](JaVaScRiPt:window.hacked=4) [three](\tjavascript:window.hacked=5)
[four](data:text/html,<script>window.hacked=6</script>) ![five](x" onerror="window.hacked=7)
[six](vbscript:x) <a href="javascript:window.hacked=8">seven</a> <javascript:window.hacked=9>
[good](https://example.org/ok)

```html
<script>window.hacked = 10</script>
</code></pre><script>window.hacked = 11</script>
```

| <img src=x onerror=window.hacked=12> | b |
|---|---|
| <svg onload=window.hacked=13> | d |

""" + "> " * 200 + "deep\n\n" + "- " * 200 + "deep\n\n" + "*" * 3000 + "[" * 3000 + "`" * 999 + " " + "_a " * 1000 + "end"

STORY = ("A little fox lived under the old bridge. Every evening it walked along the quiet harbour and counted the lanterns. "
         "One night there was one lantern more than the day before. ")

ODD = "Zoë – 狐 🦊 e\u0301 \u2028 data: [DONE] \\r \\n end"

ANSWERS = {"!odd": ODD, "!markdown": MARKDOWN, "!hostile": HOSTILE, "!slow": STORY * 40}


class State:
    """What the fake model is doing, for the picture."""

    def __init__(self):
        self.lock = threading.Lock()
        self.running = {}  # id -> {"rows", "kv", "needle"}
        self.looked = threading.Condition(self.lock)
        self.cancelled = 0
        self.lookers = 0  # open streams of pictures
        self.key = ""
        self.pace = 0.02
        self.requests = []  # bodies, newest last

    def begin(self, name, rows, kv, needle):
        with self.lock:
            self.running[name] = {"rows": rows, "kv": kv, "needle": needle, "step": 0}

    def step(self, name):
        with self.lock:
            self.running[name]["rows"] += 1
            self.running[name]["step"] += 1
            self.looked.notify_all()

    def end(self, name):
        with self.lock:
            self.running.pop(name, None)


def picture(name, request, running):
    """Sinks, a recent window, and what a few heads look for: like the real thing, but made up."""
    rows = request["rows"]
    columns = min(COLUMNS, rows)
    rng = random.Random(request["step"] // 3)
    layers = []
    for layer in range(LAYERS):
        if request["kv"] == "full" or rows <= 1024:
            layers.append([255] * columns)
            continue
        cells = [0] * columns
        spread = 3 if 0 < layer < LAYERS - 2 else 20
        for _ in range(8 + spread):
            at, width = rng.randrange(columns), rng.choice((1, 1, 2, 4))
            for x in range(at, min(columns, at + width)):
                cells[x] = rng.randrange(30, 200)
        for x in range(columns):
            if x < 2 or x > columns - 9:
                cells[x] = max(cells[x], 255 if x != 1 else 120)
            wave = math.exp(-(((x - columns * (0.15 + 0.05 * layer)) / 3) ** 2))
            cells[x] = max(cells[x], int(140 * wave))
            if request["needle"] and 2 < layer < 10:
                cells[x] = max(cells[x], int(255 * math.exp(-(((x - request["needle"] * columns) / 1.6) ** 2))))
        layers.append(cells)
    lit = sum(map(sum, layers)) / (255 * LAYERS * columns)
    step_bytes = rows * LAYERS * 2 * 256 * lit
    return {"request": name, "rows": rows, "columns": columns, "layers": layers, "selected_ratio": lit * 0.8,
            "hit_ratio": None if request["kv"] == "full" else 0.93,
            "tail_mass": None if request["kv"] == "full" else 0.034, "bytes_per_s": step_bytes * 55,
            "fetched_bytes_per_s": None, "pool_bytes": rows * 12288, "pool_limit_bytes": POOL_LIMIT // 4,
            "prefix_bytes": 3 << 20, "prefix_limit_bytes": POOL_LIMIT // 8,
            "kv": request["kv"], "running": running, "waiting": 0}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State

    def log_message(self, *_):
        pass

    def reply(self, status, body, kind="application/json", headers=()):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def error(self, status, message, code, headers=(), **more):
        self.reply(status, {"error": {"message": message, "type": "invalid_request_error", "code": code, **more}}, headers=headers)

    def allowed(self):
        if not self.state.key or self.headers.get("Authorization") == f"Bearer {self.state.key}":
            return True
        self.error(401, "the API key is missing or wrong", "invalid_api_key")
        return False

    def do_GET(self):
        path = self.path.split("?")[0]
        if path == "/health":
            return self.reply(200, {"status": "ok"})
        file = WEB / (path.lstrip("/") or "index.html")
        if file.parent == WEB and file.suffix in TYPES and file.is_file():
            return self.reply(200, file.read_bytes(), TYPES[file.suffix], [("Content-Security-Policy", CSP)])
        if not self.allowed():
            return None
        if path == "/props":
            return self.reply(200, {"model": "infinigen-mini", "n_ctx": CONTEXT, "kv": {"preset": "infinigen", "alpha": 5, "cap": 0.2}})
        if path == "/v1/models":
            return self.reply(200, {"object": "list", "data": [{"id": "infinigen-mini", "object": "model", "max_model_len": CONTEXT}]})
        if path == "/kv":
            return self.stream_pictures()
        return self.error(404, f"there is no route {path}", "not_found")

    def start_stream(self):
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()

    def event(self, value, odd=False):
        data = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=not odd).encode()
        if not odd:
            self.wfile.write(b"data: " + data + b"\n\n")
            return
        # Legal, but as no server would write it: other line ends, comments, unknown fields, data of two lines, and
        # cut inside of characters and line ends.
        raw = b": note\r\nevent: message\r\ndata:" + data.replace(b', "choices"', b',\r\ndata: "choices"') + b"\r\n\r\n"
        for line in raw.split(b"\n")[:-1]:
            middle = len(line) * 3 // 4
            for piece in (line[:middle], line[middle:], b"\n"):
                self.wfile.write(piece)
                time.sleep(0.003)

    def stream_pictures(self):
        self.start_stream()
        with self.state.lock:
            self.state.lookers += 1
        try:
            while True:
                with self.state.lock:
                    seen = self.state.looked.wait(timeout=0.5)
                    running = list(self.state.running.items())
                if seen and running:
                    self.event(picture(running[-1][0], running[-1][1], len(running)))
                else:
                    self.wfile.write(b": idle\n\n")
                    self.wfile.flush()
                time.sleep(0.1)
        except OSError:
            pass
        finally:
            with self.state.lock:
                self.state.lookers -= 1

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if not self.allowed():
            return None
        if self.path != "/v1/chat/completions":
            return self.error(404, f"there is no route {self.path}", "not_found")
        self.state.requests.append(body)
        text = body["messages"][-1]["content"]
        tokens = sum(len(m["content"]) for m in body["messages"]) // 4 + 8
        if text == "!busy":
            return self.error(429, "the queue is full", "queue_full", [("Retry-After", "2")])
        if text == "!long" or tokens > CONTEXT:
            tokens = 9001 if text == "!long" else tokens
            return self.error(400, f"the prompt has {tokens} tokens, the context holds {CONTEXT}", "context_length_exceeded")
        return self.stream_answer(body, text, tokens)

    def answer_to(self, text):
        if "The access code for" in text:
            key, code = text.split("The access code for ")[1].split(".")[0].split(" is ")
            return f"The access code for {key} is {code}."
        return ANSWERS.get(text, STORY)

    def stream_answer(self, body, text, tokens):
        needle = text.find("The access code for") / len(text) if "The access code for" in text else 0
        name = f"chatcmpl-{len(self.state.requests):08x}"
        kv = body.get("kv", {}).get("preset", "infinigen")
        base = {"id": name, "object": "chat.completion.chunk", "created": int(time.time()), "model": "infinigen-mini"}
        chunk = lambda delta, finish=None: {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
        self.state.begin(name, tokens, kv, needle)
        answer, sent = self.answer_to(text), 0
        limit = min(len(answer), 4 * body.get("max_tokens", 10**6))
        try:
            self.start_stream()
            time.sleep(0.05)
            self.event(chunk({"role": "assistant", "content": ""}))
            while sent < limit:
                self.state.step(name)
                size = 4 if len(answer) < 9000 else 200
                self.event(chunk({"content": answer[sent:min(sent + size, limit)]}), odd=text == "!odd")
                sent += size
                if text == "!broken" and sent > 60:
                    return
                time.sleep(self.state.pace)
            self.event(chunk({}, "length" if limit < len(answer) else "stop"))
            count = -(-limit // 4)
            self.event({**base, "choices": [], "usage": {"prompt_tokens": tokens, "completion_tokens": count,
                        "total_tokens": tokens + count, "prompt_tokens_details": {"cached_tokens": tokens // 256 * 256}},
                        "kv_stats": {"selected_ratio": 0.061, "attended_ratio": 1.0 if kv == "full" else 0.082, "hit_ratio": 0.93,
                                     "fetched_bytes_per_step": 412000}})
            self.event(b"[DONE]")
        except OSError:
            self.state.cancelled += 1
        finally:
            self.state.end(name)


class FakeServer:
    """with FakeServer() as server: server.url, server.state"""

    def __init__(self, port=0, key="", pace=0.02):
        self.state = State()
        self.state.key, self.state.pace = key, pace
        handler = type("BoundHandler", (Handler,), {"state": self.state})
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


def main():
    parser = argparse.ArgumentParser(description="a stand-in for `infinigen serve`, for the web page")
    parser.add_argument("--port", type=int, default=8081)
    parser.add_argument("--key", default="")
    parser.add_argument("--pace", type=float, default=0.02, help="seconds between two pieces of an answer")
    options = parser.parse_args()
    with FakeServer(options.port, options.key, options.pace) as server:
        print(server.url, flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
