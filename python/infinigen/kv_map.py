"""KvMap: a picture of what each layer attended to."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class KvMap:
    """Which tokens of the context the decode steps of an answer attended to, layer by layer.

    ``share[layer, row]`` is the share of (step, KV head) pairs that attended to token ``row`` among those
    that could; 1 in layers that attend to everything. It is a view: nothing is copied.
    """

    def __init__(self, share: npt.NDArray[np.float32], steps: int, prompt_tokens: int) -> None:
        self.share = share
        self.steps = steps
        self.prompt_tokens = prompt_tokens

    @property
    def layers(self) -> int:
        """Number of layers."""
        return int(self.share.shape[0])

    @property
    def rows(self) -> int:
        """Tokens that the last step could attend to."""
        return int(self.share.shape[1])

    def columns(self, count: int) -> npt.NDArray[np.float32]:
        """Return the map with neighbouring tokens averaged into at most ``count`` columns."""
        if count < 1:
            raise ValueError("a map has at least one column")
        edges = np.linspace(0, self.rows, min(count, self.rows) + 1).astype(np.int64)
        sums = np.add.reduceat(self.share, edges[:-1], axis=1)
        averaged: npt.NDArray[np.float32] = (sums / np.diff(edges)).astype(np.float32)
        return averaged

    def plot(self, ax: Any = None, *, columns: int = 1024) -> Any:
        """Draw the map with matplotlib and return the axes: tokens to the right, layers downwards."""
        if ax is None:
            try:
                from matplotlib import pyplot
            except ImportError as error:
                raise ImportError("KvMap.plot needs matplotlib: pip install matplotlib") from error
            _, ax = pyplot.subplots(figsize=(10, 0.2 * self.layers + 1.5))
        extent = (0, self.rows, self.layers, 0)
        image = ax.imshow(
            self.columns(columns),
            aspect="auto",
            interpolation="nearest",
            vmin=0,
            vmax=1,
            extent=extent,
        )
        ax.axvline(self.prompt_tokens, color="white", linewidth=0.5)
        ax.set_xlabel("token")
        ax.set_ylabel("layer")
        ax.set_title(f"share of {self.steps} steps that attended to each token")
        ax.figure.colorbar(image, ax=ax)
        return ax

    def __repr__(self) -> str:
        return f"<infinigen.KvMap: {self.layers} layers, {self.rows} tokens, {self.steps} steps>"
