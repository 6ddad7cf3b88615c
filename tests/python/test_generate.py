"""Text: streams, batches, sampling, stops, logprobs, logits."""

import math

import numpy as np
import pytest

import infinigen

GREEDY = {"temperature": 0, "ignore_eos": True}
PROMPT = "Once upon a time"


def test_a_stream_joins_to_the_output(llm):
    stream = llm.generate(PROMPT, max_tokens=24, stream=True, **GREEDY)
    pieces = list(stream)
    assert len(pieces) > 4
    out = stream.output
    assert "".join(pieces) == out.text
    assert stream.done
    assert out.finish_reason == "length"
    assert len(out.tokens) == 24
    assert out.usage.completion_tokens == 24
    assert out.usage.prompt_tokens == len(llm.tokenizer.encode(PROMPT))
    assert out.usage.total_tokens == out.usage.prompt_tokens + 24
    assert out.usage.decode_tokens_per_s > 0
    assert out.kv_stats.steps == 23
    assert 0 < out.kv_stats.attended_ratio <= 1
    assert out.logprobs is None and out.logits is None and out.kv_map is None
    assert llm.generate(PROMPT, max_tokens=24, **GREEDY).text == out.text


def test_token_ids_are_a_prompt(llm):
    text = llm.generate(PROMPT, max_tokens=8, **GREEDY).text
    tokens = llm.tokenizer.encode(PROMPT)
    assert llm.generate(tokens, max_tokens=8, **GREEDY).text == text
    assert llm.generate(np.array(tokens), max_tokens=8, **GREEDY).text == text


def test_a_batch_says_what_each_says_alone(llm):
    prompts = ["The sea", "A small house", "In the year", "He said", "Then", "Why"]
    alone = [llm.generate(prompt, max_tokens=12, **GREEDY).text for prompt in prompts]
    together = llm.generate(prompts, max_tokens=12, **GREEDY)
    assert [out.text for out in together] == alone
    assert len(set(alone)) > 1
    assert llm.generate([], max_tokens=12) == []


