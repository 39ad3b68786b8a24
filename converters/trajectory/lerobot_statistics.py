"""Statistics as LeRobot keeps them: of each episode and of the whole dataset, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from unistore.converters.trajectory.stored_steps import blocks

Document = dict[str, Any]
"""Statistics of a feature as JSON, by LeRobot's names."""

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_SHARES = list(QUANTILES.values())
_MEMORY = 256 << 20
_LEVELS = 256


class Statistics(Protocol):
    """Statistics of one feature, which sees its rows block by block."""

    def add(self, rows: NDArray[Any]) -> None:
        """Take the next rows of the episode."""

    def end_episode(self) -> Document:
        """Return the statistics of the episode, and begin the next."""

    def whole(self) -> Document:
        """Return the statistics of all episodes."""


class _Moments(NamedTuple):
    """What rows of one shape come to along their first axis."""

    rows: int
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]
    """Sum of the squared differences from the mean."""
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def of(cls, values: NDArray[Any]) -> _Moments:
        """Compute those of one row or more."""
        numbers = values.astype(np.float64)
        mean = numbers.mean(axis=0)
        squares = np.square(numbers - mean).sum(axis=0)
        return cls(len(numbers), mean, squares, numbers.min(axis=0), numbers.max(axis=0))

    def joined(self, other: _Moments) -> _Moments:
        """Join them with those of further rows (Chan, Golub and LeVeque)."""
        count = self.rows + other.rows
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.rows / count)
        squares = self.squares + other.squares + np.square(apart) * (self.rows * other.rows / count)
        return _Moments(
            count, mean, squares, np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        )

    def document(self, quantiles: NDArray[np.float64] | None) -> Document:
        """Return them as LeRobot names them, single values as lists of one."""
        values = {
            "min": self.low,
            "max": self.high,
            "mean": self.mean,
            "std": np.sqrt(self.squares / self.rows),
        }
        if quantiles is not None:
            values |= dict(zip(QUANTILES, quantiles, strict=True))
        document: Document = {name: np.atleast_1d(value).tolist() for name, value in values.items()}
        return {**document, "count": [self.rows]}


class NumberStatistics:
    """Statistics of numbers; `read` reads the rows again for quantiles, None leaves these out."""

    def __init__(self, read: Callable[[int, int], NDArray[Any]] | None) -> None:
        self._read = read
        self._rows: list[NDArray[Any]] = []
        self._episode: _Moments | None = None
        self._total: _Moments | None = None

    def add(self, rows: NDArray[Any]) -> None:
        """See `Statistics`."""
        moments = _Moments.of(rows)
        self._episode = moments if self._episode is None else self._episode.joined(moments)
        if self._read is not None:
            self._rows.append(rows)

    def end_episode(self) -> Document:
        """See `Statistics`."""
        assert self._episode is not None
        moments = self._episode
        quantiles = None
        if self._rows:
            quantiles = np.quantile(np.concatenate(self._rows).astype(np.float64), _SHARES, axis=0)
        self._total = moments if self._total is None else self._total.joined(moments)
        self._episode = None
        self._rows = []
        return moments.document(quantiles)

    def whole(self) -> Document:
        """See `Statistics`."""
        assert self._total is not None
        if self._read is None:
            return self._total.document(None)
        return self._total.document(_quantiles(self._read, self._total.rows, self._total.mean.shape))


def _quantiles(
    read: Callable[[int, int], NDArray[Any]], count: int, row_shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """Compute quantiles of all rows exactly, so many values of a row at a time as fit into memory."""
    width = prod(row_shape)
    together = max(1, _MEMORY // (8 * count))
    parts = []
    for first in range(0, width, together):
        columns = np.empty((count, min(together, width - first)))
        for start, stop in blocks(0, count, 8 * width):
            columns[start:stop] = read(start, stop).reshape(stop - start, width)[:, first : first + together]
        parts.append(np.quantile(columns, _SHARES, axis=0))
    return np.concatenate(parts, axis=1).reshape(len(_SHARES), *row_shape)


@dataclass
class ImageStatistics:
    """Statistics of the channels of RGB images, whose values LeRobot divides by 255; exact, by counting."""

    frames: int = 0
    total_frames: int = 0

    def __post_init__(self) -> None:
        self._counts = np.zeros((3, _LEVELS), np.int64)
        self._total = np.zeros((3, _LEVELS), np.int64)

    def add(self, rows: NDArray[Any]) -> None:
        """See `Statistics`."""
        self.frames += len(rows)
        for channel in range(3):
            self._counts[channel] += np.bincount(rows[..., channel].reshape(-1), minlength=_LEVELS)

    def end_episode(self) -> Document:
        """See `Statistics`."""
        document = _of_counts(self._counts, self.frames)
        self._total += self._counts
        self.total_frames += self.frames
        self._counts[:] = 0
        self.frames = 0
        return document

    def whole(self) -> Document:
        """See `Statistics`."""
        return _of_counts(self._total, self.total_frames)


def _of_counts(counts: NDArray[np.int64], frames: int) -> Document:
    """Return the statistics of pixels of which `counts` says how many have each level, (3, 256)."""
    levels = np.arange(_LEVELS) / (_LEVELS - 1)
    pixels = counts.sum(axis=1)
    mean = counts @ levels / pixels
    variance = (counts * np.square(levels - mean[:, None])).sum(axis=1) / pixels
    running = np.cumsum(counts, axis=1)
    values = {
        "min": [levels[np.flatnonzero(channel)[0]] for channel in counts],
        "max": [levels[np.flatnonzero(channel)[-1]] for channel in counts],
        "mean": mean,
        "std": np.sqrt(variance),
    }
    for name, share in QUANTILES.items():
        values[name] = [_quantile_of(channel, share) / (_LEVELS - 1) for channel in running]
    document: Document = {name: np.reshape(value, (3, 1, 1)).tolist() for name, value in values.items()}
    return {**document, "count": [frames]}


def _quantile_of(running: NDArray[np.int64], share: float) -> float:
    """Return the level at a share of sorted pixels, between two of them as `numpy.quantile` has it."""
    place = share * (int(running[-1]) - 1)
    below = int(place)
    low = int(np.searchsorted(running, below, "right"))
    high = int(np.searchsorted(running, min(below + 1, int(running[-1]) - 1), "right"))
    return low + (place - below) * (high - low)
