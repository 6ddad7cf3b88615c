"""LLM: a model that generates, chats and scores."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Literal, overload

from . import _core
from ._errors import InvalidError
from .output import LogLikelihood, Output
from .progress import Progress, progress_of
from .request import Prompt, RequestOptions, is_many, make_request
from .stream import AsyncTextStream, TextStream
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

#: Requests that are handed to the engine at once, below the default of its queue.
_AT_ONCE = 512

Option = str | int | float | bool
Score = Literal["prefill", "steps"]


def describe_options() -> dict[str, str]:
    """Return the options of an engine, by the names of the command line's flags, with their help."""
    return dict(_core.Options.describe())


def _options(given: Mapping[str, Option | None]) -> _core.Options:
    options = _core.Options()
    for name, value in given.items():
        if value is None:
            continue
        text = ("on" if value else "off") if isinstance(value, bool) else str(value)
        options.set(name.replace("_", "-"), text)
    return options


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)


def _likelihood(outcome: _core.Outcome) -> LogLikelihood:
    scores = outcome.scores
    logprobs = [one.logprob for one in scores]
    return LogLikelihood(
        logprob=sum(logprobs),
        is_greedy=all(one.top[0].token == one.token for one in scores),
        tokens=[one.token for one in scores],
        logprobs=logprobs,
    )


