"""What the scan of a source finds: its files, the arrays that its family chooses, and what is wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unistore.converters.adapter.formats import fault, names_in, texts_in
from unistore.converters.adapter.stored_columns import CLASS_KINDS
from unistore.converters.adapter.values import coded, expected_of, stored_value
from unistore.converters.array import Array
from unistore.converters.checking import wrong_columns
from unistore.converters.common.columns import TEXT_KINDS, SourceColumn, storable, values_of
from unistore.converters.common.faults import WRITE_AGAIN
from unistore.converters.family import Family
from unistore.converters.family_types import Chosen, Group, Grouping
from unistore.converters.formats.ragged import RaggedItems, items_of
from unistore.converters.opened import FileSummary, Metadata, OpenFile, SourceFile
from unistore.converters.scan_types import Parts, Scanned
from unistore.converters.schema import Column, Schema, array_of, bare_name
from unistore.errors import AddOptions, Fix, Problem, length_table, location_of, printable
from unistore.schemas.ragged import TEXT_SUFFIX
from unistore.schemas.tables import name_problem
from unistore.system.types import AnyArray, Dtype, Shape

# Bytes of records that are read at a time, as all their fields are read
_RECORD_BLOCK = 8 << 20
# Arrays of many files have the same names, dtypes and row shapes
_ALIKE = 256
_FIX = "write the file again, or skip it with --exclude"
# How messages name the kinds of dtypes
_KIND_NAMES = {"b": "bool", "i": "int", "u": "uint", "f": "float", "S": "bytes", "U": "text"}
# Kinds of problems of a column that others do not have
_LEFT_OUT = ("dtype", "empty")


class RowPlace(NamedTuple):
    """Where the rows of a column are."""

    file: int  # number of the file in its source
    array: str  # its name in the file
    field: str  # of its records; empty: the array is no array of records
    step: int  # most rows that are read at a time; 0: any number
    position: int = 0  # of the field among those of the records
    classes: tuple[str, ...] = ()  # of its values
    is_text: bool = False  # whether the file has the names of these

    @property
    def name(self) -> str:
        """Array, and field of its records."""
        return f"{self.array}/{self.field}" if self.field else self.array


class Pick(NamedTuple):
    """A column that a family chooses, and its array."""

    name: str
    column: Column
    dtype: Dtype
    row_shape: Shape
    place: RowPlace


class Picked(NamedTuple):
    """The columns of a source in a table. The same object for sources that are alike."""

    columns: Mapping[str, Column]
    forms: Mapping[str, SourceColumn]
    places: Mapping[str, RowPlace]
    problems: Sequence[tuple[str, Problem]]  # with the array, or the column; their files are empty


class ScannedTable(NamedTuple):
    """Columns of a source in a table, and its rows."""

    picked: Picked
    rows: int


class TableRows(NamedTuple):
    """Rows of a source in a table, and where they come from."""

    rows: int
    places: Mapping[str, RowPlace]  # by column


class RowOrigin(NamedTuple):
    """Where the rows of a source come from: the ``detail`` of the source."""

    files: tuple[str, ...]  # names of its files, as messages call them
    formats: tuple[str, ...]  # of these
    arrays: tuple[str, ...]  # as in `Group`
    rows: int  # of the main table
    tables: Mapping[str, TableRows]
    metadata: Metadata
    attributes: str  # of its HDF5 file, JSON
    extent: Shape  # of its volumes


class Planned(NamedTuple):
    """What is known of all sources together: the ``shared`` of a scan."""

    schema: Schema
    has_metadata: bool  # whether any file says something beside its arrays
    has_attributes: bool  # whether any HDF5 file has attributes
    has_formats: bool  # whether the ending of a file does not tell its format
    of_family: tuple[str, ...] = ()  # metadata that the family says, and not the format


@dataclass(frozen=True, kw_only=True)
class ScannedSource(Scanned):
    """What the headers of a source say. Without tables, it is none of the family's, for this `reason`."""

    reason: str = ""
    formats: tuple[str, ...] = ()
    tables: Mapping[str, ScannedTable] = field(default_factory=dict)
    extent: Shape = ()
    metadata: Metadata = field(default_factory=dict)
    of_family: tuple[str, ...] = ()  # names of the metadata that the family says
    splits: tuple[tuple[str, int], ...] = ()  # as in `Chosen`
    left_out: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    sample_rows: int = 1
    forward_only: bool = False
    memory: int = 0


