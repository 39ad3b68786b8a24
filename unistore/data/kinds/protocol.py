"""Kinds of samples (options), their readers (bound to a store), and what readers share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.columns import UnevenColumn
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, packed_copy, range_of_rows
from unistore.errors import InputError, Problem
from unistore.order.permutation import below, generator, random_words
from unistore.schemas.indices import IndexColumn, StoreView, main_bounds, require_rule
from unistore.schemas.ragged import RAGGED_SUFFIX, TEXT_SUFFIX
from unistore.store.reader import Store
from unistore.system.arguments import as_names
from unistore.system.types import Int64s, Shape
from unistore.zarr3.chunks import SharedChunks

INDEX = "index"  # Key of a sample's position in its Dataset; part of every sample
# Key of the epoch that a sample is read for; on request, unless the store has a field of this name
EPOCH = "epoch"
SOURCE = "source"  # Key of the source's name; on request


@dataclass(frozen=True, slots=True)
class SampleIndices:
    """The samples of a batch, and the state of their random numbers."""

    index: Int64s
    epoch: Int64s
    seed: int = 0

    def __len__(self) -> int:
        return len(self.index)

    def below(self, bounds: Int64s) -> Int64s:
        """Return uniform integers in ``[0, bounds)``, (B, k) for bounds (B, k)."""
        return below(self.random_words(bounds.shape[1]), bounds)

    def random_words(self, count: int) -> NDArray[np.uint64]:
        return random_words(self.seed, self.epoch, self.index, count)

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
    def read(self, picks: SampleIndices, allocate: Allocate) -> Batch:
        """Read a batch into allocated memory, and decode each chunk once."""

    def reach(self) -> Reach:
        """Return whether sizes of the kind fit the data, and its limits leave samples."""
        return Reach(len(self))

    def box_shape(self, key: str) -> Shape | None:  # noqa: ARG002
        """Return the common shape of a key that is a box in all samples, None if they differ, or no boxes."""
        return None

    def axis_names(self, key: str) -> Sequence[str]:  # noqa: ARG002
        """Return the names that the store records for the last axes of a value of a key, empty if none."""
        return ()

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
    fields = as_names(fields)
    if fields is None:
        return tuple(natural)
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
_OF_EVERY_STORE = ("path", "bytes", "digest", "format")


def source_keys(store: Store) -> dict[str, str]:
    """Return the path of each value of a source, ``sources/rate``, by its key, ``sources.rate``."""
    keys = {SOURCE: f"{_PREFIX}path"}
    for path in store.paths():
        name = path.removeprefix(_PREFIX).removesuffix("/data")
        if path.startswith(_PREFIX) and "/" not in name and name not in _OF_EVERY_STORE:
            key = name.removesuffix(TEXT_SUFFIX).removesuffix(RAGGED_SUFFIX)
            keys[f"sources.{key}"] = f"{_PREFIX}{name}"
    return keys


def source_numbers(store: Store, column: str | None) -> Callable[[Int64s], Int64s]:
    """Return what gives the numbers of the sources of rows (k,), of the main table if `column` is None."""
    if column is not None:
        require_rule(store, column, indexes=f"{_PREFIX}path/offsets")
        return IndexColumn(store, column).take
    first = main_bounds(store)[:-1]
    # a source without rows has the same first row as the next one, which the row belongs to
    return lambda rows: range_of_rows(first, rows)


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
        self._columns = {key: _values_at(store, key, paths[key]) for key in fields if key in paths}
        named = [key for key in fields if key in of_sources and key not in paths]
        self._of_sources = {key: _values_at(store, key, of_sources[key]) for key in named}
        self._numbers = source_numbers(store, source) if named else None

    def read(self, rows: Int64s, allocate: Allocate) -> Batch:
        """Return the values of a batch of rows, (B, …) each."""
        batch = {key: read(rows, allocate) for key, read in self._columns.items()}
        if self._numbers is not None:
            numbers = self._numbers(rows)
            batch |= {key: read(numbers, allocate) for key, read in self._of_sources.items()}
        return batch


def _values_at(store: Store, key: str, path: str) -> Callable[[Int64s, Allocate], Packed]:
    """Return what reads the numbers, texts or lists of numbers of rows."""
    if path.endswith(RAGGED_SUFFIX):
        uneven = UnevenColumn(store, path)
        return lambda rows, allocate: uneven.read(key, rows, allocate)[0]
    column = value_column(store, path)
    return lambda rows, allocate: packed_copy(column.take(rows), allocate)


# `Kind`: what packages inherit to add a kind of samples, and the reader that runs it.


@dataclass(frozen=True, slots=True)
class UnitIndices(SampleIndices):
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


class UnitReader(SampleReader):
    """Reads samples by `Kind.read`."""

    def __init__(self, store: Store, kind: Kind, fields: Sequence[str], units: Int64s) -> None:
        self._kind = kind
        self._store = store
        of_sources = source_keys(store)
        self._keys = [key for key in fields if key not in of_sources]
        self._units = units
        counts = kind.counts(store)
        ones = np.ones(len(self._units), np.int64)
        if counts is not None:
            counts = np.asarray(counts)
            if counts.shape != (store.sample_count,) or counts.dtype.kind not in "iu" or (counts < 0).any():
                message = f"gave {counts.dtype} {counts.shape}, expected a number for each of the rows"
                raise self._fault("counts", f"{message} ({store.sample_count:,}), none below 0")
        self._first = offsets_from_lengths(ones if counts is None else counts[self._units])
        is_main = store.sample_table == store.attributes["main_table"]
        self._sources = RowValues(store, fields, {}, None if is_main else f"{store.sample_table}/source")

    def __len__(self) -> int:
        return int(self._first[-1])

    def _packed(self, key: str, values: object, samples: int) -> Packed:
        """Return values of a key, which must be those of so many samples."""
        packed = values if isinstance(values, Packed) else Packed(values)  # type: ignore[arg-type]  # checked
        reason = _wrong_batch(packed, samples)
        if reason:
            raise self._fault("read", f"gave {key} {reason}")
        return packed

    def _check_groups(self, batch: Batch) -> None:
        """Refuse keys of one group whose samples have other lengths: a batch has the offsets of one."""
        firsts: dict[str, tuple[str, Int64s]] = {}
        for key, packed in batch.items():
            if packed.offsets is None:
                continue
            first, offsets = firsts.setdefault(packed.group, (key, packed.offsets))
            if not np.array_equal(offsets, packed.offsets):
                raise self._fault("read", f"gave {key} of other lengths than {first}, which is of its group")

    def _fault(self, method: str, message: str) -> InputError:
        author = type(self._kind)
        text = f"{author.__module__}.{author.__qualname__}.{method} {message}"
        package = author.__module__.partition(".")[0]
        return InputError(Problem(self._store.path, text, f"tell who wrote the package {package}", "plugin"))

    def read(self, picks: SampleIndices, allocate: Allocate) -> Batch:
        which = range_of_rows(self._first, picks.index)
        memory = _Memory(allocate)
        located = UnitIndices(
            picks.index,
            picks.epoch,
            picks.seed,
            units=self._units[which],
            numbers=picks.index - self._first[which],
            allocate=memory.allocate,
        )
        values = self._kind.read(self._store, self._keys, located) if self._keys else {}
        if not isinstance(values, Mapping):
            raise self._fault("read", f"gave {values!r:.60}, expected a mapping")
        if missing := [key for key in self._keys if key not in values]:
            raise self._fault("read", f"gave no {', '.join(missing)}")
        batch = {key: memory.packed(self._packed(key, values[key], len(picks.index))) for key in self._keys}
        self._check_groups(batch)
        return batch | self._sources.read(located.units, allocate)


def _wrong_batch(packed: Packed, samples: int) -> str:
    """Say why values are not those of so many samples, empty if they are."""
    values = packed.values
    if not isinstance(values, np.ndarray) or values.ndim == 0 or values.dtype.kind == "O":
        return f"as {values!r:.60}, expected an array of numbers or texts with an axis of samples"
    offsets = packed.offsets
    if offsets is None:
        return "" if len(values) == samples else f"of {len(values)} samples, expected {samples}"
    if not isinstance(offsets, np.ndarray) or offsets.dtype != np.int64 or offsets.shape != (samples + 1,):
        form = getattr(offsets, "dtype", type(offsets).__name__), getattr(offsets, "shape", ())
        return f"with offsets {form[0]} {form[1]}, expected int64 {(samples + 1,)}"
    if offsets[0] != 0 or offsets[-1] != len(values) or (np.diff(offsets) < 0).any():
        return f"with offsets from {offsets[0]} to {offsets[-1]} that do not divide {len(values)} values"
    if packed.shapes is not None and (
        packed.shapes.ndim != 2
        or len(packed.shapes) != samples
        or (packed.shapes.prod(axis=1) != np.diff(offsets)).any()
    ):
        return "with shapes that do not fit the lengths of samples"
    return ""


class Kind(SampleKind):
    """A kind of samples, for every store that has what it reads: a frozen dataclass of its options.

    A package adds it by the entry point group ``unistore.kinds``. It is then given by name,
    ``unistore.Dataset(store, samples="Window(frames=400)")``, and `unistore.inspect` suggests it.
    """

    reader: ClassVar = UnitReader

    __slots__ = ()

    @abstractmethod
    def keys(self, store: StoreView) -> Sequence[str]:
        """Return the keys of samples. Reads metadata only.

        Raises
        ------
        InputError
            If the store has no such samples.
        """

    def counts(self, store: StoreView) -> Int64s | None:  # noqa: ARG002
        """Return how many samples each row of the table of samples gives. None, the default: one."""
        return None

    @abstractmethod
    def read(
        self, store: StoreView, keys: Sequence[str], picks: UnitIndices
    ) -> Mapping[str, NDArray[np.generic] | Packed]:
        """Read a batch of samples, which may be empty: for each of `keys` an array (B, …), or ragged values.

        Random numbers come from `picks`: they depend on the seed, the epoch and the sample alone.
        """

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        return select_keys(self.keys(store), fields, source_keys(store))


class _Memory:
    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._arrays: list[NDArray[np.generic]] = []

    def allocate(self, shape: Shape, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
        self._arrays.append(self._allocate(shape, dtype))
        return self._arrays[-1]

    def packed(self, packed: Packed) -> Packed:
        if any(packed.values is array for array in self._arrays):
            return packed
        return replace(packed, values=packed_copy(packed.values, self._allocate).values)
