#!/usr/bin/env python3
"""Runs the tests of the Python package in a build directory, or says why not with exit status 77.

usage: run_tests.py BUILD_DIRECTORY [ARGUMENTS OF PYTEST]
"""

import importlib.util
import os
import pathlib
import subprocess
import sys

build = pathlib.Path(sys.argv[1]).resolve()
package = build / "python"
if not list(package.glob("infinigen/_core*.so")):
    print("the Python package is not built: nanobind or Python's headers are missing")
    sys.exit(77)
for name in ("numpy", "pytest"):
    if importlib.util.find_spec(name) is None:
        print(f"the Python package {name} is not installed")
        sys.exit(77)
environment = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")]),
    "INFINIGEN_BINARY": str(build / "infinigen"),
}
command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *sys.argv[2:]]
tests = str(pathlib.Path(__file__).parent)
sys.exit(subprocess.run([*command, tests], env=environment).returncode)
