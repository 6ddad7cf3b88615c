"""The clients of a soak. Each is a loop that a thread of its own runs: ask, check what comes back, write it into the book."""

import random
import threading
import time
from collections import Counter

import cases
from cases import TEXT
from wire import Broken, Gone, Reply, Wire, ask, request

# Statuses that a client's own doing explains; any other one of a sort is written down as a fault.
REFUSED = {429}


class Book:
    """What happened, counted. `faults` are what a sound server never does."""

    def __init__(self):
        self.lock = threading.Lock()
        self.requests, self.statuses, self.cancels = Counter(), Counter(), Counter()
        self.faults, self.fault_kinds = [], Counter()
        self.gaps, self.first = [], []
        self.answers = 0
        self.ids = {}  # of answers: the key that asked
        self.watched = set()  # (key, id) that /kv showed

    def count(self, kind, status=None):
        with self.lock:
            self.requests[kind] += 1
            if status is not None:
                self.statuses[status] += 1

    def cancel(self, phase):
        with self.lock:
            self.cancels[phase] += 1

    def fault(self, kind, text):
        with self.lock:
            self.fault_kinds[kind] += 1
            if len(self.faults) < 40:
                self.faults.append(f"{kind}: {text}"[:600])

    def answer(self, key, answer):
        with self.lock:
            self.answers += 1
            self.ids[answer.id] = key

    def watch(self, key, names):
        with self.lock:
            self.watched.update((key, name) for name in names)

    def check_watched(self):
        """After the run, when the ids of all answers are known: a key's picture shows its own requests alone."""
        for key, name in self.watched:
            if self.ids.get(name, key) != key:
                self.fault("isolation", f"/kv of {key} showed {name} of {self.ids[name]}")

    def time(self, first, gaps):
        with self.lock:
            self.first.append(first)
            self.gaps += gaps


class Run:
    """What all clients share: the port, the cases, the book, and the gate that a rest closes."""

    def __init__(self, port, known, keys, context, exact, plant=None):
        self.port, self.cases, self.keys, self.context, self.exact, self.plant = port, known, keys, context, exact, plant
        self.book = Book()
        self.gate, self.stop, self.ending = threading.Event(), threading.Event(), threading.Event()
        self.busy, self.lock = 0, threading.Lock()
        self.gate.set()

    def resting(self):
        return not self.gate.is_set() or self.ending.is_set()

    def loop(self, client, seed):
        draw = random.Random(seed)
        while not self.stop.is_set():
            if not self.gate.wait(0.2):
                continue
            with self.lock:
                self.busy += 1
            try:
                if not self.gate.is_set():
                    continue
                client(self, draw)
            except Gone as error:
                if not self.ending.is_set():
                    self.book.fault("lost connection", f"{client.__name__}: {error}")
                    time.sleep(0.2)
            except Broken as error:
                self.book.fault("framing", f"{client.__name__}: {error}")
            except Exception as error:  # a client's own defect must not look like a quiet one
                self.book.fault("client", f"{client.__name__}: {error!r}")
                time.sleep(0.2)
            finally:
                with self.lock:
                    self.busy -= 1
            if self.ending.is_set():
                return


def refused(run, kind, reply, draw):
    """Writes down a refusal of a request that is in order: 429 under load, 503 when the server ends."""
    run.book.count(kind, reply.status)
    code = reply.code()
    if run.ending.is_set() and reply.status == 503 and code == "shutting_down":
        return
    if reply.status not in REFUSED:
        run.book.fault(f"status {reply.status}", f"{kind}: {code}")
    elif "retry-after" not in reply.headers:
        run.book.fault("status 429", f"{kind}: no Retry-After")
    time.sleep(draw.uniform(0.02, 0.2))


def check(run, case, key, answer, salted):
    if run.plant == "wrong-answer" and run.book.answers % 5 == 4:
        text = answer.choices[0]["text"]
        answer.choices[0]["text"] = text[:-1] + chr(ord(text[-1:] or "a") + 1)
    wrong = cases.compare(case, answer, run.exact)
    if wrong:
        run.book.fault("wrong answer", wrong)
    if salted and answer.cached() != 0:
        run.book.fault("isolation", f"{case.name}: a new cache_salt hit {answer.cached()} tokens")
    run.book.answer(key, answer)


