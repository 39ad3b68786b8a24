"""Statistics of the values of a store: ranges, histograms and labels of arrays, measures of samples."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unistore.converters.families import preview_of_store
from unistore.converters.preview import Measure
from unistore.remote.url import local_path
from unistore.store.reader import Store
from unistore.system.sizes import count_of
from unistore.system.types import AnyArray, JsonObject, PathLike, UInt8s
from unistore.zarr3.array import StoredArray

# Decoded bytes that are read of one array; one chunk may have more, up to `CHUNK_BYTES`
ARRAY_BYTES = 4 << 20
CHUNK_BYTES = 32 << 20
MAX_CHUNKS = 16  # Chunks that are read of an array, evenly spread
MAX_LABELS = 32  # An integer column with at most this many distinct values counts as labels
SHOWN_LABELS = 5
MIN_SHOWN = 12  # Fewer values are not shown as labels, histogram or chart
QUANTILES = {"min": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "max": 1.0}
# Chunk numbers up to here are exact in float64
_MAX_GRID = 1 << 53
_BINS = 24
_SPARKS = 12  # characters of a sparkline, at most
_BARS = " ▁▂▃▄▅▆▇█"
# Labels that may mean "no class", by column; in LAS files 0 (never classified) and 1 (unclassified)
_UNLABELLED = {"classification": (0, 1), "label": (0,), "labels": (0,)}
# Share of unlabelled values from which on a remark is made
_MIN_UNLABELLED = 0.005
# Share of samples beyond a bound from which on a remark is made
_MIN_BEYOND = 0.05
# Shares this close to 0.5 are called half
_HALF_TOLERANCE = 0.02


@dataclass(slots=True, kw_only=True)
class ValueReport:
    """Values of an array, or of evenly spread chunks of it.

    Attributes
    ----------
    read : int
        Number of values that were read.
    of : int
        Number of values of the array.
    nan : int
        Number of values that are not finite. They are left out of the following.
    min, max, mean : float, optional
        None: there are no finite values.
    labels : list of [int, int], optional
        Value and count, the most frequent first, if a column of integers has few different ones.
    histogram : list of int, optional
        Counts in equal bins from `min` to `max`. None: there are `labels`.
    """

    read: int
    of: int
    nan: int
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    labels: list[list[int]] | None = None
    histogram: list[int] | None = None

    def shares(self) -> str:
        """Return shares of frequent labels, ``"5: 16.9 %, 1: 16.8 %"``. Empty: few values, or one label."""
        labels = self.labels or []
        if len(labels) < 2 or self.read < MIN_SHOWN:
            return ""
        shares = []
        for label, count in labels[:SHOWN_LABELS]:
            percent = 100 * count / self.read
            shares.append(f"{label}: {percent:.3g} %")
        if len(labels) > SHOWN_LABELS:
            shares.append(f"and {len(labels) - SHOWN_LABELS} more")
        return ", ".join(shares)

    def unlabelled(self, path: str) -> tuple[float, str] | None:
        """Return labels that may mean "no class": their share in percent, and the labels as text.

        None: there are none. A column of zeros has another note.
        """
        suspects = _UNLABELLED.get(_column(path))
        counts = {label: count for label, count in self.labels or ()}  # noqa: C416 - typed pairs
        if suspects is None or len(counts) < 2 or _are_balanced_classes(counts):
            return None
        labels = sorted(label for label in counts if label < 0 or label in suspects)
        share = sum(counts[label] for label in labels) / self.read
        if share < _MIN_UNLABELLED:
            return None
        return 100 * share, " or ".join(map(str, labels))


def unlabelled_question(labels: str) -> str:
    """Return the question about labels such as ``"1"`` or ``"0 or 1"``, and where to answer it."""
    label = "LABEL" if " " in labels else labels
    return f"Does {labels} mean 'unlabelled'? If so: class_weights(…, unlabelled={label})"


def describe_values(array: StoredArray, chunks: int = MAX_CHUNKS) -> ValueReport | None:
    """Return a description of the values of an array, or None if nothing was read.

    Of an array above 4 MiB, at most `chunks` chunks are read. Nothing is read if the array has no values,
    its dtype is not bool, integer or float, or its chunks are above 32 MiB.
    """
    size = math.prod(array.shape)
    values = _sampled_values(array, chunks) if array.dtype.kind in "biuf" and size else None
    if values is None:
        return None
    numbers = finite(values)
    report = ValueReport(read=values.size, of=size, nan=values.size - numbers.size)
    if not numbers.size:
        return report
    report.min = numbers.min().item()
    report.max = numbers.max().item()
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(numbers.mean(dtype=np.float64))
    report.mean = mean if math.isfinite(mean) else None
    if numbers.dtype.kind != "f" and len(array.shape) == 1:
        labels, counts = np.unique(numbers, return_counts=True)
        if len(labels) <= MAX_LABELS:
            frequent = np.argsort(-counts, kind="stable")
            report.labels = [[int(labels[number]), int(counts[number])] for number in frequent]
            return report
    report.histogram = histogram(numbers)
    return report


def finite(values: AnyArray) -> AnyArray:
    """Return values without NaN and infinities."""
    return values[np.isfinite(values)] if values.dtype.kind == "f" else values


def _sampled_values(array: StoredArray, max_chunks: int) -> AnyArray | None:
    if math.prod(array.shape) * array.dtype.itemsize <= ARRAY_BYTES:
        return array.read().reshape(-1)
    chunk_bytes = math.prod(array.chunk_shape) * array.dtype.itemsize
    grid = [-(-extent // step) for extent, step in zip(array.shape, array.chunk_shape, strict=True)]
    total = math.prod(grid)
    if chunk_bytes > CHUNK_BYTES or total > _MAX_GRID:
        return None
    count = max(1, min(max_chunks, ARRAY_BYTES // chunk_bytes))
    numbers = ((np.arange(count) + 0.5) * (total / count)).astype(np.int64)
    parts = []
    for index in np.stack(np.unravel_index(numbers, grid), axis=1).tolist():
        lo = list(map(operator.mul, index, array.chunk_shape))
        hi = list(map(min, map(operator.add, lo, array.chunk_shape), array.shape))
        parts.append(array.read_box(lo, hi).reshape(-1))
    return np.concatenate(parts)


def histogram(values: AnyArray, bounds: tuple[float, float] | None = None) -> list[int]:
    """Count finite values in equal bins, from the smallest to the largest or between `bounds`."""
    wide = values.astype(np.float64)
    low, high = bounds or (float(wide.min()), float(wide.max()))
    if not math.isfinite(high - low) or high == low:
        return [int(wide.size)]
    bins = ((wide - low) * (_BINS / (high - low))).astype(np.int64)
    counts: list[int] = np.bincount(np.minimum(bins, _BINS - 1), minlength=_BINS).tolist()
    return counts


def rebinned(
    histograms: Iterable[tuple[Sequence[int], float, float]], bounds: tuple[float, float]
) -> list[int]:
    """Return one histogram between `bounds` of several: their counts, smallest and largest value each.

    A bin counts where its middle is.
    """
    low, high = bounds
    if not math.isfinite(high - low) or high == low:
        return [sum(sum(counts) for counts, _, _ in histograms)]
    together = np.zeros(_BINS, np.int64)
    for counts, smallest, largest in histograms:
        middles = smallest + (largest - smallest) * (np.arange(len(counts)) + 0.5) / len(counts)
        places = ((middles - low) * (_BINS / (high - low))).astype(np.int64)
        np.add.at(together, np.minimum(places, _BINS - 1), counts)
    shown: list[int] = together.tolist()
    return shown


def sparkline(counts: Sequence[int]) -> str:
    """Draw a histogram as a line of block characters. Neighbouring bins are added up."""
    if len(counts) < 2 or sum(counts) < MIN_SHOWN:
        return ""
    parts = np.array_split(np.array(counts), min(_SPARKS, len(counts)))
    sums = np.array([part.sum() for part in parts])
    heights = np.minimum(8, 1 + sums * 8 // sums.max())
    heights[sums == 0] = 0
    return "".join(_BARS[height] for height in heights)


def _are_balanced_classes(counts: Mapping[int, int]) -> bool:
    # Where 0 stands for points without a class, it is as frequent as a class by chance alone.
    are_consecutive = set(counts) == set(range(len(counts)))
    return are_consecutive and max(counts.values()) <= 2 * min(counts.values())


def _column(path: str) -> str:
    return path.rpartition("/")[2].lower()


def label_lines(path: PathLike) -> list[str]:
    """Return a line about the labels in each label column, from a limited part. Empty for an object store."""
    if local_path(path) is None:
        return []
    store = Store(path)
    lines = []
    for name in store.paths():
        values = describe_values(store.array(name)) if _column(name) in _UNLABELLED else None
        if values is None or not (shares := values.shares()):
            continue
        suspect = values.unlabelled(name)
        question = f". {unlabelled_question(suspect[1])}" if suspect is not None else ""
        lines.append(f"{name}: {shares}{question}")
    return lines


def measures_of(store: Store) -> list[Measure]:
    """Return the measures that the family has for the samples of the store, without empty ones."""
    measures = preview_of_store(store).measures(store) if store.sample_count else ()
    return [measure for measure in measures if len(measure.values)]


def describe_measure(measure: Measure, codes: UInt8s | None = None, splits: Sequence[str] = ()) -> JsonObject:
    """Return quantiles, histograms, and the numbers of the smallest and largest sample, as JSON values."""
    values = measure.values.astype(np.float64)
    quantiles = np.quantile(values, list(QUANTILES.values()), method="nearest").tolist()
    numbers = np.arange(len(values)) if measure.samples is None else measure.samples
    by_split = {}
    if codes is not None:
        for code, name in enumerate(splits):
            own = values[codes[numbers] == code]
            by_split[name] = histogram(own, (quantiles[0], quantiles[-1]))
    return {
        "name": measure.name,
        "samples": len(values),
        **dict(zip(QUANTILES, quantiles, strict=True)),
        "histogram": histogram(values),
        "by_split": by_split,
        "smallest": int(numbers[np.argmin(values)]),
        "largest": int(numbers[np.argmax(values)]),
    }


def measure_remarks(measure: Measure, noun: str) -> list[str]:
    """Return notes such as ``"half of the segments have fewer than 16 points"``, with a fix."""
    bounds = {f"fewer than {measure.few}": measure.values < measure.few}
    if measure.most:
        bounds[f"more than {measure.most}"] = measure.values > measure.most
    remarks = []
    for bound, beyond in bounds.items():
        if share := _share_text(float(beyond.mean())):
            remarks.append(f"{share} of the {noun}s have {bound} {measure.name} ({measure.fix})")
    empty = int((measure.values == 0).sum()) if measure.few or measure.most else 0
    if empty:
        have = "has" if empty == 1 else "have"
        remarks.append(f"{count_of(empty, noun)} {have} no {measure.name}")
    return remarks


def _share_text(share: float) -> str:
    if share == 1:
        return "all"
    if share < _MIN_BEYOND:
        return ""
    return "half" if abs(share - 0.5) < _HALF_TOLERANCE else f"{100 * share:.2g} %"


def sample_noun(table: str) -> str:
    """Return the singular of the sample table's name: ``"segment"`` of ``"segments"``."""
    return table.rpartition("/")[2].removesuffix("s") or "sample"
