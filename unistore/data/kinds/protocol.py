"""Base classes of sample kinds and their readers, and the functions that they share."""

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
    """The samples of a batch, and the state of their random numbers.

    Random numbers depend only on the seed, the epoch and the index of a sample.

    Attributes
    ----------
    index : int64 array of shape (B,)
        Positions of the samples in their Dataset; in a reader, among its own samples.
    epoch : int64 array of shape (B,)
        Epoch of each sample.
    seed : int, default 0
        Seed of the Dataset.
    """

    index: Int64s
    epoch: Int64s
    seed: int = 0

    def __len__(self) -> int:
        return len(self.index)

    def below(self, bounds: Int64s) -> Int64s:
        """Return uniform random integers from 0 to ``bounds - 1``.

        Parameters
        ----------
        bounds : int64 array of shape (B, k)
            Exclusive upper limits, at least 1.

        Returns
        -------
        int64 array of shape (B, k)
            k random integers for each sample.
        """
        return below(self.random_words(bounds.shape[1]), bounds)

    def random_words(self, count: int) -> NDArray[np.uint64]:
        """Return `count` random numbers for each sample, (B, count) uint64."""
        return random_words(self.seed, self.epoch, self.index, count)

    def generator(self, sample: int) -> np.random.Generator:
        """Return the random generator of a sample of the batch, for many random numbers.

        Parameters
        ----------
        sample : int
            Position of the sample in the batch.

        Returns
        -------
        numpy.random.Generator
            A new generator, seeded by the seed, the epoch and the index.
        """
        return generator(self.seed, int(self.epoch[sample]), int(self.index[sample]))


class Reach(NamedTuple):
    """Result of the fit check: whether the sizes and limits of a sample kind fit the data of a store.

    Attributes
    ----------
    samples : int
        Number of samples in an epoch.
    beyond : int, default 0
        Number of samples that extend beyond their data.
    padded : bool, default False
        Whether the kind has `pad` set, so that such samples are padded.
    problem : str
        What extends beyond what, or which limit leaves no samples. Empty: there is no problem.
    fitting : SampleKind, optional
        The most similar kind without the problem. None: there is no such kind, or no problem.
    """

    samples: int
    beyond: int = 0
    padded: bool = False
    problem: str = ""
    fitting: SampleKind | None = None


class Shareable(Protocol):
    """Values by number that a Loader's cache can keep: chunks of an array, or values computed from them."""

    @property
    def chunk_count(self) -> int:
        """Count of the values. Their numbers are 0 to ``chunk_count - 1``."""

    def share(self, chunks: SharedChunks | None) -> None:
        """Use a cache for values from now on. None: use no cache."""


class SampleReader(ABC):
    """Base class of readers of the samples of one kind from a store."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples in an epoch."""

    @abstractmethod
    def read(self, picks: SampleIndices, allocate: Allocate) -> Batch:
        """Read a batch. Each chunk is decoded once.

        Parameters
        ----------
        picks : SampleIndices
            Positions of the samples, with their epochs and the seed.
        allocate : callable
            Called as ``allocate(shape, dtype)`` for the memory of the batch.

        Returns
        -------
        dict of str to Packed
            Every key that the reader was made for.
        """

    def reach(self) -> Reach:
        """Return whether the sizes of the kind fit the data, and its limits leave samples."""
        return Reach(len(self))

    def box_shape(self, key: str) -> Shape | None:  # noqa: ARG002
        """Return the shape of a key that is a patch, crop or volume.

        None: samples differ in shape, or the key is something else.
        """
        return None

    def axis_names(self, key: str) -> Sequence[str]:  # noqa: ARG002
        """Return the names that the store records for the last axes of a value of a key, empty if none."""
        return ()

    def shareable(self) -> Sequence[Shareable]:
        """Return values that take long to compute, for a cache of a Loader. The default has none."""
        return ()