class PartGroup(NamedTuple):
    """Names of the files of a part, and what else its `Group` says."""

    names: tuple[str, ...]
    arrays: tuple[str, ...]
    roles: tuple[str, ...] = ()
    unit: str = ""
    detail: Any = None


class Choices:
    """Sources, files in no source, problems and remarks."""

    def __init__(self, roots: tuple[Path, ...], files: Sequence[SourceFile]) -> None:
        self.parts = Parts(roots=roots)
        self.left_out: list[tuple[Path, str]] = []
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        # Path of each file of which nothing was said.
        self.unused = {str(file.path): file.path for file in files}

    def add(self, grouping: Grouping) -> str:
        """Add what `Family.group` returns. A file in a source is not left out.

        Returns
        -------
        str
            What it holds and may not, empty if that is nothing.
        """
        sources: Sequence[object] = grouping.sources
        for source in sources:
            if isinstance(source, SourceFile):
                name, files, *labels = Group(source.name, (source,))
            elif isinstance(source, Group):
                name, files, *labels = source
            else:
                return f"returned the source {source!r:.60}, which is neither a file nor a group"
            for file in files:  # which the family may have named anew
                self.unused.pop(str(file.path), None)
            detail = PartGroup(tuple([file.name for file in files]), *labels)
            self.parts.add(name, [file.path for file in files], detail)
        files_left_out: Sequence[object] = grouping.left_out
        for left_out in files_left_out:
            match left_out:
                case (SourceFile() as file, str() as reason):
                    if self.unused.pop(str(file.path), None) is not None:
                        self.left_out.append((file.path, reason))
                case _:
                    return f"leaves out {left_out!r:.60}, which is not a file with a reason"
        for kind, said in ((Problem, grouping.problems), (str, grouping.notes)):
            for one in said:
                if not isinstance(one, kind):
                    return f"returned {one!r:.60}, which is not a {'problem' if kind is Problem else 'note'}"
        self.problems += grouping.problems
        self.notes += grouping.notes
        return ""


def check_chosen(plugin: Family, source: str, chosen: Chosen) -> None:
    """Refuse columns that a store cannot have, before anything is read."""
    reason = wrong_columns(plugin.schema, chosen.columns, chosen.tables)
    if reason:
        raise fault(plugin, "choose", source, f"returned {reason}")


def picks_of(
    group: Group, opened: Sequence[OpenFile], whole: OpenFile, columns: Mapping[str, Column]
) -> tuple[Pick, ...]:
    """Return the columns that a source has, with their arrays. Those that it lacks are left out."""
    owners = {}
    if whole is not opened[0]:
        for number, one in enumerate(opened):
            for name, inside in names_in(group, number, one.arrays).items():
                owners[name] = number, inside
            owners |= {name: (number, name) for name in texts_in(group, one)}
    texts = whole.objects if may_be_texts(columns) else {}
    picks = []
    for name, column in columns.items():
        key = array_of(name, column)
        is_row = column.ragged and not column.field
        array = None if is_row else whole.arrays.get(key)
        if array is None and (is_row or column.classes):
            array = texts.get(key)
        if array is None:
            continue
        number, inside = owners.get(key, (0, key))
        step, position = 0, 0
        if column.field:
            step = _step(array)
            fields = array.dtype.names or ()
            position = fields.index(column.field) if column.field in fields else 0
        of_rows = array.dtype[column.field] if column.field in (array.dtype.names or ()) else array.dtype
        is_text = bool(column.classes) and of_rows.kind in TEXT_KINDS
        place = RowPlace(number, inside, column.field, step, position, column.classes, is_text)
        form = SourceColumn(array.dtype.str, array.shape[1:])
        if is_row:
            form = array.value_form or form
        dtype = np.dtype(form.dtype) if is_row else array.dtype
        picks.append(Pick(name, column, dtype, form.row_shape, place))
    return tuple(picks)


