#!/usr/bin/env python3
"""Checks that each CUDA and cuBLASLt function that src/ calls can be made to fail (docs/faults.md): it is wrapped in CMakeLists.txt and
defined in fault_injector_cuda.cc, or is listed here with a reason. Reads the sources, so it needs no GPU and no CUDA.

usage: wrapped_calls.py REPOSITORY
"""

import os
import re
import sys

FREES = "frees something; a failure leaves nothing that the program could do"
DEVICE = "runs in a kernel and returns nothing"
TEXT = "returns a text"
NOT_WRAPPED = {
    "cudaFree": FREES, "cudaFreeAsync": FREES, "cudaFreeHost": FREES, "cudaHostUnregister": FREES, "cudaEventDestroy": FREES,
    "cudaStreamDestroy": FREES, "cudaGraphDestroy": FREES, "cudaGraphExecDestroy": FREES, "cublasLtDestroy": FREES,
    "cublasLtMatmulDescDestroy": FREES, "cublasLtMatmulPreferenceDestroy": FREES, "cublasLtMatrixLayoutDestroy": FREES,
    "cudaGridDependencySynchronize": DEVICE, "cudaTriggerProgrammaticLaunchCompletion": DEVICE,
    "cudaGetErrorString": TEXT, "cublasLtGetStatusString": TEXT}
# Templates of the CUDA headers, and the function that they call.
TEMPLATES = {"cudaLaunchKernelEx": "cudaLaunchKernelExC",
             "cudaOccupancyMaxActiveBlocksPerMultiprocessor": "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags"}
FUNCTION = re.compile(r"\b((?:cuda|cublas)[A-Z]\w*)\s*\(")


def called(root):
    """Function → a place that calls it."""
    places = {}
    for folder, _, names in os.walk(os.path.join(root, "src")):
        for name in names:
            if not name.endswith((".h", ".cc", ".cu", ".cuh")):
                continue
            path = os.path.join(folder, name)
            with open(path, encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    for function in FUNCTION.findall(line.split("//")[0]):
                        places.setdefault(TEMPLATES.get(function, function), f"{os.path.relpath(path, root)}:{number}")
    return places


def main():
    root = sys.argv[1]
    faults = os.path.join(root, "tests/faults")
    with open(os.path.join(faults, "CMakeLists.txt"), encoding="utf-8") as file:
        listed = re.search(r"foreach\(call ([^)]*)\)", file.read())
    wrapped = set(listed[1].split())
    with open(os.path.join(faults, "fault_injector_cuda.cc"), encoding="utf-8") as file:
        defined = set(re.findall(r"FAILS\([\w, ]*?\b((?:cuda|cublasLt)[A-Z]\w*),\s*\(", file.read()))
    places = called(root)
    problems = [f"{place}: {name} is neither wrapped nor listed with a reason" for name, place in sorted(places.items())
                if name not in wrapped and name not in NOT_WRAPPED]
    problems += [f"{name}: wrapped in CMakeLists.txt, not defined in fault_injector_cuda.cc" for name in sorted(wrapped - defined)]
    problems += [f"{name}: defined in fault_injector_cuda.cc, not wrapped in CMakeLists.txt" for name in sorted(defined - wrapped)]
    problems += [f"{name}: src/ does not call it" for name in sorted((wrapped | set(NOT_WRAPPED)) - set(places))]
    problems += [f"{name}: wrapped, and listed as not wrapped" for name in sorted(wrapped & set(NOT_WRAPPED))]
    for problem in problems:
        print(problem)
    print(f"{len(places)} functions: {len(wrapped)} wrapped, {len(NOT_WRAPPED)} not, {len(problems)} problems")
    return 1 if problems or not places else 0


if __name__ == "__main__":
    sys.exit(main())
