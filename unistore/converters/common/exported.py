"""The files of an export, whose arrays are read in blocks, and how rows of a store are read for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from unistore.converters.common.columns import ANY_TEXT, TEXT_KINDS, any_length, within
from unistore.schemas.indices import (
    ArrayView,
    IndexColumn,
    StoreView,
    main_bounds,
    parts_between,
    rows_of_a_block,
)
from unistore.schemas.ragged import TEXT_SUFFIX
from unistore.schemas.tables import SourceForms, stated_of
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
    shape : tuple of int
        Shape in the file, rows first.
    dtype : numpy.dtype
        Dtype in the file, with byte order. ``object``: rows are byte strings of any length, or have any
        number of values of the dtype ``metadata["vlen"]``, which is `str` or `bytes` for texts.
    blocks : callable
        Returns an iterator over all rows, in blocks of shape (rows, …), in `dtype` or in one that casts to it
        without loss. It may be called several times.

    Examples
    --------
    >>> exported = ExportedArray.of_rows(store.array("points/xyz"), 0, 1000)  # doctest: +SKIP
    """

    shape: Shape
    dtype: Dtype
    blocks: Blocks

    @property
    def nbytes(self) -> int:
        """Size of all values in bytes; for byte strings, the number of rows."""
        return prod(self.shape) * (1 if self.dtype.hasobject else self.dtype.itemsize)

    @classmethod
    def of_rows(cls, array: ArrayView, lo: int, hi: int) -> ExportedArray:
        """Return rows ``lo:hi`` of an array of a store."""
        return cls((hi - lo, *array.shape[1:]), array.dtype, lambda: row_blocks(array, lo, hi))

    @classmethod
    def of_read(cls, read: Callable[[], AnyArray], shape: Shape, dtype: Dtype) -> ExportedArray:
        """Return values that are read at once, when they are needed.

        Parameters
        ----------
        read : callable
            Returns the values. Reading raises ValueError if `dtype` does not represent one of them exactly.
        shape : tuple of int
            Shape of the values.
        dtype : numpy.dtype
            Dtype in the file.
        """
        return cls(shape, dtype, lambda: iter([cast_exactly(read(), dtype)]))

    def converted(self, dtype: Dtype) -> ExportedArray:
        """Return the same values in another dtype.

        Reading them raises ValueError if the dtype does not represent one of them exactly.

        Raises
        ------
        ValueError
            If values of this kind cannot be converted, such as texts.
        """
        if dtype == self.dtype:
            return self
        if dtype.kind not in _NUMERIC_KINDS:
            msg = f"values of the dtype {self.dtype} cannot be exported as {dtype}"
            raise ValueError(msg)
        return ExportedArray(
            self.shape, dtype, lambda: (cast_exactly(block, dtype) for block in self.blocks())
        )

    def in_source(self, attributes: Mapping[str, Any], source: int) -> ExportedArray:
        """Return the same values in the dtype that a source had.

        Parameters
        ----------
        attributes : mapping
            Attributes of the array of the store.
        source : int
            Number of the source.
        """
        return self.converted(SourceForms.of(attributes).dtype(source, self.dtype))

    def within(self, row_shape: Shape) -> ExportedArray:
        """Return the rows of a padded column without the padding: the part of shape `row_shape`."""
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
    name : str
        Path below the destination, with ``/``. It comes from the store, and is checked before it is used.
    form : {"hdf5", "npy", "npz", "png", "raw", "zarr", "format"}
        How the file is written. ``"png"``: RGB. ``"raw"``: the bytes themselves. ``"zarr"``: a folder, a
        Zarr v3 group. ``"format"``: with `write`, or with the format `format`.
    source : int
        Number of its source in the store.
    scope : {"source", "shared", "all"}, default "source"
        ``"source"``: the file belongs to this source. ``"shared"``: it also belongs to others, and is
        written once. ``"all"``: it contains all sources.
    values : mapping of str to ExportedArray
        Arrays by their path in the file. The path is empty for a file with a single array.
    attributes : mapping of str to mapping
        Attributes of HDF5 or Zarr groups and arrays by path, empty for the root. In HDF5, the attribute
        with an empty name is the value of a dataset without rows.
    compressed : bool, default False
        Whether to compress HDF5 datasets: gzip and shuffle, in chunks of 8,192 rows.
    axes : tuple of str, default ()
        Names of the axes of every array of a Zarr group.
    notes : tuple of str, default ()
        Notes for the user. Each sentence is printed once.
    write : callable, optional
        ``write(path)`` writes a file of the form ``"format"``. None: the format `format` writes it.
    format : str, default ""
        Name of a format that writes `values` and `metadata`.
    metadata : mapping
        Metadata of the file, as JSON values.
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
    metadata: Mapping[str, Any] = field(default_factory=dict)


