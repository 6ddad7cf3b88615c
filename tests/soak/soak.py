#!/usr/bin/env python3
"""Soak: `infinigen serve` in a memory cgroup, under mixed clients, for MINUTES. Standard library only.

A quiet server first answers every known request (cases.py). Then all clients (clients.py) disturb each other. Ten times or
more they pause, and the server must come to rest: nothing runs, nothing is held, as many descriptors and threads as at first;
the memory at rest gives the slope, a fixed piece of work the throughput. At the end SIGTERM comes in the middle of the load.

The exit code is 1 if an answer is wrong, a status is not explained, the server ends early or does not drain, or a limit of
docs/reliability.md is passed. Slope, throughput and gaps are judged in runs of 5 minutes or more.

A leak is found if the slope of the memory at rest, without the first quarter of the rests, is above 1 MiB an hour with 97.5 %
confidence, and the growth over these rests is above 1 MiB. With rests that move by 0.5 MiB by themselves (judge_test.py) that finds 50
MiB an hour in 5 minutes and 5 MiB an hour in 45 minutes; 2 MiB an hour need two hours (in 45 minutes every second such leak passes).
In the table, "slope" is the median and "at least" the bound.

usage: soak.py MINUTES --binary PATH [--device cuda] [--tsan] [--no-cgroup] [--plant wrong-answer|leak|crash] [-- FLAGS of serve]
"""

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../server"))  # wire.py
import cases
import clients
from host import MARGIN, Cgroup, Host, plan_of, unreachable
from wire import Gone, Wire, ask, request

KEYS = ["alpha", "beta", "gamma", "flood"]
CONTEXT = 4096
MIB = 1 << 20
JUDGED_MINUTES = 5
LARGEST_SLOPE = 1.0  # MiB an hour of memory at rest
LEAST_GROWTH = 1.0  # MiB over the judged rests
LEAST_THROUGHPUT = 0.98  # tokens a second of CPU time in the last quarter, as a part of those in the first
LARGEST_GAP = 2.0  # seconds: the 99th percentile between two pieces of a stream, with 8 sequences and prefills beside


class Rest:
    """The server with all clients paused."""

    def __init__(self, host, since):
        memory, metrics = host.memory(), host.metrics()
        self.at = time.monotonic() - since
        self.anon = memory["RssAnon"]
        self.prefix = metrics["prefix_cache_bytes"]
        self.descriptors, self.threads = host.descriptors(), host.threads()
        self.tokens = metrics["generation_tokens_total"] + metrics["prefilled_tokens_total"]
        self.wall = self.cpu = 0.0


def held(metrics):
    """What the server still holds that it should not, with no client but the one that asks."""
    limits = {"num_requests_running": 0, "num_requests_waiting": 0, "kv_cache_usage_perc": 0, "http_connections": 1,
              "http_memory_bytes": 65536}
    return [f"{name} {metrics[name]:g}" for name, most in limits.items() if metrics[name] > most]


def rest(run, host, since, seconds):
    """Pauses the clients until nothing is held, looks, measures, and lets them go on."""
    run.gate.clear()
    deadline = time.monotonic() + seconds
    while run.busy and time.monotonic() < deadline:
        time.sleep(0.02)
    if run.busy:
        run.book.fault("stuck", f"{run.busy} clients wait for answers {seconds} s after the last request")
    while (left := held(host.metrics())) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left:
        run.book.fault("held at rest", ", ".join(left))
    # After a request that took so much the server gives freed memory back, so that the next look sees what is in use.
    big = ask(run.port, "POST", "/tokenize", {"content": " " * 700_000}, KEYS[0])
    if big.status != 200:
        run.book.fault(f"status {big.status}", f"/tokenize of a long word: {big.body[:200]!r}")
    same, last = 0, 0
    for _ in range(20):  # until it stands still, or 2 s
        now = host.memory()["RssAnon"]
        same, last = (same + 1 if now == last else 0), now
        if same == 5:
            break
        time.sleep(0.1)
    point = Rest(host, since)
    probe(run, host, point)
    run.gate.set()
    return point


