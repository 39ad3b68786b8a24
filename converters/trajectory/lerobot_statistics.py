"""Statistics as LeRobot keeps them: of each episode and of the whole dataset, exact, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.trajectory.stored_steps import blocks

Document = dict[str, Any]  # statistics of a feature as JSON, by LeRobot's names
Read = Callable[[int, int], NDArray[Any]]  # reads the rows of steps (start, stop)
Bounds = Sequence[tuple[int, int]]  # steps (start, stop) of each episode

_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_MEMORY = 256 << 20
_LEVELS = 256


def number_statistics(
    read: Read, bounds: Bounds, row_shape: tuple[int, ...]
) -> tuple[list[Document], Document]:
    """Return the statistics of each episode and of all rows, which are read an episode at a time."""
    episodes = [_document(_of_rows(read(start, stop)), row_shape, stop - start) for start, stop in bounds]
    count = bounds[-1][1]
    width = prod(row_shape)
    # So many values of each row at a time as fit into memory.
    together = max(1, _MEMORY // (8 * count))
    parts = []
    for first in range(0, width, together):
        columns = [
            read(start, stop).reshape(stop - start, width)[:, first : first + together]
            for start, stop in bounds
        ]
        parts.append(_of_rows(np.concatenate(columns)))
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return episodes, _document(whole, row_shape, count)


def _of_rows(rows: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
    numbers = rows.astype(np.float64)
    statistics = {
        "min": numbers.min(axis=0),
        "max": numbers.max(axis=0),
        "mean": numbers.mean(axis=0),
        "std": numbers.std(axis=0),
    }
    quantiles = np.quantile(numbers, list(_QUANTILES.values()), axis=0)
    return statistics | dict(zip(_QUANTILES, quantiles, strict=True))


def image_statistics(read: Read, bounds: Bounds, row_bytes: int) -> tuple[list[Document], Document]:
    """Return the statistics of the channels of RGB images, whose values LeRobot divides by 255."""
    total = np.zeros((3, _LEVELS), np.int64)
    episodes = []
    for start, stop in bounds:
        counts = np.zeros((3, _LEVELS), np.int64)
        for lo, hi in blocks(start, stop, row_bytes):
            rows = read(lo, hi)
            for channel in range(3):
                counts[channel] += np.bincount(rows[..., channel].reshape(-1), minlength=_LEVELS)
        episodes.append(_document(_of_counts(counts), (3, 1, 1), stop - start))
        total += counts
    return episodes, _document(_of_counts(total), (3, 1, 1), bounds[-1][1])


def _of_counts(counts: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """Return the statistics of pixels of which `counts` says how many have each level, (3, 256)."""
    levels = np.arange(_LEVELS) / (_LEVELS - 1)
    pixels = counts.sum(axis=1)
    mean = counts @ levels / pixels
    variance = (counts * np.square(levels - mean[:, None])).sum(axis=1) / pixels
    running = np.cumsum(counts, axis=1)
    statistics = {"mean": mean, "std": np.sqrt(variance)}
    for name, share in {"min": 0.0, "max": 1.0, **_QUANTILES}.items():
        statistics[name] = np.array([_quantile_of(channel, share) for channel in running]) / (_LEVELS - 1)
    return statistics


def _quantile_of(running: NDArray[np.int64], share: float) -> float:
    """Return the level at a share of sorted pixels, between two of them as `numpy.quantile` has it."""
    last = int(running[-1]) - 1
    place = share * last
    below = int(place)
    low, high = np.searchsorted(running, [below, min(below + 1, last)], "right").tolist()
    return float(low + (place - below) * (high - low))


def _document(values: dict[str, NDArray[np.float64]], row_shape: tuple[int, ...], rows: int) -> Document:
    document: Document = {name: value.reshape(row_shape).tolist() for name, value in values.items()}
    return {**document, "count": [rows]}