def array_values(values: AnyArray) -> ExportedArray:
    """Return an `ExportedArray` of an array in memory."""
    return ExportedArray(values.shape, values.dtype, lambda: iter([values]))


def cast_exactly(block: AnyArray, dtype: Dtype) -> AnyArray:
    """Return values in another dtype.

    Raises
    ------
    ValueError
        If the dtype does not represent all values exactly.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        cast = block.astype(dtype)
        exact = np.can_cast(block.dtype, dtype) or np.array_equal(
            cast.astype(block.dtype), block, equal_nan=block.dtype.kind in "fc"
        )
    if not exact:
        msg = f"the dtype {dtype} does not represent all values of {block.dtype} exactly"
        raise ValueError(msg)
    return cast


class SourceRows(NamedTuple):
    """A source, with its range of rows of the main table.

    Attributes
    ----------
    number : int
        Number of the source.
    name : str
        Name of the source.
    lo, hi : int
        First row, and the row after the last.
    """

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
    """Iterate over rows ``lo:hi`` of an array in blocks of whole chunks."""
    step = rows_of_a_block(array)
    while lo < hi:
        stop = min(hi, lo - lo % step + step)
        yield array.read_ranges([lo], [stop])
        lo = stop


def names_in_source(attributes: Mapping[str, Any], source: int) -> tuple[str, str, int]:
    """Return where a column was in a source: array, field of its records, and position of the field.

    The texts are empty, and the position 0, if the attributes do not state them.
    """
    array, field, position = (
        str(stated_of(attributes.get(f"source_{name}"), source) or "")
        for name in ("array", "field", "position")
    )
    return array, field, int(position or 0)


# Rows with any number of values.

_TEXTS_TOGETHER = 4096


class StoredRagged(NamedTuple):
    """A column of a store whose rows have any number of values, or are texts.

    Attributes
    ----------
    store : StoreView
        The store.
    group : str
        Path of the group with ``data`` and ``offsets``.
    """

    store: StoreView
    group: str

    def bounds(self, lo: int, hi: int) -> Int64s:
        """Return the offsets of rows ``lo:hi``, (rows + 1,) int64."""
        first, last = IndexColumn(self.store, f"{self.group}/offsets").ranges(np.arange(lo, hi))
        if hi <= lo:
            return np.zeros(1, np.int64)
        return np.concatenate([first, last[-1:]])

    def rows(self, lo: int, hi: int) -> Iterator[AnyArray]:
        """Iterate over the values of each of rows ``lo:hi``. Many rows are read together."""
        return parts_between(self.store.array(f"{self.group}/data"), self.bounds(lo, hi))

    def byte_strings(self, lo: int, hi: int) -> ExportedArray:
        """Return rows ``lo:hi`` as objects: the bytes of each row, (n,) uint8."""
        return ExportedArray((hi - lo,), np.dtype(object), lambda: map(as_object, self.rows(lo, hi)))

    def values(self, source: int, lo: int, hi: int) -> ExportedArray:
        """Return rows ``lo:hi`` as a source has them: texts, or objects with values in its dtype."""
        data = self.store.array(f"{self.group}/data")
        forms = SourceForms.of(data.attributes)
        if self.group.endswith(TEXT_SUFFIX):
            return self._texts(forms.dtype(source, ANY_TEXT), lo, hi)
        dtype = forms.dtype(source, data.dtype)
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
    """Return rows as an object array (n,)."""
    values = np.empty(len(rows), object)
    for row, value in enumerate(rows):
        values[row] = value
    return values
