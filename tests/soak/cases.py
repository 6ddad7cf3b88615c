"""The requests whose answers are known: each is asked once of a quiet server, and often while others disturb it."""

import json
import random

from wire import Broken

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
OPENINGS = ["The old house", "Once there was a dog who", "In the morning the sea was", "Anna took the red box and",
            "Zwölf Boxkämpfer jagen", "The lamp in the hall was lit.", "One day, a boy named Tom", "日本の朝は"]
QUESTIONS = ["Who are you?", "Tell me a story about a small bird.", "What is in the box?", "Why is the sky blue? 🙂"]
FILLER = "The lamp in the hall was lit and the dog slept by the door. "


class Case:
    """A request with the answer that it must have. `tokens`: the number of tokens of each choice, where it is fixed."""

    def __init__(self, name, path, body):
        self.name, self.path, self.body = name, path, body
        self.expected = None
        self.tokens = body["max_tokens"] * body.get("n", 1) if body.get("ignore_eos") and "stop" not in body else None

    def fields(self, stream, salt=None):
        extra = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        return {**self.body, **extra, **({"cache_salt": salt} if salt else {})}


def styles(seed):
    """Ways of choosing tokens and of answering; all are repeatable."""
    greedy = {"temperature": 0}
    return [greedy, {"temperature": 0.8, "seed": seed}, {**greedy, "ignore_eos": True},
            {"temperature": 1.1, "seed": seed + 1, "top_p": 0.9, "top_k": 40},
            {"temperature": 0.7, "seed": seed + 2, "min_p": 0.05, "repeat_penalty": 1.1, "n": 2},
            {**greedy, "stop": [".", "\n"]}, {**greedy, "kv": {"preset": "full"}, "ignore_eos": True},
            {"temperature": 0.9, "seed": seed + 3, "presence_penalty": 0.4, "frequency_penalty": 0.2, "ignore_eos": True}]


def catalogue(context, small):
    """All cases of a run; `small`: few and short ones, for runs of seconds. `context`: tokens of the server's context."""
    draw = random.Random(20)
    cases = []

    def add(name, path, body):
        cases.append(Case(name, path, body))

    for i, opening in enumerate(OPENINGS[:3] if small else OPENINGS):
        for j, style in enumerate(styles(100 * i)):
            if not small and (i + j) % 2 or small and j > 3:
                continue
            length = draw.randint(8, 24 if small else 96)
            add(f"text {i}.{j}", TEXT, {"prompt": opening, "max_tokens": length, **style})
    for i, question in enumerate(QUESTIONS[:1] if small else QUESTIONS):
        turns = [{"role": "system", "content": "Be brief."}] if i % 2 else []
        turns.append({"role": "user", "content": question})
        if i == 3:
            turns += [{"role": "assistant", "content": "Because."}, {"role": "user", "content": "Go on."}]
        for j, style in enumerate(styles(1000 + 100 * i)[:3]):
            add(f"chat {i}.{j}", CHAT, {"messages": turns, "max_tokens": 16 if small else draw.randint(8, 64), **style})
    add("logprobs text", TEXT, {"prompt": OPENINGS[0], "max_tokens": 12, "temperature": 0, "logprobs": 3})
    add("logprobs chat", CHAT, {"messages": [{"role": "user", "content": QUESTIONS[0]}], "max_tokens": 12, "seed": 5,
                                "temperature": 0.9, "logprobs": True, "top_logprobs": 4})
    add("echo", TEXT, {"prompt": OPENINGS[1], "max_tokens": 6, "temperature": 0, "echo": True})
    # A token is about 4 bytes of this filler; the longest fills the context but for its answer.
    for share in (0.1, 0.3) if small else (0.1, 0.2, 0.35, 0.6, 0.85):
        count = int(context * share * 3.5 / len(FILLER))
        add(f"long {share}", TEXT, {"prompt": f"Part {share}. " + FILLER * count, "max_tokens": 16, "temperature": 0})
    if not small:
        add("sampled after a long prompt", TEXT, {"prompt": "Part 0.2. " + FILLER * int(context * 0.7 / len(FILLER)),
                                                  "max_tokens": 64, "temperature": 0.8, "seed": 9, "ignore_eos": True})
    return cases


class Answer:
    """What was said: each choice's text, end and logprobs, and the usage. Comparable whether it was streamed or not."""

    def __init__(self):
        self.id, self.choices, self.usage = None, {}, None

    def choice(self, index):
        return self.choices.setdefault(index, {"text": "", "finish": None, "logprobs": []})

    def add(self, event):
        """One chunk of a stream, or a whole answer."""
        self.id = event["id"]
        if event.get("usage"):
            self.usage = event["usage"]
        for part in event["choices"]:
            choice = self.choice(part["index"])
            source = part.get("delta") or part.get("message") or part
            choice["text"] += source.get("text") or source.get("content") or ""
            if part.get("finish_reason"):
                choice["finish"] = part["finish_reason"]
            logprobs = part.get("logprobs") or {}
            if "content" in logprobs:
                choice["logprobs"] += [(item["token"], item["logprob"], [(top["token"], top["logprob"])
                                                                        for top in item["top_logprobs"]])
                                       for item in logprobs["content"]]
            elif "tokens" in logprobs:
                choice["logprobs"] += list(zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]))

    def counts(self):
        return {name: self.usage[name] for name in ("prompt_tokens", "completion_tokens")}

    def cached(self):
        return self.usage["prompt_tokens_details"]["cached_tokens"]


def whole(reply):
    answer = Answer()
    try:
        answer.add(reply.json)
    except (KeyError, TypeError, AttributeError) as error:
        raise Broken(f"not an answer ({error!r}): {reply.body[:120]!r}") from error
    return answer


def parse_event(data):
    try:
        return json.loads(data)
    except ValueError as error:
        raise Broken(f"an event is not JSON: {data[:80]!r}") from error


def compare(case, answer, exact):
    """None, or what is wrong with an answer. `exact`: each bit counts; else only counts and ends (on a GPU, the batch
    decides which kernel runs, so texts may differ)."""
    if answer.usage is None:
        return f"{case.name}: no usage"
    if case.tokens is not None and answer.usage["completion_tokens"] != case.tokens:
        return f"{case.name}: {answer.usage['completion_tokens']} tokens, not {case.tokens}"
    if len(answer.choices) != case.body.get("n", 1) or any(c["finish"] not in ("stop", "length")
                                                           for c in answer.choices.values()):
        return f"{case.name}: choices {answer.choices!r}"
    if case.expected is None:
        return None
    if answer.usage["prompt_tokens"] != case.expected.usage["prompt_tokens"]:
        return f"{case.name}: {answer.usage['prompt_tokens']} tokens of prompt, not {case.expected.usage['prompt_tokens']}"
    if exact and (answer.choices, answer.counts()) != (case.expected.choices, case.expected.counts()):
        return f"{case.name}: {answer.choices!r} {answer.counts()}, not {case.expected.choices!r} {case.expected.counts()}"
    return None
