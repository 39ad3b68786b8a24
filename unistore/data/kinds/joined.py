"""Reader of the samples of several stores; batches may mix stores."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.protocol import SOURCE, BoxReader, Picks, SampleReader
from unistore.data.packed import Allocate, Batch, Packed, Scratch, offsets_from_lengths, packed_copy
from unistore.errors import InputError, Problem
from unistore.order.permutation import words


class Layout(NamedTuple):
    """Layout of a key in batches.

    Attributes
    ----------
    dtype
        Of values; of text without its width.
    row
        Dense: shape of a sample. Ragged: shape of a value. None: boxes of different shapes, packed flat.
    ragged
        Whether samples differ in length.
    boxed
        Whether samples are boxes, which are dense if all have one shape.
    group
        Group of a ragged key, see `Packed`; also of boxes of one shape.
    """

    dtype: np.dtype[Any]
    row: tuple[int, ...] | None
    ragged: bool = False
    boxed: bool = False
    group: str = ""

    @property
    def dense(self) -> bool:
        """Whether batches are (B, …)."""
        return not self.ragged and self.row is not None

    def __str__(self) -> str:
        if self.row is None:
            return f"{self.dtype} boxes"
        shape = ", ".join(["*"] * self.ragged + [str(extent) for extent in self.row])
        return f"{self.dtype} ({shape})"


class JoinedReader:
    """Reads samples of several stores; see `SampleReader`.

    A batch from one store is read directly into allocated memory. Of a mixed batch, each store's samples are
    read together into scratch memory, and copied from there.

    Parameters
    ----------
    readers
        One per store, of the same kind and fields.
    names
        Names of the stores, for messages and as prefix of the names of sources.

    Raises
    ------
    InputError
        If a key has different dtypes or shapes in the stores; names key, stores and layouts.
    """

    def __init__(self, readers: Sequence[SampleReader], names: Sequence[str]) -> None:
        self._readers = list(readers)
        self._names = list(names)
        self.offsets = offsets_from_lengths(np.array([len(reader) for reader in readers]))
        layouts = [_layouts(reader) for reader in self._readers]
        nonempty = [number for number, reader in enumerate(self._readers) if len(reader)] or [0]
        self._layouts = _common_layouts(
            [layouts[number] for number in nonempty], [self._names[number] for number in nonempty]
        )
        self._has_common_layout = [layout == self._layouts for layout in layouts]
        self._scratch = threading.local()

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch."""
        store = np.searchsorted(self.offsets, picks.index, side="right") - 1
        stores = np.unique(store).tolist() or [0]
        if len(stores) == 1 and self._has_common_layout[stores[0]]:
            return self._read_part(stores[0], picks, np.arange(len(picks)), allocate)
        scratch = self._begin_scratch()
        positions = [np.flatnonzero(store == number) for number in stores]
        parts = [
            self._read_part(number, picks, part, scratch.allocate)
            for number, part in zip(stores, positions, strict=True)
        ]
        offsets: dict[str, NDArray[np.int64]] = {}
        batch: Batch = {}
        for key, layout in self._layouts.items():
            packed = [part[key] for part in parts]
            batch[key] = join_parts(layout, packed, positions, offsets, allocate)
        return batch

    def _read_part(
        self, number: int, picks: Picks, positions: NDArray[np.int64], allocate: Allocate
    ) -> Batch:
        """Samples at some positions of the batch, all of one store."""
        # one seed per store: sample i of one store must not be cropped like sample i of the next one
        seed = int(words(picks.seed, np.array([number]), np.array([0]), 1)[0, 0])
        own = Picks(picks.index[positions] - self.offsets[number], picks.epoch[positions], seed)
        batch = self._readers[number].read(own, allocate)
        if SOURCE in batch:
            names = np.char.add(f"{self._names[number]}/", batch[SOURCE].values)
            batch[SOURCE] = packed_copy(names, allocate)
        return batch

    def _begin_scratch(self) -> Scratch:
        """Scratch memory of this thread, emptied."""
        found: Scratch | None = getattr(self._scratch, "memory", None)
        if found is None:
            found = self._scratch.memory = Scratch()
        found.begin()
        return found


