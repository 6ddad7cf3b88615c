"""Text as it is generated, for loops and for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

from . import _core
from .output import Output

T = TypeVar("T")


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
    """The same for ``async for``. Cancelling the task that waits cancels the request.

    The request is submitted at once, on another thread: an engine accepts it between two of its turns.
    """

    def __init__(self, submit: Callable[[], _core.Stream], executor: Executor) -> None:
        self._executor = executor
        self._submitted = executor.submit(submit)

    def __aiter__(self) -> AsyncTextStream:
        return self

    async def __anext__(self) -> str:
        piece = await self._run(_core.Stream.next)
        if piece is None:
            raise StopAsyncIteration
        return piece

    def cancel(self) -> None:
        """End the request with the finish reason ``cancelled``."""
        self._submitted.add_done_callback(_cancel)

    async def output(self) -> Output:
        """Return the whole answer; waits for its end."""
        return Output(await self._run(_core.Stream.wait))

    async def _run(self, wait: Callable[[_core.Stream], T]) -> T:
        try:
            # Shielded: a submission that is cancelled half-way would leave its request running.
            stream = await asyncio.shield(asyncio.wrap_future(self._submitted))
            return await asyncio.get_running_loop().run_in_executor(self._executor, wait, stream)
        except asyncio.CancelledError:
            self.cancel()
            raise


def _cancel(submitted: Future[_core.Stream]) -> None:
    if submitted.exception() is None:
        submitted.result().cancel()
