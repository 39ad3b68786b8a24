"""Rules that a family declares: by path, and for arrays that the files name by a template of their paths."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, TypeAlias

from unistore.errors import Problem
from unistore.schemas.array_specs import (
    SAMPLES,
    SOURCE_BOUNDS,
    TEXT,
    ArrayInfo,
    ArraySpec,
    Limit,
    spec_of,
)
from unistore.schemas.recorded_rules import RecordedSpecs
from unistore.schemas.table_rows import first_column
from unistore.schemas.tables import HDF5_ATTRIBUTES

# The spec of an array, or several: the first one holds whose arrays are all there (`_is_there`), else the
# last one.
Declared: TypeAlias = ArraySpec | tuple[ArraySpec, ...]

# A template has holes: ``voxels/<size>/counts``. Its spec may name them, and has in their place what the path
# has: ``voxels/<size>/coords``. ``<#bins>`` takes digits only, and a `row_shape` may have it as an extent.
_HOLE = re.compile(r"<(#?\w+)>")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpecs:
    """What the arrays of a family's stores must be, besides those that every store has.

    A path with a slash at its end stands for the column of this table that says how many rows it has:
    ``rows=("clips/", 0)``. Limits and arrays that one is `like` hold as far as they are there, and may be
    templates.

    Attributes
    ----------
    arrays
        Spec by path of arrays that every store of the family has.
    optional
        Spec by path, or by a template of it, of arrays that a store may have; the first template that fits
        holds. Arrays without any may be anything.
    check
        ``check(arrays)`` yields what the specs cannot say of arrays that match them.
    """

    arrays: Mapping[str, Declared] = field(default_factory=dict)
    optional: Mapping[str, Declared] = field(default_factory=dict)
    check: Callable[[Mapping[str, ArrayInfo]], Iterable[Problem]] | None = None

    def problems(
        self, arrays: Mapping[str, ArrayInfo], samples: int, rules: RecordedSpecs | None = None
    ) -> list[Problem]:
        """Return arrays that are missing, or have other axes, dtype or rows than their rule.

        `rules`: None for those that the specs alone give.
        """
        rules = rules or resolved(self, arrays)
        problems = [Problem(path, "is missing", kind="schema") for path in self.arrays if path not in arrays]
        problems += rules.problems(arrays, samples)
        return problems if problems or self.check is None else list(self.check(arrays))


def text_columns(path: str, rows: tuple[str, int], absent: str | None = None) -> dict[str, Declared]:
    """Declare ``path/{data, offsets}`` of texts, of which the offsets have these `rows`.

    `absent`: the text of all rows in stores that lack the column.
    """
    offsets = spec_of("int64", rows=rows, offsets_of=f"{path}/data", absent=absent)
    return {f"{path}/data": replace(TEXT, absent=absent), f"{path}/offsets": offsets}


_OF_SOURCES = (SOURCE_BOUNDS, -1)
_DIVIDING = spec_of("int64", rows=(SOURCE_BOUNDS, 0))
# Arrays that stores of all families have, or may have
EVERY_STORE: Mapping[str, Declared] = {
    "splits/code": spec_of("uint8", rows=(SAMPLES, 0)),
    "sources/path/data": TEXT,
    SOURCE_BOUNDS: spec_of("int64", offsets_of="sources/path/data"),
    "sources/bytes": spec_of("int64", rows=_OF_SOURCES, least=0),
    "sources/hash": spec_of("uint8", 16, rows=_OF_SOURCES),
    "sources/scale": spec_of("float64", 3, rows=_OF_SOURCES),
    "sources/offset": spec_of("float64", 3, rows=_OF_SOURCES),
    **text_columns(HDF5_ATTRIBUTES, (SOURCE_BOUNDS, 0), absent="{}"),
    "sources/<column>/data": TEXT,
    # of texts, else of the rows of a table
    "sources/<column>/offsets": (
        replace(_DIVIDING, offsets_of="sources/<column>/data"),
        replace(_DIVIDING, offsets_of="<column>/"),
        _DIVIDING,
    ),
    "sources/<column>": ArraySpec(rows=_OF_SOURCES),
}


def resolved(
    specs: ArraySpecs, paths: Collection[str], columns: Mapping[str, ArraySpec | None] | None = None
) -> RecordedSpecs:
    """Return the rules of the arrays of a store.

    Parameters
    ----------
    specs
        What the family declares.
    paths
        Paths of all arrays.
    columns
        What else is known of some arrays, by path: dtypes and values of columns, all of stored arrays.
    """
    resolver = _Resolver(specs, paths, columns or {})
    return RecordedSpecs({path: resolver.rule(path) for path in paths})


# What a column that is named at conversion may state beside what its family declares
_OF_COLUMNS = ("kinds", "row_shape", "least", "most")


def is_kept(declared: ArraySpec, recorded: ArraySpec) -> bool:
    """Return whether a recorded rule is the declared one, or says more of the values of a column."""
    more = {name: getattr(recorded, name) for name in _OF_COLUMNS if getattr(declared, name) in (None, "")}
    return _in_order(replace(declared, **more)) == _in_order(recorded)


def _in_order(spec: ArraySpec) -> ArraySpec:
    """Return a spec that names the arrays which are there in the order of their paths."""
    return replace(spec, like=tuple(sorted(spec.like)), limits=tuple(sorted(spec.limits)))


def stated(spec: ArraySpec) -> dict[str, Any]:
    """Return the members of a spec that restrict anything."""
    members = {member.name: (getattr(spec, member.name), member.default) for member in fields(ArraySpec)}
    return {name: value for name, (value, default) in members.items() if value != default}


class _Resolver:
    """Makes of declared specs the rules of the arrays at some paths."""

    def __init__(
        self, specs: ArraySpecs, paths: Collection[str], columns: Mapping[str, ArraySpec | None]
    ) -> None:
        self._columns = columns
        self._declared = {**EVERY_STORE, **specs.optional, **specs.arrays}
        self._paths = frozenset(paths)
        self._specs: dict[str, ArraySpec] = {}
        self._counting: dict[str, tuple[str, int]] = {}

    def rule(self, path: str) -> ArraySpec:
        """Return the rule of an array, which names arrays that are there."""
        spec = self._spec(path)
        offsets_of = spec.offsets_of
        if isinstance(offsets_of, str):
            offsets_of = self._counted((offsets_of, 0))[0]
        rows = None if spec.rows is None else self._counted(spec.rows)
        return replace(
            spec,
            rows=None if rows is None or rows[0] == path else rows,
            offsets_of=offsets_of,
            indexes=None if spec.indexes is None else self._counted(spec.indexes),
            like=tuple(self._present(spec.like)),
            limits=tuple(self._present(spec.limits)),
        )

    def _spec(self, path: str) -> ArraySpec:
        """Return the spec of an array, in which templates of limits and names of tables stay."""
        spec = self._specs.get(path)
        if spec is None:
            candidates = self._candidates(path)
            holding = (each for each in candidates if self._is_there(each))
            spec = next(holding, candidates[-1])
            column = self._columns.get(path)
            if column is not None:
                spec = replace(column, **stated(spec))
            self._specs[path] = spec
        return spec

    def _candidates(self, path: str) -> Sequence[ArraySpec]:
        if path in self._declared:
            return _each(self._declared[path])
        for template, specs in self._declared.items():
            match = _pattern(template).fullmatch(path)
            if match is not None:
                texts = dict(zip(_HOLE.findall(template), match.groups(), strict=True))
                return [_filled(spec, texts) for spec in _each(specs)]
        return [ArraySpec()]

    def _is_there(self, spec: ArraySpec) -> bool:
        """Return whether the arrays are there that an array divides, or stands beside."""
        divided = spec.offsets_of
        if isinstance(divided, str) and divided.endswith("/"):
            return self._counted((divided, 0))[1] == 0
        if isinstance(divided, Limit):
            divided = divided.path
        return self._paths.issuperset(filter(None, [*spec.beside, divided]))

    def _counted(self, counted: tuple[str, int]) -> tuple[str, int]:
        """Return an array and how many rows more than it there are, in place of a table."""
        table, more = counted
        if not table.endswith("/"):
            return counted
        if table not in self._counting:
            self._counting[table] = self._counting_array(table)
        path, fewer = self._counting[table]
        return path, more - fewer

    def _counting_array(self, table: str) -> tuple[str, int]:
        """Return the array that says how many rows a table has, and how many more it has itself."""
        column = first_column(table.removesuffix("/"), self._paths, self._spec)
        if column:
            return column, 0
        # all its columns are ragged
        inside = [path for path in self._paths if path.startswith(table)]
        bounds = [path for path in inside if self._spec(path).rows == (table, 1)]
        return min(bounds, default=table), 1

    def _present(self, limits: Iterable[Limit]) -> Iterator[Limit]:
        """Yield the limits whose arrays are there, those of templates in the order of their paths."""
        of_templates = []
        for limit in limits:
            if limit.path in self._paths:
                yield limit
            elif _HOLE.search(limit.path):
                pattern = _pattern(limit.path)
                of_templates += [limit._replace(path=path) for path in self._paths if pattern.fullmatch(path)]
        yield from sorted(of_templates)


def _each(declared: Declared) -> tuple[ArraySpec, ...]:
    return (declared,) if isinstance(declared, ArraySpec) else declared


@cache
def _pattern(template: str) -> re.Pattern[str]:
    pieces = _HOLE.split(template)
    pieces[::2] = map(re.escape, pieces[::2])
    pieces[1::2] = ["([0-9]+)" if hole.startswith("#") else "(.+?)" for hole in pieces[1::2]]
    return re.compile("".join(pieces))


def _filled(value: Any, texts: Mapping[str, str]) -> Any:
    """Return a spec with the texts of holes in place of their names."""
    if isinstance(value, ArraySpec):
        return replace(value, **{name: _filled(member, texts) for name, member in stated(value).items()})
    if isinstance(value, Limit):
        return value._replace(path=_filled(value.path, texts))
    if isinstance(value, tuple):
        return tuple(_filled(item, texts) for item in value)
    if isinstance(value, str):
        hole = _HOLE.fullmatch(value)
        if hole is not None and hole[1].startswith("#"):
            return int(texts[hole[1]])
        return _HOLE.sub(lambda match: texts.get(match[1], match[0]), value)
    return value
