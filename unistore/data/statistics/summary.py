"""One counted pass over samples: moments by sample and a histogram by split, of each key that is numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unistore.data.kinds.protocol import BoxReader, Picks, SampleReader
from unistore.data.packed import Packed
from unistore.data.statistics.bins import Histogram, HistogramBuilder
from unistore.data.statistics.moments import Moments, joined, moments_of, moments_of_counts
from unistore.system.hints import AnyArray, Float64s, Int64s, Shape, UInt8s

_BATCH_BYTES = 32 << 20
"""Bytes of the samples that are read together."""
_BATCH_SAMPLES = 1 << 12
"""Most samples that are read together; of keys with one value a sample, those that moments are kept of."""
_BLOCK = 1 << 20
"""Values that are converted to float64 together."""
_LONG = 256
"""Samples of so many bytes are counted value by value, which is exact and quicker than arithmetic."""
_CHANNELS_FIRST = (1, 3)
_CHANNELS_LAST = (1, 3, 4)


@dataclass(frozen=True, slots=True)
class Form:
    """What the values of a key are, and which of their axes has the components."""

    dtype: np.dtype[np.generic]
    axis: int | None  # of a value, counted from its end; None: values are one component
    components: int
    by_sample: bool  # whether moments are kept by sample, not by block of samples

    @property
    def is_whole(self) -> bool:
        """Whether values are whole numbers."""
        return self.dtype.kind in "biu"


@dataclass(frozen=True, slots=True)
class Summary:
    """Moments and histogram of one key."""

    form: Form
    moments: Moments  # by sample in their order, or by block and split
    split: UInt8s  # (segments,): split of each segment of the moments
    histogram: Histogram  # by split and component


def form_of(packed: Packed, *, is_box: bool = False) -> Form | None:
    """Return the form of a key from any batch; None of texts. Boxes, as of volumes, are one component."""
    if packed.values.dtype.kind not in "biuf":
        return None
    dtype = packed.values.dtype
    if is_box or packed.shapes is not None:
        return Form(dtype, None, 1, by_sample=True)
    shape = packed.values.shape[1:]
    axis = _component_axis(shape, dtype)
    components = 1 if axis is None else shape[axis]
    is_one_value = packed.offsets is None and np.prod(shape, dtype=np.int64) == components
    return Form(dtype, axis, components, by_sample=not is_one_value)


def _component_axis(shape: Shape, dtype: np.dtype[np.generic]) -> int | None:
    """Return the channel axis of images, and the last axis of other values; None where there is none."""
    is_image = len(shape) >= 2 and dtype in (np.uint8, np.uint16)
    if not is_image:
        return -1 if shape else None
    if len(shape) >= 3 and shape[-3] in _CHANNELS_FIRST:
        return -3
    return -1 if shape[-1] in _CHANNELS_LAST else None


def summarise(
    reader: SampleReader,
    fields: Sequence[str],
    index: Int64s,  # numbers of the samples to read
    splits: UInt8s,  # split of each of them
    epoch: int = 0,
    seed: int = 0,
) -> dict[str, Summary]:
    """Read samples once; returns the summary of each key of `fields` whose values are numbers."""
    builders: dict[str, _Builder] = {}
    nothing = np.zeros(0, np.int64)
    for key, packed in reader.read(Picks(nothing, nothing, seed), np.empty).items():
        is_box = isinstance(reader, BoxReader) and reader.box_shape(key) is not None
        form = form_of(packed, is_box=is_box)
        if form is not None and key in fields:
            builders[key] = _Builder(form)
    lo = 0
    step = 1
    while lo < len(index):
        part = index[lo : lo + step]
        batch = reader.read(Picks(part, np.full(len(part), epoch), seed), np.empty)
        for key, builder in builders.items():
            builder.add(batch[key], splits[lo : lo + step])
        lo += step
        # Samples differ in size, so that a batch is at most twice as long as the one before.
        sample_bytes = sum(packed.values.nbytes for packed in batch.values()) // len(part)
        step = max(1, min(_BATCH_BYTES // max(1, sample_bytes), 2 * step, _BATCH_SAMPLES))
    return {key: builder.summary() for key, builder in builders.items()}


class _Builder:
    """Makes the summary of one key, batch by batch."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._moments = [_empty(form.components)]
        self._splits = [np.zeros(0, np.uint8)]
        self._histogram = HistogramBuilder()

    def add(self, packed: Packed, splits: UInt8s) -> None:
        """Add a batch, whose samples are of these splits."""
        values, offsets = _rows(packed, self._form)
        if not self._form.by_sample:
            order = np.argsort(splits, kind="stable")
            values = values[order]
            splits, starts = np.unique(splits[order], return_index=True)
            offsets = np.append(starts, len(values))
        self._splits.append(splits)
        is_bytes = values.dtype.itemsize == 1 and len(values) >= _LONG * len(splits)
        add = self._add_bytes if is_bytes else self._add_numbers
        self._moments.append(add(values, offsets, splits))

    def _add_numbers(self, values: AnyArray, offsets: Int64s, splits: UInt8s) -> Moments:
        """Add values (n, components) of segments."""
        step = max(1, _BLOCK // self._form.components)
        cuts = np.unique(np.concatenate([offsets, np.arange(0, len(values), step)]))
        split_of_cut = splits[np.searchsorted(offsets, cuts[:-1], side="right") - 1]
        pieces = [_empty(self._form.components)]
        for lo in range(0, len(values), step):
            first, last = np.searchsorted(cuts, (lo, min(lo + step, len(values))))
            own_cuts = cuts[first : last + 1]
            block = np.ascontiguousarray(values[lo : own_cuts[-1]].T, np.float64)
            pieces.append(moments_of(block, own_cuts - lo))
            split_of_row = np.repeat(split_of_cut[first:last], np.diff(own_cuts))
            self._count(block, split_of_row)
        return joined(pieces).merged(np.searchsorted(cuts, offsets))

    def _count(self, values: Float64s, splits: UInt8s) -> None:
        """Count values (components, n) of rows of these splits, (n,)."""
        for split in np.unique(splits).tolist():
            is_own = splits == split
            own = values if is_own.all() else values[:, is_own]
            self._histogram.add(own, split * self._form.components)

    def _add_bytes(self, values: AnyArray, offsets: Int64s, splits: UInt8s) -> Moments:
        """Add values (n, components) of one byte, which are counted."""
        components = self._form.components
        counts = np.zeros((len(splits), components, 256), np.int64)
        stored = values.view(np.uint8)
        for segment in range(len(splits)):
            part = stored[offsets[segment] : offsets[segment + 1]]
            for component in range(components):
                counts[segment, component] = np.bincount(part[:, component], minlength=256)
        possible = np.arange(256, dtype=np.uint8).view(values.dtype).astype(np.float64)
        for split in np.unique(splits).tolist():
            total = counts[splits == split].sum(axis=0)
            self._histogram.add_counted(possible, total, split * components)
        return moments_of_counts(possible, counts)

    def summary(self) -> Summary:
        """Return what was added."""
        splits = np.concatenate(self._splits)
        return Summary(self._form, joined(self._moments), splits, self._histogram.histogram())


def _empty(components: int) -> Moments:
    return moments_of(np.zeros((components, 0)), np.zeros(1, np.int64))


def _rows(packed: Packed, form: Form) -> tuple[AnyArray, Int64s]:
    """Return values (n, components), and offsets of the samples in them."""
    values = packed.values
    if packed.shapes is not None:
        values = values.reshape(-1)
    if form.axis is None:
        rows = values.reshape(-1, 1)
    else:
        rows = np.moveaxis(values, form.axis, -1).reshape(-1, form.components)
    per_value = len(rows) // max(1, len(values))
    offsets = np.arange(len(packed) + 1) if packed.offsets is None else packed.offsets
    return rows, offsets * per_value
