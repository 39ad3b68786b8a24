"""What the arrays of a store must be, and what follows for machines that read it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from unistore.errors import Problem
from unistore.schemas.tables import HDF5_ATTRIBUTES
from unistore.system.hints import AnyArray, Int64s, JsonObject, Shape

# What an array of a store must be: axes, dtype, rows, and the range of values that index other arrays.
#
# Readers (`unistore.schemas.indices`) and ``verify`` (`unistore.integrity.verify`) check the same specs.


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """Shape and dtype of one array of a store."""

    shape: Shape  # all axes, axis 0 (rows) first
    dtype: str  # numpy dtype name in native form: "int32"


# Stands for an array with one row per sample, in place of an array's path
SAMPLES = ""

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
        largest = np.array([shape[axis] if axis < len(shape) else 0 for axis in self.axes], np.int64)
        largest[-1] *= self.scale
        return largest


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """What an array must be."""

    dtypes: tuple[str, ...] = ()  # allowed numpy dtype names; empty: any
    kinds: str = ""  # allowed kinds of numpy dtypes: "iuf" for numbers; empty: any
    # Shape after axis 0, with None for an axis of any length; None: any shape.
    row_shape: tuple[int | None, ...] | None = None
    # `(path, n)`: as many rows as the array at `path`, plus `n`; None: any number.
    rows: tuple[str, int] | None = None
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
    limits: tuple[Limit, ...] = ()  # arrays whose shapes bound the values

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
    def bounds_values(self) -> bool:
        """Whether the spec restricts values."""
        indexes = self.offsets_of is not None or self.indexes is not None or bool(self.limits)
        return indexes or self.ascending or self.least is not None

    def array_error(self, info: ArrayInfo, shape_of: ShapeOf) -> str | None:
        """Return what is wrong with the axes, dtype or rows of an array, or None."""
        if not info.shape:
            return "has no axis, expected rows on axis 0"
        if self.dtypes and info.dtype not in self.dtypes:
            return f"is {info.dtype}, expected {' or '.join(self.dtypes)}"
        if self.kinds and np.dtype(info.dtype).kind not in self.kinds:
            return f"is {info.dtype}, expected numbers"
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
            expected = _rows(shape_of, path) + extra
            if info.shape[0] != expected:
                origin = "the root's count of samples" if path == SAMPLES else f"the rows of {path}"
                origin += f" {extra:+d}" if extra else ""
                return f"has {info.shape[0]} rows, expected {expected} ({origin})"
        for limit in self.like:
            shape = shape_of(limit.path)
            extents = [shape[axis] for axis in limit.axes if axis < len(shape)]
            if extents:
                extents[-1] = -(-extents[-1] // limit.scale)
            expected_end = tuple(extents)
            if info.shape[-len(limit.axes) :] != expected_end:
                end = f"{expected_end} at its end, as {limit.path} has {shape}"
                return f"has shape {info.shape}, expected {end}"
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
        for violating, expected in wrong:
            violating_rows = np.flatnonzero(violating.any(axis=tuple(range(1, violating.ndim))))
            if violating_rows.size:
                row = int(violating_rows[0])
                number = row if rows is None else rows[row]
                yield f"row {number} is {values[row].tolist()}, expected {expected}"

    def span_error(self, lo: Int64s, hi: Int64s, rows: Int64s, shape_of: ShapeOf) -> str | None:
        """Return what is wrong with the ranges ``lo:hi`` that offsets give for `rows`, (k,) each, or None."""
        in_bits = isinstance(self.offsets_of, Limit)
        total = np.iinfo(np.int64).max if in_bits else _rows(shape_of, str(self.offsets_of or ""))
        wrong = (lo < 0) | (lo > hi) | (hi > total)
        if wrong.any():
            row = int(np.argmax(wrong))
            return f"row {rows[row]} is {lo[row]}, the next one {hi[row]}: expected rising, in 0 to {total}"
        return next(self._count_errors(hi - lo, shape_of), None) if in_bits else None

    def _count_errors(self, counts: Int64s, shape_of: ShapeOf) -> Iterator[str]:
        """Offsets that count more bits than a row has."""
        assert isinstance(self.offsets_of, Limit)
        bits = float(np.prod(self.offsets_of.maximum(shape_of).astype(np.float64)))
        if (counts > bits).any():
            row = int(np.argmax(counts > bits))
            yield f"row {row} counts {counts[row]}, but {self.offsets_of.path} has room for {bits:.0f}"


def spec_of(dtype: str, *row_shape: int | None, **further: Any) -> ArraySpec:
    """Return the spec of an array of one dtype and rows of a shape."""
    return ArraySpec(dtypes=(dtype,), row_shape=row_shape, **further)


def offsets_errors(offsets: Int64s, total: int, what: str) -> Iterator[str]:
    """Return what is wrong with offsets: they begin at 0, never decrease, and end with `total`."""
    if not len(offsets) or offsets[0] != 0:
        yield f"begins with {offsets[0] if len(offsets) else 'nothing'}, expected 0"
        return
    yield from _falling(offsets)
    if offsets[-1] != total:
        yield f"ends with {offsets[-1]}, but there are {total} {what}"


def _falling(values: AnyArray) -> Iterator[str]:
    wrong = values[1:] < values[:-1]
    if wrong.any():
        row = int(np.argmax(wrong))
        yield f"row {row + 1} is {values[row + 1]}, less than {values[row]} before it"


def _rows(shape_of: ShapeOf, path: str) -> int:
    return (shape_of(path) or (0,))[0]


# Bytes of strings or files, one after the other; offsets say where each begins
BYTES = spec_of("uint8")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpecs:
    """What the arrays of a family's stores must be, besides those that every store has."""

    # Spec by path of arrays that every store of the family has.
    arrays: Mapping[str, ArraySpec] = field(default_factory=dict)
    # Paths of further arrays that every store of the family has; `others` gives their specs.
    required: tuple[str, ...] = ()
    # `others(path, paths) -> ArraySpec`: spec of the array at `path` in a store that has arrays at `paths`;
    # `ArraySpec()` allows anything.
    others: Callable[[str, Collection[str]], ArraySpec] | None = None
    # Path of an array with the rows of the main table, or `SAMPLES`. None: the columns of the main table that
    # the root names.
    main_rows: str | None = None
    # `check(arrays)` yields what the specs cannot say of arrays that match them.
    check: Callable[[Mapping[str, ArrayInfo]], Iterable[Problem]] | None = None
    # Tables with text columns, `<table>/<column>/{data, offsets}`, and the rows of their offsets:
    # `{"volumes": (SAMPLES, 1)}` for one more than there are samples.
    text: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    # What all rows have in stores that lack an array, by its path or that of its group.
    absent: Mapping[str, float | str] = field(default_factory=dict)

    def absent_value(self, path: str) -> float | str | None:
        """Return what all rows of an array, or of a text column, have in stores that lack it."""
        group = path.rpartition("/")[0]
        return "{}" if group == HDF5_ATTRIBUTES else self.absent.get(path, self.absent.get(group))

    def of(self, path: str, paths: Collection[str]) -> ArraySpec:
        """Return the spec of the array at `path` in a store that has arrays at `paths`."""
        declared_spec = self.arrays.get(path) or self._common(path, paths)
        return declared_spec or (self.others(path, paths) if self.others else ArraySpec())

    def problems(self, arrays: Mapping[str, ArrayInfo], samples: int) -> list[Problem]:
        """Return arrays that are missing, or have other axes, dtype or rows than their spec."""
        shapes = {SAMPLES: (samples,), **{path: info.shape for path, info in arrays.items()}}
        needed = (*self.arrays, *self.required)
        problems = [Problem(path, "is missing", kind="schema") for path in needed if path not in arrays]
        for path, info in arrays.items():
            spec = self.of(path, arrays)
            error = next((f"needs the array {need}" for need in spec.needs if need not in shapes), None)
            error = error or ("its spec refers to itself" if self._is_circular(path, arrays) else None)
            error = error or spec.array_error(info, shapes.__getitem__)
            if error is not None:
                problems.append(Problem(path, error, kind="schema"))
        return problems if problems or self.check is None else list(self.check(arrays))

    def _is_circular(self, path: str, arrays: Collection[str]) -> bool:
        """Return whether checking an array leads back to it, so that no reader could open it."""
        seen: set[str] = set()
        paths = self.of(path, arrays).shape_needs
        while paths:
            needed = paths.pop()
            if needed == path:
                return True
            if needed not in seen:
                seen.add(needed)
                paths += self.of(needed, arrays).shape_needs
        return False

    def is_text(self, path: str, paths: Collection[str]) -> bool:
        """Return whether an array holds the bytes of a text column."""
        return path.endswith("/data") and self._is_text(path.removesuffix("/data"), paths)

    def _common(self, path: str, paths: Collection[str]) -> ArraySpec | None:
        """Spec of arrays that stores of every family may have: sources, splits and text. None for others."""
        if path == "splits/code":
            return spec_of("uint8", rows=(SAMPLES, 0))
        group, _, name = path.rpartition("/")
        if self._is_text(group, paths) and name in ("data", "offsets"):
            if name == "data":
                return BYTES
            table = group.partition("/")[0]
            rows = self.text.get(table, ("sources/path/offsets", 0)) if group != "sources/path" else None
            return spec_of("int64", rows=rows, offsets_of=f"{group}/data")
        if group == "sources":
            counted = ("sources/path/offsets", -1)
            if name in ("bytes", "rows", "first_row"):
                return spec_of("int64", rows=counted, least=0, ascending=name == "first_row")
            if name in ("scale", "offset"):
                return spec_of("float64", 3, rows=counted)
            return ArraySpec(rows=counted)
        return None

    def _is_text(self, group: str, paths: Collection[str]) -> bool:
        table, _, column = group.partition("/")
        is_column = (table == "sources" or table in self.text) and bool(column) and "/" not in column
        return is_column and f"{group}/data" in paths and f"{group}/offsets" in paths