class SampleKind(ABC):
    """Base class of sample kinds: a frozen dataclass with the options of the samples.

    To add a sample kind in a package, inherit `unistore.plugin.Kind` instead.

    Attributes
    ----------
    reader : callable
        Called as ``reader(store, kind, fields, units)`` by `bind`; returns a `SampleReader`.
    """

    __slots__ = ()
    reader: ClassVar[Callable[..., SampleReader]]

    @property
    def repeats(self) -> bool:
        """Whether samples are the same in every epoch and share no rows, so that caches may keep them."""
        return False

    def with_precomputed(self, store: Store) -> Sequence[SampleKind]:  # noqa: ARG002 - most kinds have none
        """Return this kind with each option that reads what was computed for this store, such as voxels."""
        return ()

    @abstractmethod
    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Return the keys to read, without ``"index"``. Only metadata is read.

        Parameters
        ----------
        store : Store
            The store.
        fields : sequence of str or None
            Keys that the user named. None: the default keys.

        Returns
        -------
        tuple of str
            The named keys in their order, or the default keys.

        Raises
        ------
        InputError
            If the store has no such samples or keys. The message lists the valid keys.
        """

    def bind(self, store: Store, fields: Sequence[str], units: Int64s | None) -> SampleReader:
        """Return a reader of samples of a store.

        Parameters
        ----------
        store : Store
            The store.
        fields : sequence of str
            Keys to read, as `select` returns them.
        units : int64 array or None
            Rows of the store's sample table to use. None: all rows.

        Returns
        -------
        SampleReader
            Reader of the samples of these rows.
        """
        all_rows = np.arange(store.sample_count) if units is None else units
        return self.reader(store, self, fields, all_rows)

    def chosen(self, store: Store) -> SampleKind | None:  # noqa: ARG002
        """Return this kind with the names that a store requires, or None if the store has no such samples."""
        return self

    @property
    def whole(self) -> SampleKind | None:
        """The kind whose samples are the whole data that crops and subsets are taken from, or None."""
        return None

    def validity(self, store: Store, key: str) -> tuple[str, ...]:  # noqa: ARG002
        """Return the keys that mark which values of `key` are data, not padding. The default has none."""
        return ()

    def computes(self, key: str) -> bool:  # noqa: ARG002
        """Return whether the values of `key` are computed, so that they differ from the values of `whole`."""
        return False


def select_keys(
    default_keys: Iterable[str],
    fields: Sequence[str] | None,
    optional_keys: Iterable[str] = (),
) -> tuple[str, ...]:
    """Return the keys to read: the requested ones in their order, or the default ones.

    The Dataset itself adds ``"index"``, and ``"epoch"`` if it is requested and not a key of the store.

    Parameters
    ----------
    default_keys : iterable of str
        Default keys.
    fields : sequence of str or None
        Requested keys. None: the default keys.
    optional_keys : iterable of str
        Optional keys, which are read only if they are requested.

    Returns
    -------
    tuple of str
        Keys without duplicates, without ``"index"`` and ``"epoch"``.

    Raises
    ------
    InputError
        If a requested key is unknown. The message lists the default and the optional keys.
    """
    default_keys = list(default_keys)
    fields = as_names(fields)
    if fields is None:
        return tuple(default_keys)
    readable = {*default_keys, *optional_keys}
    unknown = [name for name in fields if name not in readable | {INDEX, EPOCH}]
    if unknown:
        extra = ", ".join(sorted({*optional_keys, EPOCH}.difference(default_keys)))
        fix = f"use keys of the samples, {', '.join(default_keys)}, or optional ones, {extra}"
        message = f"the samples have no {', '.join(map(repr, unknown))}"
        raise InputError.at("fields", message, fix, "fields")
    return tuple(dict.fromkeys(name for name in fields if name in readable and name != INDEX))


def require_arrays(store: Store, kind: object, *paths: str) -> None:
    """Raise InputError if a store lacks arrays that a sample kind reads.

    Parameters
    ----------
    store : Store
        The store, of any family.
    kind : SampleKind
        The sample kind, which the message names.
    *paths : str
        Paths of the arrays.
    """
    missing = [path for path in paths if not store.has(path)]
    if missing:
        message = (
            f"{type(kind).__name__} cannot read this {store.family.replace('_', ' ')} store, which has no "
            f"{', '.join(missing)}"
        )
        raise InputError.at(store.path, message, "leave samples out to use the default sample kind", "fields")


# What is known of the sources that samples come from: their names, and what they say of themselves.

_PREFIX = "sources/"
# What every store keeps of its sources, and no source says
_OF_EVERY_STORE = ("path", "bytes", "digest", "format")


def source_keys(store: Store) -> dict[str, str]:
    """Return the path of each value of a source, such as ``sources/rate``, by its key, ``sources.rate``."""
    keys = {SOURCE: f"{_PREFIX}path"}
    for path in store.paths():
        name = path.removeprefix(_PREFIX).removesuffix("/data")
        if path.startswith(_PREFIX) and "/" not in name and name not in _OF_EVERY_STORE:
            key = name.removesuffix(TEXT_SUFFIX).removesuffix(RAGGED_SUFFIX)
            keys[f"sources.{key}"] = f"{_PREFIX}{name}"
    return keys


def source_numbers(store: Store, column: str | None) -> Callable[[Int64s], Int64s]:
    """Return a function from rows of a table to the numbers of their sources.

    Parameters
    ----------
    store : Store
        The store.
    column : str or None
        Path of the column with the numbers of the sources. None: rows are rows of the main table, whose
        sources are stored one after another.

    Returns
    -------
    callable
        Called with rows, int64 (k,); returns numbers of sources, int64 (k,).
    """
    if column is not None:
        require_rule(store, column, indexes=f"{_PREFIX}path/offsets")
        return IndexColumn(store, column).take
    first = main_bounds(store)[:-1]
    # a source without rows has the same first row as the next one, which the row belongs to
    return lambda rows: range_of_rows(first, rows)


class TextColumn:
    """A column of texts, read into memory."""

    def __init__(self, store: Store, path: str) -> None:
        self._texts = np.array(store.text(path), object)

    def take(self, rows: Int64s) -> NDArray[np.str_]:
        """Return the texts of rows (k,), as fixed-width Unicode."""
        return self._texts[rows].astype(np.str_)


def value_column(store: Store, path: str) -> IndexColumn | TextColumn:
    """Return the column of numbers or texts at a path."""
    return IndexColumn(store, path) if store.has(path) else TextColumn(store, path)


PRESENT_SUFFIX = "_present"  # ends the key that says whether there are values
MASK_SUFFIX = "_mask"  # ends the key that says which values of a row are no padding


def masks_of(extents: Int64s, row_shape: Shape, allocate: Allocate) -> NDArray[np.bool_]:
    r"""Return which values of padded rows are data.

    Parameters
    ----------
    extents : int64 array of shape (B, axes)
        Extent of the data on each axis of a row, from its low corner on.
    row_shape : tuple of int
        Shape of a row.
    allocate : callable
        Called as ``allocate(shape, dtype)`` for the memory of the masks.

    Returns
    -------
    bool array of shape (B, \*row_shape)
        False for padding.
    """
    masks = allocate((len(extents), *row_shape), np.dtype(bool))
    masks[...] = True
    for axis, size in enumerate(row_shape):
        is_real = np.arange(size) < extents[:, axis, None]
        behind = len(row_shape) - axis - 1
        masks &= is_real.reshape(len(extents), *[1] * axis, size, *[1] * behind)
    return masks


class RowValues:
    """Reads numbers and texts of rows of a table, and of their sources.

    Parameters
    ----------
    store : Store
        The store.
    fields : sequence of str
        Keys to read. Keys that are neither in `paths` nor values of sources are ignored.
    paths : mapping of str to str
        Path of numbers or texts of the table, by key.
    source : str or None
        Column with the numbers of the sources; see `source_numbers`.
    """

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
        """Return the values of rows (B,) by key, each (B, …)."""
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
class SampleRows(SampleIndices):
    """The samples of a batch, and their rows in the store.

    Attributes
    ----------
    rows : int64 array of shape (B,)
        Row of the store's sample table that each sample is made from.
    numbers : int64 array of shape (B,)
        Number of the sample among the samples of that row, from 0; see `Kind.counts`.
    allocate : callable
        ``allocate(shape, dtype)`` returns memory of the batch. Values in it are delivered without a copy.
    """

    rows: Int64s = field(kw_only=True)
    numbers: Int64s = field(kw_only=True)
    allocate: Allocate = field(kw_only=True)


class KindReader(SampleReader):
    """Reads samples with `Kind.read`, and checks the result."""

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
                expected = f"{store.sample_count:,} integers of at least 0, one for each row"
                message = f"returned {counts.dtype} of shape {counts.shape}, expected {expected}"
                raise self._fault("counts", message)
        self._first = offsets_from_lengths(ones if counts is None else counts[self._units])
        is_main = store.sample_table == store.root.main_table
        self._sources = RowValues(store, fields, {}, None if is_main else f"{store.sample_table}/source")

    def __len__(self) -> int:
        return int(self._first[-1])

    def _packed(self, key: str, values: object, samples: int) -> Packed:
        """Return values of a key, and check that they belong to so many samples."""
        packed = values if isinstance(values, Packed) else Packed(values)  # type: ignore[arg-type]  # checked
        reason = _wrong_batch(packed, samples)
        if reason:
            raise self._fault("read", f"returned {key} {reason}")
        return packed

    def _check_groups(self, batch: Batch) -> None:
        """Refuse keys of one group whose samples have other lengths: a batch has the offsets of one."""
        firsts: dict[str, tuple[str, Int64s]] = {}
        for key, packed in batch.items():
            if packed.offsets is None:
                continue
            first, offsets = firsts.setdefault(packed.group, (key, packed.offsets))
            if not np.array_equal(offsets, packed.offsets):
                raise self._fault("read", f"returned {key} and {first} of one group with different lengths")

    def _fault(self, method: str, message: str) -> InputError:
        author = type(self._kind)
        text = f"{author.__module__}.{author.__qualname__}.{method} {message}"
        package = author.__module__.partition(".")[0]
        return InputError(Problem(self._store.path, text, f"tell who wrote the package {package}", "plugin"))

    def read(self, picks: SampleIndices, allocate: Allocate) -> Batch:
        which = range_of_rows(self._first, picks.index)
        memory = _Memory(allocate)
        located = SampleRows(
            picks.index,
            picks.epoch,
            picks.seed,
            rows=self._units[which],
            numbers=picks.index - self._first[which],
            allocate=memory.allocate,
        )
        values = self._kind.read(self._store, self._keys, located) if self._keys else {}
        if not isinstance(values, Mapping):
            raise self._fault("read", f"returned {values!r:.60}, expected a mapping")
        if missing := [key for key in self._keys if key not in values]:
            raise self._fault("read", f"did not return {', '.join(missing)}")
        batch = {key: memory.packed(self._packed(key, values[key], len(picks.index))) for key in self._keys}
        self._check_groups(batch)
        return batch | self._sources.read(located.rows, allocate)


def _wrong_batch(packed: Packed, samples: int) -> str:
    """Return why values do not belong to so many samples. Empty: they do."""
    values = packed.values
    if not isinstance(values, np.ndarray) or values.ndim == 0 or values.dtype.kind == "O":
        return f"as {values!r:.60}, expected an array of numbers or texts with an axis of samples"
    offsets = packed.offsets
    if offsets is None:
        return "" if len(values) == samples else f"of {len(values)} samples, expected {samples}"
    if not isinstance(offsets, np.ndarray) or offsets.dtype != np.int64 or offsets.shape != (samples + 1,):
        form = getattr(offsets, "dtype", type(offsets).__name__), getattr(offsets, "shape", ())
        return f"with {form[0]} offsets of shape {form[1]}, expected int64 of shape {(samples + 1,)}"
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
    """Base class of a sample kind that a package adds: a frozen dataclass with the options of the samples.

    A kind works for every store with the data that it reads. Register it in the entry point group
    ``unistore.kinds``. Users then write its name, ``unistore.Dataset(store, samples="RandomFrame()")``, and
    `unistore.inspect` suggests it.

    Examples
    --------
    One random frame of each clip:

    >>> @dataclass(frozen=True)  # doctest: +SKIP
    ... class RandomFrame(Kind):
    ...     def keys(self, store):
    ...         if not store.has("clips/offsets"):
    ...             raise InputError(f"{store.path}: has no clips")
    ...         return ["pcm"]
    ...
    ...     def read(self, store, keys, picks):
    ...         offsets = store.array("clips/offsets")
    ...         first = offsets.read_rows(picks.rows)
    ...         lengths = offsets.read_rows(picks.rows + 1) - first
    ...         frames = first + picks.below(lengths[:, None])[:, 0]
    ...         return {"pcm": store.array("frames/pcm").read_rows(frames)}
    """

    reader: ClassVar = KindReader

    __slots__ = ()

    @abstractmethod
    def keys(self, store: StoreView) -> Sequence[str]:
        """Return the keys of samples. Read metadata only.

        Parameters
        ----------
        store : StoreView
            The store.

        Returns
        -------
        sequence of str
            Default keys. Keys of sources, such as ``"source"``, are added as optional keys.

        Raises
        ------
        InputError
            If the store has no such samples.
        """

    def counts(self, store: StoreView) -> Int64s | None:  # noqa: ARG002
        """Return the number of samples of each row of the store's sample table.

        Parameters
        ----------
        store : StoreView
            The store.

        Returns
        -------
        integer array of shape (rows,), or None
            Numbers of at least 0. None, the default: one sample for each row.
        """
        return None

    @abstractmethod
    def read(
        self, store: StoreView, keys: Sequence[str], picks: SampleRows
    ) -> Mapping[str, NDArray[np.generic] | Packed]:
        """Read a batch of samples, which may be empty.

        Take random numbers from `picks`, so that they depend only on the seed, the epoch and the sample.

        Parameters
        ----------
        store : StoreView
            The store.
        keys : sequence of str
            Keys to read: some of those that `keys` returns.
        picks : SampleRows
            The samples, with their rows in the store and their random numbers.

        Returns
        -------
        mapping of str to array or Packed
            For each key, an array of shape (B, …) or, for variable length, `Packed` values.
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