def _layouts(reader: SampleReader) -> dict[str, Layout]:
    """Layout of each key in the batches of one store, from an empty batch."""
    no_samples = np.empty(0, np.int64)
    layouts = {}
    for key, packed in reader.read(Picks(no_samples, no_samples), np.empty).items():
        layouts[key] = layout_of(packed, reader.box_shape(key) if isinstance(reader, BoxReader) else None)
    return layouts


def layout_of(packed: Packed, box: tuple[int, ...] | None = None) -> Layout:
    """Layout of a key as it was read; `box` is the common shape of boxes, if there is one."""
    dtype = np.dtype(np.str_) if packed.values.dtype.kind == "U" else packed.values.dtype
    if packed.shapes is not None:
        return Layout(dtype, box, boxed=True, group=packed.group)
    ragged = packed.offsets is not None
    return Layout(dtype, packed.values.shape[1:], ragged=ragged, group=packed.group)


def _common_layouts(layouts: Sequence[dict[str, Layout]], names: Sequence[str]) -> dict[str, Layout]:
    """Layout of each key in mixed batches."""
    common, problems = dict(layouts[0]), []
    for key, first in layouts[0].items():
        found = [layout[key] for layout in layouts]
        if all(layout == first for layout in found):
            continue
        if all(layout.boxed and layout.dtype == first.dtype for layout in found):
            common[key] = first._replace(row=None)
            continue
        stores: dict[str, list[str]] = {}
        for layout, name in zip(found, names, strict=True):
            stores.setdefault(str(layout), []).append(name)
        listed = "; ".join(f"{layout} in {', '.join(members)}" for layout, members in stores.items())
        cure = "convert these sources into one store, or leave the field out with fields=[…]"
        problems.append(Problem(f"field {key!r}", f"differs between stores: {listed}", cure, "fields"))
    if problems:
        raise InputError(problems)
    return common


def join_parts(
    layout: Layout,
    parts: Sequence[Packed],
    positions: Sequence[NDArray[np.int64]],
    group_offsets: dict[str, NDArray[np.int64]],
    allocate: Allocate,
) -> Packed:
    """One key of a batch from parts of it; ragged samples are concatenated in the order of the batch.

    Parameters
    ----------
    layout
        Of the key in the batch.
    parts, positions
        Samples, and where they stand in the batch, (n,) each; together 0 to B - 1.
    group_offsets
        Offsets (B + 1,) of the ragged groups of the batch so far; those of a new group are added.
    allocate
        For the values.
    """
    if layout.dense:
        return _join_dense(parts, positions, allocate)
    samples: list[NDArray[Any]] = [np.empty(0)] * sum(map(len, positions))
    for part, where in zip(parts, positions, strict=True):
        for number, position in enumerate(where.tolist()):
            samples[position] = part[number]
    shapes = None
    if layout.row is None:
        shapes = np.array([sample.shape for sample in samples], np.int64)
        lengths = shapes.prod(axis=1)
    else:
        lengths = np.array([len(sample) for sample in samples], np.int64)
    offsets = group_offsets.setdefault(layout.group, offsets_from_lengths(lengths))
    out = allocate((int(offsets[-1]), *(layout.row or ())), layout.dtype)
    for sample, (lo, hi) in zip(samples, pairwise(offsets.tolist()), strict=True):
        out[lo:hi].reshape(sample.shape)[...] = sample
    return Packed(out, offsets, layout.group, shapes)


def _join_dense(
    parts: Sequence[Packed], positions: Sequence[NDArray[np.int64]], allocate: Allocate
) -> Packed:
    """Samples (B, …) of all parts at their positions, in the memory order of the parts."""
    first = parts[0].values
    dtype = np.result_type(*{part.values.dtype for part in parts})
    order = [0, *sorted(range(1, first.ndim), key=lambda axis: -abs(first.strides[axis]))]
    out = allocate((sum(map(len, positions)), *(first.shape[axis] for axis in order[1:])), dtype)
    for part, where in zip(parts, positions, strict=True):
        out[where] = part.values.transpose(order)
    return Packed(out.transpose(np.argsort(order)))
