"""Progress of long work, shown with tqdm where it is installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Show = Callable[[int, int], object]
Progress = bool | Show | None


def _bar() -> Any:
    """Return tqdm's bar for terminals and notebooks; None where tqdm is not installed."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm


@contextmanager
def progress_of(progress: Progress, what: str, *, unit: str) -> Iterator[Show | None]:
    """Yield the function that long work calls with (done, total); None: it shows nothing.

    ``None`` draws a bar where tqdm is installed and standard error is a terminal.
    """
    if callable(progress):
        yield progress
        return
    if progress is False or (progress is None and not sys.stderr.isatty()):
        yield None
        return
    make = _bar()
    if make is None:
        if progress:
            raise ImportError("progress=True needs tqdm: pip install tqdm")
        yield None
        return
    bar = None

    def show(done: int, total: int) -> None:
        nonlocal bar
        if bar is None or bar.total != total:  # another piece of work
            if bar is not None:
                bar.close()
            bar = make(total=total, desc=what, unit=unit, leave=False, delay=1)
        bar.update(done - bar.n)

    try:
        yield show
    finally:
        if bar is not None:
            bar.close()
