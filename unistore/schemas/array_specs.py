"""What an array of a store must be: axes, dtype, rows, and values that index other arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from unistore.errors import Problem
from unistore.system.types import AnyArray, Int64s, Shape

# Readers (`unistore.schemas.indices`) and ``verify`` (`unistore.integrity.verify`) check the same specs.


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """Shape and dtype of one array of a store."""

    shape: Shape  # all axes, axis 0 (rows) first
    dtype: str  # numpy dtype name in native form: "int32"


# Stands for an array with one row per sample, in place of an array's path
SAMPLES = ""
# Path of an array with one row more than there are sources
SOURCE_BOUNDS = "sources/path/offsets"

_MOST = np.iinfo(np.int64).max

# Shape of the array at a path; of `SAMPLES`, (samples,)
ShapeOf = Callable[[str], Shape]


class Limit(NamedTuple):
    """Array whose shape bounds the values, or is the shape, of another array."""

    path: str
    axes: tuple[int, ...]  # its axes, one per component of the values
    # How many values the other array packs along the last of these axes, or this one: 8 if a byte holds 8.
    scale: int = 1

    def maximum(self, shape_of: ShapeOf) -> Int64s:
        """Return the largest value of each component."""
        shape = shape_of(self.path)
        largest = [shape[axis] if axis < len(shape) else 0 for axis in self.axes]
        largest[-1] *= self.scale
        return np.array([min(extent, _MOST) for extent in largest], np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """What an array must be."""

    dtypes: tuple[str, ...] = ()  # allowed numpy dtype names; empty: any
    kinds: str = ""  # allowed kinds of numpy dtypes: "iuf" for numbers; empty: any
    # Shape after axis 0, with None for an axis of any length; None: any shape. Of templates, a hole may be
    # an extent.
    row_shape: tuple[int | str | None, ...] | None = None
    # `(path, n)`: as many rows as the array at `path`, plus `n`; None: any number.
    rows: tuple[str, int] | None = None
    repeated: bool = False  # whether it has as many rows several times, with `n` at the end
    beside: tuple[str, ...] = ()  # arrays that must be there as well
    # Arrays whose extents this one has on its last axes, the last one divided by `Limit.scale`, rounded up.
    like: tuple[Limit, ...] = ()
    # The values are offsets into the rows of the array at this path, or, with a `Limit`, into the set bits of
    # its rows.
    offsets_of: str | Limit | None = None
    # `(path, n)`: each value is at least 0 and less than the rows of the array at `path`, plus `n`.
    indexes: tuple[str, int] | None = None
    ascending: bool = False  # whether no value is less than the one before it
    least: int | None = None  # smallest value of each component
    most: int | None = None  # largest value of each component
    limits: tuple[Limit, ...] = ()  # arrays whose shapes bound the values
    text: bool = False  # whether the values are the UTF-8 bytes of a text column
    # What all rows have in stores that lack the array, in those of a text the text; None: no store lacks it.
    absent: float | str | None = None

    @property
    def needs(self) -> list[str]:
        """Paths of the arrays that the spec refers to."""
        limits = [*self.limits, *self.like]
        paths = [*self.beside]
        if isinstance(self.offsets_of, Limit):
            limits.append(self.offsets_of)
        elif self.offsets_of:
            paths.append(self.offsets_of)
        paths += [array[0] for array in (self.rows, self.indexes) if array is not None]
        return [path for path in [*paths, *(limit.path for limit in limits)] if path]

    @property
    def shape_needs(self) -> list[str]:
        """Paths of the arrays whose shapes decide the shape of this one."""
        paths = [limit.path for limit in self.like]
        return [*paths, self.rows[0]] if self.rows else paths

    @property
    def divides(self) -> str | None:
        """Path of the array whose rows the values divide into ranges, or whose ranges, if it has offsets."""
        if self.offsets_of is not None:
            return self.offsets_of if isinstance(self.offsets_of, str) else None
        has_one_more = self.rows is not None and self.rows[1] == 1
        return self.indexes[0] if self.indexes is not None and has_one_more else None

    @property
    def is_offsets(self) -> bool:
        """Whether the values are where ranges of rows, of other ranges or of bits begin."""
        return self.offsets_of is not None or self.divides is not None

    @property
    def bounds_values(self) -> bool:
        """Whether the spec restricts values."""
        indexes = self.offsets_of is not None or self.indexes is not None or bool(self.limits)
        return indexes or self.ascending or self.least is not None or self.most is not None

    def array_error(self, info: ArrayInfo, shape_of: ShapeOf) -> str | None:
        """Return what is wrong with the axes, dtype or rows of an array, or None."""
        if not info.shape:
            return "has no axes, expected rows on axis 0"
        if self.dtypes and info.dtype not in self.dtypes:
            return f"has dtype {info.dtype}, expected {_one_of(self.dtypes)}"
        if self.kinds and np.dtype(info.dtype).kind not in self.kinds:
            words = [_KINDS.get(kind, f"NumPy's kind {kind!r}") for kind in self.kinds]
            return f"has dtype {info.dtype}, expected {_one_of(words)}"
        if self.row_shape is not None:
            row = info.shape[1:]
            fits = len(row) == len(self.row_shape) and all(
                size in (None, extent) for size, extent in zip(self.row_shape, row, strict=True)
            )
            if not fits:
                row_text = ", ".join(
                    "n" if extent is None else str(extent) for extent in ("n", *self.row_shape)
                )
                return f"has shape {info.shape}, expected ({row_text})"
        if self.rows is not None:
            path, extra = self.rows
            counted = _rows(shape_of, path)
            times = (info.shape[0] - extra) // counted if self.repeated and counted else 1
            if info.shape[0] != times * counted + extra:
                origin = "the number of samples" if path == SAMPLES else f"the number of rows of {path}"
                more = _more_than(extra)
                several = f"{more}a multiple of {counted:,}, {origin}"
                expected = several if self.repeated else f"{counted + extra:,}, {more}{origin}"
                return f"has {info.shape[0]:,} rows, expected {expected}"
        for limit in self.like:
            shape = shape_of(limit.path)
            extents = [shape[axis] for axis in limit.axes if axis < len(shape)]
            if extents:
                extents[-1] = -(-extents[-1] // limit.scale)
            if info.shape[-len(limit.axes) :] != tuple(extents):
                expected = ", ".join(["…", *map(str, extents)])
                return (
                    f"has shape {info.shape}, expected ({expected}), because {limit.path} has shape {shape}"
                )
        for limit in self.limits:
            if len(limit.axes) > 1 and info.shape[1:][-1:] != (len(limit.axes),):
                axis = f"a last axis of {len(limit.axes)}, one value for each limiting axis of {limit.path}"
                return f"has shape {info.shape}, expected {axis}"
        counts = self.offsets_of is not None
        if (counts or self.ascending) and (len(info.shape) > 1 or np.dtype(info.dtype).kind not in "iu"):
            why = "its values are offsets" if counts else "its values ascend"
            found = f"has dtype {info.dtype} and shape {info.shape}"
            return f"{found}, expected integers and shape (n), because {why}"
        return None

    def value_errors(self, values: AnyArray, shape_of: ShapeOf) -> Iterator[str]:
        """Yield what is wrong with the values (rows, …) of a whole array."""
        if isinstance(self.offsets_of, Limit):
            yield from offsets_errors(values, int(values[-1]) if len(values) else 0, "")
            yield from self._count_errors(np.diff(values), shape_of)
        elif self.offsets_of is not None:
            yield from offsets_errors(values, _rows(shape_of, self.offsets_of), f"rows in {self.offsets_of}")
        if self.ascending:
            yield from _falling(values)
        yield from self.row_errors(values, None, shape_of)

    def row_errors(self, values: AnyArray, rows: Int64s | None, shape_of: ShapeOf) -> Iterator[str]:
        """Values out of range. `values` (k, …) are those of `rows` (k,), or of all rows if None."""
        least = self.least
        bounds = list[tuple[str, Any]]()
        if self.most is not None:
            bounds.append(("the number of its last class", self.most))
        if self.indexes is not None:
            path, extra = self.indexes
            least = 0 if least is None else least
            bound = {-1: "the last range of", 0: "the last row of", 1: "the number of rows of"}
            reason = f"{bound.get(extra, 'by the number of rows of')} {path}"
            bounds.append((reason, _rows(shape_of, path) + extra - 1))
        for limit in self.limits:
            largest = limit.maximum(shape_of)
            bounds.append(
                (f"the extent that {limit.path} stores", largest if len(largest) > 1 else largest[0])
            )
        wrong = [(values < least, f"at least {least:,}")] if least is not None else []
        wrong += [(values > largest, f"at most {_shown(largest)}, {reason}") for reason, largest in bounds]
        for violating, expected in wrong:
            violating_rows = np.flatnonzero(violating.any(axis=tuple(range(1, violating.ndim))))
            if violating_rows.size:
                row = int(violating_rows[0])
                number = row if rows is None else rows[row]
                yield f"row {number:,} is {_shown(values[row])}, expected {expected}"

    def span_error(self, lo: Int64s, hi: Int64s, rows: Int64s, shape_of: ShapeOf) -> str | None:
        """Return what is wrong with the ranges ``lo:hi`` that offsets give for `rows`, (k,) each, or None."""
        in_bits = isinstance(self.offsets_of, Limit)
        total = _MOST if in_bits else _rows(shape_of, str(self.offsets_of or ""))
        wrong = (lo < 0) | (lo > hi) | (hi > total)
        if wrong.any():
            row = int(np.argmax(wrong))
            limits = "from 0 on" if in_bits else f"from 0 to {total:,}"
            found = f"row {rows[row]:,} is {lo[row]:,} and the next row is {hi[row]:,}"
            return f"{found}, expected offsets {limits} that do not fall"
        return next(self._count_errors(hi - lo, shape_of), None) if in_bits else None

    def _count_errors(self, counts: Int64s, shape_of: ShapeOf) -> Iterator[str]:
        """Offsets that count more bits than a row has."""
        assert isinstance(self.offsets_of, Limit)
        bits = float(np.prod(self.offsets_of.maximum(shape_of).astype(np.float64)))
        if (counts > bits).any():
            row = int(np.argmax(counts > bits))
            path = self.offsets_of.path
            yield f"row {row:,} counts {counts[row]:,} bits, but a row of {path} has only {bits:,.0f}"


def spec_of(dtype: str, *row_shape: int | str | None, **further: Any) -> ArraySpec:
    """Return the spec of an array of one dtype and rows of a shape."""
    return ArraySpec(dtypes=(dtype,), row_shape=row_shape, **further)


def offsets_errors(offsets: Int64s, total: int, what: str) -> Iterator[str]:
    """Return what is wrong with offsets: they begin at 0, never decrease, and end with `total`."""
    if not len(offsets) or offsets[0] != 0:
        yield f"begins with {offsets[0]:,}, expected 0" if len(offsets) else "is empty, expected 0 first"
        return
    yield from _falling(offsets)
    if offsets[-1] != total:
        yield f"ends with {offsets[-1]:,}, but there are {total:,} {what}"


def _falling(values: AnyArray) -> Iterator[str]:
    wrong = values[1:] < values[:-1]
    if wrong.any():
        row = int(np.argmax(wrong))
        yield f"row {row + 1:,} is {values[row + 1]:,}, less than the row before it, {values[row]:,}"


def _shown(value: Any) -> str:
    """Return a number, or the numbers of a row, for a message."""
    numbers = np.asarray(value).tolist()
    return str(numbers) if isinstance(numbers, list) else f"{numbers:,}"


# What arrays of the kinds of numpy dtypes have, for messages
_KINDS = {"b": "booleans", "i": "integers", "u": "unsigned integers", "f": "floats"}


def _one_of(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _more_than(extra: int) -> str:
    if not extra:
        return ""
    number = "one" if abs(extra) == 1 else f"{abs(extra):,}"
    return f"{number} {'more' if extra > 0 else 'less'} than "


def _rows(shape_of: ShapeOf, path: str) -> int:
    return (shape_of(path) or (0,))[0]


# Bytes of files, or of strings, one after the other; offsets say where each begins
BYTES = spec_of("uint8")
TEXT = spec_of("uint8", text=True)


def rule_problems(
    rules: Mapping[str, ArraySpec], arrays: Mapping[str, ArrayInfo], samples: int
) -> list[Problem]:
    """Return arrays of other axes, dtype or rows than their rule, and those whose rule none can keep."""
    shapes = {SAMPLES: (samples,), **{path: info.shape for path, info in arrays.items()}}
    problems = []
    for path, info in arrays.items():
        missing = (need for need in rules[path].needs if need not in shapes)
        error = next((f"its rule needs the array {need}, which is missing" for need in missing), None)
        error = error or ("its rule refers back to its own array" if is_circular(rules, path) else None)
        error = error or rules[path].array_error(info, shapes.__getitem__)
        if error is not None:
            problems.append(Problem(path, error, kind="schema"))
    return problems


def is_circular(rules: Mapping[str, ArraySpec], path: str) -> bool:
    """Return whether checking an array leads back to it, so that no reader could open it."""
    seen: set[str] = set()
    needs = rules[path].shape_needs
    while needs:
        needed = needs.pop()
        if needed == path:
            return True
        if needed in rules and needed not in seen:
            seen.add(needed)
            needs += rules[needed].shape_needs
    return False
