"""What an array of a store must be beside the others: axes, dtype, rows, and values that lead elsewhere.

Readers (`unistore.schemas.indices`) and ``verify`` (`unistore.integrity.rules`) judge arrays by the same
forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.schemas.arrays import ArrayInfo

__all__ = ["SAMPLES", "Form", "Limit", "ShapeOf", "offsets_errors"]

SAMPLES = ""
"""In place of an array's path: as many rows as the root counts samples."""

ShapeOf = Callable[[str], tuple[int, ...]]
"""Shape of the array at a path; of `SAMPLES`, (samples,)."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Array whose extents bound the values of another one.

    Attributes
    ----------
    path
        Of the array.
    axes
        Its axes, one a component of the values.
    scale
        What the extent of the last of them is multiplied with: 8 where a byte holds eight values.
    """

    path: str
    axes: tuple[int, ...]
    scale: int = 1

    def most(self, shape_of: ShapeOf) -> NDArray[np.int64]:
        """Largest value of each component."""
        shape = shape_of(self.path)
        most = np.array([shape[axis] if axis < len(shape) else 0 for axis in self.axes], np.int64)
        most[-1] *= self.scale
        return most


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What an array must be.

    Attributes
    ----------
    dtypes
        numpy dtype names, any of them; empty: any.
    row_shape
        Shape after axis 0, None for an axis of any extent; None: any.
    rows
        Array that has as many rows, and by how many this one has more; None: any number.
    cuts
        Of offsets: the array whose rows they cut, or `Limit` of the bits of a row that they count.
    below
        Of codes: they are at least 0 and below the rows of this array, and how many more.
    ascending
        Whether no value is less than the one before it.
    least
        Smallest value of each component.
    inside
        What bounds the values.
    """

    dtypes: tuple[str, ...] = ()
    row_shape: tuple[int | None, ...] | None = None
    rows: tuple[str, int] | None = None
    cuts: str | Limit | None = None
    below: tuple[str, int] | None = None
    ascending: bool = False
    least: int | None = None
    inside: tuple[Limit, ...] = ()

    @property
    def needs(self) -> list[str]:
        """Arrays that it names."""
        named = [self.rows, self.below]
        cuts = self.cuts.path if isinstance(self.cuts, Limit) else self.cuts
        paths = [each[0] for each in named if each] + [limit.path for limit in self.inside]
        return [path for path in [*paths, *([cuts] if cuts else [])] if path != SAMPLES]

    @property
    def bounds_values(self) -> bool:
        """Whether not every value may stand in it."""
        led = self.cuts is not None or self.below is not None or bool(self.inside)
        return led or self.ascending or self.least is not None

    def array_error(self, info: ArrayInfo, shape_of: ShapeOf) -> str | None:
        """Say what is wrong with an array's axes, dtype and rows; None: nothing."""
        if not info.shape:
            return "has no axis, expected rows on axis 0"
        if self.dtypes and info.dtype not in self.dtypes:
            return f"is {info.dtype}, expected {' or '.join(self.dtypes)}"
        if self.row_shape is not None:
            row = info.shape[1:]
            alike = len(row) == len(self.row_shape) and all(
                wanted in (None, extent) for wanted, extent in zip(self.row_shape, row, strict=True)
            )
            if not alike:
                listed = ", ".join("n" if each is None else str(each) for each in ("n", *self.row_shape))
                return f"has shape {info.shape}, expected ({listed})"
        if self.rows is not None:
            path, more = self.rows
            expected = _rows(shape_of, path) + more
            if info.shape[0] != expected:
                return f"has {info.shape[0]} rows, expected {expected}{_because(path, more)}"
        return None

    def value_errors(self, values: NDArray[Any], shape_of: ShapeOf) -> Iterator[str]:
        """Every way in which all values of an array, (rows, …), contradict the other arrays."""
        if isinstance(self.cuts, Limit):
            yield from offsets_errors(values, int(values[-1]) if len(values) else 0, "")
            yield from self._count_errors(np.diff(values), shape_of)
        elif self.cuts is not None:
            yield from offsets_errors(values, _rows(shape_of, self.cuts), f"rows in {self.cuts}")
        if self.ascending:
            falling = values[1:] < values[:-1]
            if falling.any():
                at = _first(falling)
                yield f"row {at + 1} is {values[at + 1]}, less than {values[at]} before it"
        yield from self.row_errors(values, None, shape_of)

    def row_errors(
        self, values: NDArray[Any], rows: NDArray[np.int64] | None, shape_of: ShapeOf
    ) -> Iterator[str]:
        """Every way in which values of some `rows` (None: of all) leave their range."""
        least, most = self._range(shape_of)
        if least is not None:
            low = _any_component(values < least)
            if low.any():
                at = _first(low)
                yield f"row {_row(rows, at)} is {_shown(values[at])}, expected {least} or more"
        for what, highest in most:
            high = _any_component(values > highest)
            if high.any():
                at = _first(high)
                expected = f"expected at most {_shown(highest)} ({what})"
                yield f"row {_row(rows, at)} is {_shown(values[at])}, {expected}"

    def span_error(
        self, lo: NDArray[np.int64], hi: NDArray[np.int64], rows: NDArray[np.int64], shape_of: ShapeOf
    ) -> str | None:
        """Say what is wrong with the bounds ``lo:hi`` that offsets give some `rows`, (k,) each."""
        total = np.iinfo(np.int64).max if isinstance(self.cuts, Limit) else _rows(shape_of, self.cuts or "")
        wrong = (lo < 0) | (lo > hi) | (hi > total)
        if wrong.any():
            at = _first(wrong)
            return f"row {rows[at]} is {lo[at]}, the next one {hi[at]}: expected rising, in 0 to {total}"
        return next(self._count_errors(hi - lo, shape_of), None) if isinstance(self.cuts, Limit) else None

    def _count_errors(self, counts: NDArray[np.int64], shape_of: ShapeOf) -> Iterator[str]:
        """Offsets that count more bits of a row than it has."""
        assert isinstance(self.cuts, Limit)
        shape = [float(extent) for extent in self.cuts.most(shape_of)]
        most = float(np.prod(shape))
        if (counts > most).any():
            at = _first(counts > most)
            yield f"row {at} counts {counts[at]}, but {self.cuts.path} has room for {most:.0f}"

    def _range(self, shape_of: ShapeOf) -> tuple[int | None, list[tuple[str, Any]]]:
        """Smallest value, and the largest by what bounds it."""
        most: list[tuple[str, Any]] = []
        least = self.least
        if self.below is not None:
            path, more = self.below
            least = 0 if least is None else least
            most.append((f"rows of {path}", _rows(shape_of, path) + more - 1))
        for limit in self.inside:
            highest = limit.most(shape_of)
            most.append((f"stored in {limit.path}", highest if len(highest) > 1 else highest[0]))
        return least, most


