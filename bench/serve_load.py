#!/usr/bin/env python3
"""Puts load on a running `infinigen serve`: N clients, each streaming one completion after another. Prints throughput, time to
the first token, and the gaps between tokens as a client sees them: from one receive with text to the next. Tokens that
arrive in the same receive have no gap and are counted separately. Uses the standard library and one thread, so that the
clients cost little.

    bench/serve_load.py --port 8080 --clients 32 --requests 64 --prompt 200 --gen 64
    bench/serve_load.py --port 8080 --clients 8 --ids --long 7800   # plus one prompt of 7,800 tokens
    bench/serve_load.py --start build/release/infinigen --compare   # starts a server, and compares with `bench --batch N`
"""

import argparse
import json
import os
import random
import re
import selectors
import socket
import subprocess
import sys
import time
import urllib.request


def percentile(values, percent):
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


class Stream:
    """One request on its own connection. `times` are the times of receives with text, `chunks` counts the pieces of text."""

    def __init__(self, address, body, key):
        data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\nConnection: close\r\n"
        if key:
            head += f"Authorization: Bearer {key}\r\n"
        self.start = time.perf_counter()
        self.socket = socket.create_connection(address)
        self.socket.sendall(head.encode() + b"\r\n" + data)
        self.socket.setblocking(False)
        self.received = b""
        self.times = []
        self.chunks = 0
        self.usage = None
        self.done = self.failed = False

    def read(self):
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return
        now = time.perf_counter()
        if not data:
            self.done = True
            if self.usage is None:
                self.failed = True
            self.socket.close()
            return
        self.received += data
        if self.received.startswith(b"HTTP/1.1 ") and not self.received.startswith(b"HTTP/1.1 200"):
            self.failed = True
        while (end := self.received.find(b"\n\n")) >= 0:
            event, self.received = self.received[:end], self.received[end + 2:]
            at = event.find(b"data: {")
            if at < 0:
                continue
            chunk = json.loads(event[at + 6:])
            if chunk.get("usage"):
                self.usage = chunk["usage"]
            elif chunk.get("choices") and chunk["choices"][0].get("text"):
                self.chunks += 1
                if not self.times or self.times[-1] != now:
                    self.times.append(now)


def run_load(address, arguments):
    words = "the lamp in hall was lit and old house stood by sea under grey sky while ships came home".split()
    generator = random.Random(arguments.seed)

    def body(tokens, gen):
        ids = [generator.randrange(300, 1000) for _ in range(tokens)] if arguments.ids else None
        text = " ".join(generator.choice(words) for _ in range(max(tokens, 1)))
        return {"prompt": ids or text, "max_tokens": gen, "ignore_eos": True, "temperature": 0}

    selector = selectors.DefaultSelector()
    live, finished, long_one = 0, [], None
    to_send = arguments.requests

    def begin(request):
        nonlocal live
        stream = Stream(address, request, arguments.api_key)
        selector.register(stream.socket, selectors.EVENT_READ, stream)
        live += 1
        return stream

    start = time.perf_counter()
    while to_send > 0 and live < arguments.clients:
        begin(body(arguments.prompt, arguments.gen))
        to_send -= 1
    while live > 0:
        for event, _ in selector.select(1):
            stream = event.data
            stream.read()
            if not stream.done:
                continue
            selector.unregister(event.fileobj)
            live -= 1
            finished.append(stream)
            if to_send > 0:
                begin(body(arguments.prompt, arguments.gen))
                to_send -= 1
        # Starts when all others are streaming, so that it can affect their gaps.
        streaming = finished or all(key.data.times for key in selector.get_map().values())
        if arguments.long and long_one is None and live > 0 and streaming:
            long_one = begin(body(arguments.long, 1))
    if arguments.long and long_one is None:
        sys.exit("--long: the other clients finished before the long prompt could start; raise --gen or --requests")
    return finished, long_one, time.perf_counter() - start


def report(finished, long_one, seconds, arguments):
    good = [stream for stream in finished if not stream.failed and stream is not long_one]
    failed = sum(stream.failed for stream in finished)
    tokens = sum(stream.usage["completion_tokens"] for stream in good)
    cached = sum(stream.usage["prompt_tokens_details"]["cached_tokens"] for stream in good)
    first = [stream.times[0] - stream.start for stream in good if stream.times]
    gaps = [b - a for stream in good for a, b in zip(stream.times, stream.times[1:])]
    together = sum(stream.chunks - len(stream.times) for stream in good)
    result = {"clients": arguments.clients, "requests": len(good), "failed": failed, "seconds": seconds,
              "generated_tokens": tokens, "cached_tokens": cached, "tok_s": tokens / seconds,
              "ttft_s": {"mean": sum(first) / max(len(first), 1), "p50": percentile(first, 50), "p99": percentile(first, 99)},
              "gap_ms": {"mean": 1e3 * sum(gaps) / max(len(gaps), 1), "p50": 1e3 * percentile(gaps, 50),
                         "p99": 1e3 * percentile(gaps, 99), "max": 1e3 * max(gaps, default=float("nan")),
                         "receives": sum(len(stream.times) for stream in good), "came_together": together}}
    if long_one is not None:
        during = [b - a for stream in good for a, b in zip(stream.times, stream.times[1:])
                  if long_one.times and long_one.start < b < long_one.times[0]]
        result["long"] = {"prompt_tokens": long_one.usage["prompt_tokens"] if long_one.usage else None,
                          "ttft_s": long_one.times[0] - long_one.start if long_one.times else None,
                          "gap_ms_p99_meanwhile": 1e3 * percentile(during, 99), "gaps_meanwhile": len(during)}
    return result


