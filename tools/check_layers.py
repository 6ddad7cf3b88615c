#!/usr/bin/env python3
"""Checks that every #include in src/ follows the architecture (A <- B: B may include A).

    base <- json <- hub;  base <- jinja <- text, which also uses json
    base <- tensor <- kv/view <- {kv, backend};  {tensor, json} <- loader
    {kv, backend, loader} <- model <- engine <- runtime <- {eval, server} <- cli;  hub <- runtime
    {engine, text} <- grammar <- server

CUDA headers may be included only in backend/cuda. A file with more than HARD_LINES lines also fails.
Exit code 0 without violations, 1 with one line per violation.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
HARD_LINES = 800

# Plain structs below both kv and backend.
VIEW = {"kv/view.h", "kv/index_view.h", "kv/page_sums_view.h", "kv/retain_view.h", "kv/selection_view.h", "kv/tail_view.h",
        "kv/turn.h"}
MAY_INCLUDE = {
    "base": {"base"},
    "tensor": {"base", "tensor"},
    "json": {"base", "json"},
    "jinja": {"base", "jinja"},
    "text": {"base", "json", "jinja", "text"},
    "hub": {"base", "json", "hub"},
    "loader": {"base", "json", "tensor", "loader"},
    "kv": {"base", "tensor", "kv"},
    "backend": {"base", "tensor", "backend"},
    "model": {"base", "json", "tensor", "loader", "kv", "backend", "model"},
    "engine": {"base", "tensor", "kv", "model", "engine"},
    "runtime": {"base", "json", "hub", "tensor", "loader", "kv", "model", "engine", "text", "runtime"},
    "grammar": {"base", "json", "text", "engine", "grammar"},
    "server": {"base", "json", "grammar", "runtime", "server"},
    "eval": {"base", "json", "runtime", "eval"},
    "cli": {"base", "json", "runtime", "eval", "server", "cli"},
}
TENSOR_VIEW = {"tensor/view.h", "tensor/dtype.h"}
SEES_VIEWS = {"backend", "server", "eval", "cli"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def violations(path):
    name = path.relative_to(SRC).as_posix()
    module = name.split("/")[0]
    text = path.read_text(encoding="utf-8")
    if module not in MAY_INCLUDE:
        yield f"src/{name}: module '{module}' is not listed in tools/check_layers.py"
        return
    if text.count("\n") > HARD_LINES:
        yield f"src/{name}: {text.count(chr(10))} lines, more than {HARD_LINES}: split it"
    for bracket, target in INCLUDE.findall(text):
        if re.match(r"(cuda|cublas|cub/|thrust/|nccl)", target) and not name.startswith("backend/cuda/"):
            yield f"src/{name}: includes {target}; CUDA headers may be included only in src/backend/cuda"
        if bracket == "<":
            if (SRC / target).exists():
                yield f"src/{name}: includes <{target}>: write headers of src/ in quotes"
            continue
        other = target.split("/")[0]
        if module in SEES_VIEWS and (target in VIEW or target in TENSOR_VIEW):
            continue
        if other == "kv" and name.startswith("backend/reference/"):
            continue  # the reference backend runs the methods' host implementations, which define them
        if name in VIEW and other == "kv" and target not in VIEW:
            yield f"src/{name}: includes {target}, which is a higher layer"
        if other not in MAY_INCLUDE:
            yield f"src/{name}: includes \"{target}\": write the path relative to src/"
        elif other not in MAY_INCLUDE[module]:
            yield f"src/{name}: includes {target}, but {module} may include only {', '.join(sorted(MAY_INCLUDE[module]))}"
        elif not (SRC / target).exists():
            yield f"src/{name}: includes {target}, which does not exist"


def main():
    files = [p for p in sorted(SRC.rglob("*")) if p.suffix in {".h", ".cc", ".cu", ".cuh"}]
    found = [line for path in files for line in violations(path)]
    print("\n".join(found) if found else f"layers: {len(files)} files, no violation")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
