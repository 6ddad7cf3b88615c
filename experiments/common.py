"""What every experiment shares: running the program, keeping what it said, and comparing it with what was kept before.

An experiment is a folder with a `run.py` that names commands, what to read from their JSON, how to draw it and how to
tell it. From there:

    experiments/NAME/run.py                  measures, writes result.json and plot.svg
    experiments/NAME/run.py --check          measures, and compares with result.json
    experiments/NAME/run.py --plot-only      draws plot.svg from result.json
    experiments/NAME/run.py --table          prints the table of docs/results-*.md from result.json
    experiments/NAME/run.py --dry-run        asks the program whether it would take each command
    experiments/NAME/run.py --model DIR --out DIR      the same on another model (accuracy)

Accuracy has to come out as it was: to the last bit on the same processor and SIMD target, within 0.1 % elsewhere.
Speed is printed beside what was kept, with the ratio.
"""
import argparse
import atexit
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
import time
from typing import Callable

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOLERANCE = 1e-3  # of a number of accuracy, on another processor
LEAST = 1e-4  # and of one that is nearly nothing: a hundredth of a percent of a perplexity, of a share
NOISE = 0.1  # of a time, on the same GPU: two runs of an hour apart differed by 8 % at most


class NoText(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class Text:
    """A text of the corpus, as an argument of a command: its file, or its first bytes."""
    name: str  # below eval/
    size: int | None = None

    def __str__(self):
        return pathlib.Path(self.name).name if self.size is None else f"<(head -c {self.size} {pathlib.Path(self.name).name})"

    def path(self, folder):
        given = os.environ.get("INFINIGEN_DATA")
        places = [pathlib.Path(given)] if given else [ROOT.parent / "shared" / "corpus", ROOT / "shared" / "corpus"]
        files = [place / below / f"{self.name}.xz" for place in places for below in ("eval", ".")]
        packed = next((file for file in files if file.exists()), None)
        if packed is None:
            raise NoText(f"no corpus: {self.name}.xz is neither below $INFINIGEN_DATA nor in ../shared/corpus/eval")
        plain = pathlib.Path(folder) / f"{self.size or 'all'}-{pathlib.Path(self.name).name}"
        if not plain.exists():
            plain.write_bytes(lzma.open(packed).read(self.size or -1))
        return str(plain)


WALDEN = Text("books/walden.txt")
# A window and a minimum so small that the share which is attended to is the selection's own.
BARE = "--kv-window 64 --kv-min 64 --kv-sinks 4"


@dataclasses.dataclass(frozen=True)
class Command:
    """A command line of the program, and what distinguishes its results from those of its siblings."""
    words: tuple
    keys: dict = dataclasses.field(default_factory=dict)
    timeout_s: float | None = None

    def __str__(self):
        return " ".join(["infinigen", *(str(w) if isinstance(w, Text) else shlex.quote(str(w)) for w in self.words)])

    @property
    def on_gpu(self):
        return "cuda" in self.words


def command(line, *texts, timeout_s=None, **keys):
    """`line` is split at blanks; each TEXT in it stands for the next of `texts`."""
    given = iter(texts)
    return Command(tuple(next(given) if word == "TEXT" else word for word in line.split()), keys, timeout_s)


class Runner:
    """Runs commands, each once: experiments that ask the same thing share the answer."""

    def __init__(self, binary, deadline=math.inf, model=None):
        self.binary, self.deadline, self.model, self.answers = binary, deadline, model, {}
        self.folder = tempfile.TemporaryDirectory(prefix="infinigen-experiments-")
        atexit.register(self.folder.cleanup)

    def line(self, command):
        words = [w.path(self.folder.name) if isinstance(w, Text) else str(w) for w in command.words]
        return [str(self.binary), *words, *(["-m", str(self.model)] if self.model else [])]

    def json(self, command):
        """(parsed output, None), or (None, why there is none)."""
        key = str(command)
        if key not in self.answers:
            print(f"  {key}", file=sys.stderr, flush=True)
            start = time.monotonic()
            self.answers[key] = self.ask(command)
            why = self.answers[key][1]
            print(f"    {time.monotonic() - start:.1f} s{'' if why is None else ': ' + why}", file=sys.stderr, flush=True)
        return self.answers[key]

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

    def refused(self, command):
        """Why the program would not take the command; None where it would. A machine without a GPU is no reason."""
        try:
            run = subprocess.run([*self.line(command), "--dry-run"], capture_output=True, text=True,
                                 env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
        except (OSError, NoText) as error:
            return str(error)
        no_gpu = command.on_gpu and run.returncode == 1 and "--device cuda" in run.stderr
        return None if run.returncode == 0 or no_gpu else f"exit code {run.returncode}: {run.stderr.strip()}"


def processor(what):
    """A line of /proc/cpuinfo; empty where there is none."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(what)), "")


def simd_target():
    """What the CPU backend chooses at run time, by what Linux says of the processor (docs/cpu-backend.md)."""
    flags = set(processor("flags").split())
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd"} <= flags:
        return "avx512"
    return "avx2" if {"avx2", "fma", "bmi2", "f16c"} <= flags else "portable"


def machine():
    return {"cpu": processor("model name") or platform.machine(), "cores": os.cpu_count(), "simd": simd_target()}


def same_place(a, b):
    return (a["cpu"], a["simd"]) == (b["cpu"], b["simd"])


def differences(kept, now, exact, where=""):
    """Where two trees of numbers and words are not the same, one line each."""
    if isinstance(kept, dict) and isinstance(now, dict):
        keys = sorted(set(kept) | set(now))
        return [d for key in keys for d in differences(kept.get(key), now.get(key), exact, f"{where}.{key}")]
    if isinstance(kept, list) and isinstance(now, list) and len(kept) == len(now):
        return [d for i, pair in enumerate(zip(kept, now)) for d in differences(*pair, exact, f"{where}[{i}]")]
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (kept, now))
    whole = numbers and all(isinstance(x, int) for x in (kept, now))  # counts: nothing is near
    if numbers and not exact and not whole and abs(kept - now) <= max(LEAST, TOLERANCE * abs(kept)):
        return []
    return [] if kept == now else [f"{where.lstrip('.')}: was {kept}, is {now}"]


@dataclasses.dataclass
class Experiment:
    file: str                           # the run.py
    question: str                       # its docstring
    commands: list[Command]
    read: Callable[[dict, dict], list]  # (JSON of a command, its keys) -> rows: dicts of words and numbers
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
        for command in self.commands:
            output, why = runner.json(command)
            run = {"command": str(command)}
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
        """One line a row, so that a change of one number is one line of a diff. Numbers are left as they came."""
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
        """Exit code 0 where the kept result came out again."""
        kept = self.kept()
        if kept is None:
            print(f"{self.name}: there is no result.json to compare with")
            return 1
        if self.kind == "speed":
            return self.compare_speed(kept, result)
        exact = same_place(kept["machine"], result["machine"])
        found = differences(kept["runs"], result["runs"], exact)
        how = "to the last bit" if exact else "within 0.1 % (another processor)"
        print(f"{self.name}: " + (f"the same, {how}" if not found else f"{len(found)} numbers are not the same, {how}:"))
        for line in found:
            print(f"  {line}")
        return 1 if found else 0

    def compare_speed(self, kept, result):
        print(f"{self.name}: kept ({kept['machine'].get('gpu', kept['machine']['cpu'])}), "
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
        parser.add_argument("--binary", default=str(ROOT / "build/release/infinigen"))
        parser.add_argument("--out", type=pathlib.Path, default=self.folder, help="where result.json and plot.svg go")
        if self.kind == "accuracy":
            parser.add_argument("--model", help="a directory as Hugging Face lays it out (default: the shipped model)")
        parser.set_defaults(model=None)
        what = parser.add_mutually_exclusive_group()
        for flag in ("--check", "--plot-only", "--table", "--dry-run"):
            what.add_argument(flag, action="store_true")
        arguments = parser.parse_args()
        if arguments.plot_only or arguments.table:
            kept = self.kept(arguments.out)
            if kept is None:
                sys.exit(f"{arguments.out}/result.json is not there: run the experiment first")
            if arguments.table:
                print(self.table(self.rows(kept)))
            else:
                self.draw(kept, arguments.out)
            return 0
        if arguments.model and not arguments.dry_run and (arguments.check or arguments.out == self.folder):
            parser.error("what is kept is the shipped model's: pass --out with --model, and no --check")
        runner = Runner(arguments.binary, model=arguments.model)
        if arguments.dry_run:
            refusals = [(command, runner.refused(command)) for command in self.commands]
            for command, why in refusals:
                print(f"{'ok' if why is None else 'REFUSED: ' + why}: {command}")
            return 1 if any(why for _, why in refusals) else 0
        result = self.measure(runner)
        if arguments.check:
            return self.check(result)
        self.write(result, arguments.out)
        self.draw(result, arguments.out)
        print(self.table(self.rows(result)) if self.rows(result) else f"{self.name}: nothing was measured")
        return 1 if any("error" in run for run in result["runs"]) else 0


def table(heads, rows):
    """Markdown; the first column is words, the others are numbers."""
    line = lambda cells: "| " + " | ".join(str(cell) for cell in cells) + " |"
    return "\n".join([line(heads), "|---|" + "--:|" * (len(heads) - 1), *(line(row) for row in rows)])


def percent(share, digits=1):
    return f"{100 * share:.{digits}f} %"


def against(ratio):
    """A ratio of perplexities as what it costs."""
    return f"{100 * (ratio - 1):+.2f} %"


def series(rows, name, x, y):
    """{name of a line: its points}, in the order in which names first come; rows without y are left out."""
    lines = {}
    for row in rows:
        if row.get(y) is not None:
            lines.setdefault(row[name] if isinstance(name, str) else name(row), []).append((row[x], row[y]))
    return lines


def compared(output, keys):
    """A row for each method of `eval compare`."""
    rows = []
    for result in output["results"]:
        row = {"kv": result["kv"], **keys}
        if result.get("error"):
            row["error"] = result["error"]
        if "ppl" in result:
            row |= {"ppl": result["ppl"], "ppl_vs_full": result["ppl_vs_full"], "kld": result["kld_mean"],
                    "top1": result["top1_agree"], "attended": result["ppl_kv_stats"]["attended_ratio"]}
        if "cells" in result:
            row |= {"found": sum(cell["found"] for cell in result["cells"]), "cases": sum(cell["n"] for cell in result["cells"]),
                    "needle_attended": result["needle_kv_stats"]["attended_ratio"]}
        rows.append(row)
    return rows


def scored(output, keys):
    """The row of `eval ppl`."""
    stats = output["kv_stats"]
    return {"kv": output["kv"]["preset"], **keys, "ppl": output["ppl"], "kld": output["kld_mean"],
            "top1": output["top1_agree"], "attended": stats["attended_ratio"]}


# ---- speed ----

# OPT-13B as published: entries on the host, nothing kept near, prompts of 1,920 tokens. Random weights have flat scores,
# so the number of fetched entries is forced to the published means; without sinks and window, or those would be a neat
# row of neighbours that fill the count. Experiments that share a line share its answer.
FORCED = "--kv-hot 0 --kv-sinks 0 --kv-window 0 --kv-force-count"


def fetched_step(shape="opt-13b", batch=20, prompt=1920, count=73, more="", timeout_s=100, **keys):
    return command(f"bench --device cuda --shape {shape} --batch {batch} --prompt {prompt} --gen 8 --kv full,int4,infinigen "
                   f"{FORCED} {count}{more}", timeout_s=timeout_s, **keys)


RESIDENT_STEP = "bench --device cuda --shape opt-13b --batch 20 --prompt 1920 --gen 12 --kv full --kv-home device"
WIDE_STEP = f"bench --device cuda --shape opt-13b --batch 20 --prompt 1920 --gen 12 --kv infinigen {FORCED} 409"


def benched(output, keys):
    """A row for each method and depth of `bench`."""
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
    """The first row that has these; None where none was measured."""
    return next((row for row in rows if all(row.get(k) == v for k, v in keys.items())), None)


def tokens_per_s(row, generated=128):
    """As published: of a prompt and 128 generated tokens, prefill included."""
    return row["batch"] * generated / (row.get("prefill_s", 0) + generated * row["step_ms"] / 1e3)
