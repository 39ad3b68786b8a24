"""Count values by component: moments in float64, and a histogram."""

# A code is the sign, the exponent and the first seven bits behind the point of the float64: exact for whole
# numbers below 256, within 0.4 % of the value for all else

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from unistore.data.component_axis import AxisLike, ComponentAxis, component_axis
from unistore.data.kinds.protocol import SampleIndices, SampleReader
from unistore.data.packed import Packed
from unistore.errors import InputError, Problem
from unistore.system.arguments import wrong_argument
from unistore.system.progress import Listener, ignore
from unistore.system.types import AnyArray, Float64s, Int64s, UInt8s

_DROPPED = 45  # Bits of a float64 that its code leaves out: 52 of the fraction but seven
CODES = 1 << 20  # More than there are codes: 2 signs, 2,047 exponents, 128 parts of each
_MIDDLE = CODES // 2  # What is added to codes, so that none is negative
_BLOCK = 1 << 20  # Values that are converted to float64 together
_PARTS = 16  # Counts of blocks that wait to be merged
_BATCH_BYTES = 32 << 20  # Bytes of the samples that are read together
_BATCH_SAMPLES = 1 << 12  # Most samples that are read together


def codes_of(values: Float64s) -> Int64s:
    """Return codes of float64 values, in the order of the values.

    A code consists of sign, exponent and the first seven bits of the fraction: exact for whole numbers
    below 256, and within 0.4 % of any other value.
    """
    magnitude = np.abs(values).view(np.int64) >> _DROPPED
    return np.where(values < 0, -magnitude, magnitude)


def values_of(codes: Int64s, *, whole: bool) -> Float64s:
    """Return a value for each code.

    Parameters
    ----------
    codes : int64 array
        The codes.
    whole : bool
        Whether values are whole numbers.

    Returns
    -------
    float64 array
        Within 0.4 % of every value with this code.
    """
    magnitude = np.abs(codes)
    sign: Float64s = np.where(codes < 0, -1.0, 1.0)
    if not whole:
        middle = ((magnitude << _DROPPED) + (1 << (_DROPPED - 1))).view(np.float64)
        return np.where(codes == 0, 0.0, sign * middle)
    first = np.ceil((magnitude << _DROPPED).view(np.float64))
    last = np.ceil(((magnitude + 1) << _DROPPED).view(np.float64)) - 1
    middle = np.floor(first + (last - first) / 2)
    return np.where(codes == 0, 0.0, sign * middle)


@dataclass(frozen=True, slots=True)
class ValueCounts:
    """Counts of values with C components.

    Attributes
    ----------
    count : int64 array of shape (C,)
        Number of finite values, which everything else is computed from.
    nan, infinite : int64 array of shape (C,)
        Number of values that are NaN, or infinite.
    mean : float64 array of shape (C,)
        Mean.
    deviation : float64 array of shape (C,)
        Sum of squared differences from the mean.
    low, high : float64 array of shape (C,)
        Smallest and largest value; inf and -inf if there is no value.
    bins : int64 array of shape (K,)
        Bins of the histogram, ascending: component * 2**20 + 2**19 + code.
    counts : int64 or float64 array of shape (K,)
        Number of values in each bin. Floats if stores have weights.
    """

    count: Int64s
    nan: Int64s
    infinite: Int64s
    mean: Float64s
    deviation: Float64s
    low: Float64s
    high: Float64s
    bins: Int64s
    counts: Int64s | Float64s

    def quantiles(self, shares: Sequence[float], *, whole: bool) -> Float64s:
        """Return quantiles of the values.

        Parameters
        ----------
        shares : sequence of float
            Share of the values that each quantile is not below.
        whole : bool
            Whether values are whole numbers.

        Returns
        -------
        float64 array of shape (shares, C)
            Within 0.4 % of ``numpy.quantile(…, method="inverted_cdf")``. NaN if there are no values.
        """
        out = np.full((len(shares), len(self.count)), np.nan)
        bounds = np.searchsorted(self.bins, np.arange(len(self.count) + 1) * CODES)
        for component in np.flatnonzero(np.diff(bounds)).tolist():
            component_bins = slice(bounds[component], bounds[component + 1])
            reached = np.cumsum(self.counts[component_bins])
            places = np.searchsorted(reached, np.asarray(shares) * reached[-1])
            codes = self.bins[component_bins][np.minimum(places, len(reached) - 1)] % CODES - _MIDDLE
            out[:, component] = values_of(codes, whole=whole)
        inside: Float64s = np.clip(out, self.low, self.high)
        return inside