def offsets_errors(offsets: NDArray[np.int64], total: int, what: str) -> Iterator[str]:
    """Offsets begin at 0, never fall, and end at the length of what they cut.

    Parameters
    ----------
    offsets
        (n + 1,).
    total
        Rows that they cut.
    what
        What the rows are: ``"points"``.
    """
    if not len(offsets) or offsets[0] != 0:
        yield f"begins with {offsets[0] if len(offsets) else 'nothing'}, expected 0"
        return
    falling = offsets[1:] < offsets[:-1]
    if falling.any():
        at = _first(falling)
        yield f"row {at + 1} is {offsets[at + 1]}, less than {offsets[at]} before it"
    if offsets[-1] != total:
        yield f"ends with {offsets[-1]}, but there are {total} {what}"


def _rows(shape_of: ShapeOf, path: str) -> int:
    shape = shape_of(path)
    return shape[0] if shape else 0


def _because(path: str, more: int) -> str:
    """Where an expected number of rows comes from."""
    said = "the root's count of samples" if path == SAMPLES else f"the rows of {path}"
    return f" ({said}{f' {more:+d}' if more else ''})"


def _any_component(wrong: Any) -> NDArray[np.bool_]:
    """One bool a row."""
    found: NDArray[np.bool_] = wrong if wrong.ndim == 1 else wrong.reshape(len(wrong), -1).any(axis=1)
    return found


def _first(wrong: Any) -> int:
    return int(np.argmax(wrong))


def _row(rows: NDArray[np.int64] | None, at: int) -> int:
    return at if rows is None else int(rows[at])


def _shown(value: Any) -> str:
    return str(np.asarray(value).tolist())
