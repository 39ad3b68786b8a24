"""Statistics of an array's values: range, mean, histogram, labels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.zarr3.array import Array

ARRAY_BYTES = 4 << 20
"""Decoded bytes that are read of one array; one chunk may have more, up to `CHUNK_BYTES`."""
CHUNK_BYTES = 32 << 20
MAX_CHUNKS = 16
"""Chunks that are read of an array, evenly spread."""
MAX_LABELS = 32
"""An integer column with at most this many distinct values counts as labels."""
_MAX_GRID = 1 << 53
"""Chunk numbers up to here are exact in float64."""
_BINS = 24
MIN_SHOWN = 12
"""Fewer values are not shown as labels, histogram or chart."""
_BARS = "▁▂▃▄▅▆▇█"


def describe_values(array: Array, chunks: int = MAX_CHUNKS) -> dict[str, Any] | None:
    """Range, mean and histogram of an array's values. JSON values; None if nothing was read.

    Of an array above 4 MiB at most `chunks` chunks are read. Nothing is read of an array without values, of
    other than bool, integer or float dtype, or with chunks above 32 MiB.

    ``read`` of ``of`` values were read; ``nan`` of them are not finite and left out of the rest. ``labels``
    are pairs of value and count, the most frequent first, for 1-D integers with few distinct values; else
    ``histogram`` has the counts of equal bins from ``min`` to ``max``.
    """
    size = math.prod(array.shape)
    values = _sampled_values(array, chunks) if array.dtype.kind in "biuf" and size else None
    if values is None:
        return None
    numbers = finite(values)
    about: dict[str, Any] = {"read": values.size, "of": size, "nan": values.size - numbers.size}
    about |= dict.fromkeys(("min", "max", "mean", "labels", "histogram"))
    if not numbers.size:
        return about
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(numbers.mean(dtype=np.float64))
    about |= {"min": numbers.min().item(), "max": numbers.max().item()}
    about["mean"] = mean if math.isfinite(mean) else None
    if numbers.dtype.kind != "f" and len(array.shape) == 1:
        found, counts = np.unique(numbers, return_counts=True)
        if len(found) <= MAX_LABELS:
            pairs = sorted(zip(found.tolist(), counts.tolist(), strict=True), key=lambda pair: -pair[1])
            about["labels"] = [[int(value), count] for value, count in pairs]
            return about
    about["histogram"] = histogram(numbers)
    return about


def finite(values: NDArray[Any]) -> NDArray[Any]:
    """Values without NaN and infinities."""
    return values[np.isfinite(values)] if values.dtype.kind == "f" else values


def _sampled_values(array: Array, max_chunks: int) -> NDArray[Any] | None:
    """Flat values of the whole array or of some chunks; None if a chunk is too large."""
    chunk_bytes = math.prod(array.chunk_shape) * array.dtype.itemsize
    if math.prod(array.shape) * array.dtype.itemsize <= ARRAY_BYTES:
        return array.read().reshape(-1)
    grid = [-(-extent // step) for extent, step in zip(array.shape, array.chunk_shape, strict=True)]
    if chunk_bytes > CHUNK_BYTES or math.prod(grid) > _MAX_GRID:
        return None
    count, total = max(1, min(max_chunks, ARRAY_BYTES // chunk_bytes)), math.prod(grid)
    numbers = ((np.arange(count) + 0.5) * (total / count)).astype(np.int64)
    parts = []
    for index in zip(*np.unravel_index(numbers, grid), strict=True):
        lo = [int(at) * step for at, step in zip(index, array.chunk_shape, strict=True)]
        hi = [min(at + step, end) for at, step, end in zip(lo, array.chunk_shape, array.shape, strict=True)]
        parts.append(array.read_box(lo, hi).reshape(-1))
    return np.concatenate(parts)


def histogram(values: NDArray[Any]) -> list[int]:
    """Counts of finite values in equal bins from the smallest to the largest."""
    wide = values.astype(np.float64)
    low, high = float(wide.min()), float(wide.max())
    if not math.isfinite(high - low) or high == low:
        return [int(wide.size)]
    bins = ((wide - low) * (_BINS / (high - low))).astype(np.int64)
    counts: list[int] = np.bincount(np.minimum(bins, _BINS - 1), minlength=_BINS).tolist()
    return counts


def sparkline(counts: list[int], width: int = 12) -> str:
    """A histogram as a line of block characters; neighbouring bins are added up."""
    if len(counts) < 2 or sum(counts) < MIN_SHOWN:
        return ""
    sums = [sum(part.tolist()) for part in np.array_split(np.array(counts), min(width, len(counts)))]
    most = max(sums)
    return "".join(" " if not each else _BARS[min(7, each * 8 // most)] for each in sums)


def sample_noun(table: str) -> str:
    """Singular of the sample table's name: ``"segment"`` of ``"segments"``."""
    return table.rpartition("/")[2].removesuffix("s") or "sample"
