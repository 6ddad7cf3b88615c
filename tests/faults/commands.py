"""The commands that faults.py runs: how each is started, and what it may answer when calls of it have failed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../server"))
from wire import Broken, Gone, Wire, events_of, request  # noqa: E402

MODEL = "llama_gqa_tied"
NEW_TOKENS = 24
NEIGHBOUR_TOKENS = 200
SECONDS_OF_REQUEST = 20  # after which it hangs
TEMPLATE = "{% for message in messages %}{{ message['role'][0] }}{{ message['content'] }}{% endfor %}_"
PROMPT, CHAT = "_", [{"role": "user", "content": "Hello, you!"}]
BESIDE = "The neighbour reads "


class Problem(Exception):
    pass


class Run:
    """One process of a command: `out` is its directory for files, `log` appears when the fault has happened; `kind`: the class of the
    call that fails, None where none does; `lasting`: many calls fail, one after the other."""

    def __init__(self, binary, out, environment, log, seconds, kind, lasting):
        self.binary, self.out, self.environment, self.log, self.seconds = binary, out, environment, log, seconds
        self.kind, self.lasting = kind, lasting
        self.process, self.code, self.stdout, self.stderr = None, None, "", ""

    def start(self, *arguments):
        # Into files: a pipe that is not read could block the process.
        self.files = [open(os.path.join(os.path.dirname(self.out), name), "w+b") for name in ("stdout", "stderr")]
        self.process = subprocess.Popen([self.binary, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=self.files[0],
                                        stderr=self.files[1], env=self.environment)

    def wait(self):
        try:
            self.code = self.process.wait(self.seconds)
        except subprocess.TimeoutExpired:
            self.end()
            raise Problem(f"hangs: no end after {self.seconds} s") from None
        self.end()

    def read(self):
        self.stdout, self.stderr = (open(file.name, "rb").read().decode("utf-8", "replace") for file in self.files)

    def end(self):
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.code = self.process.returncode
        self.read()

    def faulted(self):
        return os.path.exists(self.log) and os.path.getsize(self.log) > 0

    def is_over(self):
        """Whether the last of many calls has failed."""
        with open(self.log, encoding="ascii") as file:
            return len(file.readlines()) > 1

    def check_error(self):
        """That it ended with exit code 1 and one line that says why."""
        if self.code != 1:
            raise Problem(f"exit code {self.code}")
        lines = [line for line in self.stderr.splitlines()
                 if line.startswith("infinigen: ") and not re.match("infinigen: (warning: |calibrating |.* is ready: |an exception |.* lines of the log were dropped)", line)]
        if len(lines) != 1 or len(lines[0]) < 20:
            raise Problem(f"exit code 1 with {len(lines)} error lines")


class Command:
    """A command that prints something and ends."""

    def __init__(self, name, arguments, expected):
        self.name, self.arguments, self.expected = name, arguments, expected

    def check(self, run):
        run.start(*self.arguments)
        run.wait()
        left = os.listdir(run.out)
        if left:
            raise Problem(f"left {left}")
        if run.code == 0:
            return None if run.stdout == self.expected else f"wrong output: {run.stdout[-300:]!r}"
        run.check_error()
        return None if self.begins(run.stdout) else f"wrong output before the error: {run.stdout[-300:]!r}"

    def begins(self, text):
        """Whether each part of an output is the beginning of the right one: where one of many prompts failed, others are whole."""
        parts, right = (re.split("==> prompt . <==\n", output) for output in (text, self.expected))
        return len(parts) <= len(right) and all(b.startswith(a.rstrip("\n")) for a, b in zip(parts, right))


class Calibrate:
    name = "calibrate"

    def __init__(self, arguments, expected):
        self.arguments, self.expected = arguments, expected

    def check(self, run):
        path = os.path.join(run.out, "made.skew")
        with open(path, "wb") as file:
            file.write(b"old")
        run.start(*self.arguments, "-o", path)
        run.wait()
        left = os.listdir(run.out)
        if left != ["made.skew"]:
            raise Problem(f"left {left}")
        with open(path, "rb") as file:
            made = file.read()
        if run.code == 0 and run.kind == "sync" and run.faulted():
            return "exit code 0, though the file could not be made durable"
        if run.code == 0:
            return None if made == self.expected else "wrote a wrong file"
        run.check_error()
        # The last step is to print what was done: then the file is there.
        return None if made in (b"old", self.expected) else "left a damaged file"


class Serve:
    name = "serve"

    def __init__(self, arguments, text, chat, beside, gpu):
        self.arguments, self.text, self.chat, self.beside, self.gpu = arguments, text, chat, beside, gpu

    def check(self, run):
        problem = None
        try:
            problem = self.check_served(run)
        except Problem as caught:
            problem = str(caught)
        # After a failed CUDA call the device's state is unknown: the process may end with 1 and one line.
        if problem and self.gpu and run.faulted() and self.has_ended(run):
            return run.check_error()
        return problem

    @staticmethod
    def has_ended(run):
        try:
            run.process.wait(5)
        except subprocess.TimeoutExpired:
            return False
        run.end()
        return True

    def check_served(self, run):
        run.start(*self.arguments)
        port = self.await_ready(run)
        if port is None:
            return run.check_error()
        if run.lasting:
            self.outlast(run, port)
        failed = None
        neighbour = Neighbour(self, port) if not run.lasting and not self.gpu else None  # on a GPU the batch decides the text
        try:
            for step in (self.whole, self.stream, self.chatted, self.large, self.cancelled, self.others):
                hit = run.faulted()
                if step(port):
                    continue
                failed = step.__name__
                if hit or not run.faulted():
                    return f"{failed}: failed {'after' if hit else 'without'} the fault"
        finally:
            if neighbour is not None:
                neighbour.end()
        if neighbour is not None:
            self.check_neighbour(run, neighbour, failed)
        self.check_rest(run, port)
        run.process.send_signal(signal.SIGTERM)
        run.wait()
        if run.code == 0:
            return None
        return f"SIGTERM ended it with exit code {run.code}"

    @staticmethod
    def check_neighbour(run, neighbour, failed):
        """One fault costs one request, unless it ended a step of the engine: then all that took part in it."""
        if neighbour.problem:
            raise Problem(neighbour.problem)
        run.read()
        ended_a_step = "an exception ended the running requests" in run.stderr
        if neighbour.failed > 1 or (neighbour.failed and failed and not ended_a_step):
            raise Problem(f"{neighbour.failed} streams of the neighbour failed, besides {failed or 'nothing else'}")
        if neighbour.failed and not run.faulted():
            raise Problem("a stream of the neighbour failed without the fault")

    def outlast(self, run, port):
        """Asks from several sides until the shortage is over. What is asked meanwhile may fail, but must end."""
        problems = []

        def load(steps):
            try:
                while run.process.poll() is None and not (run.faulted() and run.is_over()) and time.monotonic() < deadline:
                    for step in steps:
                        step(port)
                    if not run.faulted() and time.monotonic() > unreached:
                        return
            except Problem as caught:
                problems.append(str(caught))

        deadline, unreached = time.monotonic() + run.seconds, time.monotonic() + 3
        steps = (self.whole, self.stream, self.chatted, self.large, self.cancelled, self.others)
        threads = [threading.Thread(target=load, args=(steps[i:] + steps[:i],)) for i in (0, 1, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise Problem(f"in the shortage: {problems[0]}")
        if run.process.poll() is not None:
            raise Problem("ended in the shortage")
        if run.faulted() and not run.is_over():
            raise Problem("the shortage does not end")

    def await_ready(self, run):
        """The port of a server that is ready; None if it ended."""
        deadline = time.monotonic() + run.seconds
        while time.monotonic() < deadline:
            if run.process.poll() is not None:
                run.end()
                return None
            run.read()
            found = re.match(r"listening on http://.*:(\d+)\n", run.stdout)
            # Without the line (its write may be the call that fails) the port is unknown; then the server must end.
            if found and self.health(int(found[1])):
                return int(found[1])
            time.sleep(0.005)
        raise Problem("hangs: not ready")

    def check_rest(self, run, port):
        """A fault may hit these two; then the next ones are served."""
        for _ in range(2):
            hit = run.faulted()
            if self.health(port) and self.whole(port):
                return
            if hit or not run.faulted():
                break
        raise Problem("does not serve the rest")

    def ask(self, port, method, path, body=None, padding=0):
        """Status and body; None where the connection broke. One connection for each."""
        data = None if body is None else json.dumps(body).encode() + b" " * padding
        try:
            with Wire(port, SECONDS_OF_REQUEST) as wire:
                wire.send(request(method, path, data, headers=["Connection: close"]))
                reply = wire.reply()
                return reply.status, reply.body
        except Gone as gone:
            return self.broken(gone, f"{method} {path}")
        except Broken as broken:
            raise Problem(f"{method} {path}: {broken}") from None

    @staticmethod
    def broken(gone, what):
        if gone.timed_out:
            raise Problem(f"hangs: {what}")
        return None, b""

    def health(self, port):
        return self.ask(port, "GET", "/health")[0] == 200

    @staticmethod
    def same(what, got, expected):
        if got != expected:
            raise Problem(f"{what}: wrong text {got!r}, expected {expected!r}")
        return True

    def completion(self, port, path, body, text_of, expected, padding=0):
        status, reply = self.ask(port, "POST", path, body, padding)
        if status != 200:
            if status not in (None, 500, 503):
                raise Problem(f"{path}: status {status} {reply[:200]!r}")
            return False
        return self.same(path, text_of(json.loads(reply)["choices"][0]), expected)

    def body(self, **more):
        return {"prompt": PROMPT, "max_tokens": NEW_TOKENS, "temperature": 0, **more}

    def whole(self, port):
        return self.completion(port, "/v1/completions", self.body(), lambda choice: choice["text"], self.text)

    def large(self, port):
        return self.completion(port, "/v1/completions", self.body(logprobs=1), lambda choice: choice["text"], self.text,
                               padding=20000)

    def chatted(self, port):
        return self.completion(port, "/v1/chat/completions", {"messages": CHAT, "max_tokens": NEW_TOKENS, "temperature": 0},
                               lambda choice: choice["message"]["content"], self.chat)

    def stream(self, port):
        return self.streamed(port, self.body(stream=True), self.text, "stream")

    def streamed(self, port, body, expected, what):
        """Whether a stream came whole. What came of one that did not is a beginning of the right text."""
        text, done = "", False
        try:
            with Wire(port, SECONDS_OF_REQUEST) as wire:
                wire.send(request("POST", "/v1/completions", body, headers=["Connection: close"]))
                status, headers = wire.head()
                if status != 200:
                    if status not in (500, 503):
                        raise Problem(f"{what}: status {status} {wire.body(headers)[:200]!r}")
                    return False
                for data in wire.events():
                    done = done or data == b"[DONE]"
                    event = {} if done else json.loads(data)
                    if "error" in event:
                        break
                    text += "".join(choice["text"] for choice in event.get("choices", []))
        except Gone as gone:
            self.broken(gone, what)
        except Broken as broken:
            raise Problem(f"{what}: {broken}") from None
        return self.same(what, text, expected if done else expected[:len(text)]) and done

    def cancelled(self, port):
        """A stream whose client leaves after the first event."""
        try:
            with Wire(port, SECONDS_OF_REQUEST) as wire:
                wire.send(request("POST", "/v1/completions", self.body(stream=True, max_tokens=400, ignore_eos=True)))
                return wire.head()[0] == 200 and next(wire.events(), None) is not None
        except Gone as gone:
            return self.broken(gone, "a stream")[0] == 200

    def others(self, port):
        good = [self.ask(port, "GET", path)[0] == 200 for path in ("/metrics", "/v1/models", "/")]
        status, reply = self.ask(port, "POST", "/tokenize", {"content": PROMPT})
        good.append(status == 200 and b"62" in reply)
        return all(good) and self.watched(port)

    def watched(self, port):
        """A completion while a client watches the cache, which then leaves."""
        try:
            with Wire(port, SECONDS_OF_REQUEST) as watcher:
                watcher.send(request("GET", "/kv", headers=["Connection: close"]))
                if watcher.head()[0] != 200:
                    return False
                parts = watcher.chunks()
                if b": the picture" not in next(parts, b"") or not self.whole(port):
                    return False
                return next(events_of(parts), None) is not None
        except Gone as gone:
            return self.broken(gone, "GET /kv")[0] == 200


class Neighbour:
    """A client that reads one stream after another beside the steps of Serve.check_served. Each must be whole and right; one that
    the fault has ended must be a beginning of the right text."""

    def __init__(self, serve, port):
        self.serve, self.port = serve, port
        self.failed, self.problem = 0, None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        body = self.serve.body(prompt=BESIDE, stream=True, max_tokens=NEIGHBOUR_TOKENS, ignore_eos=True)
        try:
            while not self.over.is_set() and self.failed < 2:
                if not self.serve.streamed(self.port, body, self.serve.beside, "the neighbour's stream"):
                    self.failed += 1
        except Problem as caught:
            self.problem = str(caught)

    def end(self):
        self.over.set()
        self.thread.join()


def make_model(models, work):
    """A golden model with a tokenizer of one token for each of 160 characters and a chat template. Returns it and the characters."""
    model = os.path.join(work, "model")
    shutil.copytree(os.path.join(models, MODEL), model)
    # Bytes as byte-level BPE spells them: a space is U+0120, the bytes from 0xA1 on stand for themselves.
    characters = [chr(c) for c in [*range(33, 127), *range(0xA1, 0xAD), 0x120, 0x10A, *range(0xAE, 0xE2)]]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": level, "post_processor": None, "decoder": level,
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                           "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                           "vocab": {c: i for i, c in enumerate(characters)}, "merges": []}}
    with open(os.path.join(model, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(tokenizer, file)
    with open(os.path.join(model, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"chat_template": TEMPLATE}, file)
    return model


def make(binary, models, work, gpu):
    """The commands with their right outputs, from runs without faults; the tokens of `generate` are those of the golden file."""
    model = make_model(models, work)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("INFINIGEN_")}
    environment["XDG_CACHE_HOME"] = os.path.join(work, "cache")
    text_file = os.path.join(work, "text.txt")
    with open(text_file, "w", encoding="ascii") as file:
        file.write("The quick brown fox jumps over the lazy dog, and then it sleeps. " * 6)

    def output(*arguments):
        run = subprocess.run([binary, *map(str, arguments)], capture_output=True, env=environment, check=False)
        if run.returncode != 0:
            raise SystemExit(f"{arguments[0]} fails without a fault: {run.stderr.decode()}")
        return run.stdout.decode("utf-8", "replace")

    device = ("--device", "cuda") if gpu else ("--device", "cpu", "-t", 2)
    calibrate = ("calibrate", "-m", model, "-f", text_file, *device)
    output(*calibrate)  # beside the model, for `--kv infinigen`
    skew = os.path.join(work, "expected.skew")
    output(*calibrate, "-o", skew)
    generate = ("generate", "-m", model, "--kv", "infinigen", "--temp", 0, "-n", NEW_TOKENS, *device)
    with open(os.path.join(models, MODEL, "golden.json"), encoding="utf-8") as file:
        golden = next(prompt for prompt in json.load(file)["prompts"] if prompt["ids"] == [62])
    shown = json.loads(output(*generate, "-p", PROMPT, "--json"))
    if shown["tokens"] != golden["greedy"][:NEW_TOKENS]:
        raise SystemExit(f"wrong tokens without a fault: {shown['tokens']}")
    chat = json.loads(output(*generate, "-p", "uHello, you!_", "--json"))["text"]
    long = ("-n", NEIGHBOUR_TOKENS, "--ignore-eos")
    beside = json.loads(output(*generate, "-p", BESIDE, *long, "--json"))["text"]
    prompts = os.path.join(work, "prompts.jsonl")
    with open(prompts, "w", encoding="utf-8") as file:
        file.write(json.dumps(PROMPT) + "\n" + json.dumps({"prompt": "uHello, you!_"}) + "\n")
    load, many = ("inspect", "-m", model, "--tensors"), (*generate, "--prompts", prompts, "--batch", 2)
    one = (*generate, "-p", PROMPT)
    with open(skew, "rb") as file:
        expected_skew = file.read()
    return [Command("load", load, output(*load)), Command("generate", one, output(*one)), Command("batch", many, output(*many)),
            Calibrate(calibrate, expected_skew),
            Serve(("serve", "--port", 0, "-m", model, "--kv", "infinigen", *device), shown["text"], chat, beside, gpu)]
