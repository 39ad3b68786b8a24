"""Protocols of a kind of samples (options) and of its reader (bound to a store), and what readers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from unistore.data.packed import Allocate, Batch, packed_copy
from unistore.errors import InputError
from unistore.order.permutation import below, generator, words
from unistore.schemas.indices import Column, first_rows
from unistore.store.reader import Store
from unistore.system.hints import AnyArray, Int64s, Shape

INDEX = "index"
"""Key of a sample's position in its Dataset; part of every sample."""
EPOCH = "epoch"
"""Key of the epoch that a sample is read for; on request, unless the store has a field of this name."""
SOURCE = "source"
"""Key of the source's name; on request."""


@dataclass(frozen=True, slots=True)
class Picks:
    """The samples of a batch, and the state of their random numbers.

    Attributes
    ----------
    index, epoch
        (B,) int64 each: index in the reader, and epoch.
    seed
        The Dataset's seed.
    """

    index: Int64s
    epoch: Int64s
    seed: int = 0

    def __len__(self) -> int:
        return len(self.index)

    def below(self, bounds: Int64s) -> Int64s:
        """Uniform integers in ``[0, bounds)``, (B, k) for bounds (B, k)."""
        return below(self.words(bounds.shape[1]), bounds)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Random words, (B, count)."""
        return words(self.seed, self.epoch, self.index, count)

    def generator(self, sample: int) -> np.random.Generator:
        """Random generator of one sample of the batch, for many numbers."""
        return generator(self.seed, int(self.epoch[sample]), int(self.index[sample]))


class SampleReader(Protocol):
    """Reader of the samples of one kind from a store."""

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch into allocated memory; each chunk is decoded once."""
        ...


@runtime_checkable
class BoxReader(Protocol):
    """A reader with keys that are boxes: dense if all samples have one shape, else ragged."""

    def box_shape(self, key: str) -> Shape | None:
        """Common shape of a key in all samples; None if they differ."""
        ...


class SampleKind(Protocol):
    """A kind of samples. Implementations are frozen dataclasses of their options.

    One whose samples are the same in every epoch, and share no rows, may say so: ``repeats = True``. The
    Loader's cache then keeps samples instead of chunks.
    """

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Keys of samples (without `INDEX`) for the requested `fields`; reads metadata only.

        Raises
        ------
        InputError
            If the store has no such samples, or a field is unknown; the message lists the known ones.
        """
        ...

    def bind(self, store: Store, fields: Sequence[str], units: Int64s | None) -> SampleReader:
        """Reader of the samples in `units`, row numbers of the store's sample table; None: all rows."""
        ...


@runtime_checkable
class NamesGroup(Protocol):
    """A kind that reads one of several groups of a store, by its name."""

    def chosen(self, store: Store) -> SampleKind | None:
        """The kind itself where it says which, else with the first group of the store; None: it has none."""
        ...


def select_keys(
    natural: Iterable[str],  # default keys
    fields: Sequence[str] | None,  # requested keys; None: the default ones
    on_request: Iterable[str] = (),
    # where a store keeps something of this name that is no key, for the message
    elsewhere: Callable[[str], str | None] = lambda _: None,
) -> tuple[str, ...]:
    """Return the keys to read: the requested ones in their order, or the default ones.

    `INDEX` is ignored, and `EPOCH` where it is no known key: the Dataset adds both.
    """
    natural = list(natural)
    if fields is None:
        return tuple(natural)
    if isinstance(fields, str):
        fields = [fields]
    readable = {*natural, *on_request}
    unknown = [name for name in fields if name not in readable | {INDEX, EPOCH}]
    if unknown:
        extra = ", ".join(sorted({*on_request, EPOCH}.difference(natural)))
        shown_keys = f"samples have {', '.join(natural)}; on request: {extra}"
        kept = "".join(f"; {name!r} is {where}" for name in unknown if (where := elsewhere(name)) is not None)
        msg = f"unknown field {', '.join(map(repr, unknown))}: {shown_keys}{kept}"
        raise InputError(msg)
    return tuple(dict.fromkeys(name for name in fields if name in readable and name != INDEX))


def require_arrays(store: Store, kind: object, *paths: str) -> None:
    """Raise an InputError if a store lacks arrays that a kind reads, whatever family wrote it."""
    missing = [path for path in paths if not store.has(path)]
    if missing:
        msg = (
            f"{store.path}: {type(kind).__name__} reads {', '.join(paths)}, and this {store.family} store "
            f"has no {', '.join(missing)}; leave samples out to get its default kind"
        )
        raise InputError(msg)


# What is known of the sources that samples come from: their names, and what they say of themselves.

_PREFIX = "sources/"
# What every store keeps of its sources, and no source says
_OF_EVERY_STORE = ("path", "bytes", "digest", "first_row", "rows", "format")


def source_keys(store: Store) -> dict[str, str]:
    """Path of each value of a source, by sample key: ``source``, and ``sources.rate`` of ``sources/rate``."""
    keys = {SOURCE: f"{_PREFIX}path"}
    for path in store.paths():
        name = path.removeprefix(_PREFIX).removesuffix("/data")
        if path.startswith(_PREFIX) and "/" not in name and name not in _OF_EVERY_STORE:
            keys[f"sources.{name}"] = f"{_PREFIX}{name}"
    return keys


class SourceNumbers:
    """Reads the numbers of the sources that samples come from."""

    def __init__(
        self,
        store: Store,
        # path of the array with the source number of each sample; None: samples are rows of the main table
        column: str | None = None,
    ) -> None:
        self._column = None if column is None else Column(store, column)
        self._first = first_rows(store) if column is None else None

    def take(self, rows: Int64s) -> Int64s:
        """Source number of each row, (k,)."""
        if self._column is not None:
            return self._column.take(rows)
        assert self._first is not None
        # a source without rows has the same first row as the next one, which the row belongs to
        numbers: Int64s = np.searchsorted(self._first, rows, side="right") - 1
        return numbers


class SourceNames:
    """Reads the names of the sources that samples come from; parameters as of `SourceNumbers`."""

    def __init__(self, store: Store, column: str | None = None) -> None:
        self._numbers = SourceNumbers(store, column)
        self._names = np.array(store.text("sources/path"), np.str_)

    def take(self, rows: Int64s) -> NDArray[np.str_]:
        """Source name of each row, (k,) of fixed-width unicode."""
        names: NDArray[np.str_] = self._names[self._numbers.take(rows)]
        return names


class SourceValues:
    """Reads values of the sources that samples come from."""

    def __init__(self, store: Store, fields: Sequence[str], column: str | None = None) -> None:
        keys_of_sources = source_keys(store)
        paths = {key: keys_of_sources[key] for key in fields if key in keys_of_sources}
        self._numbers = SourceNumbers(store, column) if paths else None
        self._values = {key: _values_of(store, path) for key, path in paths.items()}

    def read(self, rows: Int64s, allocate: Allocate) -> Batch:
        """Values of the sources of a batch of rows."""
        if self._numbers is None:
            return {}
        numbers = self._numbers.take(rows)
        return {key: packed_copy(values[numbers], allocate) for key, values in self._values.items()}


def _values_of(store: Store, path: str) -> AnyArray:
    """All values of the sources: numbers, or texts of fixed width."""
    if store.has(path):
        return store.array(path).read()
    return np.array(store.text(path), np.str_)
