"""Batches of several stores: samples of each are read and put where the batch has them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from types import MappingProxyType

import numpy as np

from unistore.data.kinds.protocol import SOURCE, SampleIndices, SampleReader, Shareable
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, packed_copy, range_of_rows
from unistore.errors import InputError, Problem
from unistore.memory import Arena, Slab, round_up
from unistore.order.permutation import random_words
from unistore.system.types import AnyArray, Int64s

# Seeds of stores that are kept
_MOST_SEEDS = 1 << 16


class JoinedReader(SampleReader):
    """Reads samples of several stores, one store after another.

    A batch from one store is read directly into allocated memory. A mixed one is read store by store into
    scratch memory, and copied from there.

    Parameters
    ----------
    readers : sequence of SampleReader
        Reader of each store.
    offsets : int64 array of shape (stores + 1,)
        First sample of each store, then the number of samples.
    names : sequence of str
        Name of each store, for messages.
    prefixes : sequence of str
        Prefix for the names of the sources of each store.
    """

    def __init__(
        self,
        readers: Sequence[SampleReader],
        offsets: Int64s,
        names: Sequence[str],
        prefixes: Sequence[str],
    ) -> None:
        self._readers = readers
        self._prefixes = prefixes
        self._offsets = offsets
        no_samples = SampleIndices(np.empty(0, np.int64), np.empty(0, np.int64))
        empty = [reader.read(no_samples, np.empty) for reader in readers]
        nonempty = np.flatnonzero(np.diff(self._offsets)).tolist() or [0]
        _check_forms({names[number]: empty[number] for number in nonempty})
        # Boxes of several shapes are flat in every batch, though those of one store may be dense
        self._flat: dict[str, str] = {}
        for key, packed in empty[nonempty[0]].items():
            shapes = {readers[number].box_shape(key) for number in nonempty}
            if packed.shapes is not None and (len(shapes) > 1 or None in shapes):
                self._flat[key] = packed.group
        self._is_direct = [all(reader.box_shape(key) is None for key in self._flat) for reader in readers]
        self._scratch = threading.local()
        self._seed_of = lru_cache(_MOST_SEEDS)(_seed_of_store)

    def __len__(self) -> int:
        return int(self._offsets[-1])

    def shareable(self) -> Sequence[Shareable]:
        return list(chain.from_iterable(reader.shareable() for reader in self._readers))

    def read(self, picks: SampleIndices, allocate: Allocate) -> Batch:
        store = range_of_rows(self._offsets, picks.index)
        stores = np.unique(store).tolist() or [0]
        if len(stores) == 1 and self._is_direct[stores[0]]:
            return self._read_part(stores[0], picks, np.arange(len(picks)), allocate)
        # Fresh memory would cost page faults, half as much time again, where freed memory is not kept.
        scratch = Arena(getattr(self._scratch, "slab", None))
        positions = [np.flatnonzero(store == number) for number in stores]
        parts = [
            self._read_part(number, picks, part, scratch.allocate)
            for number, part in zip(stores, positions, strict=True)
        ]
        batch = join_batches(parts, positions, allocate, self._flat)
        if scratch.overflow:
            self._scratch.slab = Slab(round_up(scratch.needed))
        return batch

    def _read_part(self, number: int, picks: SampleIndices, positions: Int64s, allocate: Allocate) -> Batch:
        # one seed per store: sample i of one store must not be cropped like sample i of the next one. That of
        # a store which grew stays the same
        seed = self._seed_of(picks.seed, number) if number or self._prefixes[0] else picks.seed
        picks_of_store = SampleIndices(
            picks.index[positions] - self._offsets[number], picks.epoch[positions], seed
        )
        batch = self._readers[number].read(picks_of_store, allocate)
        if SOURCE in batch:
            names = np.char.add(self._prefixes[number], batch[SOURCE].values)
            batch[SOURCE] = packed_copy(names, allocate)
        return batch


def _seed_of_store(seed: int, number: int) -> int:
    return int(random_words(seed, np.array([number]), np.array([0]), 1)[0, 0])


def _check_forms(empty: Mapping[str, Batch]) -> None:
    # An empty batch of each store shows the form of its values
    problems = []
    for key in next(iter(empty.values())):
        stores: dict[str, list[str]] = {}
        for name, batch in empty.items():
            stores.setdefault(_form(batch[key]), []).append(name)
        if len(stores) > 1:
            forms = "; ".join(f"{form} in {', '.join(members)}" for form, members in stores.items())
            fix = (
                f"list the other fields in fields=[…], without {key!r}, or convert all sources into one store"
            )
            problems.append(Problem(f"field {key!r}", f"differs between stores: {forms}", fix, "fields"))
    if problems:
        raise InputError(problems)


def _form(packed: Packed) -> str:
    dtype = "text" if packed.values.dtype.kind == "U" else str(packed.values.dtype)
    if packed.shapes is not None:
        return f"{dtype} of varying shape"
    shape = ["*"] * (packed.offsets is not None) + [str(extent) for extent in packed.values.shape[1:]]
    return f"{dtype} ({', '.join(shape)})"


def join_batches(
    parts: Sequence[Batch],
    positions: Sequence[Int64s],
    allocate: Allocate,
    flat_groups: Mapping[str, str] = MappingProxyType({}),
) -> Batch:
    """Join parts of a batch.

    Parameters
    ----------
    parts : sequence of dict of str to Packed
        Parts of the batch, with the same keys.
    positions : sequence of int64 array
        Positions of the samples of each part in the batch. Together they are all positions.
    allocate : callable
        Called as ``allocate(shape, dtype)`` for the memory of the batch.
    flat_groups : mapping of str to str
        Group of each key with volumes or crops that is flat in the batch, even if it is dense in a part.
    """
    offsets: dict[str, Int64s] = {}
    batch: Batch = {}
    for key in parts[0]:
        packed = [part[key] for part in parts]
        batch[key] = _join_parts(packed, positions, offsets, allocate, flat_groups.get(key))
    return batch


def _join_parts(
    parts: Sequence[Packed],
    positions: Sequence[Int64s],  # of the samples of each part in the batch, (n,); together all
    # offsets (B + 1,) of the ragged groups of the batch so far; those of a new group are added
    group_offsets: dict[str, Int64s],
    allocate: Allocate,
    flat_group: str | None = None,  # group of boxes that are flat, though those of a part may be dense
) -> Packed:
    """Join one key of a batch from parts of it. Ragged samples are concatenated in the order of the batch."""
    first = parts[0]
    is_flat = flat_group is not None or first.shapes is not None
    if first.offsets is None and not is_flat:
        return _join_dense([part.values for part in parts], positions, allocate)
    samples: list[AnyArray] = [np.empty(0)] * sum(map(len, positions))
    for part, where in zip(parts, positions, strict=True):
        for number, position in enumerate(where.tolist()):
            samples[position] = part[number]
    sizes = np.array([sample.shape if is_flat else sample.shape[:1] for sample in samples], np.int64)
    group = first.group if flat_group is None else flat_group
    offsets = group_offsets.setdefault(group, offsets_from_lengths(sizes.prod(axis=1)))
    row = () if is_flat else first.values.shape[1:]
    widest = np.result_type(*{part.values.dtype for part in parts})  # of texts
    out = allocate((int(offsets[-1]), *row), widest)
    for sample, (lo, hi) in zip(samples, pairwise(offsets.tolist()), strict=True):
        out[lo:hi].reshape(sample.shape)[...] = sample
    return Packed(out, offsets, group, sizes if is_flat else None)


def _join_dense(parts: Sequence[AnyArray], positions: Sequence[Int64s], allocate: Allocate) -> Packed:
    # In the memory order of the parts
    first = parts[0]
    order = [0, *sorted(range(1, first.ndim), key=lambda axis: -abs(first.strides[axis]))]
    shape = (sum(map(len, positions)), *(first.shape[axis] for axis in order[1:]))
    out = allocate(shape, np.result_type(*{part.dtype for part in parts}))
    for part, where in zip(parts, positions, strict=True):
        out[where] = part.transpose(order)
    return Packed(out.transpose(np.argsort(order)))
