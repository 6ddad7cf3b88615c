"""The model of lm-evaluation-harness, where that is installed: the accuracies of `eval choice`."""

import json
import pathlib
import subprocess

import pytest

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")
ROOT = pathlib.Path(__file__).resolve().parents[2]
TASKS = ["copa", "openbookqa", "piqa", "winogrande"]


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setenv("INFINIGEN_DATA", str(ROOT / "tests/golden/choice"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("score", ["prefill", "steps"])
@pytest.mark.parametrize("kv", ["full", "infinigen"])
def test_accuracies_are_those_of_eval_choice(offline, binary, model_path, kv, score):
    import lm_eval
    from lm_eval.tasks import TaskManager

    import infinigen.lm_eval

    small = {"kv_min": 0, "kv_window": 4, "kv_sinks": 1} if kv == "infinigen" else {}
    tasks = pathlib.Path(infinigen.lm_eval.__file__).parent / "tasks"
    results = lm_eval.simple_evaluate(
        model="infinigen",
        model_args={"pretrained": model_path, "kv": kv, "score": score, "ctx": 512, "threads": 2, **small},
        tasks=[f"{task}_local" for task in TASKS],
        task_manager=TaskManager(include_path=str(tasks)),
        bootstrap_iters=0,
    )["results"]
    flags = [text for name, value in small.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    for task in TASKS:
        # A prefill attends to everything, whatever the method.
        method = ["--kv", kv, *flags] if score == "steps" else ["--kv", "full"]
        command = [binary, "eval", "choice", "-m", model_path, "--json", *method]
        done = subprocess.run(
            [*command, "--task", str(ROOT / "tests/golden/choice" / task)],
            capture_output=True,
            text=True,
            timeout=300,
        )
        expected = json.loads(done.stdout)
        ours = results[f"{task}_local"]
        assert ours["acc,none"] == pytest.approx(expected["accuracy"])
        if task != "winogrande":
            assert ours["acc_norm,none"] == pytest.approx(expected["acc_norm"])


def test_generation_and_whole_texts(model_path):
    from types import SimpleNamespace

    from infinigen.lm_eval import InfiniGenLM

    model = InfiniGenLM(model_path, ctx=128, threads=2)
    text = model.llm.generate("Once upon a time", max_tokens=24, temperature=0).text
    stop = text[8:12]
    answers = model.generate_until(
        [
            SimpleNamespace(args=("Once upon a time", {"until": [stop], "max_gen_toks": 24})),
            SimpleNamespace(args=("Once upon a time", {"until": [], "max_gen_toks": 24})),
        ]
    )
    assert answers == [text[: text.index(stop)], text]
    short, long = "A small house", "The wind went over the sea, day after day. " * 40
    rolled = model.loglikelihood_rolling([SimpleNamespace(args=(each,)) for each in (short, long)])
    tokens = model.llm.tokenizer.encode(short, add_special=False)
    (scored,) = model.llm.score_tokens([([model.llm.tokenizer.prefix], tokens)])
    assert rolled[0] == pytest.approx(scored.logprob, abs=1e-4)
    assert rolled[1] < rolled[0]
    (pair,) = model.loglikelihood([SimpleNamespace(args=("The sky is", " blue"))])
    assert pair[0] == pytest.approx(model.llm.loglikelihood("The sky is", " blue").logprob)