# For families without specs of their own
GENERAL = ArraySpecs()


# Attributes that say to machines how the arrays of a store belong together; they follow from the specs.


def relations(axes: Mapping[str, Sequence[str]], specs: ArraySpecs) -> dict[str, JsonObject]:
    """Return attributes by path: ``ragged``, ``offsets_of``, ``padded``, ``indexes``, ``encoding``."""
    by_path = {path: specs.of(path, axes) for path in axes}
    of_same_rows = defaultdict(list)
    for path in axes:
        of_same_rows[_counting_array(path, by_path)].append(path)
    attributes: dict[str, JsonObject] = defaultdict(dict)
    for path, spec in by_path.items():
        if isinstance(spec.offsets_of, Limit):
            attributes[path]["set_bits_of"] = spec.offsets_of.path
        elif spec.offsets_of is not None:
            attributes[path]["offsets_of"] = spec.offsets_of
            for divided in of_same_rows[_counting_array(spec.offsets_of, by_path)]:
                attributes[divided]["ragged"] = {"offsets": path}
        if spec.indexes is not None:
            attributes[path]["indexes"] = spec.indexes[0].removesuffix("/offsets")
        for limit in spec.limits:
            padded_axes = [axes[limit.path][axis] for axis in limit.axes]
            extents = attributes[limit.path].setdefault("padded", [])
            extents.append({"extent": path, "axes": padded_axes})
        if specs.is_text(path, axes):
            attributes[path]["encoding"] = "utf-8"
    return attributes


def _counting_array(path: str, specs: Mapping[str, ArraySpec]) -> str:
    """Follow specs from an array to the one that decides how many rows it has."""
    while path in specs:
        rows = specs[path].rows
        if rows is None or rows[1] != 0:
            break
        path = rows[0]
    return path