def test_sampling_keywords_reach_the_sampler(llm):
    def text(**more):
        return llm.generate(PROMPT, max_tokens=48, ignore_eos=True, **more).text

    drawn = {"temperature": 1.2, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    assert text(seed=7, **drawn) == text(seed=7, **drawn)
    assert text(seed=7, **drawn) != text(seed=8, **drawn)
    greedy = text(temperature=0)
    assert text(temperature=1.2, top_k=1) == greedy
    assert text(temperature=1.2, min_p=1.0, top_k=0) == greedy
    assert text(temperature=1.2, top_p=1e-6) == greedy
    assert text(temperature=0, repeat_penalty=2.0) != greedy
    assert text(temperature=0, frequency_penalty=5.0) != greedy
    assert text(temperature=0, presence_penalty=5.0) != greedy
    assert text(temperature=0, repeat_penalty=2.0, repeat_window=0) == greedy


def test_logit_bias_forbids_a_token(llm):
    first = llm.generate(PROMPT, max_tokens=1, **GREEDY).tokens[0]
    other = llm.generate(PROMPT, max_tokens=1, logit_bias={first: -100}, **GREEDY).tokens[0]
    assert other != first
    assert llm.generate(PROMPT, max_tokens=1, logit_bias={other: 100}, **GREEDY).tokens == [other]


def test_stop_strings_end_the_answer(llm):
    text = llm.generate(PROMPT, max_tokens=24, **GREEDY).text
    stop = text[6:9]
    for stops in (stop, [stop, "never"]):
        out = llm.generate(PROMPT, max_tokens=24, stop=stops, **GREEDY)
        assert out.text == text[: text.index(stop)]
        assert out.finish_reason == "stop"


def test_logprobs_are_of_the_logits(llm):
    out = llm.generate(PROMPT, max_tokens=6, logprobs=3, logits=True, **GREEDY)
    assert out.logits.shape == (6, llm.info.vocabulary)
    assert out.logits.dtype == np.float32
    assert not out.logits.flags.writeable
    assert np.shares_memory(out.logits, out.logits), "a view, not a copy"
    assert out.logits.argmax(axis=1).tolist() == out.tokens
    for row, token, given in zip(out.logits.astype(np.float64), out.tokens, out.logprobs, strict=True):
        expected = row - row.max() - math.log(np.exp(row - row.max()).sum())
        best = np.argsort(-expected)[:3].tolist()
        assert given.token == token
        assert given.logprob == pytest.approx(expected[token], abs=1e-4)
        assert [one.token for one in given.top] == best
        assert [one.logprob for one in given.top] == pytest.approx(expected[best].tolist(), abs=1e-4)
    assert llm.generate(PROMPT, max_tokens=2, logprobs=True, **GREEDY).logprobs[0].top == []


def test_logits_outlive_their_output(llm):
    kept = llm.generate(PROMPT, max_tokens=3, logits=True, **GREEDY).logits
    copy = kept.copy()
    llm.generate(["a", "b"], max_tokens=3, logits=True)
    assert (kept == copy).all()


def test_chat_is_the_template_of_the_messages(llm):
    assert llm.can_chat
    messages = [{"role": "user", "content": "Who are you?"}]
    out = llm.chat(messages, max_tokens=12, **GREEDY)
    tokens = llm.tokenizer.encode_chat(messages)
    assert out.usage.prompt_tokens == len(tokens)
    assert out.text == llm.generate(tokens, max_tokens=12, **GREEDY).text
    assert "".join(llm.chat(messages, max_tokens=12, stream=True, **GREEDY)) == out.text
    with pytest.raises(ValueError, match=r"messages\[0\]: content must be a string"):
        llm.chat([{"role": "user", "content": None}])
    with pytest.raises(ValueError, match="unknown field 'name'"):
        llm.chat([{"role": "user", "content": "x", "name": "y"}])


def test_tokenizer(llm):
    tokenizer = llm.tokenizer
    ids = tokenizer.encode("Hello, world", add_special=False)
    assert tokenizer.decode(ids) == "Hello, world"
    assert len(tokenizer) == tokenizer.vocabulary == llm.info.vocabulary
    marked = [*tokenizer.eos[:1], *ids]
    assert tokenizer.decode(marked, skip_special=True) == "Hello, world" != tokenizer.decode(marked)
    context, rest = tokenizer.encode_pair("The sky is ", "blue")
    opening = tokenizer.encode("", add_special=True)
    assert context + rest == opening + tokenizer.encode("The sky is blue", add_special=False)
    assert tokenizer.decode(rest) == " blue", "white space belongs to what follows"
    with pytest.raises(infinigen.InvalidError, match="outside the vocabulary"):
        tokenizer.decode([llm.info.vocabulary])


def test_plans(llm, model_path):
    assert llm.plan().context == 1024 and llm.plan().fits
    larger = llm.plan(ctx=4096)
    assert larger.context == 4096
    assert larger.batch == 4, "other options stay"
    assert larger.pool_bytes > llm.plan().pool_bytes
    assert "memory plan" in str(larger)
    huge = llm.plan(ctx=1_000_000_000)
    assert not huge.fits and "not enough memory" in huge.refusal
    assert "kv-limit" in infinigen.describe_options()


def test_what_layers_attended_to(selecting, long_text):
    out = selecting.generate(long_text + "The key is", max_tokens=9, kv_map=True, **GREEDY)
    kv_map = out.kv_map
    rows = out.usage.prompt_tokens + 8
    assert kv_map.share.shape == (selecting.info.layers, rows) == (kv_map.layers, kv_map.rows)
    assert kv_map.steps == 8
    assert kv_map.share.min() >= 0 and kv_map.share.max() <= 1
    selects = [layer for layer in range(kv_map.layers) if kv_map.share[layer].min() < 1]
    assert selects, "some layer attends to a part"
    # The mean over the pairs is what the statistics say, but for rows that came later.
    steps = np.minimum(8, rows - np.arange(rows)) / 8
    attended = (kv_map.share * steps).sum() / (steps.sum() * kv_map.layers)
    assert attended == pytest.approx(out.kv_stats.attended_ratio, abs=0.01)
    assert kv_map.share[selects[0], -1] == 1, "a token attends to itself"
    assert kv_map.columns(10).shape == (kv_map.layers, 10)
    assert kv_map.columns(10).mean() == pytest.approx(kv_map.share.mean(), abs=0.02)
    full = selecting.generate(long_text, max_tokens=4, kv_map=True, kv_full=True, **GREEDY).kv_map
    assert (full.share == 1).all()
    text = selecting.generate(long_text + "The key is", max_tokens=9, **GREEDY).text
    assert text == out.text, "watching changes nothing"


def test_a_map_can_be_drawn(selecting, tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    out = selecting.generate(PROMPT, max_tokens=4, kv_map=True, **GREEDY)
    file = tmp_path / "map.png"
    out.kv_map.plot().figure.savefig(file)
    assert file.stat().st_size > 1000
