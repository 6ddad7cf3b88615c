"""How keywords become a request."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypedDict

from . import _core

Prompt = str | Sequence[int]


class RequestOptions(TypedDict, total=False):
    """Keywords of every call that generates; ``docs/python.md`` has their defaults."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_window: int
    presence_penalty: float
    frequency_penalty: float
    seed: int | None
    stop: str | Sequence[str]
    ignore_eos: bool
    logit_bias: Mapping[int, float]
    logprobs: int | bool | None
    logits: bool
    kv_map: bool
    kv_full: bool
    kv_alpha: float | None
    kv_cap: float | None
    kv_mass: float | None
    kv_tail: bool | None


#: Keywords whose name and value the request takes as they are.
_PLAIN = frozenset(RequestOptions.__annotations__) - {"stop", "logit_bias", "logprobs", "logits", "kv_map"}


def _logprobs(value: int | bool | None) -> int:
    """Return the number of alternatives: True is the chosen token alone, None and False nothing."""
    if value is None or value is False:
        return -1
    count = 0 if value is True else int(value)
    if count < 0:
        raise ValueError(f"logprobs={value!r}: must be True or a number of alternatives, 0 or more")
    return count


def make_request(prompt: Prompt, options: Mapping[str, Any]) -> _core.Request:
    """Return the request for one prompt, a text or token ids."""
    request = _core.Request()
    if isinstance(prompt, str):
        request.prompt = prompt
    else:
        request.tokens = [int(token) for token in prompt]
    for name, value in options.items():
        try:
            if name == "stop":
                request.stop = [value] if isinstance(value, str) else list(value)
            elif name == "logit_bias":
                request.logit_bias = [(int(token), float(bias)) for token, bias in value.items()]
            elif name == "logprobs":
                request.top_logprobs = _logprobs(value)
            elif name == "logits":
                request.keep_logits = bool(value)
            elif name == "kv_map":
                request.keep_kv_map = bool(value)
            elif name in _PLAIN:
                setattr(request, name, value)
            else:
                known = ", ".join(sorted(RequestOptions.__annotations__))
                raise TypeError(f"unknown keyword {name!r}; known are {known}")
        except TypeError as error:
            if "unknown keyword" in str(error):
                raise
            raise TypeError(f"{name}={value!r}: {type(value).__name__} is not what it takes") from error
    return request


def is_many(prompt: object) -> bool:
    """Return whether ``prompt`` is a list of prompts: texts, or lists of token ids."""
    if isinstance(prompt, str) or not isinstance(prompt, Collection):
        return False
    first = next(iter(prompt), None)
    return first is None or isinstance(first, Iterable)
