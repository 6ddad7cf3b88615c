"""Shared code of the experiments: runs the program, stores results, and compares them with stored results.

An experiment is a folder with a `run.py`, which defines the commands, the values to read from their JSON output, the plot
and the table:

    experiments/NAME/run.py                  measures; writes result.json and plot.svg
    experiments/NAME/run.py --check          measures; compares with the stored result.json
    experiments/NAME/run.py --plot-only      draws plot.svg from result.json
    experiments/NAME/run.py --table          prints the table of docs/results-*.md from result.json
    experiments/NAME/run.py --dry-run        checks that the program accepts each command
    experiments/NAME/run.py --model DIR --out DIR      measures another model (accuracy only)
    experiments/NAME/run.py --device cuda    measures on a GPU with the cache in its memory, where the true query selects, as
                                             on a CPU (accuracy only)

Accuracy must be reproduced: to the last bit on the same processor and SIMD target, within 0.1 % on others, and within 3 %
where a GPU is involved. For speed, the stored value, the new value and their ratio are printed.
"""
import argparse
import atexit
import concurrent.futures
import dataclasses
import json
import lzma
import math
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from typing import Callable

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOLERANCE = 1e-3  # relative, for accuracy on another processor
LEAST = 1e-4  # absolute, for numbers near 0
GPU_TOLERANCE, GPU_LEAST, GPU_COUNT = 0.03, 2e-3, 1  # the same where a GPU is involved; counts of facts may differ by one
POINTS = 0.1  # absolute, for changes of perplexity in percent: the tolerance of perplexity itself
GPU_FLAGS = ("--device", "cuda", "--kv-home", "device")  # nothing is fetched, so the true query selects, as on a CPU
NOISE = 0.1  # relative, for times on the same GPU: two runs an hour apart differed by at most 8 %


class NoText(Exception):
    pass


