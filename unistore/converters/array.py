"""`Array`: values of an open file that are read when they are sliced, and arrays made of others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np

from unistore.converters.common.columns import SourceColumn, is_text, values_of
from unistore.errors import Problem
from unistore.system.types import AnyArray, Dtype, Shape

# Bytes that are read at a time when a whole array is read
BLOCK_BYTES = 16 << 20


def as_json(value: Any) -> Any:
    """Return a value or an array as JSON. Values that JSON cannot represent, such as NaN, become text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        return [as_json(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value if isinstance(value, (bool, int, float, str)) else str(value)


@dataclass(slots=True, eq=False)
class Array:
    """An array of an open file. Its values are read when you slice it.

    Attributes
    ----------
    values
        Any object with ``shape``, ``dtype`` and slices of axis 0, for example a NumPy array, a memory map or
        an HDF5 dataset. With a method ``read_into(lo, hi, out)``, rows are read directly into the shard if
        they fit. Optional attributes: ``chunk_rows`` and ``fortran_order``, as the properties below.
    unit : str, optional
        Unit of the values: ``"m"``. None: unknown, or none.
    description : str, default ""
        One sentence about the array.
    source : str, default ""
        For a column of a store: name of the array in the file. Empty: as the schema states.
    field : str, default ""
        For a column of a store that was a field of records: name of the field. Empty: it was not a field.
    position : int, default 0
        Position of that field among the fields of the records.
    components : tuple of str, default ()
        Names of the numbers in a row, if the file states them: ``("shoulder", "elbow")``.

    Examples
    --------
    >>> array = Array(np.memmap("points.bin", np.float32).reshape(-1, 4), unit="m")  # doctest: +SKIP
    >>> array[100:200].shape  # doctest: +SKIP
    (100, 4)
    """

    values: Any
    unit: str | None = None
    description: str = ""
    source: str = ""
    field: str = ""
    position: int = 0
    components: tuple[str, ...] = ()

    @property
    def shape(self) -> Shape:
        """Length of each axis."""
        return tuple(self.values.shape)

    @property
    def dtype(self) -> Dtype:
        """Dtype of the values in the file."""
        dtype: Dtype = np.dtype(self.values.dtype)
        return dtype

    @property
    def is_text(self) -> bool:
        """Whether rows are texts or byte strings, of fixed or variable length."""
        return is_text(self.dtype)

    @property
    def value_form(self) -> SourceColumn | None:
        """Dtype and shape of the values in rows of variable length, such as texts, or None."""
        return values_of(self.dtype)

    @property
    def chunk_rows(self) -> int:
        """Smallest number of rows worth reading at a time. 0: the whole array."""
        together: int = getattr(self.values, "chunk_rows", 1)
        return together

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        """Return why the values cannot be read, without reading them. Empty: they can.

        Parameters
        ----------
        as_objects : bool, default False
            Whether texts and bytes of any length are acceptable, as `item` returns them.
        """
        return ()

    def item(self, row: int | None = None) -> Any:
        """Read one row, or the whole array, of any type: numbers, text, or bytes of any length.

        Parameters
        ----------
        row : int, optional
            Number of the row. None: the whole array.
        """
        if row is not None:
            return self[row : row + 1][0]
        if type(self).read is not Array.read:
            return self.read(0, len(self))
        whole = getattr(self.values, "whole", None)
        return (self.values if whole is None else whole())[()]

    def json(self) -> Any:
        """Read the whole array as JSON. Values that JSON cannot represent, such as NaN, become text."""
        return as_json(self.item())

    def objects(self, lo: int, hi: int) -> Iterable[Any]:
        """Read rows ``lo:hi`` of any type, as `item` does for one."""
        return self[lo:hi]

    @property
    def fortran_order(self) -> bool:
        """Whether the file is in Fortran order (the last axis varies slowest), so that `T` reads faster."""
        is_reversed: bool = getattr(self.values, "fortran_order", False)
        return is_reversed

    @property
    def T(self) -> Array:  # noqa: N802  as of an array
        """The same array with its axes reversed."""
        return Array(self.values.T, self.unit, self.description)

    def __getitem__(self, rows: slice) -> AnyArray:
        lo, hi, step = rows.indices(len(self))
        return self.read(lo, max(lo, hi))[::step]

    def __len__(self) -> int:
        return self.shape[0]

    def blocks(self) -> Iterator[tuple[int, AnyArray]]:
        """Iterate over the array in blocks of about 16 MiB: ``(number of the first row, rows)``."""
        row_bytes = prod(self.shape[1:]) * self.dtype.itemsize
        step = max(1, BLOCK_BYTES // max(1, row_bytes))
        for lo in range(0, len(self), step):
            yield lo, self[lo : min(len(self), lo + step)]

    def read(self, lo: int, hi: int, out: AnyArray | None = None) -> AnyArray:
        """Read rows ``lo:hi``.

        Parameters
        ----------
        lo, hi : int
            First row, and the row after the last.
        out : array of shape (hi - lo, …), optional
            Memory to read into. It is used if `values` supports it and has the same dtype.

        Returns
        -------
        array of shape (hi - lo, …)
            `out` if it was used, otherwise another array.

        Raises
        ------
        TypeError
            If `values` returns another number of rows. The message names its class.
        """
        read_into = getattr(self.values, "read_into", None)
        rows: AnyArray
        rows = np.asarray(self.values[lo:hi]) if read_into is None else read_into(lo, hi, out)
        if rows.shape[:1] != (hi - lo,):
            kind = f"{type(self.values).__module__}.{type(self.values).__qualname__}"
            message = f"{kind} returned rows of shape {rows.shape} for rows {lo}:{hi} of {self.shape}"
            raise TypeError(message)
        return rows


# Arrays of a file by name
NamedArrays: TypeAlias = Mapping[str, Array]


class Records:
    """Rows of records, made of one array for each field, in the order of their positions.

    Parameters
    ----------
    arrays : mapping of str to Array
        Array of each field, all of the same length.
    """

    def __init__(self, arrays: NamedArrays) -> None:
        fields = dict(sorted(arrays.items(), key=lambda item: item[1].position))
        self._fields = fields
        self.dtype = np.dtype([(name, array.dtype, array.shape[1:]) for name, array in fields.items()])
        self.shape = (len(next(iter(fields.values()))),)

    def __getitem__(self, rows: slice) -> AnyArray:
        lo, hi, _ = rows.indices(self.shape[0])
        records = np.empty(max(0, hi - lo), self.dtype)
        for name, array in self._fields.items():
            records[name] = array[lo:hi]
        return records


class FieldOf(Array):
    """One field of an array of records, whose rows are read whole.

    Parameters
    ----------
    records : Array
        The array of records.
    name : str
        Name of the field.
    """

    __slots__ = ()

    def __init__(self, records: Array, name: str) -> None:
        super().__init__(records, field=name)

    @property
    def shape(self) -> Shape:
        return (*self.values.shape, *self._form.shape)

    @property
    def dtype(self) -> Dtype:
        return self._form.base

    @property
    def _form(self) -> Dtype:
        form: Dtype = self.values.dtype[self.field]
        return form

    @property
    def chunk_rows(self) -> int:
        rows: int = self.values.chunk_rows
        return rows

    def read(self, lo: int, hi: int, out: AnyArray | None = None) -> AnyArray:
        rows: AnyArray = self.values[lo:hi][self.field]
        return rows
