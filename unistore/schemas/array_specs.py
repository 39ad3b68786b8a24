"""What the arrays of a store must be, how its root records it, and what follows for machines that read it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from unistore.errors import CorruptionError, Problem
from unistore.schemas.tables import HDF5_ATTRIBUTES, name_problem
from unistore.system.types import AnyArray, Int64s, JsonObject, Shape

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
    # Shape after axis 0, with None for an axis of any length; None: any shape.
    row_shape: tuple[int | None, ...] | None = None
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
            counted = _rows(shape_of, path)
            times = (info.shape[0] - extra) // counted if self.repeated and counted else 1
            if info.shape[0] != times * counted + extra:
                origin = "the root's count of samples" if path == SAMPLES else f"the rows of {path}"
                origin += f" {extra:+d}" if extra else ""
                several = f"a multiple of {counted}, {extra:+d}" if self.repeated else f"{counted + extra}"
                return f"has {info.shape[0]} rows, expected {several} ({origin})"
        for limit in self.like:
            shape = shape_of(limit.path)
            extents = [shape[axis] for axis in limit.axes if axis < len(shape)]
            if extents:
                extents[-1] = -(-extents[-1] // limit.scale)
            expected_end = tuple(extents)
            if info.shape[-len(limit.axes) :] != expected_end:
                end = f"{expected_end} at its end, as {limit.path} has {shape}"
                return f"has shape {info.shape}, expected {end}"
        for limit in self.limits:
            if len(limit.axes) > 1 and info.shape[1:][-1:] != (len(limit.axes),):
                end = f"{len(limit.axes)} on its last axis, one for each bounded axis of {limit.path}"
                return f"has shape {info.shape}, expected {end}"
        counts = self.offsets_of is not None
        if (counts or self.ascending) and (len(info.shape) > 1 or np.dtype(info.dtype).kind not in "iu"):
            what = "offsets" if counts else "numbers that rise"
            return f"is {info.dtype} of shape {info.shape}, expected {what}: integers, (n)"
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
            bounds.append(("the last of its classes", self.most))
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
        total = _MOST if in_bits else _rows(shape_of, str(self.offsets_of or ""))
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


# Bytes of files, or of strings, one after the other; offsets say where each begins
BYTES = spec_of("uint8")
TEXT = spec_of("uint8", text=True)


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
        needed = (*self.arrays, *self.required)
        problems = [Problem(path, "is missing", kind="schema") for path in needed if path not in arrays]
        problems += rule_problems({path: self.of(path, arrays) for path in arrays}, arrays, samples)
        return problems if problems or self.check is None else list(self.check(arrays))

    def _common(self, path: str, paths: Collection[str]) -> ArraySpec | None:
        """Spec of arrays that stores of every family may have: sources, splits and text. None for others."""
        if path == "splits/code":
            return spec_of("uint8", rows=(SAMPLES, 0))
        group, _, name = path.rpartition("/")
        if self._is_text(group, paths) and name in ("data", "offsets"):
            if name == "data":
                return TEXT
            table = group.partition("/")[0]
            rows = self.text.get(table, (SOURCE_BOUNDS, 0)) if path != SOURCE_BOUNDS else None
            return spec_of("int64", rows=rows, offsets_of=f"{group}/data")
        if group == "sources":
            counted = (SOURCE_BOUNDS, -1)
            if name == "bytes":
                return spec_of("int64", rows=counted, least=0)
            if name in ("scale", "offset"):
                return spec_of("float64", 3, rows=counted)
            return ArraySpec(rows=counted)
        table = table_of_offsets(path, paths)
        if table:
            column = first_column(table, paths, lambda other: self.of(other, paths))
            return spec_of("int64", rows=(SOURCE_BOUNDS, 0), offsets_of=column or None)
        return None

    def _is_text(self, group: str, paths: Collection[str]) -> bool:
        table, _, column = group.partition("/")
        is_column = (table == "sources" or table in self.text) and bool(column) and "/" not in column
        return is_column and f"{group}/data" in paths and f"{group}/offsets" in paths


def rule_problems(
    rules: Mapping[str, ArraySpec], arrays: Mapping[str, ArrayInfo], samples: int
) -> list[Problem]:
    """Return arrays of other axes, dtype or rows than their rule, and those whose rule none can keep."""
    shapes = {SAMPLES: (samples,), **{path: info.shape for path, info in arrays.items()}}
    problems = []
    for path, info in arrays.items():
        error = next((f"needs the array {need}" for need in rules[path].needs if need not in shapes), None)
        error = error or ("its spec refers to itself" if is_circular(rules, path) else None)
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


# The rows of tables, and those of each source.


def counting_array(path: str, rules: Mapping[str, ArraySpec]) -> str:
    """Follow rules from an array to the one that decides how many rows it has, or to `SAMPLES`."""
    while path in rules:
        rows = rules[path].rows
        if rows is None or rows[1] != 0:
            break
        path = rows[0]
    return path


def source_offsets(table: str) -> str:
    """Return the path of the offsets that divide the rows of a table by source."""
    return f"sources/{table}/offsets"


def table_of_offsets(path: str, paths: Collection[str]) -> str:
    """Return the table whose rows an array divides by source. Empty: the array is something else."""
    table = path.removeprefix("sources/").removesuffix("/offsets")
    is_text = path == SOURCE_BOUNDS or f"sources/{table}/data" in paths
    return "" if path != source_offsets(table) or is_text else table


def first_column(table: str, paths: Collection[str], rule_of: Callable[[str], ArraySpec]) -> str:
    """Return the path of the column that says how many rows a table has. Empty: it has no column.

    Parameters
    ----------
    table
        Name of the table.
    paths
        Paths of all arrays.
    rule_of
        Returns the rule of an array.
    """
    for path in _in_group(table, paths, rule_of):
        column = path
        rule = rule_of(column)
        while _is_column(rule):
            if rule.rows is None or not rule.rows[0].startswith(f"{table}/"):
                return column
            column = rule.rows[0]
            rule = rule_of(column)
    return ""


def columns_of(table: str, rules: Mapping[str, ArraySpec]) -> list[str]:
    """Return the paths of the columns of a table: the arrays in its group with a row for each of its rows."""
    first = first_column(table, rules, rules.__getitem__)
    counting = counting_array(first, rules)
    return [
        path
        for path in _in_group(table, rules, rules.__getitem__)
        if first and _is_column(rules[path]) and counting_array(path, rules) == counting
    ]


def _is_column(rule: ArraySpec) -> bool:
    counts_others = rule.offsets_of is not None or rule.text
    return not counts_others and (rule.rows is None or rule.rows[1] == 0)


def _in_group(table: str, paths: Collection[str], rule_of: Callable[[str], ArraySpec]) -> list[str]:
    """Return the arrays in the group of a table, without those of tables, texts and ragged columns in it."""
    inside = sorted([path for path in paths if path.startswith(f"{table}/")])
    others = {
        f"{path.removeprefix('sources/').removesuffix('offsets')}"
        for path in paths
        if path.startswith(f"sources/{table}/")
    }
    for path in inside:
        group = path.removesuffix("data")
        if group != path and f"{group}offsets" in paths and rule_of(f"{group}offsets").offsets_of == path:
            others.add(group)
    groups = tuple(others.difference([f"{table}/"]))
    return [path for path in inside if not path.startswith(groups)]


# What a root records: the rule of each array as a JSON object.

RULE = "rule"  # member of each object in the root's ``fields``
MORE = "extends"  # of the member ``side`` of a side table's root: what it adds to rules of its store

_LIMITS = ("like", "limits")
_DEFAULTS = {member.name: member.default for member in fields(ArraySpec)}


class RuleError(CorruptionError):
    """A root states something that is no rule, or a rule that leads back to its own array."""

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(f"{store}: zarr.json is damaged: {reason}; run 'unistore verify {store}'")
        self.store = store
        self.reason = reason

    def __reduce__(self) -> tuple[type[RuleError], tuple[str, str]]:
        return type(self), (self.store, self.reason)


def rule_of(spec: ArraySpec) -> JsonObject:
    """Return the JSON object of a rule, without the members that say nothing."""
    stated = {name: getattr(spec, name) for name in _DEFAULTS}
    return {name: _plain(value) for name, value in stated.items() if value != _DEFAULTS[name]}


def _plain(value: Any) -> Any:
    if isinstance(value, Limit):
        return {"array": value.path, "axes": list(value.axes), "scale": value.scale}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def parse_rule(document: object) -> ArraySpec:
    """Return the rule that `rule_of` made a JSON object of.

    Raises
    ------
    ValueError
        If a member is unknown, or has another form.
    """
    if not isinstance(document, dict):
        msg = f"is {document!r:.80}, expected an object"
        raise ValueError(msg)
    unknown = sorted(document.keys() - _PARSERS.keys())
    if unknown:
        msg = f"has the unknown member {unknown[0]!r:.80}"
        raise ValueError(msg)
    members = {}
    for name, value in document.items():
        try:
            members[name] = _PARSERS[name](value)
        except (TypeError, ValueError, KeyError) as error:
            msg = f"member {name!r} is {value!r:.80}"
            raise ValueError(msg) from error
    return ArraySpec(**members)


def _of_type(kind: type) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError
        return value

    return parse


_text = _of_type(str)
_whole = _of_type(int)


def _several(parse: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def parse_all(values: Any) -> tuple[Any, ...]:
        return tuple(map(parse, _of_type(list)(values)))

    return parse_all


def _path(value: Any) -> str:
    if _text(value) != SAMPLES and name_problem(value) is not None:
        raise ValueError
    return str(value)


def _length(value: Any) -> int | None:
    return None if value is None else int(_whole(value))


def _counted(value: Any) -> tuple[str, int]:
    path, more = _of_type(list)(value)
    return _path(path), int(_whole(more))


def _limit(value: Any) -> Limit:
    members = _of_type(dict)(value)
    if members.keys() != {"array", "axes", "scale"}:
        raise ValueError
    limit = Limit(_path(members["array"]), _several(_whole)(members["axes"]), int(_whole(members["scale"])))
    if not limit.axes or min(limit.axes) < 0 or limit.scale < 1:
        raise ValueError
    return limit


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "dtypes": _several(_text),
    "kinds": _text,
    "row_shape": _several(_length),
    "rows": _counted,
    "beside": _several(_path),
    "like": _several(_limit),
    "offsets_of": lambda value: _path(value) if isinstance(value, str) else _limit(value),
    "repeated": _of_type(bool),
    "indexes": _counted,
    "ascending": _of_type(bool),
    "least": _whole,
    "most": _whole,
    "limits": _several(_limit),
    "text": _of_type(bool),
}


class StatedRules(Mapping[str, ArraySpec]):
    """The rules that a root states in its ``fields``, each parsed with its first use."""

    def __init__(self, documents: Mapping[str, JsonObject], store: str) -> None:
        self._documents = documents
        self._store = store
        self._parsed: dict[str, ArraySpec] = {}

    def __getitem__(self, path: str) -> ArraySpec:
        """Return the rule of an array. `RuleError` if none can keep it."""
        rule = self._parsed.get(path)
        if rule is None:
            try:
                rule = parse_rule(self._documents[path].get(RULE))
            except ValueError as error:
                raise RuleError(self._store, f"rule of {path!r}: {error}") from error
            self._parsed[path] = rule  # found by the search for circles, and forgotten if there is one
            if self._is_circular(path):
                del self._parsed[path]
                raise RuleError(self._store, f"rule of {path!r}: leads back to itself")
        return rule

    def _is_circular(self, path: str) -> bool:
        try:
            return is_circular(self, path)
        except RuleError:
            del self._parsed[path]
            raise

    def __iter__(self) -> Iterator[str]:
        return iter(self._documents)

    def __len__(self) -> int:
        return len(self._documents)


class RecordedSpecs:
    """The rules of the arrays of one store, by path.

    Parameters
    ----------
    rules
        Rule of each array, those of side tables included.
    """

    def __init__(self, rules: Mapping[str, ArraySpec]) -> None:
        self._rules = rules

    def of(self, path: str) -> ArraySpec:
        """Return the rule of an array."""
        return self._rules[path]

    def rules(self) -> Mapping[str, ArraySpec]:
        """Return the rules of all arrays by path."""
        return self._rules

    def texts(self) -> list[str]:
        """Return the paths of all text columns, which have ``data`` and ``offsets``."""
        return [path.removesuffix("/data") for path, rule in self._rules.items() if rule.text]

    def problems(self, arrays: Mapping[str, ArrayInfo], samples: int) -> list[Problem]:
        """Return the arrays that have other axes, dtype or rows than their rule."""
        return rule_problems(self._rules, arrays, samples)


def resolved(specs: ArraySpecs, paths: Collection[str]) -> RecordedSpecs:
    """Return what the specs of a family say of a store that has arrays at these paths."""
    return RecordedSpecs({path: specs.of(path, paths) for path in paths})


def with_side_table(
    documents: Mapping[str, JsonObject],
    side_documents: Mapping[str, JsonObject],
    more: Mapping[str, JsonObject],
    store: str,
) -> dict[str, JsonObject]:
    """Return ``fields`` of a store and of a side table, with what that adds to rules of the store (`MORE`).

    Raises
    ------
    RuleError
        If a rule of the store, which is named, cannot be kept as it is.
    ValueError
        If the side table adds what no rule can have, or to an array that the store does not have.
    """
    stated = StatedRules(documents, store)
    fields = {**documents, **side_documents}
    for path, added in more.items():
        if path not in documents:
            msg = f"adds to the rule of {path!r}, which {store} does not have"
            raise ValueError(msg)
        rule = rule_of(stated[path])
        further = parse_rule(added)
        if foreign := sorted(added.keys() - {*_LIMITS}):
            msg = f"adds {foreign[0]!r} to the rule of {path!r}, expected {' or '.join(_LIMITS)}"
            raise ValueError(msg)
        if missing := [need for need in further.needs if need not in fields]:
            msg = f"adds the array {missing[0]!r} to the rule of {path!r}, which is not there"
            raise ValueError(msg)
        for name in added:
            rule[name] = [*rule.get(name, ()), *_plain(getattr(further, name))]
        fields[path] = {**documents[path], RULE: rule}
    joined = StatedRules(fields, store)
    try:
        for path in more:
            joined[path]  # raises if it leads back to itself by now
    except RuleError as error:
        raise ValueError(error.reason) from error
    return fields


def extensions(before: RecordedSpecs, after: RecordedSpecs) -> dict[str, JsonObject]:
    """Return what rules of `before` gain with further arrays: limits, by the path of their array."""
    more: dict[str, JsonObject] = {}
    for path, rule in before.rules().items():
        further = after.of(path)
        for name in _LIMITS:
            known = getattr(rule, name)
            gained = [_plain(limit) for limit in getattr(further, name) if limit not in known]
            if gained:
                more.setdefault(path, {})[name] = gained
    return more


# Attributes that say to machines how the arrays of a store belong together; they follow from the specs.


def relations(axes: Mapping[str, Sequence[str]], specs: ArraySpecs) -> dict[str, JsonObject]:
    """Return attributes by path: ``ragged``, ``offsets_of``, ``padded``, ``indexes``, ``encoding``."""
    by_path = {path: specs.of(path, axes) for path in axes}
    of_same_rows = defaultdict(list)
    for path in axes:
        of_same_rows[counting_array(path, by_path)].append(path)
    attributes: dict[str, JsonObject] = defaultdict(dict)
    # Rows are told by samples where they can be, else by sources
    by_path = dict(sorted(by_path.items(), key=lambda item: item[0].startswith("sources/")))
    for path, spec in by_path.items():
        if isinstance(spec.offsets_of, Limit):
            attributes[path]["set_bits_of"] = spec.offsets_of.path
        elif spec.offsets_of is not None:
            attributes[path]["offsets_of"] = spec.offsets_of
            counting = counting_array(spec.offsets_of, by_path)
            if counting == SAMPLES and spec.rows == (SOURCE_BOUNDS, 0):
                continue
            for divided in of_same_rows[counting]:
                attributes[divided].setdefault("ragged", {"offsets": path})
        if spec.indexes is not None:
            attributes[path]["indexes"] = spec.indexes[0].removesuffix("/offsets")
        for limit in spec.limits:
            padded_axes = [axes[limit.path][axis] for axis in limit.axes]
            extents = attributes[limit.path].setdefault("padded", [])
            extents.append({"extent": path, "axes": padded_axes})
        if spec.text:
            attributes[path]["encoding"] = "utf-8"
    return attributes