def pick(run, draw):
    salt = f"salt-{draw.getrandbits(60)}" if draw.random() < 0.2 else None
    return draw.choice(run.cases), draw.choice(run.keys[:3]), salt


def whole_answers(run, draw):
    case, key, salt = pick(run, draw)
    reply = ask(run.port, "POST", case.path, case.fields(False, salt), key)
    if reply.status != 200:
        return refused(run, "whole", reply, draw)
    run.book.count("whole", 200)
    check(run, case, key, cases.whole(reply), salt)


def read_stream(run, wire, kind):
    """The answer of a stream, or None where the server's end cut it; times between its pieces go into the book."""
    answer, done, gaps, first, last = cases.Answer(), False, [], None, time.monotonic()
    start = last
    for data in wire.events():
        if done:
            raise Broken("an event after [DONE]")
        if data == b"[DONE]":
            done = True
            continue
        event = cases.parse_event(data)
        if "error" in event:
            if not (run.ending.is_set() and event["error"].get("code") == "shutting_down"):
                run.book.fault("error event", f"{kind}: {event['error']}")
            return None
        answer.add(event)
        if event["choices"]:
            now = time.monotonic()
            if first is None:
                first = now - start
            else:
                gaps.append(now - last)
            last = now
    if not done:
        raise Broken("a stream without [DONE]")
    run.book.time(first, gaps)
    return answer


def streams(run, draw):
    """Several requests over one connection."""
    with Wire(run.port) as wire:
        for _ in range(draw.randint(1, 4)):
            case, key, salt = pick(run, draw)
            wire.send(request("POST", case.path, case.fields(True, salt), key))
            status, headers = wire.head()
            if status != 200:
                return refused(run, "stream", Reply(status, headers, wire.body(headers)), draw)
            answer = read_stream(run, wire, "stream")
            run.book.count("stream", 200)
            if answer is None:
                return
            check(run, case, key, answer, salt)
            if run.resting():
                return


def leave(draw, wire):
    (wire.reset if draw.random() < 0.5 else wire.close)()


