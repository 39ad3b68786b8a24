"""`Kind`: what packages inherit to add a kind of samples, and the reader that runs it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.protocol import Picks, RowValues, SampleKind, SampleReader, select_keys, source_keys
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, packed_copy
from unistore.errors import InputError, Problem
from unistore.store.reader import Store
from unistore.system.hints import Int64s, Shape


@dataclass(frozen=True, slots=True)
class UnitPicks(Picks):
    """The samples of a batch, and where they are in the store.

    Attributes
    ----------
    units
        (B,) int64: row of the store's table of samples that each is made from.
    numbers
        (B,) int64: which of the samples of that row, from 0. See `Kind.counts`.
    allocate
        ``allocate(shape, dtype)`` gives memory of the batch: values in it are delivered without a copy.
    """

    units: Int64s = field(kw_only=True)
    numbers: Int64s = field(kw_only=True)
    allocate: Allocate = field(kw_only=True)


class Kind(SampleKind):
    """A kind of samples, for every store that has what it reads: a frozen dataclass of its options.

    A package adds it by the entry point group ``unistore.kinds``. It is then given by name,
    ``unistore.Dataset(store, samples="Window(frames=400)")``, and `unistore.inspect` suggests it.
    """

    __slots__ = ()

    @abstractmethod
    def keys(self, store: Store) -> Sequence[str]:
        """Return the keys of samples. Reads metadata only.

        Raises
        ------
        InputError
            If the store has no such samples.
        """

    def counts(self, store: Store) -> Int64s | None:  # noqa: ARG002
        """Return how many samples each row of the table of samples gives. None, the default: one."""
        return None

    @abstractmethod
    def read(
        self, store: Store, keys: Sequence[str], picks: UnitPicks
    ) -> Mapping[str, NDArray[np.generic] | Packed]:
        """Read a batch of samples, which may be empty: for each of `keys` an array (B, …), or ragged values.

        Random numbers come from `picks`: they depend on the seed, the epoch and the sample alone.
        """

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Return the keys that are read."""
        return select_keys(self.keys(store), fields, source_keys(store))

    def bind(self, store: Store, fields: Sequence[str], units: Int64s | None) -> UnitReader:
        """Return the reader of the samples in `units`."""
        return UnitReader(self, store, fields, units)


class UnitReader(SampleReader):
    """Reads samples by `Kind.read`."""

    def __init__(self, kind: Kind, store: Store, fields: Sequence[str], units: Int64s | None) -> None:
        self._kind = kind
        self._store = store
        of_sources = source_keys(store)
        self._keys = [key for key in fields if key not in of_sources]
        self._units = np.arange(store.sample_count) if units is None else units
        counts = kind.counts(store)
        ones = np.ones(len(self._units), np.int64)
        self._first = offsets_from_lengths(ones if counts is None else counts[self._units])
        is_main = store.sample_table == store.attributes["main_table"]
        self._sources = RowValues(store, fields, {}, None if is_main else f"{store.sample_table}/source")

    def __len__(self) -> int:
        return int(self._first[-1])

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch."""
        which = np.searchsorted(self._first, picks.index, side="right") - 1
        memory = _Memory(allocate)
        located = UnitPicks(
            picks.index,
            picks.epoch,
            picks.seed,
            units=self._units[which],
            numbers=picks.index - self._first[which],
            allocate=memory.allocate,
        )
        values = self._kind.read(self._store, self._keys, located) if self._keys else {}
        if missing := [key for key in self._keys if key not in values]:
            author = type(self._kind)
            message = f"{author.__module__}.{author.__qualname__}.read gave no {', '.join(missing)}"
            raise InputError(Problem(self._store.path, message, "tell who wrote it", "plugin"))
        batch = {key: memory.packed(values[key]) for key in self._keys}
        return batch | self._sources.read(located.units, allocate)


class _Memory:
    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._arrays: list[NDArray[np.generic]] = []

    def allocate(self, shape: Shape, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
        self._arrays.append(self._allocate(shape, dtype))
        return self._arrays[-1]

    def packed(self, values: NDArray[np.generic] | Packed) -> Packed:
        packed = values if isinstance(values, Packed) else Packed(np.asarray(values))
        if any(packed.values is array for array in self._arrays):
            return packed
        return replace(packed, values=packed_copy(packed.values, self._allocate).values)
