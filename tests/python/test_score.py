"""Scores: teacher forcing by prefill and by steps, and equality with `infinigen eval choice`."""

import json
import pathlib
import subprocess

import pytest

import infinigen
from infinigen import LLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
GREEDY = {"temperature": 0, "ignore_eos": True}


def test_a_greedy_continuation_has_its_own_logprobs(llm):
    context = "Once upon a time"
    out = llm.generate(context, max_tokens=10, logprobs=0, kv_full=True, **GREEDY)
    prompt = llm.tokenizer.encode(context)
    for score in ("prefill", "steps"):
        (scored,) = llm.score_tokens([(prompt, out.tokens)], score=score)
        assert scored.tokens == out.tokens
        assert scored.is_greedy
        assert scored.logprobs == pytest.approx([one.logprob for one in out.logprobs], abs=1e-5)
        assert scored.logprob == pytest.approx(sum(one.logprob for one in out.logprobs), abs=1e-4)
    worse = [*out.tokens[:-1], out.tokens[-1] - 1]
    (scored,) = llm.score_tokens([(prompt, worse)])
    assert not scored.is_greedy and scored.logprob < -sum(abs(one.logprob) for one in out.logprobs)


def test_pairs_together_are_pairs_alone(llm):
    contexts = ["The sky is", "Two and two are", "She opened the", ""]
    continuations = [" blue", " four, and that is all", " door", "Once"]
    together = llm.loglikelihood(contexts, continuations)
    alone = [llm.loglikelihood(*pair) for pair in zip(contexts, continuations, strict=True)]
    assert together == alone
    assert together[1].tokens == llm.tokenizer.encode(" four, and that is all", add_special=False)


def test_steps_measure_the_method(selecting, long_text):
    context, ending = long_text + "The key is", " under the mat."
    prefill = selecting.loglikelihood(context, ending)
    steps = selecting.loglikelihood(context, ending, score="steps")
    assert prefill.logprob != steps.logprob, "a part of the cache predicts otherwise"
    again = selecting.loglikelihood(context, ending, score="steps")
    assert again == steps, "whatever ran before"
    short = selecting.loglikelihood("The", " end", score="steps")
    assert short.logprob == pytest.approx(selecting.loglikelihood("The", " end").logprob, abs=1e-5)


def test_refusals(llm):
    with pytest.raises(infinigen.InvalidError, match="must be 'prefill' or 'steps'"):
        llm.loglikelihood("a", " b", score="both")
    with pytest.raises(infinigen.InvalidError, match="1 contexts and 2 continuations"):
        llm.loglikelihood(["a"], [" b", " c"])
    with pytest.raises(infinigen.InvalidError, match="at least one token each"):
        llm.score_tokens([([1], [])])
    with pytest.raises(infinigen.InvalidError, match="the context holds 1024"):
        llm.loglikelihood("word " * 2000, " end")
    cut = llm.loglikelihood("word" + " word" * 2000, " end", truncate=True)
    assert cut.logprob < 0 and len(cut.tokens) == len(llm.tokenizer.encode(" end", add_special=False))


@pytest.mark.parametrize("task", ["copa", "openbookqa", "piqa", "winogrande"])
@pytest.mark.parametrize("kv", ["full", "infinigen"])
def test_scores_are_those_of_eval_choice(binary, model_path, task, kv):
    """With a window so small that questions are selected from, for `infinigen`."""
    small = {"kv_min": 0, "kv_window": 4, "kv_sinks": 1} if kv == "infinigen" else {}
    flags = [text for name, value in small.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    command = [
        binary,
        "eval",
        "choice",
        "-m",
        model_path,
        "--task",
        str(ROOT / "tests/golden/choice" / task),
        "--kv",
        kv,
        *flags,
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    expected = {question["line"]: question for question in json.loads(done.stdout)["questions"]}
    assert expected
    if kv == "infinigen":
        assert any(one["scores"] != one["full_scores"] for one in expected.values()), "something is selected"
    questions = read_questions(task)
    with LLM(model_path, ctx=512, kv=kv, threads=2, **small) as llm:
        for line, pairs in questions.items():
            contexts, endings = zip(*pairs, strict=True)
            scored = llm.loglikelihood(contexts, endings, score="steps")
            assert [one.logprob for one in scored] == pytest.approx(expected[line]["scores"], abs=2e-4)
            if kv == "full":
                prefill = llm.loglikelihood(contexts, endings)
                assert [one.logprob for one in prefill] == pytest.approx(expected[line]["scores"], abs=2e-4)
    assert set(questions) == set(expected)


def read_questions(task: str) -> dict[int, list[tuple[str, str]]]:
    """(context, ending) of each choice, by line, in the harness's wording."""
    directory = ROOT / "tests/golden/choice" / task
    wanted = "test" if task == "openbookqa" else "dev" if task == "winogrande" else "val"
    (path,) = [path for path in directory.iterdir() if wanted in path.name and path.suffix != ".lst"]
    questions: dict[int, list[tuple[str, str]]] = {}
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if task == "openbookqa":
            fields = dict(zip(lines[0].split("\t"), line.split("\t"), strict=True))
            if number > 1:
                import re

                choices = [text.strip() for text in re.split(r"\([A-D]\)", fields["Choices"])[1:]]
                questions[number] = [(fields["Question Stem"], f" {choice}") for choice in choices]
            continue
        fields = json.loads(line)
        if task == "copa":
            word = "because" if fields["question"] == "cause" else "therefore"
            context = f"{fields['premise'].strip()[:-1]} {word}"
            choices = [fields["choice1"], fields["choice2"]]
            questions[number] = [(context, f" {text[0].lower()}{text[1:]}") for text in choices]
        elif task == "piqa":
            context = f"Question: {fields['goal']}\nAnswer:"
            questions[number] = [(context, f" {fields[name]}") for name in ("sol1", "sol2")]
        else:
            before, after = fields["sentence"].split("_", 1)
            questions[number] = [
                (before + fields[name], f" {after.strip()}") for name in ("option1", "option2")
            ]
    return questions