def cancels(run, draw):
    """Leaves: with the body half sent, in the queue, in prefill, in decode."""
    key = draw.choice(run.keys[:3])
    phase = draw.choice(["body", "queue", "prefill", "decode", "decode"])
    prompt = "Leave. " + cases.FILLER * (run.context // 30) if phase == "prefill" else draw.choice(cases.OPENINGS)
    body = {"prompt": prompt, "max_tokens": 200, "ignore_eos": True, "stream": draw.random() < 0.7 or phase == "decode",
            "n": draw.choice([1, 1, 3]), "cache_salt": str(draw.getrandbits(60))}
    data = request("POST", TEXT, body, key)
    wire = Wire(run.port)
    try:
        if phase == "body":
            wire.send(data[:-draw.randint(1, 40)])
        else:
            wire.send(data)
        if phase == "decode":
            status, headers = wire.head()
            if status != 200:
                refused(run, "cancel", Reply(status, headers, wire.body(headers)), draw)
                return wire.close()
            events = wire.events()
            for _ in range(draw.randint(1, 20)):
                if b'"error"' in next(events)[:12]:
                    break
        elif phase == "prefill":
            time.sleep(draw.uniform(0.005, 0.15))
        else:
            time.sleep(draw.choice([0, 0.002, 0.02]))
    except StopIteration:
        pass
    leave(draw, wire)
    run.book.count("cancel")
    run.book.cancel(phase)


def slow_readers(run, draw):
    """Streams with logprobs, and long whole replies, that are read slowly or not at all; the server may drop the client."""
    key = run.keys[1]
    wire = Wire(run.port, timeout=60, receive_bytes=4096)
    try:
        if draw.random() < 0.5:
            wire.send(request("POST", TEXT, {"prompt": "a", "max_tokens": 1000, "ignore_eos": True, "stream": True,
                                             "logprobs": 5}, key))
        else:
            wire.send(request("POST", "/tokenize", {"content": cases.FILLER * 4000}, key))
        until = time.monotonic() + draw.uniform(2, 20)
        pause = draw.choice([0.05, 0.5, 5])
        received = b""
        wire.socket.settimeout(0.5)
        while time.monotonic() < until and not run.resting():
            try:
                received = received[:20] + wire.socket.recv(512)
            except TimeoutError:
                continue  # it waits in the queue
            if not received.startswith((b"HTTP/1.1 200", b"HTTP/1.1 429")):
                break
            until_next = time.monotonic() + pause
            while time.monotonic() < until_next and not run.resting():
                time.sleep(0.05)
    except OSError:
        pass  # dropped, as it may be
    leave(draw, wire)
    run.book.count("slow reader")


def floods(run, draw):
    """One key sends much more than its share of places."""
    wires = []
    try:
        for _ in range(draw.randint(10, 60)):
            wire = Wire(run.port)
            wires.append(wire)
            wire.send(request("POST", TEXT, {"prompt": "flood", "max_tokens": draw.choice([1, 4, 16]), "temperature": 0,
                                             "ignore_eos": True}, run.keys[3]))
        for i, wire in enumerate(wires):
            if i % 7 == 6:
                continue  # closed unread
            reply = wire.reply()
            if reply.status == 200:
                run.book.count("flood", 200)
                cases.whole(reply)
            else:
                refused_flood(run, reply)
    finally:
        for wire in wires:
            wire.close()
    time.sleep(draw.uniform(0.1, 1))


def refused_flood(run, reply):
    run.book.count("flood", reply.status)
    if reply.status not in REFUSED and not (run.ending.is_set() and reply.status == 503):
        run.book.fault(f"status {reply.status}", f"flood: {reply.code()}")


def bad_body(draw, context):
    """A body that must be refused, and the statuses that refuse it."""
    garbage = bytes(draw.getrandbits(8) for _ in range(draw.randint(0, 300)))
    text = garbage.replace(b'"', b"").replace(b"\\", b"")
    return draw.choice([  # made when chosen: some have 8 MiB
        lambda: (b"{" + garbage, {400}),
        lambda: (b"[" * draw.randint(10, 100_000), {400, 413}),
        lambda: (b'{"prompt":' + b'{"a":' * 5000 + b"1" + b"}" * 5001, {400}),
        lambda: (b'{"prompt":"' + text + b'\xff","max_tokens":1}', {400}),
        lambda: ({"prompt": 5}, {400}),
        lambda: ({"prompt": "a", "max_tokens": -3}, {400}),
        lambda: ({"prompt": "a", "max_tokens": 1, "temperature": 1e300}, {400}),
        lambda: ({"prompt": "a", "n": 10 ** 30}, {400}),
        lambda: ({"prompt": "a", "kv": {"unknown": 1}}, {400}),
        lambda: ({"prompt": "a", "stop": ["x"] * 99}, {400}),
        lambda: ({"prompt": cases.FILLER * (context // 5)}, {400}),
        lambda: (b'{"prompt":"a","x":[' + b"[]," * draw.randint(1000, 2_700_000) + b"[]]}", {400, 413, 429, 200})])()


def bad_bodies(run, draw):
    body, expected = bad_body(draw, run.context)
    reply = ask(run.port, "POST", draw.choice([TEXT, cases.CHAT]), body, draw.choice(run.keys[:3]))
    run.book.count("bad body", reply.status)
    if reply.status != 200:
        reply.code()
    if reply.status not in expected | {400, 429} and not (run.ending.is_set() and reply.status == 503):
        run.book.fault(f"status {reply.status}", f"bad body: {reply.body[:200]!r}")
    time.sleep(draw.uniform(0.02, 0.1))


BAD_BYTES = [b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
             b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"GET /props HTTP/1.1\r\nHost: localhost\r\n"
             b"Authorization: Bearer wrong\r\n\r\n", b"GET /health HTTP/1.1\r\nX: " + b"y" * 30000 + b"\r\n\r\n",
             b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alpha\r\nContent-Length: 99999999999\r\n\r\n",
             b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alpha\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
             b"DELETE /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alpha\r\n\r\n",
             b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alpha\r\n\r\n"]


def bad_bytes(run, draw):
    """What is no request: refused with 4xx or 505, never answered."""
    with Wire(run.port) as wire:
        wire.send(draw.choice(BAD_BYTES))
        reply = wire.reply()
    run.book.count("bad bytes", reply.status)
    reply.code()
    if reply.status not in (400, 401, 403, 404, 405, 413, 431, 505) and not (run.ending.is_set() and reply.status == 503):
        run.book.fault(f"status {reply.status}", f"bad bytes: {reply.body[:200]!r}")
    time.sleep(draw.uniform(0.02, 0.1))  # the driver needs cores too


def dripping(run, draw):
    """A header that arrives byte by byte, and is left unfinished; then a connection that says nothing."""
    with Wire(run.port) as wire:
        for byte in request("GET", "/health", None, None, [f"X: {draw.random()}"])[:draw.randint(5, 60)]:
            wire.send(bytes([byte]))
            time.sleep(0.02)
            if run.resting():
                break
    run.book.count("dripping")


def watchers(run, draw):
    """Reads /kv for a while: each event is JSON. Which requests it shows is checked at the end."""
    key = draw.choice(run.keys[:3])
    with Wire(run.port, timeout=2) as wire:
        wire.send(request("GET", "/kv", None, key))
        status, headers = wire.head()
        run.book.count("watcher", status)
        if status != 200:
            return refused(run, "watcher", Reply(status, headers, wire.body(headers)), draw)
        until = time.monotonic() + draw.uniform(0.5, 5)
        try:
            for data in wire.events():
                event = cases.parse_event(data)
                run.book.watch(key, request_ids(event))
                if time.monotonic() > until or run.resting():
                    break
        except Gone as error:
            if not error.timed_out and not run.ending.is_set():
                raise


def request_ids(event):
    """Every `request` of an event, wherever it stands."""
    found, open_values = [], [event]
    while open_values:
        value = open_values.pop()
        if isinstance(value, dict):
            if isinstance(value.get("request"), str):
                found.append(value["request"])
            open_values += value.values()
        elif isinstance(value, list):
            open_values += value
    return found


def small_routes(run, draw):
    """Text to tokens and back, and the routes that only tell; several pipelined on one connection."""
    key = draw.choice(run.keys[:3])
    text = draw.choice(cases.OPENINGS + cases.QUESTIONS) * draw.randint(1, 300)
    reply = ask(run.port, "POST", "/tokenize", {"content": text}, key)
    run.book.count("small", reply.status)
    if reply.status != 200:
        return refused(run, "small", reply, draw)
    back = ask(run.port, "POST", "/detokenize", {"tokens": reply.json["tokens"]}, key)
    run.book.count("small", back.status)
    if back.status != 200:
        return refused(run, "small", back, draw)
    if back.json["content"] != text:
        run.book.fault("wrong answer", f"/detokenize: {back.json['content'][:80]!r}, not {text[:80]!r}")
    with Wire(run.port) as wire:
        paths = draw.sample(["/health", "/metrics", "/props", "/v1/models", "/openapi.json", "/"], 3)
        wire.send(b"".join(request("GET", path, None, key) for path in paths))
        for path in paths:
            reply = wire.reply()
            run.book.count("small", reply.status)
            if reply.status != 200:
                run.book.fault(f"status {reply.status}", f"{path}: {reply.body[:200]!r}")
    time.sleep(draw.uniform(0.02, 0.1))


# How many of each run side by side.
KINDS = [(streams, 5), (whole_answers, 3), (cancels, 3), (slow_readers, 2), (floods, 1), (bad_bodies, 1), (bad_bytes, 1),
         (dripping, 1), (watchers, 2), (small_routes, 1)]


def start(run):
    threads = [threading.Thread(target=run.loop, args=(client, 1000 * i + j), daemon=True)
               for i, (client, count) in enumerate(KINDS) for j in range(count)]
    for thread in threads:
        thread.start()
    return threads