def probe(run, host, point):
    """A fixed piece of work, the same at every rest: how long it takes, and how much CPU time of the server."""
    cpu, start = host.cpu_seconds(), time.monotonic()

    def one(i):
        body = {"prompt": cases.OPENINGS[i % 3], "max_tokens": 48, "temperature": 0, "ignore_eos": True, "cache_salt": "probe"}
        reply = ask(run.port, "POST", cases.TEXT, body, KEYS[i % 3])
        if reply.status != 200:
            run.book.fault(f"status {reply.status}", f"probe: {reply.body[:200]!r}")

    for _ in range(2 if len(run.cases) > 40 else 1):
        threads = [threading.Thread(target=one, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    point.wall, point.cpu = time.monotonic() - start, host.cpu_seconds() - cpu


def quiet_run(run):
    """Every case alone. The second time, streamed, the answers must already agree."""
    for case in run.cases:
        reply = ask(run.port, "POST", case.path, case.fields(False), KEYS[0])
        if reply.status != 200:
            raise RuntimeError(f"{case.name}: {reply.status} {reply.body[:300]!r}")
        answer = cases.whole(reply)
        wrong = cases.compare(case, answer, run.exact)
        if wrong:
            run.book.fault("wrong answer", "quiet: " + wrong)
        case.expected = answer


def warm_up(run):
    """On a GPU the server records a graph of a step for each size of the batch and each power of two of the longest sequence, when
    it meets them. All are made before memory is measured: rare ones would come late and look like a leak. One long answer, and beside
    it answers of 8, 16, 24, … tokens, so that the batch shrinks from 8 to 1."""
    def short(i):
        ask(run.port, "POST", cases.TEXT, {"prompt": "a", "max_tokens": 8 * i, "ignore_eos": True}, KEYS[i % 3])

    token = ask(run.port, "POST", "/tokenize", {"content": " house"}, KEYS[0]).json["tokens"][-1]
    for rows in (256, 512, 1024, 2048, CONTEXT):
        prompt = [token] * (rows // 2 + 1 if rows > 256 else 1)
        with Wire(run.port) as wire:
            wire.send(request("POST", cases.TEXT, {"prompt": prompt, "max_tokens": 230, "ignore_eos": True, "stream": True}, KEYS[0]))
            status, _ = wire.head()
            events = wire.events()
            next(events)
            threads = [threading.Thread(target=short, args=(i,)) for i in range(1, 8)]
            for thread in threads:
                thread.start()
            for _ in events:
                pass
            for thread in threads:
                thread.join()
        if status != 200:
            raise RuntimeError(f"warming up: status {status}")


def slope_of(points):
    """MiB an hour: the median of the slopes between all pairs of rests (Theil and Sen), without the first quarter, in which
    caches fill; and a lower bound with 97.5 % confidence (Sen), because memory at rest moves by some MiB by itself."""
    late = points[len(points) // 4:]
    n = len(late)
    pairs = sorted((b.anon - a.anon) / (b.at - a.at) for i, a in enumerate(late) for b in late[i + 1:] if b.at > a.at)
    if not pairs:
        return 0.0, 0.0
    below = (len(pairs) - 1.96 * (n * (n - 1) * (2 * n + 5) / 18) ** 0.5) / 2
    return tuple(rate * 3600 / MIB for rate in (statistics.median(pairs), pairs[max(0, int(below))]))


def leak_of(points):
    """What is said of a leak, or None. The limits are those of the docstring above."""
    slope, least_slope = slope_of(points)
    span = (points[-1].at - points[len(points) // 4].at) / 3600
    # Less than 1 MiB in all is what the allocator's arenas move by themselves.
    if least_slope <= LARGEST_SLOPE or slope * span <= LEAST_GROWTH:
        return None
    return f"memory at rest grows by {slope:.2f} MiB an hour, at least by {least_slope:.2f}"


def quarters(points, value):
    """The median of a value in the first and in the last quarter of the rests."""
    count = max(1, len(points) // 4)
    return statistics.median(map(value, points[:count])), statistics.median(map(value, points[-count:]))


def soak(run, host, arguments):
    """The load, with its rests, and SIGTERM in the middle of it. Returns the rests."""
    total = arguments.minutes * 60
    every = min(60.0, max(total / 10, 0.6))
    points = [rest(run, host, time.monotonic(), 60)]
    since = time.monotonic()
    points[0].at = 0
    threads = clients.start(run)
    while host.alive() and (len(points) < 4 or time.monotonic() - since < total):
        until = time.monotonic() + every
        while time.monotonic() < until and host.alive():
            time.sleep(0.05)
        if arguments.plant == "crash" and len(points) == 3:
            host.process.kill()
            host.process.wait()
        if host.alive():
            points.append(rest(run, host, since, 180 if arguments.tsan else 60))
            if arguments.minutes >= 1:
                print(f"{points[-1].at / 60:5.1f} min  {run.book.answers} answers  at rest {points[-1].anon / MIB:.1f} MiB, of "
                      f"them prefixes {points[-1].prefix / MIB:.1f}; highest {host.highest['RssAnon'] / MIB:.1f}  faults "
                      f"{sum(run.book.fault_kinds.values())}", flush=True)
    if not host.alive():
        run.book.fault("crash", f"the server ended with {host.process.returncode}: {host.log_tail()}")
        run.ending.set()
    else:
        time.sleep(min(3.0, total / 10))  # until the load is there again
        end(run, host, arguments)
    run.stop.set()
    for thread in threads:
        thread.join(60)
    return points


def end(run, host, arguments):
    run.ending.set()
    host.terminate()
    code = host.wait(240 if arguments.tsan else 60)
    if code != 0:
        run.book.fault("end", f"after SIGTERM the exit code is {code}: {host.log_tail()}")
    elif not unreachable(host.port):
        run.book.fault("end", "the port still answers")


def judge(run, host, points, plan, arguments, cgroup):
    """Adds a failure to the book for each figure beyond its limit, and returns the lines of the table."""
    book = run.book
    book.check_watched()
    long = arguments.minutes >= JUDGED_MINUTES and not arguments.tsan
    highest, limit = host.highest["RssAnon"], (plan + MARGIN) * 1.02
    if highest > limit and not arguments.tsan:
        book.fault("memory", f"RssAnon reached {highest / MIB:.1f} MiB; the plan and its margin are {(plan + MARGIN) / MIB:.1f}")
    if kills := cgroup.kills():
        book.fault("memory", f"the kernel ended {kills} processes of the cgroup")
    slope, least_slope = slope_of(points)
    if (long or arguments.plant == "leak") and (leak := leak_of(points)):
        book.fault("leak", leak)
    # More than a few beyond the first rest is a leak: some threads and descriptors come with the first load.
    for name in ("descriptors", "threads"):
        first, last = getattr(points[min(1, len(points) - 1)], name), getattr(points[-1], name)
        if last > first + 4:
            book.fault("leak", f"{name} at rest: {first} at first, {last} at last")
    cpu_first, cpu_last = quarters(points, lambda p: p.cpu)
    wall_first, wall_last = quarters(points, lambda p: p.wall)
    kept = cpu_first / max(cpu_last, 1e-9)
    if long and kept < LEAST_THROUGHPUT:
        book.fault("throughput", f"the last quarter has {kept:.1%} of the first, by CPU time")
    gap = percentile(book.gaps, 0.99)
    if long and gap > LARGEST_GAP:
        book.fault("gaps", f"99 % of the gaps are below {gap:.2f} s; the limit is {LARGEST_GAP} s")
    for line in host.log_has("ThreadSanitizer", "AddressSanitizer", "CHECK failed", "runtime error")[:5]:
        book.fault("log", line)
    refusals = {status: count for status, count in sorted(book.statuses.items()) if status != 200}
    return [
        ("minutes", f"{points[-1].at / 60:.1f}"),
        ("requests", f"{sum(book.requests.values())}: " + ", ".join(f"{k} {v}" for k, v in sorted(book.requests.items()))),
        ("tokens", f"{points[-1].tokens - points[0].tokens:.0f} generated and prefilled"),
        ("answers checked", f"{book.answers}" + ("" if run.exact else ", their counts and ends, not their text")),
        ("wrong answers", str(book.fault_kinds["wrong answer"])),
        ("cancels", f"{sum(book.cancels.values())}: " + ", ".join(f"{k} {v}" for k, v in sorted(book.cancels.items()))),
        ("refusals", ", ".join(f"{status}: {count}" for status, count in refusals.items()) or "none"),
        ("highest RssAnon", f"{highest / MIB:.1f} MiB; plan {plan / MIB:.1f}, with the margin {(plan + MARGIN) / MIB:.1f}"),
        ("highest RSS", f"{host.highest['VmRSS'] / MIB:.1f} MiB with mapped files; limit: {limit_words(cgroup, arguments)}"),
        ("at rest", f"{points[min(1, len(points) - 1)].anon / MIB:.1f} MiB after the first load, {points[-1].anon / MIB:.1f} at last; "
                    f"slope {slope:+.2f} MiB an hour, at least {least_slope:+.2f} ({len(points)} rests)"),
        ("descriptors, threads", f"{points[-1].descriptors}, {points[-1].threads} at the last rest"),
        ("throughput kept", f"{kept:.1%} by CPU time, {wall_first / max(wall_last, 1e-9):.1%} by the clock"),
        ("gaps in streams", f"median {percentile(book.gaps, 0.5) * 1e3:.0f} ms, p99 {gap * 1e3:.0f} ms, p99.9 "
                            f"{percentile(book.gaps, 0.999) * 1e3:.0f} ms; first piece p99 {percentile(book.first, 0.99) * 1e3:.0f} ms"),
        ("faults", ", ".join(f"{k} {v}" for k, v in sorted(book.fault_kinds.items())) or "none")]


def limit_words(cgroup, arguments):
    if cgroup.name:
        return f"{cgroup.name}, {arguments.limit / MIB:.1f} MiB"
    return "no cgroup" + (f" ({'; '.join(cgroup.why)})" if cgroup.why else "") + ", RssAnon is compared with the plan"


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("minutes", type=float)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--tsan", action="store_true", help="the binary has the thread sanitizer: memory and time are not judged")
    parser.add_argument("--no-cgroup", action="store_true")
    parser.add_argument("--plant", choices=["wrong-answer", "leak", "crash"], help="a defect that the run must find")
    parser.add_argument("--leak-library", help="tests/soak/leak.cc, built; for --plant leak")
    parser.add_argument("flags", nargs="*", help="further flags of serve, after --")
    arguments = parser.parse_args()
    if arguments.plant == "leak" and not arguments.leak_library:
        parser.error("--plant leak needs --leak-library")
    return arguments


def main():
    arguments = parse()
    # The pool holds two whole contexts, so that eight sequences preempt each other now and then.
    flags = ["-c", str(CONTEXT), "--batch", "8", "--queue", "24", "--kv-limit", "48MiB", "--device", arguments.device,
             *arguments.flags]
    plan, _ = plan_of(arguments.binary, flags)
    arguments.limit = int((plan + MARGIN) * 1.05)

    cgroup = Cgroup(None if arguments.no_cgroup or arguments.tsan else arguments.limit)
    with tempfile.TemporaryDirectory(prefix="infinigen-soak-") as folder:
        host = Host(arguments.binary, flags, KEYS, folder, cgroup, arguments.leak_library if arguments.plant == "leak" else None)
        try:
            host.await_ready()
            known = cases.catalogue(CONTEXT, small=arguments.minutes < 1)
            run = clients.Run(host.port, known, KEYS, CONTEXT, arguments.device == "cpu", arguments.plant)
            quiet_run(run)
            if arguments.device == "cuda":
                warm_up(run)
            try:
                points = soak(run, host, arguments)
            except (Gone, OSError) as error:  # the server ended while it was asked at rest
                host.wait(10)
                print(f"crash: the server ended with {host.process.returncode} ({error}): {host.log_tail()}")
                return 1
            table = judge(run, host, points, plan, arguments, cgroup)
        finally:
            host.kill()
            cgroup.remove()
    for fault in run.book.faults:
        print(fault)
    for name, value in table:
        print(f"{name:<21} {value}")
    print("soak:", "FAILED" if run.book.fault_kinds else "passed")
    return 1 if run.book.fault_kinds else 0


if __name__ == "__main__":
    sys.exit(main())