def run_bench(arguments, rest):
    """Tokens per second of `bench` with one batch of the same shape: including its prefill, as measured here, and decode alone."""
    run = subprocess.run([arguments.start, "bench", "--batch", str(arguments.clients), "--prompt", str(arguments.prompt),
                          "--gen", str(arguments.gen), "--format", "json", *rest], capture_output=True, text=True, check=True)
    timing = json.loads(run.stdout)["results"][0]["timing"]
    return arguments.clients * arguments.gen / (timing["prefill_s"] + timing["decode_s"]), timing["decode_tok_s"]


def show(result):
    print(f"{result['clients']} clients, {result['requests']} requests, {result['failed']} failed, {result['seconds']:.2f} s")
    print(f"throughput   {result['tok_s']:.1f} tok/s ({result['generated_tokens']} tokens, {result['cached_tokens']} of the "
          "prompts' cached)")
    ttft, gap = result["ttft_s"], result["gap_ms"]
    print(f"first token  mean {ttft['mean']:.3f} s, median {ttft['p50']:.3f}, p99 {ttft['p99']:.3f}")
    print(f"token gap    mean {gap['mean']:.2f} ms, median {gap['p50']:.2f}, p99 {gap['p99']:.2f}, longest {gap['max']:.2f}; "
          f"between {gap['receives']} receives, {gap['came_together']} tokens arrived with another")
    if "long" in result:
        long = result["long"]
        if long["ttft_s"] is None:
            print("long prompt  failed: it may be longer than the context")
            return
        print(f"long prompt  {long['prompt_tokens']} tokens, first token after {long['ttft_s']:.2f} s; gaps of the others meanwhile: "
              f"p99 {long['gap_ms_p99_meanwhile']:.2f} ms of {long['gaps_meanwhile']}")
    if "bench" in result:
        bench = result["bench"]
        print(f"bench        one batch of {result['clients']}: {bench['tok_s']:.1f} tok/s including prefill, of which "
              f"{100 * bench['ratio']:.0f} % were served; {bench['decode_tok_s']:.1f} in decode alone, of which "
              f"{100 * bench['decode_ratio']:.0f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--api-key", default="")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=0, help="total number of requests (default: eight per client)")
    parser.add_argument("--prompt", type=int, default=128, help="words per prompt (tokens with --ids)")
    parser.add_argument("--gen", type=int, default=64)
    parser.add_argument("--ids", action="store_true", help="send prompts as random token ids")
    parser.add_argument("--long", type=int, default=0, help="in addition, one prompt with this many words (tokens with --ids)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--start", metavar="INFINIGEN", help="start a server with this binary first")
    parser.add_argument("--compare", action="store_true", help="with --start: also run `bench --batch CLIENTS` with the same shape, before and after")
    arguments, rest = parser.parse_known_args()
    if rest and not arguments.start:
        parser.error(f"unknown arguments: {' '.join(rest)} (flags for the server require --start)")
    arguments.requests = arguments.requests or 8 * arguments.clients
    compares = arguments.start and arguments.compare
    benches = [run_bench(arguments, rest)] if compares else []  # before and after: machines change their pace
    server = None
    try:
        if arguments.start:
            server = subprocess.Popen([arguments.start, "serve", "--port", "0", "--quiet", "--batch", str(arguments.clients),
                                       *rest], stdout=subprocess.PIPE, text=True)
            found = re.search(r":(\d+)$", server.stdout.readline().strip())
            if not found:
                sys.exit("the server did not start")
            arguments.port = int(found[1])
            for _ in range(6000):
                try:
                    with urllib.request.urlopen(f"http://{arguments.host}:{arguments.port}/health", timeout=5):
                        break
                except OSError:
                    time.sleep(0.1)
        result = report(*run_load((arguments.host, arguments.port), arguments), arguments)
    finally:
        if server is not None:
            server.terminate()
            server.wait()
    if compares:
        benches.append(run_bench(arguments, rest))
        whole, decode = (sum(rates) / len(rates) for rates in zip(*benches))
        result["bench"] = {"decode_tok_s": decode, "tok_s": whole, "ratio": result["tok_s"] / whole,
                           "decode_ratio": result["tok_s"] / decode}
    if arguments.json:
        print(json.dumps(result))
    else:
        show(result)
    without_gaps = "long" in result and not result["long"]["gaps_meanwhile"]
    if without_gaps:
        print("--long: no other client received a token while the long prompt was processed; raise --gen or --requests", file=sys.stderr)
    return 1 if result["failed"] or not result["requests"] or without_gaps else 0


if __name__ == "__main__":
    sys.exit(main())
