"""Read rows with any number of values: texts, numbers of variable length, rows between offsets."""

# Texts are kept byte for byte: bytes that are not UTF-8 too.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from unistore.converters.array import BLOCK_BYTES, Array
from unistore.converters.common.columns import SourceColumn, any_length
from unistore.errors import InputError, Location, Problem
from unistore.system.types import AnyArray, Dtype, Int64s, Shape

_TEXTS_TOGETHER = 64  # rows of texts that are read together


class RangesOf(Array):
    """Rows, (N,) of any length each, of an array (M, …) between offsets (N + 1,)."""

    __slots__ = ("_offsets",)

    def __init__(self, array: Array, offsets: Array) -> None:
        super().__init__(array)
        self._offsets = offsets  # (N + 1,) whole numbers

    @property
    def shape(self) -> Shape:
        """See `Array`."""
        return (len(self._offsets) - 1,)

    @property
    def dtype(self) -> Dtype:
        """See `Array`."""
        return any_length(self.values.dtype, self.values.shape[1:])

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        """See `Array`."""
        if as_objects:
            return [*self.values.problems(), *self._offsets.problems()]
        return super().problems()

    def read(self, lo: int, hi: int, out: AnyArray | None = None) -> AnyArray:
        """See `Array`."""
        del out
        bounds = self._offsets[lo : hi + 1].astype(np.int64)
        values = self.values[int(bounds[0]) : int(bounds[-1])]
        rows = np.empty(hi - lo, object)
        for row, start in enumerate(bounds[:-1] - bounds[0]):
            rows[row] = values[start : bounds[row + 1] - bounds[0]]
        return rows


class RaggedItems(NamedTuple):
    """Values of some rows, one after the other, and how many each row has."""

    values: AnyArray
    counts: Int64s


def items_in(array: Array, lo: int, hi: int, form: SourceColumn, location: Location) -> Iterator[RaggedItems]:
    """Yield the values of rows ``lo:hi``, about `BLOCK_BYTES` at a time."""
    pending: list[AnyArray] = []
    size = 0
    step = 1
    if array.dtype.kind in "SU":  # of a size that is known
        most = max(1, BLOCK_BYTES // max(1, array.dtype.itemsize))
        step = min(most, max(_TEXTS_TOGETHER, array.chunk_rows))
    elif array.is_text:
        step = _TEXTS_TOGETHER
    for first in range(lo, hi, step):
        for row, value in enumerate(array.objects(first, min(hi, first + step)), first):
            values = _values(value, form)
            if values.shape[1:] != form.row_shape:
                message = f"has values of the shape {values.shape[1:]}, but other rows have {form.row_shape}"
                fix = "write all rows with values of the same shape"
                raise InputError(Problem.at(location._replace(row=row), message, fix, "shape"))
            pending.append(values)
            size += values.nbytes
        if size >= BLOCK_BYTES:
            yield _joined(pending)
            pending, size = [], 0
    if pending:
        yield _joined(pending)


def items_of(rows: Sequence[Any], form: SourceColumn) -> RaggedItems:
    """Return the values of rows that are given one by one: texts, or anything that NumPy takes.

    Raises
    ------
    TypeError
        If a value is none of the dtype.
    """
    values = [np.empty((0, *form.row_shape), form.dtype)]
    for row in rows:
        values.append(_values(row, form))
        if not isinstance(row, (str, bytes)) and not np.array_equal(values[-1], row, equal_nan=True):
            msg = f"{row!r:.60} is not a row of {form}"
            raise TypeError(msg)
    return _joined(values, 1)


def _values(value: Any, form: SourceColumn) -> AnyArray:
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    return np.asarray(value, form.dtype)


def _joined(rows: Sequence[AnyArray], first: int = 0) -> RaggedItems:
    counts = np.array([len(row) for row in rows[first:]], np.int64)
    return RaggedItems(np.concatenate(rows), counts)
