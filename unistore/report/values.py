"""Values of a store's arrays, from a bounded number of bytes: range, mean, labels, how they are spread."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.zarr3.array import Array

__all__ = ["describe_values", "finite", "histogram", "how_often", "spark"]

ARRAY_BYTES = 4 << 20
"""Decoded bytes that are read of one array; a single chunk may have more, up to `CHUNK_BYTES`."""
CHUNK_BYTES = 32 << 20
MOST_READ = 16
"""Chunks that are read of an array, at most, evenly spread."""
LABELS = 32
"""A column of integers with at most as many different values is counted by value."""
SHOWN_LABELS = 5
_MOST_CHUNKS = 1 << 53
"""More than any store has, and than float64 tells apart."""
_BINS = 24
FEW = 12
"""Values that are shown as labels, a spread or a chart, at least."""
_BARS = "▁▂▃▄▅▆▇█"


def describe_values(array: Array, chunks: int = MOST_READ) -> dict[str, Any] | None:
    """Range, mean and spread of an array's values as JSON; None where they are not looked at.

    At most `chunks` of its chunks are read, where there are more than a few.

    ``read`` of ``of`` values were read, ``nan`` of them are not finite and left out of the rest. ``labels``
    are pairs of a value and its count, the most frequent first, of a column of few different integers; else
    ``histogram`` counts values between ``min`` and ``max``.
    """
    size = math.prod(array.shape)
    if array.dtype.kind not in "biuf" or not size:
        return None
    values = _read(array, chunks)
    if values is None:
        return None
    numbers = finite(values)
    about: dict[str, Any] = {"read": values.size, "of": size, "nan": values.size - numbers.size}
    about |= {"min": None, "max": None, "mean": None, "labels": None, "histogram": None}
    if not numbers.size:
        return about
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(numbers.mean(dtype=np.float64))
    about |= {"min": numbers.min().item(), "max": numbers.max().item()}
    about["mean"] = mean if math.isfinite(mean) else None
    if numbers.dtype.kind != "f" and len(array.shape) == 1:
        found, counts = np.unique(numbers, return_counts=True)
        if len(found) <= LABELS:
            pairs = sorted(zip(found.tolist(), counts.tolist(), strict=True), key=lambda pair: -pair[1])
            about["labels"] = [[int(value), count] for value, count in pairs]
            return about
    about["histogram"] = histogram(numbers)
    return about


def finite(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers without NaN and infinities."""
    return values[np.isfinite(values)] if values.dtype.kind == "f" else values


def _read(array: Array, most: int) -> NDArray[Any] | None:
    """All values, flat, or those of some chunks; None where even one chunk is too large."""
    chunk_bytes = math.prod(array.chunk_shape) * array.dtype.itemsize
    if math.prod(array.shape) * array.dtype.itemsize <= ARRAY_BYTES:
        return array.read().reshape(-1)
    grid = [-(-extent // step) for extent, step in zip(array.shape, array.chunk_shape, strict=True)]
    if chunk_bytes > CHUNK_BYTES or math.prod(grid) > _MOST_CHUNKS:
        return None
    count, total = max(1, min(most, ARRAY_BYTES // chunk_bytes)), math.prod(grid)
    numbers = np.unique((np.arange(count) + 0.5) * (total / count)).astype(np.int64)
    parts = []
    for place in zip(*np.unravel_index(numbers, grid), strict=True):
        lo = [int(at) * step for at, step in zip(place, array.chunk_shape, strict=True)]
        hi = [min(at + step, end) for at, step, end in zip(lo, array.chunk_shape, array.shape, strict=True)]
        parts.append(array.read_box(lo, hi).reshape(-1))
    return np.concatenate(parts)


def histogram(values: NDArray[Any]) -> list[int]:
    """How many values lie in each of equal parts between the smallest and the largest, all finite."""
    wide = values.astype(np.float64)
    low, high = float(wide.min()), float(wide.max())
    if not math.isfinite(high - low) or high == low:
        return [int(wide.size)]
    places = ((wide - low) * (_BINS / (high - low))).astype(np.int64)
    counts: list[int] = np.bincount(np.minimum(places, _BINS - 1), minlength=_BINS).tolist()
    return counts


def how_often(values: dict[str, Any]) -> str:
    """``"5: 16.9 %, 1: 16.8 %"``: the most frequent labels; empty for few values or one label."""
    labels = values["labels"] or ()
    if len(labels) < 2 or values["read"] < FEW:
        return ""
    shown = [f"{value}: {100 * count / values['read']:.3g} %" for value, count in labels[:SHOWN_LABELS]]
    more = len(labels) - len(shown)
    return ", ".join([*shown, *([f"and {more} more"] if more else [])])


def spark(counts: list[int], width: int = 12) -> str:
    """Counts as a line of bars, neighbours put together."""
    if len(counts) < 2 or sum(counts) < FEW:
        return ""
    sums = [sum(part.tolist()) for part in np.array_split(np.array(counts), min(width, len(counts)))]
    most = max(sums)
    return "".join(" " if not each else _BARS[min(7, each * 8 // most)] for each in sums)
