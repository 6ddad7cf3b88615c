"""Text as it is generated, for loops and for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor

from . import _core
from .output import Output


class TextStream(Iterator[str]):
    """Pieces of an answer as they are generated; ``output`` has the rest when they have ended.

    Leaving the loop early, ``cancel()`` or dropping the stream ends the request at its next step.
    """

    def __init__(self, stream: _core.Stream) -> None:
        self._stream = stream

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> str:
        piece = self._stream.next()
        if piece is None:
            raise StopIteration
        return piece

    def cancel(self) -> None:
        """End the request with the finish reason ``cancelled``. Any thread may call it."""
        self._stream.cancel()

    @property
    def done(self) -> bool:
        """Whether the request has ended."""
        return self._stream.done()

    @property
    def output(self) -> Output:
        """The whole answer; waits for its end."""
        return Output(self._stream.wait())


class AsyncTextStream(AsyncIterator[str]):
    """The same for ``async for``. Cancelling the task that waits cancels the request."""

    def __init__(self, stream: _core.Stream, executor: Executor) -> None:
        self._stream = stream
        self._executor = executor

    def __aiter__(self) -> AsyncTextStream:
        return self

    async def __anext__(self) -> str:
        loop = asyncio.get_running_loop()
        try:
            piece = await loop.run_in_executor(self._executor, self._stream.next)
        except asyncio.CancelledError:
            self._stream.cancel()
            raise
        if piece is None:
            raise StopAsyncIteration
        return piece

    def cancel(self) -> None:
        """End the request with the finish reason ``cancelled``."""
        self._stream.cancel()

    async def output(self) -> Output:
        """Return the whole answer; waits for its end."""
        loop = asyncio.get_running_loop()
        try:
            return Output(await loop.run_in_executor(self._executor, self._stream.wait))
        except asyncio.CancelledError:
            self._stream.cancel()
            raise
