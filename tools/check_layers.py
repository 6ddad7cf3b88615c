#!/usr/bin/env python3
"""Checks who includes whom: the architecture as a test.

    base <- json;  base <- jinja <- text, which also uses json
    base <- tensor <- kv/view <- {kv, backend};  {tensor, json} <- loader
    {kv, backend, loader} <- model <- engine <- runtime <- {eval, server} <- cli

CUDA headers stay in backend/cuda. A file longer than HARD_LINES fails, so that nothing grows unseen.
Exit 0 when clean, 1 with one line per violation.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
HARD_LINES = 800

VIEW = {"kv/view.h", "kv/ids.h", "kv/sketch_view.h", "kv/selection_view.h", "kv/retain_view.h",
        "kv/cache_view.h", "kv/store_view.h", "kv/page_bounds_view.h", "kv/page_sums_view.h",
        "kv/fetch_view.h", "kv/index_view.h"}  # plain structs below both kv and backend
MAY_INCLUDE = {
    "base": {"base"},
    "tensor": {"base", "tensor"},
    "json": {"base", "json"},
    "jinja": {"base", "jinja"},
    "text": {"base", "json", "jinja", "text"},
    "loader": {"base", "json", "tensor", "loader"},
    "kv": {"base", "tensor", "kv"},
    "backend": {"base", "tensor", "backend"},
    "model": {"base", "json", "tensor", "loader", "kv", "backend", "model"},
    "engine": {"base", "tensor", "kv", "model", "engine"},
    "runtime": {"base", "json", "tensor", "loader", "kv", "model", "engine", "text", "runtime"},
    "server": {"base", "json", "runtime", "server"},
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
        yield f"src/{name}: module '{module}' is not in the architecture (tools/check_layers.py)"
        return
    if text.count("\n") > HARD_LINES:
        yield f"src/{name}: {text.count(chr(10))} lines, more than {HARD_LINES}: split it"
    for bracket, target in INCLUDE.findall(text):
        if re.match(r"(cuda|cublas|cub/|thrust/|nccl)", target) and not name.startswith("backend/cuda/"):
            yield f"src/{name}: includes {target}; CUDA headers stay in src/backend/cuda"
        if bracket == "<":
            continue
        other = target.split("/")[0]
        if module in SEES_VIEWS and (target in VIEW or target in TENSOR_VIEW):
            continue
        if other == "kv" and name.startswith("backend/reference/"):
            continue  # the oracle runs the methods' host form, which is their definition
        if name in VIEW and other == "kv" and target not in VIEW:
            yield f"src/{name}: includes {target}, which is above it"
        if other not in MAY_INCLUDE:
            yield f"src/{name}: includes \"{target}\": write paths from src/ on"
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