class LLM:
    """A model and the engine that runs it.

    ``model`` is a GGUF file, a directory in Hugging Face layout, ``hf:ORG/NAME``, or empty for the small
    model of the source tree. Every other keyword is an option of the engine, named like a flag of the
    command line with underscores (``kv``, ``kv_limit``, ``ctx``, ``batch``, ``threads``, ``device``, …);
    ``describe_options()`` lists them. ``progress`` shows loading, calibration and batches: True needs
    tqdm, False is silent, a function is called with (done, total), None uses tqdm where it is installed
    and the work is long.

    All methods may be called from any thread. Calls that wait release the GIL, and Ctrl-C ends them.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "",
        *,
        progress: Progress = None,
        on_notice: Callable[[str], object] | None = None,
        **options: Option | None,
    ) -> None:
        self._given = dict(options)
        self._progress = progress
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        parsed = _options(options)
        with progress_of(progress, os.fspath(model) or "loading", unit="") as show:
            self._model = _core.Model.open(os.fspath(model), _warn, on_notice, show)
            self._engine = _core.Engine(self._model, parsed, _warn, on_notice, show)
        self._tokenizer = Tokenizer(self._model) if self._model.has_tokenizer() else None

    # ---- what it is ----

    @property
    def info(self) -> _core.ModelInfo:
        """Name, architecture and sizes of the model."""
        return self._model.info()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; an error if it has none."""
        if self._tokenizer is None:
            raise InvalidError(f"{self.info.name} has no tokenizer; pass prompts as token ids")
        return self._tokenizer

    @property
    def can_chat(self) -> bool:
        """Whether the model has a chat template."""
        return self._model.can_chat()

    @property
    def stats(self) -> _core.EngineStatistics:
        """Counters of the engine since its start."""
        return self._engine.statistics()

    def plan(self, **options: Option | None) -> _core.Plan:
        """Return the memory plan of this engine or, with options, of one that is not started.

        ``llm.plan(ctx=131072)`` says what that context would need, with this engine's other options.
        """
        if not options:
            return self._engine.plan()
        return _core.make_plan(self._model, _options({**self._given, **options}))

    # ---- text ----

    @overload
    def generate(
        self, prompt: str, *, stream: Literal[True], **options: Unpack[RequestOptions]
    ) -> TextStream: ...
    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: str, *, stream: Literal[False] = False, **options: Unpack[RequestOptions]
    ) -> Output: ...
    @overload
    def generate(
        self, prompt: Sequence[int], *, stream: Literal[True], **options: Unpack[RequestOptions]
    ) -> TextStream: ...
    @overload
    def generate(
        self, prompt: Sequence[int], *, stream: Literal[False] = False, **options: Unpack[RequestOptions]
    ) -> Output: ...
    @overload
    def generate(
        self,
        prompt: Sequence[str] | Sequence[Sequence[int]],
        *,
        stream: Literal[False] = False,
        **options: Unpack[RequestOptions],
    ) -> list[Output]: ...

    def generate(
        self,
        prompt: Prompt | Sequence[str] | Sequence[Sequence[int]],
        *,
        stream: bool = False,
        **options: Unpack[RequestOptions],
    ) -> Output | list[Output] | TextStream:
        """Complete a prompt: a text or token ids; a list of them is run together, answers in order.

        With ``stream=True`` the text comes piece by piece (one prompt only).
        """
        if is_many(prompt):
            if stream:
                raise InvalidError("stream=True takes one prompt; start one stream for each")
            return self._run([make_request(each, options) for each in prompt])  # type: ignore[arg-type]
        request = make_request(prompt, options)  # type: ignore[arg-type]
        submitted = self._engine.submit([request])[0]
        return TextStream(submitted) if stream else Output(submitted.wait())

    @overload
    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        stream: Literal[True],
        **options: Unpack[RequestOptions],
    ) -> TextStream: ...
    @overload
    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        stream: Literal[False] = False,
        **options: Unpack[RequestOptions],
    ) -> Output: ...

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        stream: bool = False,
        **options: Unpack[RequestOptions],
    ) -> Output | TextStream:
        """Answer a conversation of ``{"role": …, "content": …}`` messages with the model's chat template."""
        tokens = self.tokenizer.encode_chat(messages)
        return self.generate(tokens, stream=True, **options) if stream else self.generate(tokens, **options)

    # ---- scores ----

    @overload
    def loglikelihood(  # type: ignore[overload-overlap]
        self, contexts: str, continuations: str, *, score: Score = "prefill", truncate: bool = False
    ) -> LogLikelihood: ...
    @overload
    def loglikelihood(
        self,
        contexts: Sequence[str],
        continuations: Sequence[str],
        *,
        score: Score = "prefill",
        truncate: bool = False,
    ) -> list[LogLikelihood]: ...

    def loglikelihood(
        self,
        contexts: str | Sequence[str],
        continuations: str | Sequence[str],
        *,
        score: Score = "prefill",
        truncate: bool = False,
    ) -> LogLikelihood | list[LogLikelihood]:
        """Return how likely each continuation is after its context, in pairs.

        ``score="prefill"`` reads both like a prompt, where every token attends to everything and ``kv``
        changes nothing. ``score="steps"`` runs the tokens that predict as decode steps, so that the
        engine's KV method is what is measured, as ``infinigen eval choice`` does. Pairs are encoded as
        lm-evaluation-harness does (``Tokenizer.encode_pair``). ``truncate`` cuts a context that is too
        long from the left instead of refusing it.
        """
        if isinstance(contexts, str) or isinstance(continuations, str):
            if not isinstance(contexts, str) or not isinstance(continuations, str):
                raise InvalidError("contexts and continuations must be two strings or two lists")
            return self.loglikelihood([contexts], [continuations], score=score, truncate=truncate)[0]
        if len(contexts) != len(continuations):
            raise InvalidError(f"there are {len(contexts)} contexts and {len(continuations)} continuations")
        encode = self.tokenizer.encode_pair
        pairs = [encode(*pair) for pair in zip(contexts, continuations, strict=True)]
        return self.score_tokens(pairs, score=score, truncate=truncate)

    def score_tokens(
        self,
        pairs: Iterable[tuple[Sequence[int], Sequence[int]]],
        *,
        score: str = "prefill",
        truncate: bool = False,
    ) -> list[LogLikelihood]:
        """Do the same for pairs of token ids; a context has at least one token."""
        if score not in ("prefill", "steps"):
            raise InvalidError(f"score is {score!r}, but must be 'prefill' or 'steps'")
        most = self._engine.plan().context
        requests = []
        for index, (context, continuation) in enumerate(pairs):
            if not context or not continuation:
                raise InvalidError(f"pair {index}: context and continuation need at least one token each")
            tokens = [*context, *continuation]
            if len(tokens) > most and truncate:
                tokens = tokens[-most:]
            request = make_request(tokens, {"max_tokens": 0, "logprobs": 1})
            request.score_from = max(1, len(tokens) - len(continuation))
            request.score_steps = score == "steps"
            requests.append(request)
        return [_likelihood(outcome) for outcome in self._outcomes(requests, "loglikelihood")]

    # ---- asyncio ----

    def generate_async(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> AsyncTextStream:
        """Complete a prompt for ``async for``; ``await stream.output()`` is the whole answer."""
        request = make_request(prompt, options)
        return AsyncTextStream(lambda: self._engine.submit([request])[0], self._threads())

    def chat_async(
        self, messages: Sequence[Mapping[str, str]], **options: Unpack[RequestOptions]
    ) -> AsyncTextStream:
        """Answer a conversation for ``async for``."""
        return self.generate_async(self.tokenizer.encode_chat(messages), **options)

    # ---- running ----

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                workers = max(32, self._engine.plan().batch)
                self._executor = ThreadPoolExecutor(workers, thread_name_prefix="infinigen")
            return self._executor

    def _outcomes(self, requests: Sequence[_core.Request], what: str) -> list[_core.Outcome]:
        """Run requests together and return their outcomes in order."""
        outcomes: list[_core.Outcome] = []
        with progress_of(self._progress, what, unit="req") as show:
            for first in range(0, len(requests), _AT_ONCE):
                streams = self._engine.submit(requests[first : first + _AT_ONCE])
                try:
                    for submitted in streams:
                        outcomes.append(submitted.wait())
                        if show is not None:
                            show(len(outcomes), len(requests))
                except BaseException:
                    for submitted in streams:
                        submitted.cancel()
                    raise
        return outcomes

    def _run(self, requests: Sequence[_core.Request]) -> list[Output]:
        return [Output(outcome) for outcome in self._outcomes(requests, "generate")]

    # ---- its life ----

    def close(self) -> None:
        """Cancel all requests, stop the engine and free its memory. Streams end as cancelled."""
        self._engine.close()
        with self._lock:
            self._executor = None  # its threads end with the last stream that uses it

    @property
    def closed(self) -> bool:
        """Whether ``close()`` was called."""
        return self._engine.closed()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<infinigen.LLM: {self.info.name}{', closed' if self.closed else ''}>"
