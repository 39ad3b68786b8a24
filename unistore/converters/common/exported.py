"""Files of an export, whose arrays are read lazily in blocks, and reading the rows of a store for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from unistore.converters.common.columns import ANY_TEXT, TEXT_KINDS, any_length, row_shapes, within
from unistore.schemas.indices import (
    ArrayView,
    IndexColumn,
    StoreView,
    main_bounds,
    parts_between,
    rows_of_a_block,
)
from unistore.schemas.ragged import TEXT_SUFFIX
from unistore.schemas.tables import stated_of
from unistore.system.types import AnyArray, Dtype, Int64s, Shape

# Each call returns an iterator over all rows of an array, in blocks along axis 0
Blocks = Callable[[], Iterator[AnyArray]]

Form = Literal["hdf5", "npy", "npz", "png", "raw", "zarr", "format"]

# Stands among the attributes of a dataset for its value. No attribute has this name.
VALUE = ""

_NUMERIC_KINDS = "biufc"


class ExportedArray(NamedTuple):
    """One array of an exported file.

    Attributes
    ----------
    shape
        All axes, the rows first, as the file gets them.
    dtype
        As the file gets it, byte order included. ``object``: rows are byte strings of any length, or have any
        number of values of the dtype ``metadata["vlen"]``, which is `str` or `bytes` for texts.
    blocks
        Called without arguments, as often as it takes: an iterator over all rows, (rows, …) a block, of
        that dtype or of one that casts to it without loss.
    """

    shape: Shape
    dtype: Dtype
    blocks: Blocks

    @property
    def nbytes(self) -> int:
        """Bytes of all values. For byte strings, the number of rows."""
        return prod(self.shape) * (1 if self.dtype.hasobject else self.dtype.itemsize)

    @classmethod
    def of_rows(cls, array: ArrayView, lo: int, hi: int) -> ExportedArray:
        """Return rows ``lo:hi`` of an array of a store."""
        return cls((hi - lo, *array.shape[1:]), array.dtype, lambda: row_blocks(array, lo, hi))

    @classmethod
    def of_read(cls, read: Callable[[], AnyArray], shape: Shape, dtype: Dtype) -> ExportedArray:
        """Return values that are read on demand, all at once.

        Reading them raises a `ValueError` if the dtype does not represent one of them exactly.
        """
        return cls(shape, dtype, lambda: iter([cast_exactly(read(), dtype)]))

    def converted(self, dtype: Dtype) -> ExportedArray:
        """Return the same values cast to another dtype.

        Reading them raises a `ValueError` if the dtype does not represent one of them exactly.
        """
        if dtype == self.dtype:
            return self
        if dtype.kind not in _NUMERIC_KINDS:
            msg = f"values of {self.dtype} cannot be given back as {dtype}"
            raise ValueError(msg)
        return ExportedArray(
            self.shape, dtype, lambda: (cast_exactly(block, dtype) for block in self.blocks())
        )

    def in_source(self, attributes: Mapping[str, Any], source: int) -> ExportedArray:
        """Return the same values in the dtype that a source had them in, as attributes of the array say."""
        return self.converted(source_dtype(attributes, source, self.dtype))

    def within(self, row_shape: Shape) -> ExportedArray:
        """Return the part of rows that a source has: rows of a padded column without the padding."""
        shape = (self.shape[0], *row_shape)
        return self._replace(shape=shape, blocks=lambda: (within(block, shape) for block in self.blocks()))

    def whole(self) -> AnyArray:
        """Read all rows."""
        out = np.empty(self.shape, self.dtype)
        filled = 0
        for block in self.blocks():
            out[filled : filled + len(block)] = block
            filled += len(block)
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of an export.

    Attributes
    ----------
    name
        Path below the destination, with ``/``. It comes from the store: it is checked before it is used.
    form
        ``"hdf5"``, ``"npy"``, ``"npz"``, ``"png"`` (RGB), ``"raw"`` (the bytes themselves), ``"zarr"`` (a
        folder, a Zarr v3 group), or ``"format"``: what `write` makes, or the format `format` of `values` and
        `facts`.
    source
        Number of its source in the store.
    scope
        ``"source"``: only of that source. ``"shared"``: of others, too, and is written once. ``"all"``:
        it holds all sources.
    values
        Arrays by path inside the file. Files of a single array have the path ``""``.
    attributes
        Attributes of HDF5 or Zarr groups and arrays by path, ``""`` for the root. In HDF5 an empty name is
        that of the value of a dataset without rows.
    compressed
        Whether HDF5 datasets are compressed: gzip and shuffle, chunks of 8,192 rows.
    axes
        Names of the axes of every array of a Zarr group.
    notes
        What the user is told of the export, each sentence once.
    write
        ``write(path)`` writes a file of the form ``"format"``. None: the format `format` writes it.
    format
        Name of that format.
    facts
        Attributes of the file, as JSON values.
    """

    name: str
    form: Form
    source: int
    scope: Literal["source", "shared", "all"] = "source"
    values: Mapping[str, ExportedArray]
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    compressed: bool = False
    axes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    write: Callable[[Path], None] | None = None
    format: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


def array_values(values: AnyArray) -> ExportedArray:
    """`ExportedArray` of an array in memory."""
    return ExportedArray(values.shape, values.dtype, lambda: iter([values]))


