"""Answers: Output, its Usage, and LogLikelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from . import _core
from .kv_map import KvMap


@dataclass(frozen=True)
class Usage:
    """Tokens and times of an answer."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  #: prompt tokens whose entries were already cached
    queue_s: float
    prefill_s: float
    decode_s: float

    @property
    def total_tokens(self) -> int:
        """Prompt and answer together."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def decode_tokens_per_s(self) -> float:
        """Speed of the answer without its first token, which the prefill produces."""
        return (self.completion_tokens - 1) / self.decode_s if self.decode_s > 0 else 0.0


class Output:
    """The answer to one prompt."""

    def __init__(self, outcome: _core.Outcome) -> None:
        self._outcome = outcome

    @property
    def text(self) -> str:
        """The generated text."""
        return self._outcome.text

    @property
    def tokens(self) -> list[int]:
        """The generated token ids, without a final EOS."""
        return self._outcome.tokens

    @property
    def finish_reason(self) -> str:
        """``stop``, ``length`` or ``cancelled``."""
        return self._outcome.finish_reason

    @property
    def usage(self) -> Usage:
        """Tokens and times."""
        outcome = self._outcome
        return Usage(
            prompt_tokens=outcome.prompt_tokens,
            completion_tokens=len(outcome.tokens),
            cached_tokens=outcome.cached_tokens,
            queue_s=outcome.queue_s,
            prefill_s=outcome.prefill_s,
            decode_s=outcome.decode_s,
        )

    @property
    def kv_stats(self) -> _core.KvStatistics:
        """What the decode steps attended to and fetched."""
        return self._outcome.kv

    @property
    def logprobs(self) -> list[_core.TokenLogprobs] | None:
        """One entry for each token, if ``logprobs`` was asked for."""
        return self._outcome.logprobs or None

    @property
    def logits(self) -> npt.NDArray[np.float32] | None:
        """[tokens, vocabulary] before bias and penalties, if ``logits=True`` was asked for; a view."""
        logits = self._outcome.logits
        return logits if logits.size else None

    @property
    def kv_map(self) -> KvMap | None:
        """What each layer attended to, if ``kv_map=True`` was asked for and there was a decode step."""
        if not self._outcome.map_steps:
            return None
        return KvMap(self._outcome.map_share, self._outcome.map_steps, self._outcome.prompt_tokens)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        count = len(self.tokens)
        return f"<infinigen.Output: {count} tokens, {self.finish_reason}: {self.text[:40]!r}>"


class LogLikelihood(NamedTuple):
    """How likely a continuation is after its context."""

    logprob: float  #: the sum over its tokens
    is_greedy: bool  #: whether greedy decoding would have written it
    tokens: list[int]
    logprobs: list[float]  #: of each token
