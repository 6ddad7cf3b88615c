"""Fixtures of the package's tests: one engine with the shipped model for all that need no other."""

import os
import pathlib

import pytest

from infinigen import LLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: Every token of a long prompt but the newest 32 is up for selection.
SELECTING = {"kv": "infinigen", "kv_min": 0, "kv_window": 32, "kv_cap": 0.1}


@pytest.fixture(scope="session")
def model_path() -> str:
    return str(ROOT / "models" / "infinigen-mini")


@pytest.fixture(scope="session")
def llm(model_path):
    with LLM(model_path, ctx=1024, batch=4, threads=2) as opened:
        yield opened


@pytest.fixture(scope="session")
def selecting(model_path):
    with LLM(model_path, ctx=1024, batch=4, threads=2, **SELECTING) as opened:
        yield opened


@pytest.fixture(scope="session")
def binary() -> str:
    path = os.environ.get("INFINIGEN_BINARY", "")
    if not os.access(path, os.X_OK):
        pytest.skip("INFINIGEN_BINARY is not set")
    return path


@pytest.fixture(scope="session")
def long_text() -> str:
    return "The key is under the mat. " + "Nothing happens in this sentence. " * 80