def count_values(values: AnyArray, times: AnyArray | None = None) -> ValueCounts:
    """Count values.

    Parameters
    ----------
    values : array of shape (n, C)
        The values.
    times : int or bool array of shape (n, C), optional
        How often each value counts. None: once.
    """
    if times is None and values.dtype.itemsize == 1:
        return _count_bytes(values)
    is_once = times is None or times.dtype == bool
    times = np.ones(values.shape, np.int64) if times is None else times
    numbers = np.ascontiguousarray(values.T, np.float64)  # contiguous, so that sums are pairwise
    times = np.ascontiguousarray(times.T, np.int64)
    present = np.isfinite(numbers) & (times > 0)
    finite_times = np.where(present, times, 0)
    count = finite_times.sum(axis=1)
    infinite = np.where(np.isinf(numbers), times, 0).sum(axis=1)
    nan = times.sum(axis=1) - count - infinite
    divisor = np.maximum(count, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = (np.where(present, numbers, 0.0) * finite_times).sum(axis=1) / divisor
        difference = np.where(present, numbers - mean[:, None], 0.0)
        # What the mean lacks by rounding is added, and taken from the squares.
        remainder = (difference * finite_times).sum(axis=1)
        squares = (np.square(difference) * finite_times).sum(axis=1)
        deviation = np.maximum(squares - remainder**2 / divisor, 0.0)
        mean = mean + remainder / divisor
    first_bins = np.arange(len(numbers))[:, None] * CODES + _MIDDLE
    all_bins = (first_bins + codes_of(numbers))[present]
    if is_once:  # four times as fast as with places
        bins, counts = np.unique(all_bins, return_counts=True)
    else:
        bins, places = np.unique(all_bins, return_inverse=True)
        counts = np.bincount(places, times[present], len(bins)).astype(np.int64)
    low = np.where(present, numbers, np.inf).min(axis=1, initial=np.inf)
    high = np.where(present, numbers, -np.inf).max(axis=1, initial=-np.inf)
    return ValueCounts(count, nan, infinite, mean, deviation, low, high, bins, counts)


def _count_bytes(values: AnyArray) -> ValueCounts:
    # By how often each value occurs, which is quicker
    columns = values.view(np.uint8).T
    times = [np.bincount(column, minlength=256) for column in columns]
    possible = np.arange(256, dtype=np.uint8).view(values.dtype).astype(np.float64)
    repeated = np.repeat(possible[:, None], len(columns), axis=1)
    return count_values(repeated, np.reshape(times, (-1, 256)).T)


def merge(parts: Sequence[ValueCounts], weights: Sequence[float] | None = None) -> ValueCounts:
    """Return the counts of several parts together.

    Parameters
    ----------
    parts : sequence of ValueCounts
        Counts of each part.
    weights : sequence of float, optional
        Weight of each part: the counts then describe values that are drawn by weight. None: all values
        count once.
    """
    # Chan, Golub and LeVeque (1979), equation 2.1, for any number of parts
    moments = fields(ValueCounts)[:7]
    stacked = [np.stack([getattr(part, field.name) for part in parts]) for field in moments]
    count, nan, infinite, means, deviations, low, high = stacked
    share = count.astype(np.float64)
    counts = [part.counts for part in parts]
    if weights is not None:
        share = np.where(count > 0, np.asarray(weights)[:, None], 0.0)
        for number, (part, weight) in enumerate(zip(parts, weights, strict=True)):
            counts[number] = part.counts * (weight / part.count[part.bins // CODES])
    with np.errstate(over="ignore", invalid="ignore"):
        share /= np.maximum(share.sum(axis=0), np.finfo(np.float64).tiny)
        mean = (share * means).sum(axis=0)
        variance = (share * (deviations / np.maximum(count, 1) + np.square(means - mean))).sum(axis=0)
        total = count.sum(axis=0)
        deviation = variance * total
    bins, places = np.unique(np.concatenate([part.bins for part in parts]), return_inverse=True)
    all_counts = np.concatenate(counts)
    together: AnyArray = np.zeros(len(bins), all_counts.dtype)
    np.add.at(together, places, all_counts)
    return ValueCounts(
        total,
        nan.sum(axis=0),
        infinite.sum(axis=0),
        mean,
        deviation,
        low.min(axis=0),
        high.max(axis=0),
        bins,
        together,
    )


class Summary(NamedTuple):
    """Counts of one key.

    Attributes
    ----------
    dtype : numpy.dtype
        Dtype of the values.
    axis : int or None
        Axis of the components in a sample, counted from the end. None: a single component.
    by_split : dict of int to ValueCounts
        Counts by code of the split.
    """

    dtype: np.dtype[np.generic]
    axis: ComponentAxis | None  # None: one component
    by_split: dict[int, ValueCounts]  # by code of the split

    def total(self, splits: Sequence[int] | None = None) -> ValueCounts:
        """Return the counts of some splits together. None: of all splits."""
        counts = list(self.by_split.values())
        no_values = count_values(np.zeros((0, len(counts[0].count))))
        parts = [part for split, part in self.by_split.items() if splits is None or split in splits]
        return merge([no_values, *parts])


def component_axes(
    reader: SampleReader, fields: Sequence[str], asked: AxisLike = "auto"
) -> tuple[dict[str, ComponentAxis | None], list[Problem]]:
    """Return the axis of the components of each key whose values are numbers, and problems of the others."""
    empty = reader.read(_indices([]), np.empty)
    axes: dict[str, ComponentAxis | None] = {}
    problems: list[Problem] = []
    for key in fields:
        if key not in empty or empty[key].values.dtype.kind not in "biuf":
            continue
        packed = empty[key]
        is_flat = packed.shapes is not None
        shape = packed.values.shape[1:] if packed.shapes is None else (0,) * packed.shapes.shape[1]
        is_box = is_flat or reader.box_shape(key) is not None
        names = reader.axis_names(key)
        try:
            axes[key] = component_axis(key, shape, packed.values.dtype, names, asked, is_box=is_box)
        except InputError as error:
            problems += error.problems
    return axes, problems


def _indices(samples: Sequence[int]) -> SampleIndices:
    index = np.array(samples, np.int64)
    return SampleIndices(index, np.zeros(len(index), np.int64))


def summarise(
    reader: SampleReader,
    axes: Mapping[str, ComponentAxis | None],  # of the keys to count, see `component_axes`
    index: Int64s,  # numbers of the samples to read
    splits: UInt8s,  # split of each of them
    epoch: int = 0,
    seed: int = 0,
    validity: Mapping[str, Sequence[str]] = MappingProxyType({}),  # keys that say which values are real
    count: Listener = ignore,  # is told how many more samples are read
) -> dict[str, Summary]:
    """Read samples once and return the summary of each key of `axes`."""
    parts: dict[str, dict[int, list[ValueCounts]]] = {key: {} for key in axes}
    lo = 0
    step = 1
    while lo < len(index):
        part = index[lo : lo + step]
        batch = reader.read(SampleIndices(part, np.full(len(part), epoch), seed), np.empty)
        for key in axes:
            rows, lengths = _rows(batch[key], axes[key])
            is_real = _real_rows([batch[name] for name in validity.get(key, ())], batch[key], axes[key])
            _add(parts[key], rows, is_real, lengths, splits[lo : lo + step])
        lo += step
        count(len(part))
        # Samples differ in size, so that a batch is at most twice as long as the one before.
        sample_bytes = sum(packed.values.nbytes for packed in batch.values()) // len(part)
        step = max(1, min(_BATCH_BYTES // max(1, sample_bytes), 2 * step, _BATCH_SAMPLES))
    empty = reader.read(_indices([]), np.empty)
    summaries = {}
    for key, axis in axes.items():
        by_split = {split: merge(parts[key][split]) for split in sorted(parts[key])}
        if not by_split:
            form = empty[key]
            if axis is not None and form.shapes is not None and len(reader):
                form = reader.read(_indices([0]), np.empty)[key]
            by_split[0] = count_values(_rows(form, axis)[0][:0])
        summaries[key] = Summary(empty[key].values.dtype, axis, by_split)
    return summaries


def _add(
    parts: dict[int, list[ValueCounts]],
    rows: AnyArray,
    is_real: AnyArray | None,
    lengths: Int64s,
    splits: UInt8s,
) -> None:
    split_of_row = np.repeat(splits, lengths)
    has_values = np.ones(len(rows), bool) if is_real is None else is_real.any(axis=1)
    step = max(1, _BLOCK // rows.shape[1])
    for split in np.unique(splits).tolist():
        is_in_split = has_values & (split_of_row == split)
        rows_of_split = rows if is_in_split.all() else rows[is_in_split]
        times = None if is_real is None or is_real[is_in_split].all() else is_real[is_in_split]
        counted = parts.setdefault(split, [])
        for lo in range(0, max(1, len(rows_of_split)), step):
            block = slice(lo, lo + step)
            counted.append(count_values(rows_of_split[block], None if times is None else times[block]))
        if len(counted) > _PARTS:
            counted[:] = [merge(counted)]


def _real_rows(validity: Sequence[Packed], packed: Packed, axis: ComponentAxis | None) -> AnyArray | None:
    """Return which values of the rows of a key are real, by what says so of each sample. None: all."""
    is_real: AnyArray | None = None
    for of_samples in validity:
        mask = of_samples.values
        if packed.offsets is not None:
            mask = np.repeat(mask, np.diff(packed.offsets), axis=0)
        between = [1] * (packed.values.ndim - mask.ndim)
        mask = np.broadcast_to(mask.reshape(len(mask), *between, *mask.shape[1:]), packed.values.shape)
        is_real = mask if is_real is None else is_real & mask
    return None if is_real is None else _rows(replace(packed, values=is_real), axis)[0]


def _rows(packed: Packed, axis: ComponentAxis | None) -> tuple[AnyArray, Int64s]:
    """Return values as rows of components, and the number of rows of each sample."""
    values = packed.values
    if packed.shapes is not None and axis is not None:
        return _rows_of_boxes(packed, axis)
    rows = values.reshape(-1, 1) if axis is None else _by_component(values, axis)
    lengths = np.ones(len(packed), np.int64) if packed.offsets is None else np.diff(packed.offsets)
    return rows, lengths * (len(rows) // max(1, len(values)))


def _rows_of_boxes(packed: Packed, axis: ComponentAxis) -> tuple[AnyArray, Int64s]:
    samples = [_by_component(packed[number], axis) for number in range(len(packed))]
    extents = sorted({sample.shape[1] for sample in samples})
    if len(extents) > 1:
        message = f"is {axis.index}, but samples have {' and '.join(map(str, extents))} components along it"
        raise wrong_argument("axis", message, "give axis=None for all values together")
    rows = np.concatenate(samples) if samples else packed.values.reshape(-1, 1)
    return rows, np.array([len(sample) for sample in samples], np.int64)


def _by_component(values: AnyArray, axis: ComponentAxis) -> AnyArray:
    return np.moveaxis(values, axis.index, -1).reshape(-1, values.shape[axis.index])
