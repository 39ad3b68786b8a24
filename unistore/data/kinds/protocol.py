"""Kinds of samples (options), their readers (bound to a store), and what readers share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from unistore.data.packed import Allocate, Batch, packed_copy
from unistore.errors import InputError
from unistore.order.permutation import below, generator, words
from unistore.schemas.indices import IndexColumn, first_rows
from unistore.store.reader import Store
from unistore.system.hints import Int64s, Shape
from unistore.zarr3.chunks import SharedChunks

INDEX = "index"  # Key of a sample's position in its Dataset; part of every sample
# Key of the epoch that a sample is read for; on request, unless the store has a field of this name
EPOCH = "epoch"
SOURCE = "source"  # Key of the source's name; on request


@dataclass(frozen=True, slots=True)
class Picks:
    """The samples of a batch, and the state of their random numbers."""

    index: Int64s
    epoch: Int64s
    seed: int = 0

    def __len__(self) -> int:
        return len(self.index)

    def below(self, bounds: Int64s) -> Int64s:
        """Return uniform integers in ``[0, bounds)``, (B, k) for bounds (B, k)."""
        return below(self.words(bounds.shape[1]), bounds)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return random words, (B, count)."""
        return words(self.seed, self.epoch, self.index, count)

    def generator(self, sample: int) -> np.random.Generator:
        """Return random generator of one sample of the batch, for many numbers."""
        return generator(self.seed, int(self.epoch[sample]), int(self.index[sample]))


class Reach(NamedTuple):
    """Whether the sizes and limits of a kind fit the data of a store."""

    samples: int  # per epoch
    beyond: int = 0  # samples that extend beyond their data
    padded: bool = False  # whether the kind has `pad` set
    problem: str = ""  # what extends beyond what, or which limit leaves no samples
    fitting: SampleKind | None = None  # the most similar kind without the problem, if there is one


class Shareable(Protocol):
    """Values by number that a Loader's cache can keep: chunks of an array, or what is computed of them."""

    @property
    def chunk_count(self) -> int:
        """Return how many there are; numbers are below."""

    def share(self, chunks: SharedChunks | None) -> None:
        """Look up and keep values in a cache. None: stop doing so."""


class SampleReader(ABC):
    """Reader of the samples of one kind from a store."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch into allocated memory, and decode each chunk once."""

    def reach(self) -> Reach:
        """Return whether sizes of the kind fit the data, and its limits leave samples."""
        return Reach(len(self))

    def box_shape(self, key: str) -> Shape | None:  # noqa: ARG002
        """Return the common shape of a key that is a box in all samples, None if they differ, or no boxes."""
        return None

    def shareable(self) -> Sequence[Shareable]:
        """Return what is computed of the store and takes long."""
        return ()


class SampleKind(ABC):
    """A kind of samples: a frozen dataclass of its options."""

    __slots__ = ()
    reader: ClassVar[Callable[..., SampleReader]]  # What `bind` calls

    @property
    def repeats(self) -> bool:
        """Return whether samples are the same in every epoch and share no rows, so that caches keep them."""
        return False

    @abstractmethod
    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Return keys of samples (without `INDEX`) for the requested `fields`, from metadata only."""

    def bind(self, store: Store, fields: Sequence[str], units: Int64s | None) -> SampleReader:
        """Return the reader of the samples in `units`, rows of the store's sample table. None: all rows."""
        every = np.arange(store.sample_count) if units is None else units
        return self.reader(store, self, fields, every)

    def chosen(self, store: Store) -> SampleKind | None:  # noqa: ARG002
        """Return the kind for a store, with a name that it has of several. None: the store has none such."""
        return self

    @property
    def whole(self) -> SampleKind | None:
        """Return the kind whose samples are whole rows, of which crops and subsets are taken, or None."""
        return None

    def validity(self, store: Store, key: str) -> tuple[str, ...]:  # noqa: ARG002
        """Return the keys that say which values of `key` are real, and not filled in."""
        return ()

    def computes(self, key: str) -> bool:  # noqa: ARG002
        """Return whether values of a key are computed, and are not those of `whole`."""
        return False


def select_keys(
    natural: Iterable[str],  # default keys
    fields: Sequence[str] | None,  # requested keys; None: the default ones
    on_request: Iterable[str] = (),
) -> tuple[str, ...]:
    """Return the keys to read: the requested ones in their order, or the default ones."""
    # The Dataset adds `INDEX`, and `EPOCH` where it is no known key
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
        msg = f"unknown field {', '.join(map(repr, unknown))}: {shown_keys}"
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
    """Return the path of each value of a source, ``sources/rate``, by its key, ``sources.rate``."""
    keys = {SOURCE: f"{_PREFIX}path"}
    for path in store.paths():
        name = path.removeprefix(_PREFIX).removesuffix("/data")
        if path.startswith(_PREFIX) and "/" not in name and name not in _OF_EVERY_STORE:
            keys[f"sources.{name}"] = f"{_PREFIX}{name}"
    return keys


def source_numbers(store: Store, column: str | None) -> Callable[[Int64s], Int64s]:
    """Return what gives the numbers of the sources of rows (k,), of the main table if `column` is None."""
    if column is not None:
        return IndexColumn(store, column).take
    first = first_rows(store)
    # a source without rows has the same first row as the next one, which the row belongs to
    return lambda rows: np.searchsorted(first, rows, side="right") - 1


class TextColumn:
    """Texts of rows."""

    def __init__(self, store: Store, path: str) -> None:
        self._texts = np.array(store.text(path), object)

    def take(self, rows: Int64s) -> NDArray[np.str_]:
        """Return the texts of rows (k,), as fixed-width unicode."""
        return self._texts[rows].astype(np.str_)


def value_column(store: Store, path: str) -> IndexColumn | TextColumn:
    """Return the numbers or texts at a path."""
    return IndexColumn(store, path) if store.has(path) else TextColumn(store, path)


PRESENT_SUFFIX = "_present"  # ends the key that says whether there are values
MASK_SUFFIX = "_mask"  # ends the key that says which values of a row are no padding


def masks_of(extents: Int64s, row_shape: Shape, allocate: Allocate) -> NDArray[np.bool_]:
    """Return which values of rows are no padding, (B, *row_shape), by how far these reach, (B, axes)."""
    masks = allocate((len(extents), *row_shape), np.dtype(bool))
    masks[...] = True
    for axis, size in enumerate(row_shape):
        is_real = np.arange(size) < extents[:, axis, None]
        behind = len(row_shape) - axis - 1
        masks &= is_real.reshape(len(extents), *[1] * axis, size, *[1] * behind)
    return masks


class RowValues:
    """Reads numbers and texts of rows of a table, and what their sources say."""

    def __init__(
        self,
        store: Store,
        fields: Sequence[str],
        paths: Mapping[str, str],  # of numbers and texts by key
        source: str | None,  # see `source_numbers`
    ) -> None:
        of_sources = source_keys(store)
        self._columns = {key: value_column(store, paths[key]) for key in fields if key in paths}
        named = [key for key in fields if key in of_sources and key not in paths]
        self._of_sources = {key: value_column(store, of_sources[key]) for key in named}
        self._numbers = source_numbers(store, source) if named else None

    def read(self, rows: Int64s, allocate: Allocate) -> Batch:
        """Return the values of a batch of rows, (B, …) each."""
        values = {key: column.take(rows) for key, column in self._columns.items()}
        if self._numbers is not None:
            numbers = self._numbers(rows)
            values |= {key: column.take(numbers) for key, column in self._of_sources.items()}
        return {key: packed_copy(taken, allocate) for key, taken in values.items()}
