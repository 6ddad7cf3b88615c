#!/usr/bin/env python3
"""Installs the build into an empty prefix, builds the examples against that alone, outside the tree, and runs them.

usage: install_test.py BUILD_DIRECTORY SOURCE_DIRECTORY
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

BUILD, SOURCE = (pathlib.Path(a).resolve() for a in sys.argv[1:3])


def run(*command, **more):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_exports(library):
    """Only the C ABI and the C++ API are visible."""
    for line in run("nm", "-D", "--defined-only", "-C", library).splitlines():
        name = line.split(" ", 2)[2] if line[0] != " " else line.split(None, 1)[1]
        name = name.split("@@")[0]
        known = re.match(r"(infinigen_\w+$|infinigen::v1::|(typeinfo|typeinfo name|vtable) for infinigen::v1::Error$|"
                         r"INFINIGEN_1$)", name)
        assert known, f"exported by accident: {line}"


def check_output(text):
    assert "infinigen-mini: llama, 17.6 M parameters" in text, text
    assert "memory plan:" in text, text
    first, second = re.findall(r"^\[(\w+): (\d+) prompt tokens, (\d+) generated, attended to ([\d.]+) % of the cache in "
                               r"(\d+) steps\]$", text, re.M)
    assert first[0] == "length" and first[2] == "48" and first[4] == "47", first
    assert second[0] == "cancelled" and int(second[2]) < 1000, second
    return float(first[3])


def main():
    with tempfile.TemporaryDirectory() as directory:
        scratch = pathlib.Path(directory)
        prefix = scratch / "prefix"
        run("cmake", "--install", BUILD, "--prefix", prefix)
        check_exports(prefix / "lib/libinfinigen.so")
        assert "infinigen" in run(prefix / "bin/infinigen", "--version")
        shutil.copytree(SOURCE / "examples", scratch / "examples")
        clean = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "CMAKE_PREFIX_PATH", "CPATH")}

        run("cmake", "-S", scratch / "examples/cpp", "-B", scratch / "cpp", f"-DCMAKE_PREFIX_PATH={prefix}", env=clean)
        run("cmake", "--build", scratch / "cpp", env=clean)
        share = check_output(run(scratch / "cpp/stream", env=clean, cwd=scratch))
        assert share < 60, f"the long prompt is attended to in part, not {share} %"

        run("make", "-C", scratch / "examples/c", f"PREFIX={prefix}", env=clean)
        check_output(run(scratch / "examples/c/stream", env=clean, cwd=scratch))
        check_output(run(scratch / "examples/c/stream", prefix / "share/infinigen/models/infinigen-mini", env=clean))
        missing = subprocess.run([scratch / "examples/c/stream", "/nowhere"], capture_output=True, text=True, env=clean)
        assert missing.returncode == 1 and "/nowhere" in missing.stderr, missing
    print("ok")


main()
