"""Tokenizer: text to token ids and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from . import _core


class Tokenizer:
    """The model's tokenizer. Any thread may use it."""

    def __init__(self, model: _core.Model) -> None:
        self._model = model
        self._info = model.info()

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the ids of ``text``, with the special tokens that open a text unless told otherwise."""
        return self._model.encode(text, add_special)

    def decode(self, tokens: Iterable[int], *, skip_special: bool = False) -> str:
        """Return the text of ``tokens``. Half a character becomes U+FFFD."""
        return self.decode_bytes(tokens, skip_special=skip_special).decode("utf-8", "replace")

    def decode_bytes(self, tokens: Iterable[int], *, skip_special: bool = False) -> bytes:
        """Return the bytes of ``tokens``, which may end within a character."""
        return self._model.decode([int(token) for token in tokens], skip_special)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the prompt of a conversation, made with the model's chat template."""
        return self._model.encode_chat(pairs_of(messages))

    def encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Encode a text in two parts, as lm-evaluation-harness does.

        White space that ends the context belongs to the continuation. The tokens of both parts together
        are those of the whole text; an empty context becomes the token that begins or ends texts.
        """
        stripped = context.rstrip()
        continuation = context[len(stripped) :] + continuation
        before = self.encode(stripped, add_special=False)
        whole = self.encode(stripped + continuation, add_special=False)
        opening = self._model.opening()
        if not opening and not before:
            opening = [self.prefix]
        return opening + whole[: len(before)], whole[len(before) :]

    @property
    def bos(self) -> int | None:
        """The token that begins a text; None if there is none."""
        return self._info.bos

    @property
    def eos(self) -> list[int]:
        """Tokens that end an answer."""
        return self._info.eos

    @property
    def prefix(self) -> int:
        """The token that stands for an empty context: BOS, else the first EOS."""
        if self._info.bos is not None:
            return self._info.bos
        if self._info.eos:
            return self._info.eos[0]
        raise ValueError("the context is empty, and the tokenizer has neither BOS nor EOS to replace it")

    @property
    def vocabulary(self) -> int:
        """Number of tokens, one more than the largest id."""
        return self._info.vocabulary

    def __len__(self) -> int:
        return self._info.vocabulary


def pairs_of(messages: Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
    """Return the (role, content) pairs of OpenAI-style messages."""
    pairs = []
    for index, message in enumerate(messages):
        unknown = sorted(set(message) - {"role", "content"})
        if unknown:
            raise ValueError(f"messages[{index}]: unknown field {unknown[0]!r}; known are role and content")
        for field in ("role", "content"):
            if not isinstance(message.get(field), str):
                raise ValueError(f"messages[{index}]: {field} must be a string")
        pairs.append((message["role"], message["content"]))
    return pairs
