"""The package as such: stubs, types, style, examples."""

import importlib.util
import inspect
import pathlib
import re
import subprocess
import sys

import pytest

import infinigen
from infinigen import _core

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_stub_has_the_names_of_the_module():
    stub = (ROOT / "python/infinigen/_core.pyi").read_text(encoding="utf-8")
    expected: dict[str, set[str]] = {}
    current = ""
    for line in stub.splitlines():
        if match := re.match(r"class (\w+)", line):
            current = match[1]
            expected[current] = set()
        elif match := re.match(r"    (?:def (\w+)|(\w+):)", line):
            expected[current].add(match[1] or match[2])
    found = {name: value for name, value in vars(_core).items() if inspect.isclass(value)}
    assert set(found) == set(expected)
    for name, value in found.items():
        public = {member for member in vars(value) if not member.startswith("_")}
        assert public == {member for member in expected[name] if not member.startswith("_")}, name


def test_names_and_version():
    assert all(hasattr(infinigen, name) for name in infinigen.__all__)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{infinigen.__version__}"' in project
    assert (pathlib.Path(infinigen.__file__).parent / "py.typed").exists()


def test_every_public_thing_is_documented():
    for name in infinigen.__all__:
        value = getattr(infinigen, name)
        if name.startswith("__"):
            continue
        assert value.__doc__, name
        if inspect.isclass(value) and value.__module__.startswith("infinigen."):
            for member, function in vars(value).items():
                if not member.startswith("_") and (callable(function) or isinstance(function, property)):
                    assert function.__doc__, f"{name}.{member}"


def test_every_keyword_is_in_the_reference():
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    from infinigen.request import RequestOptions

    for keyword in RequestOptions.__annotations__:
        assert f"`{keyword}`" in page, keyword


@pytest.mark.parametrize("tool", ["mypy", "ruff check", "ruff format --check"])
def test_tools_are_content(tool):
    name, *arguments = tool.split()
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    if name == "ruff":
        arguments += ["python", "tests/python", "examples/python"]
    done = subprocess.run(
        [sys.executable, "-m", name, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


EXAMPLES = {
    "stream.py": r"infinigen-mini: 17\.6 M parameters\n.*\[length: 5 prompt tokens, 48 generated",
    "together.py": r"'The sea was' -> '.+'\n'A small house' -> '.+'\n'In the morning' -> '.+'",
    "choose.py": r"prefill: ' boy' of .*\nsteps: ' boy' of ",
    "picture.py": r"  0 [ .:=+*#%@-]{64}\n(.*\n)+ 11 ",
}


def test_every_example_is_tested():
    assert {path.name for path in (ROOT / "examples/python").glob("*.py")} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name, model_path, tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/python" / name), model_path],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(EXAMPLES[name], done.stdout, re.DOTALL if name == "stream.py" else 0), done.stdout


def test_the_readme_runs(model_path, tmp_path):
    """The lines at the top of the README's section about the library, with a model that is here."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text[text.index("## Library") :]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    assert 8 <= len(code.strip().splitlines()) <= 12
    code = code.replace("path/or/file.gguf", model_path)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