def cast_exactly(block: AnyArray, dtype: Dtype) -> AnyArray:
    """Cast values, and raise a `ValueError` if the dtype does not represent all of them exactly."""
    with np.errstate(invalid="ignore", over="ignore"):
        cast = block.astype(dtype)
        exact = np.can_cast(block.dtype, dtype) or np.array_equal(
            cast.astype(block.dtype), block, equal_nan=block.dtype.kind in "fc"
        )
    if not exact:
        msg = f"{dtype} does not hold all values of {block.dtype} exactly"
        raise ValueError(msg)
    return cast


class SourceRows(NamedTuple):
    """Number and name of a source, and its rows ``lo:hi`` of the main table."""

    number: int
    name: str
    lo: int
    hi: int


def sources_of(store: StoreView) -> list[SourceRows]:
    """Return every source of a store, in order."""
    names = store.text("sources/path")
    ranges = zip(names, pairwise(main_bounds(store).tolist()), strict=True)
    return [SourceRows(number, name, lo, hi) for number, (name, (lo, hi)) in enumerate(ranges)]


def row_blocks(array: ArrayView, lo: int, hi: int) -> Iterator[AnyArray]:
    """Yield rows ``lo:hi`` in blocks, aligned with chunks."""
    step = rows_of_a_block(array)
    while lo < hi:
        stop = min(hi, lo - lo % step + step)
        yield array.read_ranges([lo], [stop])
        lo = stop


def source_dtype(attributes: Mapping[str, Any], source: int, otherwise: Dtype) -> Dtype:
    """Return the dtype that a column had in a source, from the array's attribute ``source_dtype``."""
    # The attribute is the dtype in all sources or, where they differ, the indices of the sources by dtype.
    dtype = stated_of(attributes.get("source_dtype"), source)
    return np.dtype(dtype) if isinstance(dtype, str) else otherwise


def names_in_source(attributes: Mapping[str, Any], source: int) -> tuple[str, str, int]:
    """Return the array that a column was in a source, the field of its records, and the position of that.

    Empty texts, if nothing is stated.
    """
    array, field, position = (
        str(stated_of(attributes.get(f"source_{name}"), source) or "")
        for name in ("array", "field", "position")
    )
    return array, field, int(position or 0)


def source_row_shape(
    attributes: Mapping[str, Any], source: int, otherwise: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the row shape that a column had in a source."""
    shapes = (row_shape for row_shape, sources in row_shapes(attributes) if source in sources)
    return next(shapes, otherwise)


# Rows with any number of values.

_TEXTS_TOGETHER = 4096


class StoredRagged(NamedTuple):
    """A column of a store whose rows have any number of values, or are texts.

    Attributes
    ----------
    store
        The store.
    group
        Path of the group of its ``data`` and ``offsets``.
    """

    store: StoreView
    group: str

    def bounds(self, lo: int, hi: int) -> Int64s:
        """Return the offsets of rows ``lo:hi``, (rows + 1,)."""
        first, last = IndexColumn(self.store, f"{self.group}/offsets").ranges(np.arange(lo, hi))
        if hi <= lo:
            return np.zeros(1, np.int64)
        return np.concatenate([first, last[-1:]])

    def rows(self, lo: int, hi: int) -> Iterator[AnyArray]:
        """Yield the values of each of rows ``lo:hi``, of which many are read together."""
        return parts_between(self.store.array(f"{self.group}/data"), self.bounds(lo, hi))

    def byte_strings(self, lo: int, hi: int) -> ExportedArray:
        """Return rows ``lo:hi`` as objects: the bytes of each, (n,) uint8."""
        return ExportedArray((hi - lo,), np.dtype(object), lambda: map(as_object, self.rows(lo, hi)))

    def values(self, source: int, lo: int, hi: int) -> ExportedArray:
        """Return rows ``lo:hi`` as a source has them: texts, or values of its dtype, as objects."""
        data = self.store.array(f"{self.group}/data")
        dtype = source_dtype(data.attributes, source, data.dtype)
        if self.group.endswith(TEXT_SUFFIX):
            return self._texts(source_dtype(data.attributes, source, ANY_TEXT), lo, hi)
        if dtype.kind in TEXT_KINDS:  # pictures that a source has as byte strings
            return self._texts(dtype, lo, hi)

        def blocks() -> Iterator[AnyArray]:
            for row in self.rows(lo, hi):
                yield as_object(cast_exactly(row, dtype))

        return ExportedArray((hi - lo,), any_length(dtype), blocks)

    def _texts(self, stated: Dtype, lo: int, hi: int) -> ExportedArray:
        """Return rows as bytes, or as NumPy's texts if a source has these."""
        dtype = ANY_TEXT if stated.hasobject else stated

        def blocks() -> Iterator[AnyArray]:
            for first in range(lo, hi, _TEXTS_TOGETHER):
                rows = self.rows(first, min(hi, first + _TEXTS_TOGETHER))
                texts: list[Any] = [row.tobytes() for row in rows]
                if dtype.kind == "U":
                    texts = [text.decode("utf-8", "surrogateescape") for text in texts]
                yield np.array(texts, dtype)

        return ExportedArray((hi - lo,), dtype, blocks)


def as_object(value: Any) -> AnyArray:
    """Return a value as an object array (1,)."""
    row = np.empty(1, object)
    row[0] = value
    return row


def objects(rows: AnyArray) -> AnyArray:
    """Return rows as objects, if they are not. A format has those of one length as an array."""
    values = np.empty(len(rows), object)
    for row, value in enumerate(rows):
        values[row] = value
    return values