def may_be_texts(columns: Mapping[str, Column]) -> bool:
    """Return whether arrays of texts, or of any number of values in a row, may be columns."""
    return any(column.ragged or column.classes for column in columns.values())


def _step(array: Array) -> int:
    if not array.chunk_rows:
        return 0
    row_bytes = array.dtype.itemsize * prod(array.shape[1:])
    return max(_RECORD_BLOCK // max(1, row_bytes), array.chunk_rows)


@lru_cache(_ALIKE)
def picked_of(picks: tuple[Pick, ...]) -> Picked:
    """Forms of the columns of a source, and what is wrong with these."""
    forms = {}
    problems: list[tuple[str, Problem]] = []
    for name, column, dtype, row_shape, _ in picks:
        form = SourceColumn(dtype.str, row_shape)
        axes = row_shape
        if column.field and dtype.fields is not None:
            inner = dtype.fields[column.field][0]
            form = SourceColumn(inner.base.str, (*row_shape, *inner.shape))
            if column.ragged:
                form = values_of(inner) or form
            axes = form.row_shape if column.ragged else row_shape
        elif column.field:  # a column of an array of two axes
            form = SourceColumn(dtype.str, row_shape[1:])
            axes = form.row_shape
        wrong = (*_schema_problems(name, column, form, axes), *_store_problems(name, column, form))
        source = array_of(name, column)
        problems += [(f"{source}/{column.field}" if column.field else source, problem) for problem in wrong]
        if column.spatial:  # volumes of any extent are rows of one form
            form = SourceColumn(form.dtype, ())
        elif column.dtype:
            form = SourceColumn(column.dtype, form.row_shape)
        forms[name] = form
    for name in forms:
        for outer in forms:
            if name.startswith(f"{outer}/"):
                message = f"its name is inside the name of the array {outer!r}, which is not a group"
                problems.append((name, Problem("", message, _how_to_rename(name), "name")))
    return Picked(
        columns={pick.name: pick.column for pick in picks},
        forms=forms,
        places={pick.name: pick.place for pick in picks},
        problems=problems,
    )


def check_columns(
    columns: Mapping[str, Column], head: FileSummary, picked: Picked, mapped: Mapping[str, str] | None
) -> tuple[int, list[Problem]]:
    """Number of rows of a source in a table, and what is wrong. `mapped`: the option, if there is one."""
    file = head.file.name
    keys = [array_of(name, column) for name, column in columns.items()]
    ragged = head.opened.objects if may_be_texts(columns) else {}
    missing = []
    problems = []
    for (name, column), key in zip(columns.items(), keys, strict=True):
        if name in picked.columns:
            continue
        if column.ragged and key in head.arrays:
            problems.append(_of_other_form(key, name, head))
        else:
            missing.append(key)
            problems.append(Problem(file, f"does not contain {key}", _FIX, "missing"))
    shapes = {key: shape for key, (shape, _) in head.arrays.items()}
    shapes |= {key: array.shape for key, array in ragged.items()}
    rows, differing = common_length({key: shapes[key] for key in keys if key not in missing}, file)
    problems += differing
    unsound = dict(picked.problems)
    sound = {}
    for name, column in columns.items():
        key = array_of(name, column)
        key = f"{key}/{column.field}" if column.field else key
        if key not in unsound:
            sound[bare_name(name)] = key
    renames = [problem.fix.arguments for _, problem in picked.problems if isinstance(problem.fix, AddOptions)]
    for key, problem in picked.problems:
        where = location_of(file, key)
        fix = problem.fix
        if problem.kind in _LEFT_OUT and mapped == {} and sound and not differing:
            fix = _how_to_take(sound, "to skip it")
        elif isinstance(fix, AddOptions) and mapped == {}:  # --map stores only the arrays that it names
            purpose = "to rename it and keep the others" if sound else fix.purpose
            fix = AddOptions((*chain.from_iterable(renames), *_map_words(sound)), purpose)
        problems.append(replace(problem, file=where.file, dataset=where.dataset, fix=fix))
    return rows, problems if mapped is not None else [replace(problem, fix=_FIX) for problem in problems]


def _of_other_form(key: str, name: str, head: FileSummary) -> Problem:
    """Return the problem of a ragged column whose array has as many values in each row."""
    expected = "texts" if name.endswith(TEXT_SUFFIX) else "rows of any length"
    message = f"has {head.arrays[key][1]} rows of one length, but {expected} are expected"
    fix = f"write it with {expected}; the family can also declare a column that is not ragged"
    return Problem.at(location_of(head.file.name, key), message, fix, "dtype")


def extent_of(columns: Mapping[str, Column], head: FileSummary, problems: list[Problem]) -> Shape:
    """Extent of the volumes of a source, empty if it has none. Adds a problem of columns that differ."""
    extents = {}
    for name, column in columns.items():
        if column.spatial:
            extents[name] = head.arrays[array_of(name, column)][0][1:]
    if len(set(extents.values())) > 1:
        message = f"its volumes differ in extent: {extents}"
        problems.append(Problem(head.file.name, message, "resample them to the same grid", "shape"))
    return next(iter(extents.values()), ())


def check_derived(
    plugin: Family, schema: Schema, source: str, table: str, rows_of: Mapping[str, Any]
) -> tuple[dict[str, AnyArray], dict[str, RaggedItems]]:
    """Return rows that `Family.derive` gave, which must be as the schema declares them.

    Arrays by column, (rows, …), and values of ragged columns.
    """
    declared = schema.derived.get(table, {})
    ragged: dict[str, RaggedItems] = {}
    plain: dict[str, AnyArray] = {}
    for name, rows in rows_of.items():
        column = declared.get(name, Column())
        if column.ragged:
            ragged[name] = items_of(rows, SourceColumn(column.dtype, column.shape))
        elif column.classes and (not len(rows) or np.asarray(rows).dtype.kind in TEXT_KINDS):
            plain[name] = coded(rows, column.classes, location_of(source, name)).astype(column.dtype)
        else:
            plain[name] = rows
    forms = {name: f"{rows.dtype} {rows.shape[1:]}" for name, rows in plain.items()}
    forms |= {name: f"{rows.values.dtype} {rows.values.shape[1:]}" for name, rows in ragged.items()}
    wanted = {name: f"{np.dtype(column.dtype)} {column.shape}" for name, column in declared.items()}
    if forms != wanted:
        raise fault(plugin, "derive", source, f"returned {forms} for {table}, but {wanted} is declared")
    counts = {name: len(plain[name]) if name in plain else len(ragged[name].counts) for name in wanted}
    if len(set(counts.values())) != 1:
        raise fault(plugin, "derive", source, f"returned columns of {table} that differ in length: {counts}")
    return plain, ragged


def common_length(shapes: Mapping[str, Shape], name: str) -> tuple[int, list[Problem]]:
    """Number of rows of all arrays, or a Problem with the table of lengths."""
    starts = {shape[:1] for shape in shapes.values()}
    if len(starts) <= 1 and () not in starts:
        return sum(next(iter(starts), ())), []
    shown: dict[str, int | str] = {}
    lengths: dict[str, int] = {}
    for key, shape in shapes.items():
        shown[printable(key)] = shape[0] if shape else "scalar"
        if shape:
            lengths[printable(key)] = shape[0]
    table = length_table(shown)
    most = max(lengths.values(), key=Counter(lengths.values()).__getitem__, default=None)
    alike = {key: key for key, length in lengths.items() if length == most}
    fix = _how_to_take(alike, "to store the arrays that belong together")
    message = f"its arrays differ in the length of axis 0:\n{table}\n   "
    return 0, [Problem(name, message, fix, "length")]


def _how_to_take(arrays: Mapping[str, str], purpose: str) -> Fix:
    return AddOptions(_map_words(arrays), purpose) if arrays else "save arrays whose axis 0 counts the rows"


def _map_words(arrays: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(chain.from_iterable(("--map", f"{name}={array}") for name, array in arrays.items()))


def _how_to_rename(column: str) -> Fix:
    plain = re.sub("[^0-9A-Za-z]+", "_", column).strip("_")
    return AddOptions(("--map", f"{plain}_2={column}"), "to rename it")


def _schema_problems(name: str, column: Column, form: SourceColumn, row_shape: Shape) -> Iterator[Problem]:
    """Yield what the schema says of a column, and an array is not. `row_shape`: without that of a field."""
    dtype = np.dtype(form.dtype)
    has_texts = dtype.kind in TEXT_KINDS
    if column.ragged and has_texts != name.endswith(TEXT_SUFFIX) and not (has_texts and "S" in column.kinds):
        expected = "texts" if name.endswith(TEXT_SUFFIX) else "numbers"
        yield Problem("", f"has {form} in its rows, but {name!r} needs {expected}", _FIX, "dtype")
    if not storable(dtype):
        return
    kinds = CLASS_KINDS if column.classes else column.kinds
    axes = len(row_shape) if column.axes is None else len(column.axes)
    if dtype.kind not in kinds or len(row_shape) != axes:
        shape = ", ".join(map(str, ("n", *row_shape)))
        names = " or ".join([_KIND_NAMES.get(kind, kind) for kind in kinds])
        expected = f"{1 + axes} {'axes' if axes else 'axis'} of {names}"
        yield Problem("", f"is {dtype} ({shape}), but must have {expected}", _FIX, "dtype")


def _store_problems(name: str, column: Column, form: SourceColumn) -> Iterator[Problem]:
    """Yield what keeps a column out of any store."""
    is_text = (column.ragged or column.classes) and np.dtype(form.dtype).kind in TEXT_KINDS
    if not is_text and not storable(np.dtype(form.dtype)):
        message = (
            f"has the dtype {np.dtype(form.dtype)}, which is not bool, integer or float of up to 8 bytes"
        )
        yield Problem("", message, "store numbers, or remove it from --map", "dtype")
    if (reason := name_problem(name)) is not None:
        yield Problem("", f"its name is not allowed in a store: {reason}", _how_to_rename(name), "name")
    if prod(form.row_shape) == 0:
        message = f"has rows of the shape {form.row_shape}, which contain no values"
        yield Problem("", message, "remove it from --map", "empty")


def problems_of_metadata(names: Mapping[str, Column], file: str, metadata: Metadata) -> Iterator[Problem]:
    """Yield values of a source that its metadata do not say."""
    for name, column in names.items():
        key = array_of(name, column)
        value = metadata.get(key)
        if stored_value(name, column, value) is not None:
            continue
        is_plain = not (column.ragged or column.classes)
        if value is None or (is_plain and not isinstance(value, (int, float))):
            message = f"does not state {key}"
            if value is not None:
                message = f"states {key} as {value!r:.60}, not as {expected_of(name, column)}"
            yield Problem(file, message, WRITE_AGAIN, "missing")
        else:
            message = f"states {key} as {value!r:.60}, not as {expected_of(name, column)}"
            yield Problem(file, message, WRITE_AGAIN, "dtype")