class NoModel(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class Text:
    """A text of the corpus as a command argument: the whole file or its first `size` bytes."""
    name: str  # path below eval/
    size: int | None = None

    def __str__(self):
        return pathlib.Path(self.name).name if self.size is None else f"<(head -c {self.size} {pathlib.Path(self.name).name})"

    def path(self, folder):
        given = os.environ.get("INFINIGEN_DATA")
        places = [pathlib.Path(given)] if given else [ROOT.parent / "shared" / "corpus", ROOT / "shared" / "corpus"]
        files = [place / below / f"{self.name}.xz" for place in places for below in ("eval", ".")]
        packed = next((file for file in files if file.exists()), None)
        if packed is None:
            raise NoText(f"no corpus: {self.name}.xz is neither in $INFINIGEN_DATA nor in ../shared/corpus/eval")
        plain = pathlib.Path(folder) / f"{self.size or 'all'}-{pathlib.Path(self.name).name}"
        if not plain.exists():
            plain.write_bytes(lzma.open(packed).read(self.size or -1))
        return str(plain)


@dataclasses.dataclass(frozen=True)
class Model:
    """A model file that is not part of this repository, as a command argument. Without it the command is skipped."""
    name: str       # of the file, in the program's cache of models
    variable: str   # environment variable with another path

    def __str__(self):
        return self.name

    def path(self, _):
        home = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
        cache = os.environ.get("INFINIGEN_CACHE", os.path.join(home, "infinigen"))
        path = os.environ.get(self.variable, os.path.join(cache, "models", self.name))
        if not os.path.exists(path):
            raise NoModel(f"no {self.name}: neither in ${self.variable} nor in the cache of models (scripts/get_model.sh)")
        return path


WALDEN = Text("books/walden.txt")
BOOKS = (Text("books/moby_dick.txt"), Text("books/haggard_she_1887.txt"), Text("books/eliot_adam_1859.txt"))
SMOLLM2 = Model("SmolLM2-135M-Instruct.Q4_1.gguf", "INFINIGEN_SMOLLM2")

@dataclasses.dataclass(frozen=True)
class Command:
    """A command line of the program; `keys` are added to the rows of its result."""
    words: tuple
    keys: dict = dataclasses.field(default_factory=dict)
    timeout_s: float | None = None

    def __str__(self):
        return " ".join(["infinigen", *(str(w) if isinstance(w, Text) else shlex.quote(str(w)) for w in self.words)])

    @property
    def has_model(self):
        return any(isinstance(word, Model) for word in self.words)

    @property
    def model(self):
        return next((str(word) for word in self.words if isinstance(word, Model)), "")

    @property
    def on_gpu(self):
        return "cuda" in self.words


def command(line, *files, timeout_s=None, **keys):
    """Splits `line` at blanks; each word TEXT or MODEL is replaced by the next of `files`."""
    given = iter(files)
    return Command(tuple(next(given) if word in ("TEXT", "MODEL") else word for word in line.split()), keys, timeout_s)


class Runner:
    """Runs commands, up to `jobs` at the same time. Each is run only once, so experiments with the same command share its
    result. With device cuda, commands that name no device run on the GPU."""

    def __init__(self, binary, deadline=math.inf, model=None, device="cpu", jobs=1):
        self.binary, self.deadline, self.model, self.device, self.jobs = binary, deadline, model, device, jobs
        self.answers, self.lock = {}, threading.Lock()
        self.pool = concurrent.futures.ThreadPoolExecutor(jobs)
        self.folder = tempfile.TemporaryDirectory(prefix="infinigen-experiments-")
        atexit.register(self.folder.cleanup)

    def close(self):
        """Commands that have not been started are not started any more."""
        self.pool.shutdown(wait=False, cancel_futures=True)

    @property
    def added(self):
        """Flags for every command that names no device."""
        return GPU_FLAGS if self.device == "cuda" else ()

    def on_gpu(self, command):
        return command.on_gpu or self.device == "cuda"

    def line(self, command):
        with self.lock:  # texts are unpacked once
            words = [w.path(self.folder.name) if isinstance(w, (Text, Model)) else str(w) for w in command.words]
        if not command.on_gpu:
            words += self.added
        if self.jobs > 1:  # threads change no number
            words += ["-t", str(max(1, (os.cpu_count() or 1) // self.jobs))]
            words += ["--device-memory", f"{max(4, 96 // self.jobs)}GiB"] if self.on_gpu(command) else []
        return [str(self.binary), *words, *(["-m", str(self.model)] if self.model else [])]

    def start(self, commands):
        """Starts commands in this order. The first of each model runs alone, because it may have to calibrate the model."""
        commands = [command for command in commands if not self.skips(command)]
        first = {command.model: command for command in reversed(commands)}
        for command in first.values():
            self.json(command)
        for command in commands:
            self.submit(command)

    def submit(self, command):
        key = str(command)
        if key not in self.answers:
            self.answers[key] = self.pool.submit(self.timed, command)
        return self.answers[key]

    def json(self, command):
        """(parsed output, None), or (None, reason of the failure)."""
        return self.submit(command).result()

    def timed(self, command):
        alone = self.jobs == 1
        if alone:
            print(f"  {command}", file=sys.stderr, flush=True)
        start = time.monotonic()
        answer = self.ask(command)
        print(f"    {time.monotonic() - start:.1f} s{'' if alone else f'  {command}'}{'' if answer[1] is None else ': ' + answer[1]}",
              file=sys.stderr, flush=True)
        return answer

    def ask(self, command):
        left = self.deadline - time.monotonic()
        if left <= 0:
            return None, "no time was left"
        limit = min(left, command.timeout_s or math.inf)
        try:
            run = subprocess.run([*self.line(command), "--json"], capture_output=True, text=True,
                                 timeout=None if limit == math.inf else limit)
        except subprocess.TimeoutExpired:
            return None, f"took more than {limit:.0f} s"
        except (OSError, NoText) as error:
            return None, str(error)
        if run.returncode != 0:
            return None, f"exit code {run.returncode}: {run.stderr.strip()}"
        try:
            return json.loads(run.stdout), None
        except ValueError as error:
            return None, f"no JSON: {error}"

    def skips(self, command):
        """Why the command does not belong to this run; None when it does."""
        if self.model and command.has_model:
            return "measures another model"
        try:
            self.line(command)
        except NoModel as error:
            return str(error)
        except NoText:
            pass  # an error, when the command is run
        return None

    def refused(self, command):
        """Why the program rejects the command; None when it accepts it. A missing GPU or model is no rejection."""
        if self.skips(command):
            return None
        try:
            run = subprocess.run([*self.line(command), "--dry-run"], capture_output=True, text=True,
                                 env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
        except (OSError, NoText) as error:
            return str(error)
        no_gpu = self.on_gpu(command) and run.returncode == 1 and "--device cuda" in run.stderr
        return None if run.returncode == 0 or no_gpu else f"exit code {run.returncode}: {run.stderr.strip()}"


def processor(what):
    """The value of a line of /proc/cpuinfo; empty when there is none."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(what)), "")


def simd_target():
    """The SIMD target that the CPU backend selects on this processor (docs/cpu-backend.md)."""
    flags = set(processor("flags").split())
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd"} <= flags:
        return "avx512"
    return "avx2" if {"avx2", "fma", "bmi2", "f16c"} <= flags else "portable"


def machine():
    return {"cpu": processor("model name") or platform.machine(), "cores": os.cpu_count(), "simd": simd_target()}


def same_place(a, b):
    return not on_gpu(a, b) and (a["cpu"], a["simd"]) == (b["cpu"], b["simd"])


def on_gpu(*machines):
    return any("gpu" in machine for machine in machines)


def close(kept, now, where, gpu):
    """Whether two numbers are the same result on different machines."""
    if all(isinstance(x, int) for x in (kept, now)):
        return abs(kept - now) <= (GPU_COUNT if gpu else 0)
    least = POINTS if where.endswith((".loss", ".loss_stderr")) else GPU_LEAST if gpu else LEAST
    return abs(kept - now) <= max(least, (GPU_TOLERANCE if gpu else TOLERANCE) * abs(kept))


def differences(kept, now, exact, where="", gpu=False):
    """The differences of two trees of numbers and strings, one line each."""
    if isinstance(kept, dict) and isinstance(now, dict):
        keys = sorted(set(kept) | set(now))
        return [d for key in keys for d in differences(kept.get(key), now.get(key), exact, f"{where}.{key}", gpu)]
    if isinstance(kept, list) and isinstance(now, list) and len(kept) == len(now):
        return [d for i, pair in enumerate(zip(kept, now)) for d in differences(*pair, exact, f"{where}[{i}]", gpu)]
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (kept, now))
    if numbers and not exact and close(kept, now, where, gpu):
        return []
    return [] if kept == now else [f"{where.lstrip('.')}: was {kept}, is {now}"]


@dataclasses.dataclass
class Experiment:
    file: str                           # path of run.py
    question: str                       # docstring of run.py
    commands: list[Command]
    read: Callable[[dict, dict], list]  # (JSON of a command, its keys) -> rows: dicts of strings and numbers
    plot: Callable[[list], str]         # rows -> SVG
    table: Callable[[list], str]        # rows -> Markdown
    kind: str = "accuracy"              # or "speed"

    @property
    def folder(self):
        return pathlib.Path(self.file).resolve().parent

    @property
    def name(self):
        return self.folder.name

    def kept(self, folder=None):
        path = (folder or self.folder) / "result.json"
        return json.loads(path.read_text()) if path.exists() else None

    @staticmethod
    def rows(result):
        return [row for run in result["runs"] for row in run.get("rows", [])]

    def measure(self, runner):
        result = {"experiment": self.name, "kind": self.kind, "question": self.question.strip().split("\n")[0],
                  "machine": machine(), "runs": []}
        if runner.added:
            result["added"] = " ".join(runner.added)
        for command in self.commands:
            run = {"command": str(command)}
            if skipped := runner.skips(command):
                print(f"  SKIPPED {command}: {skipped}", file=sys.stderr, flush=True)
                result["runs"].append(run | {"skipped": skipped})
                continue
            output, why = runner.json(command)
            if why is None:
                device = output.get("device", {})
                if device.get("backend") == "cuda":
                    result["machine"]["gpu"] = device["name"]
                if runner.model:
                    result["model"] = output["model"]["name"]
                run["rows"] = self.read(output, command.keys)
            else:
                run["error"] = why
            result["runs"].append(run)
        return result

    def write(self, result, folder=None):
        """Writes one line per row, so that a changed number is one line of a diff. Numbers are not rounded."""
        folder = folder or self.folder
        folder.mkdir(parents=True, exist_ok=True)
        head = {key: value for key, value in result.items() if key != "runs"}
        runs = ",\n".join(
            " " + json.dumps({k: v for k, v in run.items() if k != "rows"})[:-1]
            + ("" if "rows" not in run else ', "rows": [\n' + ",\n".join("  " + json.dumps(row) for row in run["rows"]) + "]")
            + "}" for run in result["runs"])
        (folder / "result.json").write_text(json.dumps(head)[:-1] + ', "runs": [\n' + runs + "]}\n")

    def draw(self, result, folder=None):
        if self.rows(result):
            ((folder or self.folder) / "plot.svg").write_text(self.plot(self.rows(result)))

    def check(self, result):
        """Exit code: 0 when the stored result was reproduced."""
        kept = self.kept()
        if kept is None:
            print(f"{self.name}: no stored result.json to compare with")
            return 1
        if self.kind == "speed":
            return self.compare_speed(kept, result)
        exact = same_place(kept["machine"], result["machine"])
        skipped = {run["command"] for run in result["runs"] if "skipped" in run}
        measured = lambda runs: [run for run in runs if run["command"] not in skipped]
        gpu = on_gpu(kept["machine"], result["machine"])
        found = differences(measured(kept["runs"]), measured(result["runs"]), exact, gpu=gpu)
        how = "to the last bit" if exact else "within 3 % (on a GPU)" if gpu else "within 0.1 % (another processor)"
        if skipped:
            how += f", {len(skipped)} of {len(result['runs'])} commands skipped"
        print(f"{self.name}: " + (f"reproduced, {how}" if not found else f"{len(found)} numbers differ (compared {how}):"))
        for line in found:
            print(f"  {line}")
        return 1 if found else 0

    def compare_speed(self, kept, result):
        print(f"{self.name}: stored ({kept['machine'].get('gpu', kept['machine']['cpu'])}), "
              f"now ({result['machine'].get('gpu', result['machine']['cpu'])}), ratio")
        names = lambda row: ", ".join(f"{k} {v}" for k, v in row.items() if isinstance(v, (str, int)))
        measured = {names(row): row for row in self.rows(result)}
        judged = kept["machine"].get("gpu") == result["machine"].get("gpu")
        wrong = len(self.rows(result)) != len(self.rows(kept))
        for old in self.rows(kept):
            new = measured.get(names(old))
            if new is None:
                print(f"  {names(old)}: not measured")
                wrong = True
                continue
            for key, was in old.items():
                now = new.get(key)
                if not (isinstance(was, float) and isinstance(now, float)):
                    continue
                off = judged and key == "step_ms" and abs(now / was - 1) > NOISE
                wrong |= off
                print(f"  {names(old)}: {key} {was:.4g} {now:.4g}" + (f" {now / was:.3f}" if was else "") + (" beyond noise" if off else ""))
        return int(wrong)

    def main(self):
        parser = argparse.ArgumentParser(description=self.question)
        parser.add_argument("--binary", default=str(ROOT / "build/release/infinigen"), help="the program (default: build/release/infinigen)")
        parser.add_argument("--out", type=pathlib.Path, default=self.folder, help="folder for result.json and plot.svg (default: the experiment's)")
        if self.kind == "accuracy":
            parser.add_argument("--model", help="Hugging Face model directory (default: the shipped model); needs --out")
            add_machine_options(parser)
        parser.set_defaults(model=None, device="cpu", jobs=1)
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--check", action="store_true", help="compare with the stored result.json instead of replacing it")
        what.add_argument("--plot-only", action="store_true", help="draw plot.svg from result.json without measuring")
        what.add_argument("--table", action="store_true", help="print the table from result.json without measuring")
        what.add_argument("--dry-run", action="store_true", help="check that the program accepts each command")
        arguments = parser.parse_args()
        if arguments.plot_only or arguments.table:
            kept = self.kept(arguments.out)
            if kept is None:
                sys.exit(f"{arguments.out}/result.json does not exist: run the experiment first")
            if arguments.table:
                print(self.table(self.rows(kept)))
            else:
                self.draw(kept, arguments.out)
            return 0
        if arguments.model and not arguments.dry_run and (arguments.check or arguments.out == self.folder):
            parser.error("the stored results belong to the shipped model: pass --out with --model, without --check")
        runner = Runner(arguments.binary, model=arguments.model, device=arguments.device, jobs=arguments.jobs)
        if arguments.dry_run:
            refusals = [(command, runner.refused(command)) for command in self.commands]
            for command, why in refusals:
                print(f"{'ok' if why is None else 'REFUSED: ' + why}: {command}")
            return 1 if any(why for _, why in refusals) else 0
        if runner.jobs > 1:
            runner.start(self.commands)
        result = self.measure(runner)
        if arguments.check:
            return self.check(result)
        self.write(result, arguments.out)
        self.draw(result, arguments.out)
        print(self.table(self.rows(result)) if self.rows(result) else f"{self.name}: nothing was measured")
        return 1 if any("error" in run for run in result["runs"]) else 0


def add_machine_options(parser):
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu",
                        help="where commands run that name no device; cuda adds " + " ".join(GPU_FLAGS) + " (default: cpu)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="run N commands at the same time, each with its share of the cores (default: 1)")


def table(heads, rows):
    """A Markdown table; the first column is text, the others are numbers."""
    line = lambda cells: "| " + " | ".join(str(cell) for cell in cells) + " |"
    return "\n".join([line(heads), "|---|" + "--:|" * (len(heads) - 1), *(line(row) for row in rows)])


def percent(share, digits=1):
    return f"{100 * share:.{digits}f} %"


def series(rows, name, x, y):
    """{name of a line: its points}, in order of first occurrence; rows without y are left out."""
    lines = {}
    for row in rows:
        if row.get(y) is not None:
            lines.setdefault(row[name] if isinstance(name, str) else name(row), []).append((row[x], row[y]))
    return lines


def scored(output, keys):
    """The row of `eval ppl`. `loss`: the change of perplexity against full, in percent; standard errors are over windows."""
    row = {"kv": output["kv"]["preset"], **keys, "ppl": output["ppl"], "loss": output.get("ppl_delta_percent"),
           "loss_stderr": output.get("ppl_delta_stderr"), "kld": output["kld_mean"], "kld_stderr": output.get("kld_stderr"),
           "top1": output["top1_agree"], "attended": output["kv_stats"]["attended_ratio"]}
    return {key: value for key, value in row.items() if value is not None}


# ---- speed ----

# OPT-13B as published: entries on the host, no hot set, prompts of 1,920 tokens. Random weights have flat scores, so the
# number of fetched entries is forced to the published means. Sinks and window are off, because their contiguous rows
# would make up most of that number.
FORCED = "--kv-tail off --kv-hot 0 --kv-sinks 0 --kv-window 0 --kv-force-count"


def fetched_step(shape="opt-13b", batch=20, prompt=1920, count=73, more="", timeout_s=100, **keys):
    return command(f"bench --device cuda --shape {shape} --batch {batch} --prompt {prompt} --gen 8 --kv full,int4,infinigen "
                   f"{FORCED} {count}{more}", timeout_s=timeout_s, **keys)


RESIDENT_STEP = "bench --device cuda --shape opt-13b --batch 20 --prompt 1920 --gen 12 --kv full --kv-home device"
WIDE_STEP = f"bench --device cuda --shape opt-13b --batch 20 --prompt 1920 --gen 12 --kv infinigen {FORCED} 409"


def benched(output, keys):
    """One row per method and depth of `bench`."""
    rows = []
    for result in output["results"]:
        timing, options = result["timing"], result["kv_options"]
        row = {"kv": result["kv"], "home": options["home"], "batch": result["batch"], "depth": result["depth"], **keys,
               "step_ms": timing["decode_step_ms_median"]}
        if timing.get("prefill_s"):
            row["prefill_s"] = timing["prefill_s"]
        if options.get("force_count"):
            row["count"] = options["force_count"]
        for name in ("link_gb_per_s", "no_fetch_step_ms", "no_compute_step_ms", "hidden_share"):
            if result.get(name) is not None:
                row[name] = result[name]
        if "step_ms_by_kind" in result:
            row["kinds"] = result["step_ms_by_kind"]
        if "ceilings" in output:
            row["ceilings"] = output["ceilings"]
        rows.append(row)
    return rows


def pick(rows, **keys):
    """The first row with these values; None when there is none."""
    return next((row for row in rows if all(row.get(k) == v for k, v in keys.items())), None)


def tokens_per_s(row, generated=128):
    """Throughput as published: 128 generated tokens, with the time of the prefill included."""
    return row["batch"] * generated / (row.get("prefill_s", 0) + generated * row["step_ms"] / 1e3)
