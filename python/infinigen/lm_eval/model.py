"""The model ``infinigen`` of lm-evaluation-harness."""

from __future__ import annotations

import logging
from typing import Any

from lm_eval import utils
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from .._errors import UnsupportedError
from ..llm import LLM, Option
from ..output import LogLikelihood

#: What the harness passes to every model and an engine decides by itself.
_IGNORED = frozenset({"batch_size", "max_batch_size", "trust_remote_code"})


def _open(model: str, options: dict[str, Any], device: str | None) -> LLM:
    """Open the model on the harness's device, a GPU by default; on the CPU where there is none."""
    if device is None or device == "cpu":
        return LLM(model, progress=False, **options)
    try:
        return LLM(model, progress=False, device=device.split(":")[0], **options)
    except UnsupportedError as error:
        logging.getLogger(__name__).warning("%s; the CPU is used", error)
        return LLM(model, progress=False, **options)


@register_model("infinigen")
class InfiniGenLM(LM):  # type: ignore[misc]
    """Scores and generates with an ``infinigen.LLM``.

    ``pretrained`` is the model; ``score`` is ``prefill`` or ``steps`` (see ``LLM.loglikelihood``);
    ``max_gen_toks`` bounds answers whose task sets no length; the rest are options of the engine.
    """

    def __init__(
        self,
        pretrained: str = "",
        *,
        score: str = "prefill",
        max_gen_toks: int = 256,
        device: str | None = None,
        **options: Option | None,
    ) -> None:
        super().__init__()
        kept: dict[str, Any] = {name: value for name, value in options.items() if name not in _IGNORED}
        self.llm = _open(pretrained, kept, device)
        self.score = score
        self.max_gen_toks = max_gen_toks
        self.context = self.llm.plan().context

    @property
    def tokenizer_name(self) -> str:
        """Name of the model, for the harness's caches."""
        return self.llm.info.name

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Score each request's continuation after its context."""
        encode = self.llm.tokenizer.encode_pair
        scored = self._score([encode(*request.args) for request in requests])
        results = [(each.logprob, each.is_greedy) for each in scored]
        for request, result in zip(requests, results, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, result)
        return results

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Score whole texts, in windows of the engine's context."""
        pairs: list[tuple[list[int], list[int]]] = []
        counts = []
        for request in requests:
            tokens = self.llm.tokenizer.encode(request.args[0], add_special=False)
            windows = utils.get_rolling_token_windows(
                token_list=tokens,
                prefix_token=self.llm.tokenizer.prefix,
                max_seq_len=self.context - 1,  # the last predicted token takes a row too
                context_len=1,
            )
            own = [utils.make_disjoint_window(window) for window in windows]
            pairs += [(list(context), list(predicted)) for context, predicted in own]
            counts.append(len(own))
        scored = iter(self._score(pairs))
        results = [sum(next(scored).logprob for _ in range(count)) for count in counts]
        for request, result in zip(requests, results, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, result)
        return results

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Generate for each request until one of its stop strings; requests with equal options together."""
        answers: list[str] = [""] * len(requests)
        groups: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(repr(sorted(request.args[1].items(), key=str)), []).append(index)
        for indices in groups.values():
            options = self._options(requests[indices[0]].args[1])
            room = max(1, self.context - int(options["max_tokens"]))
            encode = self.llm.tokenizer.encode
            prompts = [encode(requests[index].args[0])[-room:] for index in indices]
            for index, output in zip(indices, self.llm.generate(prompts, **options), strict=True):
                answers[index] = output.text
                self.cache_hook.add_partial("generate_until", requests[index].args, output.text)
        return answers

    def _options(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the harness's generation options as keywords of ``LLM.generate``; greedy by default."""
        until = given.get("until") or []
        options: dict[str, Any] = {
            "stop": [until] if isinstance(until, str) else [text for text in until if text],
            "max_tokens": int(given.get("max_gen_toks", self.max_gen_toks)),
            "temperature": float(given.get("temperature") or 0) if given.get("do_sample", True) else 0.0,
        }
        for name in ("top_p", "top_k", "min_p", "seed"):
            if given.get(name) is not None:
                options[name] = given[name]
        return options

    def _score(self, pairs: list[tuple[list[int], list[int]]]) -> list[LogLikelihood]:
        return self.llm.score_tokens(pairs, score=self.score, truncate=True)
