"""What an array of a store must be: axes, dtype, rows, and the range of values that index other arrays.

Readers (`unistore.schemas.indices`) and ``verify`` (`unistore.integrity.rules`) check the same specs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """Shape and dtype of one array of a store.

    Attributes
    ----------
    shape
        All axes, axis 0 (rows) first.
    dtype
        numpy dtype name in native form: ``"int32"``.
    """

    shape: tuple[int, ...]
    dtype: str


SAMPLES = ""
"""Stands for an array with one row per sample, in place of an array's path."""

ShapeOf = Callable[[str], tuple[int, ...]]
"""Shape of the array at a path; of `SAMPLES`, (samples,)."""


class Limit(NamedTuple):
    """Array whose shape bounds the values, or is the shape, of another array.

    Attributes
    ----------
    path
        Path of the array.
    axes
        Its axes, one per component of the values.
    scale
        How many values the other array packs along the last of these axes, or this one: 8 if a byte holds 8.
    """

    path: str
    axes: tuple[int, ...]
    scale: int = 1

    def maximum(self, shape_of: ShapeOf) -> NDArray[np.int64]:
        """Largest value of each component."""
        shape = shape_of(self.path)
        largest = np.array([shape[axis] if axis < len(shape) else 0 for axis in self.axes], np.int64)
        largest[-1] *= self.scale
        return largest


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """What an array must be.

    Attributes
    ----------
    dtypes
        Allowed numpy dtype names; empty: any.
    kinds
        Allowed kinds of numpy dtypes: ``"iuf"`` for numbers; empty: any.
    row_shape
        Shape after axis 0, with None for an axis of any length; None: any shape.
    rows
        ``(path, n)``: as many rows as the array at `path`, plus `n`; None: any number.
    beside
        Arrays that must be there as well.
    like
        Arrays whose extents this one has on its last axes, the last one divided by `Limit.scale`, rounded up.
    offsets_of
        The values are offsets into the rows of the array at this path, or, with a `Limit`, into the set bits
        of its rows.
    indexes
        ``(path, n)``: each value is at least 0 and less than the rows of the array at `path`, plus `n`.
    ascending
        Whether no value is less than the one before it.
    least
        Smallest value of each component.
    limits
        Arrays whose shapes bound the values.
    """

    dtypes: tuple[str, ...] = ()
    kinds: str = ""
    row_shape: tuple[int | None, ...] | None = None
    rows: tuple[str, int] | None = None
    beside: tuple[str, ...] = ()
    like: tuple[Limit, ...] = ()
    offsets_of: str | Limit | None = None
    indexes: tuple[str, int] | None = None
    ascending: bool = False
    least: int | None = None
    limits: tuple[Limit, ...] = ()

    @property
    def needs(self) -> list[str]:
        """Paths of the arrays that the spec refers to."""
        limits = [*self.limits, *self.like]
        limits += [self.offsets_of] if isinstance(self.offsets_of, Limit) else []
        paths = [self.rows and self.rows[0], self.indexes and self.indexes[0], *self.beside]
        paths += [self.offsets_of] if isinstance(self.offsets_of, str) else []
        return [path for path in [*paths, *(limit.path for limit in limits)] if path]

    @property
    def shape_needs(self) -> list[str]:
        """Paths of the arrays whose shapes decide the shape of this one."""
        paths = [limit.path for limit in self.like]
        return [*paths, self.rows[0]] if self.rows else paths

    @property
    def bounds_values(self) -> bool:
        """Whether the spec restricts values."""
        indexes = self.offsets_of is not None or self.indexes is not None or bool(self.limits)
        return indexes or self.ascending or self.least is not None

    def array_error(self, info: ArrayInfo, shape_of: ShapeOf) -> str | None:
        """What is wrong with the axes, dtype or rows of an array, or None."""
        if not info.shape:
            return "has no axis, expected rows on axis 0"
        if self.dtypes and info.dtype not in self.dtypes:
            return f"is {info.dtype}, expected {' or '.join(self.dtypes)}"
        if self.kinds and np.dtype(info.dtype).kind not in self.kinds:
            return f"is {info.dtype}, expected numbers"
        if self.row_shape is not None:
            row = info.shape[1:]
            fits = len(row) == len(self.row_shape) and all(
                wanted in (None, extent) for wanted, extent in zip(self.row_shape, row, strict=True)
            )
            if not fits:
                listed = ", ".join("n" if each is None else str(each) for each in ("n", *self.row_shape))
                return f"has shape {info.shape}, expected ({listed})"
        if self.rows is not None:
            path, extra = self.rows
            expected = _rows(shape_of, path) + extra
            if info.shape[0] != expected:
                origin = "the root's count of samples" if path == SAMPLES else f"the rows of {path}"
                origin += f" {extra:+d}" if extra else ""
                return f"has {info.shape[0]} rows, expected {expected} ({origin})"
        for limit in self.like:
            shape = shape_of(limit.path)
            extents = tuple(shape[axis] for axis in limit.axes if axis < len(shape))
            wanted = (*extents[:-1], -(-extents[-1] // limit.scale)) if extents else ()
            if info.shape[-len(limit.axes) :] != wanted:
                return f"has shape {info.shape}, expected {wanted} at its end, as {limit.path} has {shape}"
        return None

    def value_errors(self, values: NDArray[Any], shape_of: ShapeOf) -> Iterator[str]:
        """What is wrong with the values (rows, …) of a whole array."""
        if isinstance(self.offsets_of, Limit):
            yield from offsets_errors(values, int(values[-1]) if len(values) else 0, "")
            yield from self._count_errors(np.diff(values), shape_of)
        elif self.offsets_of is not None:
            yield from offsets_errors(values, _rows(shape_of, self.offsets_of), f"rows in {self.offsets_of}")
        if self.ascending:
            yield from _falling(values)
        yield from self.row_errors(values, None, shape_of)

    def row_errors(
        self, values: NDArray[Any], rows: NDArray[np.int64] | None, shape_of: ShapeOf
    ) -> Iterator[str]:
        """Values out of range; `values` (k, …) are those of `rows` (k,), or of all rows if None."""
        least, bounds = self.least, list[tuple[str, Any]]()
        if self.indexes is not None:
            path, extra = self.indexes
            least = 0 if least is None else least
            bounds.append((f"rows of {path}", _rows(shape_of, path) + extra - 1))
        for limit in self.limits:
            largest = limit.maximum(shape_of)
            bounds.append((f"stored in {limit.path}", largest if len(largest) > 1 else largest[0]))
        wrong = [(values < least, f"{least} or more")] if least is not None else []
        wrong += [
            (values > largest, f"at most {np.asarray(largest).tolist()} ({reason})")
            for reason, largest in bounds
        ]
        for each, expected in wrong:
            found = np.flatnonzero(each.any(axis=tuple(range(1, each.ndim))))
            if found.size:
                at = int(found[0])
                yield f"row {at if rows is None else rows[at]} is {values[at].tolist()}, expected {expected}"

    def span_error(
        self, lo: NDArray[np.int64], hi: NDArray[np.int64], rows: NDArray[np.int64], shape_of: ShapeOf
    ) -> str | None:
        """What is wrong with the ranges ``lo:hi`` that offsets give for `rows`, (k,) each, or None."""
        in_bits = isinstance(self.offsets_of, Limit)
        total = np.iinfo(np.int64).max if in_bits else _rows(shape_of, str(self.offsets_of or ""))
        wrong = (lo < 0) | (lo > hi) | (hi > total)
        if wrong.any():
            at = int(np.argmax(wrong))
            return f"row {rows[at]} is {lo[at]}, the next one {hi[at]}: expected rising, in 0 to {total}"
        return next(self._count_errors(hi - lo, shape_of), None) if in_bits else None

    def _count_errors(self, counts: NDArray[np.int64], shape_of: ShapeOf) -> Iterator[str]:
        """Offsets that count more bits than a row has."""
        assert isinstance(self.offsets_of, Limit)
        bits = float(np.prod(self.offsets_of.maximum(shape_of).astype(np.float64)))
        if (counts > bits).any():
            at = int(np.argmax(counts > bits))
            yield f"row {at} counts {counts[at]}, but {self.offsets_of.path} has room for {bits:.0f}"


def offsets_errors(offsets: NDArray[np.int64], total: int, what: str) -> Iterator[str]:
    """What is wrong with offsets: they begin at 0, never decrease, and end with `total`.

    Parameters
    ----------
    offsets
        (n + 1,).
    total
        Number of rows that the offsets divide.
    what
        What the rows are: ``"points"``.
    """
    if not len(offsets) or offsets[0] != 0:
        yield f"begins with {offsets[0] if len(offsets) else 'nothing'}, expected 0"
        return
    yield from _falling(offsets)
    if offsets[-1] != total:
        yield f"ends with {offsets[-1]}, but there are {total} {what}"


def _falling(values: NDArray[Any]) -> Iterator[str]:
    wrong = values[1:] < values[:-1]
    if wrong.any():
        at = int(np.argmax(wrong))
        yield f"row {at + 1} is {values[at + 1]}, less than {values[at]} before it"


def _rows(shape_of: ShapeOf, path: str) -> int:
    return (shape_of(path) or (0,))[0]
