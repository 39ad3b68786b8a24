"""Statistics of arrays, and measures of samples: range, quantiles, histogram, labels, remarks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.preview import Measure
from unistore.pictures import preview_of
from unistore.store.reader import Store
from unistore.zarr3.array import Array

ARRAY_BYTES = 4 << 20
"""Decoded bytes that are read of one array; one chunk may have more, up to `CHUNK_BYTES`."""
CHUNK_BYTES = 32 << 20
MAX_CHUNKS = 16
"""Chunks that are read of an array, evenly spread."""
MAX_LABELS = 32
"""An integer column with at most this many distinct values counts as labels."""
SHOWN_LABELS = 5
_MAX_GRID = 1 << 53
"""Chunk numbers up to here are exact in float64."""
_BINS = 24
MIN_SHOWN = 12
"""Fewer values are not shown as labels, histogram or chart."""
_BARS = "▁▂▃▄▅▆▇█"
QUANTILES = {"min": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "max": 1.0}
_MIN_SHARE = 0.05
"""Share of samples beyond a bound from which on a remark is made."""
_HALF_TOLERANCE = 0.02
"""Shares this close to 0.5 are called half."""
_MAX_MEASURES = 6
"""Measures whose smallest and largest samples are shown."""


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


def label_shares(values: dict[str, Any]) -> str:
    """Shares of the most frequent labels: ``"5: 16.9 %, 1: 16.8 %"``; empty for few values or one label."""
    labels = values["labels"] or ()
    if len(labels) < 2 or values["read"] < MIN_SHOWN:
        return ""
    shown = [f"{value}: {100 * count / values['read']:.3g} %" for value, count in labels[:SHOWN_LABELS]]
    more = len(labels) - len(shown)
    return ", ".join([*shown, *([f"and {more} more"] if more else [])])


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


def measures_of(store: Store) -> list[Measure]:
    """Measures that the family takes of the store's samples; empty ones are left out."""
    found = list(preview_of(store).measures(store)) if store.sample_count else []
    return [measure for measure in found if len(measure.values)]


def describe_measures(measures: Sequence[Measure]) -> list[dict[str, Any]]:
    """Quantiles and histogram of each measure, and its smallest and largest sample. JSON values."""
    described = []
    for measure in measures:
        values = measure.values.astype(np.float64)
        quantiles = np.quantile(values, list(QUANTILES.values()), method="nearest").tolist()
        numbers = np.arange(len(values)) if measure.samples is None else measure.samples
        described.append(
            {
                "name": measure.name,
                "samples": len(values),
                **dict(zip(QUANTILES, quantiles, strict=True)),
                "histogram": histogram(values),
                "smallest": int(numbers[np.argmin(values)]),
                "largest": int(numbers[np.argmax(values)]),
            }
        )
    return described


def measure_remarks(store: Store, measures: Sequence[Measure]) -> list[str]:
    """Remarks such as ``"half of the segments have fewer than 16 points"``, with a cure."""
    remarks, noun = [], sample_noun(store.sample_table)
    for measure in measures:
        bounds = [(measure.values < measure.few, f"fewer than {measure.few}")]
        bounds += [(measure.values > measure.most, f"more than {measure.most}")] if measure.most else []
        for beyond, bound in bounds:
            share = _share_text(float(beyond.mean()))
            if share:
                remarks.append(f"{share} of the {noun}s have {bound} {measure.name} ({measure.cure})")
        empty = int((measure.values == 0).sum()) if measure.few or measure.most else 0
        if empty:
            remarks.append(f"{empty:,} {noun}{'s have' if empty > 1 else ' has'} no {measure.name}")
    return remarks


def _share_text(share: float) -> str:
    """``"all"``, ``"half"``, ``"7 %"``; empty where the share is too small for a remark."""
    if share < _MIN_SHARE or share == 1:
        return "all" if share == 1 else ""
    return "half" if abs(share - 0.5) < _HALF_TOLERANCE else f"{100 * share:.2g} %"


def chosen_samples(
    count: int, described: Sequence[dict[str, Any]], asked: Sequence[int] = ()
) -> dict[int, str]:
    """Samples to show, and why: those asked for, the first, middle and last, and the extremes of measures."""
    reasons = [(number, "") for number in asked]
    reasons += [(0, "first"), (count // 2, "middle"), (count - 1, "last")] if count else []
    for each in described[:_MAX_MEASURES]:
        for end, bound in (("largest", "max"), ("smallest", "min")) if each["min"] < each["max"] else ():
            reasons.append((each[end], f"{each['name']}: {each[bound]:,.4g}, the {end}"))
    found: dict[int, str] = {}
    for number, reason in reasons:
        found[number] = ", ".join(filter(None, [found.get(number, ""), reason]))
    return found
