"""Samples of several stores under one index: batches that mix them are put together once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.protocol import SOURCE, BoxReader, Picks, SampleReader
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, placed
from unistore.data.scratch import Scratch
from unistore.errors import InputError, Problem
from unistore.order.randomness import words

__all__ = ["JoinedReader"]


@dataclass(frozen=True, slots=True)
class _Form:
    """What a key looks like in every batch.

    Attributes
    ----------
    dtype
        Of its values; text: of any width.
    row
        Dense: shape of a sample. Ragged: shape of a value. None: boxes of different extents, packed flat.
    ragged
        Whether samples differ in length.
    boxed
        Whether samples are boxes: dense where all have one extent.
    group
        Of a key that is ragged, or would be if its boxes differed.
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

    A batch of one store alone is read straight into allocated memory. Of a batch that mixes stores, every
    store's samples are read at once into memory of this reader, and copied to their places from there.

    Parameters
    ----------
    readers
        One a store, of the same kind and fields.
    names
        Names of the stores, for messages and in front of the names of sources.

    Raises
    ------
    InputError
        If a key has another dtype or shape in one store than in another; names key, stores and both.
    """

    def __init__(self, readers: Sequence[SampleReader], names: Sequence[str]) -> None:
        self._readers = list(readers)
        self._names = list(names)
        self.offsets = offsets_from_lengths(np.array([len(reader) for reader in readers]))
        own = [_forms(reader) for reader in self._readers]
        held = [number for number, reader in enumerate(self._readers) if len(reader)] or [0]
        self._forms = _agreed([own[number] for number in held], [self._names[number] for number in held])
        self._alike = [forms == self._forms for forms in own]
        self._scratch = threading.local()

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch."""
        store = np.searchsorted(self.offsets, picks.index, side="right") - 1
        present = np.unique(store).tolist() or [0]
        if len(present) == 1 and self._alike[present[0]]:
            return self._part(present[0], picks, np.arange(len(picks)), allocate)
        scratch = self._memory()
        places = [np.flatnonzero(store == number) for number in present]
        parts = [
            self._part(number, picks, place, scratch.allocate)
            for number, place in zip(present, places, strict=True)
        ]
        offsets: dict[str, NDArray[np.int64]] = {}
        batch: Batch = {}
        for key, form in self._forms.items():
            packed = [part[key] for part in parts]
            if form.dense:
                batch[key] = _dense(packed, places, allocate)
            else:
                batch[key] = _ragged(form, packed, places, offsets, allocate)
        return batch

    def _part(self, number: int, picks: Picks, place: NDArray[np.int64], allocate: Allocate) -> Batch:
        """Samples at some places of the batch, all of one store."""
        # another seed a store: sample i of one store must not be cropped as sample i of the next one
        seed = int(words(picks.seed, np.array([number]), np.array([0]), 1)[0, 0])
        own = Picks(picks.index[place] - self.offsets[number], picks.epoch[place], seed)
        batch = self._readers[number].read(own, allocate)
        if SOURCE in batch:
            named = np.char.add(f"{self._names[number]}/", batch[SOURCE].values)
            batch[SOURCE] = placed(named, allocate)
        return batch

    def _memory(self) -> Scratch:
        """Memory of this thread for the parts of a batch; what was in it before is over."""
        found: Scratch | None = getattr(self._scratch, "memory", None)
        if found is None:
            found = self._scratch.memory = Scratch()
        found.begin()
        return found


def _forms(reader: SampleReader) -> dict[str, _Form]:
    """Form of every key in the batches of one store: what an empty batch shows."""
    nothing = np.empty(0, np.int64)
    forms = {}
    for key, packed in reader.read(Picks(nothing, nothing), np.empty).items():
        dtype = np.dtype(np.str_) if packed.values.dtype.kind == "U" else packed.values.dtype
        if packed.shapes is not None:
            extent = reader.box_shape(key) if isinstance(reader, BoxReader) else None
            forms[key] = _Form(dtype, extent, boxed=True, group=packed.group)
        else:
            ragged = packed.offsets is not None
            forms[key] = _Form(dtype, packed.values.shape[1:], ragged=ragged, group=packed.group)
    return forms


def _agreed(forms: Sequence[dict[str, _Form]], names: Sequence[str]) -> dict[str, _Form]:
    """Form of every key in joined batches."""
    agreed, problems = dict(forms[0]), []
    for key, first in forms[0].items():
        found = [form[key] for form in forms]
        if all(form == first for form in found):
            continue
        if all(form.boxed and form.dtype == first.dtype for form in found):
            agreed[key] = replace(first, row=None)
            continue
        stores: dict[str, list[str]] = {}
        for form, name in zip(found, names, strict=True):
            stores.setdefault(str(form), []).append(name)
        listed = "; ".join(f"{form} in {', '.join(held)}" for form, held in stores.items())
        cure = "convert these sources into one store, or leave the field out with fields=[…]"
        problems.append(Problem(f"field {key!r}", f"differs between stores: {listed}", cure, "fields"))
    if problems:
        raise InputError(problems)
    return agreed


def _dense(parts: Sequence[Packed], places: Sequence[NDArray[np.int64]], allocate: Allocate) -> Packed:
    """Samples (B, …) of all parts at their places, with the axes in memory as the parts have them."""
    first = parts[0].values
    dtype = np.result_type(*{part.values.dtype for part in parts})
    order = [0, *sorted(range(1, first.ndim), key=lambda axis: -abs(first.strides[axis]))]
    out = allocate((sum(map(len, places)), *(first.shape[axis] for axis in order[1:])), dtype)
    for part, place in zip(parts, places, strict=True):
        out[place] = part.values.transpose(order)
    return Packed(out.transpose(np.argsort(order)))


def _ragged(
    form: _Form,
    parts: Sequence[Packed],
    places: Sequence[NDArray[np.int64]],
    known: dict[str, NDArray[np.int64]],
    allocate: Allocate,
) -> Packed:
    """Samples of all parts one behind another in the order of the batch."""
    count = sum(map(len, places))
    samples: list[NDArray[Any]] = [np.empty(0)] * count
    for part, place in zip(parts, places, strict=True):
        for number, at in enumerate(place.tolist()):
            samples[at] = part[number]
    shapes = None
    if form.row is None:
        shapes = np.array([sample.shape for sample in samples], np.int64)
        lengths = shapes.prod(axis=1)
    else:
        lengths = np.array([len(sample) for sample in samples], np.int64)
    offsets = known.setdefault(form.group, offsets_from_lengths(lengths))
    out = allocate((int(offsets[-1]), *(form.row or ())), form.dtype)
    for sample, (lo, hi) in zip(samples, pairwise(offsets.tolist()), strict=True):
        out[lo:hi].reshape(sample.shape)[...] = sample
    return Packed(out, offsets, form.group, shapes)
