"""The steps of a conversion of a family that only describes its stores: they follow from its `Schema`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from unistore.converters.adapter.formats import (
    FileToOpen,
    FileToScan,
    calling,
    fault,
    formats_of,
    joined,
    json_metadata,
    open_file,
    origins_in,
    returned,
)
from unistore.converters.adapter.gather import SIZES, counts_of, finalize_sources, gather_sources
from unistore.converters.adapter.sources import (
    Planned,
    RowOrigin,
    RowPlace,
    ScannedSource,
    ScannedTable,
    check_chosen,
    check_columns,
    check_derived,
    extent_of,
    picked_of,
    picks_of,
    problems_of_metadata,
)
from unistore.converters.adapter.values import check_codes, coded
from unistore.converters.array import BLOCK_BYTES, Array, FieldOf
from unistore.converters.claims import Claim
from unistore.converters.common.columns import TEXT_KINDS, SourceColumn, missing_value, within
from unistore.converters.family import Family
from unistore.converters.family_types import Chosen, Cut, Group
from unistore.converters.formats.ragged import items_in
from unistore.converters.opened import FileSummary, Format, OpenFile
from unistore.converters.protocol import Emit, Finalized, Scan, Scanned, SourceArrays
from unistore.converters.scan_types import Parts
from unistore.converters.schema import Schema, array_of
from unistore.errors import InputError, Location, Problem, location_of
from unistore.schemas.tables import Field, OwnForm, Table
from unistore.system.foreign import begin_reading
from unistore.system.progress import advanced
from unistore.system.types import AnyArray, Int64s


class SchemaSteps:
    """Scans, reconciles and reads the files of a family by its schema, see the methods of `Family`."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def scan(self, group: Group, files: Sequence[FileToScan]) -> Scanned:
        """Check the arrays of a source, whose files are opened as one."""
        for file in files:
            claim = file.recognised()
            if claim.certainty == "no":
                return _not_ours(group, claim)
        openings = [file.format for file in files]
        if len(files) == 1:  # as nearly all of millions
            with calling(openings[0], group.name), open_file(openings[0], group.files[0]) as one:
                return self._with_origins(self._describe(group, openings, [one]), [one])
        with calling(openings[0], group.name), ExitStack() as stack:
            opened = []
            for opening, source_file in zip(openings, group.files, strict=True):
                with calling(opening, source_file.name):
                    opened.append(stack.enter_context(open_file(opening, source_file)))
            return self._with_origins(self._describe(group, openings, opened), opened)

    def _with_origins(self, scanned: Scanned, opened: Sequence[OpenFile]) -> Scanned:
        """Add where the values of a source lie, if its open files show those of others."""
        if not any(one.shows for one in opened):
            return scanned
        return replace(scanned, origins=origins_in(opened, self.stored_arrays(scanned)))

    def _describe(self, group: Group, openings: Sequence[Format], opened: Sequence[OpenFile]) -> Scanned:
        """Check the arrays of a source, whose files are open, each by its format."""
        plugin = self._family
        whole = joined(group, opened)
        head = FileSummary(replace(group.files[0], name=group.name), openings[0].name, whole)
        with calling(plugin, group.name):
            # A general family has no other to leave a file to.
            claim = None
            if not plugin.general:
                claim = returned(Claim, plugin, "match", group.name, plugin.match(head))
            if claim is not None and claim.certainty == "no":
                return _not_ours(group, claim)
            chosen = returned(Chosen, plugin, "choose", group.name, plugin.choose(head))
            sample_rows = returned(int, plugin, "typical_rows", group.name, plugin.typical_rows(head))
            memory = returned(int, plugin, "memory", group.name, plugin.memory(head))
        check_chosen(plugin, group.name, chosen)
        problems = list(chosen.problems)
        has_lengths = any(problem.kind == "length" for problem in problems)
        main = plugin.schema.table
        tables: dict[str, ScannedTable] = {}
        for table, columns in {main: chosen.columns, **chosen.tables}.items():
            picked = picked_of(picks_of(group, opened, whole, columns))
            mapped = getattr(plugin, "map", None) if table == main else None
            rows, wrong = check_columns(columns, head, picked, mapped)
            tables[table] = ScannedTable(picked, rows)
            problems += [problem for problem in wrong if problem.kind != "length" or not has_lengths]
        metadata = {**whole.metadata, **json_metadata(plugin, "choose", group.name, chosen.metadata)}
        problems += problems_of_metadata(plugin.schema.per_source, head.file.name, metadata)
        if not chosen.columns and not problems:
            problems.append(Problem(group.name, "contains no arrays", "skip it with --exclude", "missing"))
        extent = () if problems else extent_of(chosen.columns, head, problems)
        if problems:
            raise InputError(problems)
        of_splits = sum(count for _, count in chosen.splits)
        if chosen.splits and (plugin.schema.is_cut or of_splits != tables[main].rows):
            message = (
                f"returned splits of {of_splits:,} rows, but the source has {tables[main].rows:,} rows, "
                "and each must be a sample"
            )
            raise fault(plugin, "choose", group.name, message)
        arrays: dict[str, None] = {}
        for columns in (chosen.columns, *chosen.tables.values()):
            arrays |= dict.fromkeys(array_of(name, column) for name, column in columns.items())
        notes = dict.fromkeys(whole.notes[name] for name in arrays if name in whole.notes)
        attributes = opened[0].attributes(arrays.__contains__) if plugin.keeps_attributes else None
        return ScannedSource(
            formats=tuple([opening.name for opening in openings]),
            tables=tables,
            extent=extent,
            metadata=dict(chosen.metadata)
            if attributes is not None
            else metadata,  # others are among the attributes
            of_family=tuple(chosen.metadata.keys() - whole.metadata.keys()),
            splits=tuple(chosen.splits),
            attributes=attributes,
            left_out=(*chosen.left_out.items(), *whole.left_out.items()),
            notes=(*notes, *chosen.notes),
            further=whole.further_paths(group.files),
            sample_rows=sample_rows,
            forward_only=whole.forward_only,
            memory=whole.memory + memory,
        )

    def stored_arrays(self, scanned: Any) -> Collection[str]:
        """Return the arrays of a source's files that are stored, as the files call them."""
        names: set[str] = set()
        for table in scanned.tables.values():
            names.update(place.array for place in table.picked.places.values())
        return names

    def forms(self, scanned: Any) -> Mapping[str, SourceColumn] | None:
        """Return the forms of the columns of a source in the main table. None: it is of another family."""
        if not scanned.tables:
            return None
        table = scanned.tables.get(self._family.schema.table)
        return {} if table is None else table.picked.forms

    def reconcile(self, parts: Parts, scanned: Sequence[Any]) -> Scan:
        """Reconcile the columns of all sources."""
        # The ending of a file tells a format that the family names; a store records any other.
        return gather_sources(self._family, formats_of(self._family.formats), parts, scanned)

    def prepare(
        self, scan: Scan, source: int, files: Sequence[FileToOpen], emit: Emit, folder: Path | None
    ) -> SourceArrays:
        """Cut a source into samples, derive tables. Of a forward-only one, all rows are emitted meanwhile."""
        planned: Planned = scan.shared["planned"]
        schema = planned.schema
        origin: RowOrigin = scan.sources.details[source]
        name = scan.sources.names[source]
        prepared: dict[str, AnyArray] = {}
        rows = {table: of_table.rows for table, of_table in origin.tables.items()}
        with _reopened(scan, source, files) as opened:
            cuts: list[Cut] = []
            if schema.is_cut:
                begin_reading()
                with calling(self._family, name):
                    cuts = [returned(Cut, self._family, "cut", name, cut) for cut in self._family.cut(opened)]
            ragged = schema.ragged
            for table in scan.tables:
                owner, column = ragged.get(table.name, (table.name, ""))
                if owner in schema.derived:
                    continue
                if column:
                    place = origin.tables[owner].places.get(column)
                    key = "" if place is None else _array_of(origin, place)
                    count = origin.tables[owner].rows
                    with calling(files[0].format, name):
                        array = opened.all_arrays[key] if key else None
                        if array is not None and place is not None and place.field:
                            array = FieldOf(array, place.field)
                        counts = _emit_ragged(array, location_of(name, key), count, table, emit)
                    prepared[f"{SIZES}{table.name}"] = counts
                elif table.spilled:
                    self._emit(opened, name, files[0].format, origin, table, emit)
            if schema.derived:
                begin_reading()
                with calling(self._family, name):
                    prepared |= _emit_derived(self._family, opened, name, schema, emit)
                rows |= {table: int(prepared[f"derived/{table}"][0]) for table in schema.derived}
            if schema.is_cut:
                prepared |= counts_of(cuts, self._family, schema, name, rows)
        return prepared

    def _emit(
        self, opened: OpenFile, name: str, opening: Format, origin: RowOrigin, table: Table, emit: Emit
    ) -> None:
        count = origin.tables[table.name].rows
        row_bytes = sum(field.row_bytes for field in table.fields)
        step = max(1, BLOCK_BYTES // max(1, row_bytes))
        for lo in range(0, count, step):
            hi = min(count, lo + step)
            out = {}
            for key, form in table.columns().items():
                out[key] = np.zeros((hi - lo, *form.row_shape), form.dtype)
            self._fill(opened, name, opening, origin, table.name, lo, hi, out)
            for column, rows in out.items():
                emit(table.name, column, rows)

    def finish(self, scan: Scan, prepared: Sequence[SourceArrays]) -> Finalized:
        """Make the offsets and numbers of the samples, and what the files say."""
        return finalize_sources(scan, prepared)

    def read(
        self,
        scan: Scan,
        source: int,
        files: Sequence[FileToOpen],
        table: str,
        lo: int,
        hi: int,
        out: Mapping[str, AnyArray],
    ) -> None:
        """Read rows of a table, whose files are opened as one."""
        name = scan.sources.names[source]
        origin: RowOrigin = scan.sources.details[source]
        with _reopened(scan, source, files) as opened:
            self._fill(opened, name, files[0].format, origin, table, lo, hi, out)

    def own(self, scan: Scan, table: str, source: int, fields: Mapping[str, Field]) -> Mapping[str, OwnForm]:
        """Return the forms that files have, of the columns that a source has."""
        found = {column: field.own_form(source) for column, field in fields.items()}
        forms = {column: form for column, form in found.items() if form is not None}
        extent = getattr(scan.sources.details[source], "extent", ())
        if extent and table == scan.main_table:
            for column in scan.shared["planned"].schema.spatial:
                forms[column] = forms[column]._replace(row_shape=extent)
        return forms

    def _fill(
        self,
        opened: OpenFile,
        name: str,
        opening: Format,
        origin: RowOrigin,
        table: str,
        lo: int,
        hi: int,
        out: Mapping[str, AnyArray],
    ) -> None:
        """Read rows of a table, by the family's own `rows` if it has one. Fill columns that are missing."""
        places = origin.tables[table].places

        def check_codes_of(column: str, rows: AnyArray) -> None:
            """Check what `choose` names. The rule of an array bounds the classes that the schema declares."""
            classes = places[column].classes
            if not classes:
                return
            declared = self._family.schema.every_table.get(table, {}).get(column)
            if declared is None or declared.classes != classes:
                check_codes(rows, classes, location_of(name, column)._replace(row=lo))

        for column in out.keys() - places.keys():
            out[column][...] = missing_value(out[column].dtype.name)
        if table == self._family.schema.table and type(self._family).rows is not Family.rows:
            begin_reading()
            with calling(self._family, name):
                block: Mapping[str, AnyArray] = dict(self._family.rows(opened, lo, hi))
            for column in out.keys() & places.keys():
                count = len(block.get(column, ()))
                if count != hi - lo:
                    message = f"returned {count:,} rows of {column}, not {hi - lo:,}"
                    raise fault(self._family, "rows", name, message)
                rows = np.asarray(block[column])
                if rows.dtype.kind in TEXT_KINDS and places[column].classes:
                    rows = coded(rows, places[column].classes, location_of(name, column)._replace(row=lo))
                if rows.ndim != out[column].ndim or any(np.greater(rows.shape, out[column].shape)):
                    message = f"returned {column} with the shape {rows.shape}, not {out[column].shape}"
                    raise fault(self._family, "rows", name, message)
                within(out[column], rows.shape)[...] = rows
                check_codes_of(column, rows)
            return
        places = {
            column: places[column]._replace(array=_array_of(origin, places[column]))
            for column in out.keys() & places.keys()
        }
        with calling(opening, name):
            for column in [column for column, place in places.items() if place.is_text]:
                place = places.pop(column)
                array = opened.all_arrays[place.array]
                texts = (FieldOf(array, place.field) if place.field else array).objects(lo, hi)
                location = location_of(name, place.array)._replace(row=lo)
                out[column][...] = coded(texts, place.classes, location)
            _read_columns(opened.arrays, out, places, lo, hi)
        for column in places:
            check_codes_of(column, out[column])


def _not_ours(group: Group, claim: Claim) -> Scanned:
    """Leave out a file of a folder. One that the user named is a problem."""
    if group.files[0].is_given:
        raise InputError(Problem(group.name, claim.reason, "remove it from the command", "missing"))
    return ScannedSource(reason=claim.reason)


def _array_of(origin: RowOrigin, place: RowPlace) -> str:
    """Return the name of an array in its source, whose files are read as one."""
    return origin.arrays[place.file] if origin.arrays else place.array


def _emit_derived(plugin: Family, opened: OpenFile, name: str, schema: Schema, emit: Emit) -> SourceArrays:
    """Emit the tables that the family computes of a source, and return how many rows they have.

    An author whose rows are not as declared is told.
    """
    counts = dict.fromkeys(schema.derived, 0)
    of_derived = [path for path, (table, _) in schema.ragged.items() if table in counts]
    sizes: dict[str, list[Int64s]] = {path: [np.zeros(0, np.int64)] for path in of_derived}
    for table, derived_columns in plugin.derive(opened):
        plain, ragged = check_derived(plugin, schema, name, table, derived_columns)
        counts[table] += len(next(iter(plain.values())))
        for column, rows in plain.items():
            emit(table, column, rows)
        for column, items in ragged.items():
            sizes[f"{table}/{column}"].append(items.counts)
            emit(f"{table}/{column}", "data", items.values)
    prepared = {f"{SIZES}{path}": np.concatenate(of_path) for path, of_path in sizes.items()}
    return prepared | {f"derived/{table}": np.array([count]) for table, count in counts.items()}


def _emit_ragged(array: Array | None, location: Location, rows: int, table: Table, emit: Emit) -> Int64s:
    """Emit the values of a column with any number of them in a row, and return their numbers.

    Parameters
    ----------
    array, location
        The column's array, and what messages call it. None: the source lacks it, and its rows have no values.
    rows
        How many rows the source has.
    table
        The table of the values.
    """
    values = table.fields[0]
    counts = np.zeros(rows, np.int64)
    emit(table.name, "data", np.empty((0, *values.row_shape), values.dtype))
    if array is not None:
        form = SourceColumn(values.dtype, values.row_shape)
        row = 0
        for items in items_in(array, 0, rows, form, location):
            counts[row : row + len(items.counts)] = items.counts
            emit(table.name, "data", items.values)
            row += len(items.counts)
    return counts


@contextmanager
def _reopened(scan: Scan, source: int, files: Sequence[FileToOpen]) -> Iterator[OpenFile]:
    """Open the files of a source again, as one."""
    with ExitStack() as stack:
        opened = [stack.enter_context(file.open()) for file in files]
        own_files = tuple([file.file for file in files])
        group = Group(scan.sources.names[source], own_files, scan.sources.details[source].arrays)
        yield joined(group, opened)


def _rows_together(array: Array) -> int:
    """Return how many rows are read at a time, whole chunks, so that progress is seen. 0: all of them."""
    row_bytes = max(1, prod(array.shape[1:]) * array.dtype.itemsize)
    chunk = array.chunk_rows
    return chunk and -(-max(1, BLOCK_BYTES // row_bytes) // chunk) * chunk


def _ranges(lo: int, hi: int, step: int) -> Iterator[tuple[int, int]]:
    """Divide rows ``lo:hi`` at multiples of `step`."""
    while lo < hi:
        last = min(lo - lo % step + step, hi)
        yield lo, last
        lo = last


def _read_columns(
    arrays: Mapping[str, Array],
    out: Mapping[str, AnyArray],
    places: Mapping[str, RowPlace],
    lo: int,
    hi: int,
) -> None:
    """Read rows of columns, each array once."""
    by_array: dict[tuple[str, int], dict[str, str]] = {}
    for column, place in places.items():
        step = place.step or _rows_together(arrays[place.array])
        by_array.setdefault((place.array, step), {})[column] = place.field
    for (name, step), fields in by_array.items():
        array = arrays[name]
        for first, last in _ranges(lo, hi, step or max(1, hi - lo)):
            targets = {column: out[column][first - lo : last - lo] for column in fields}
            # Rows of a plain array are read in place, if they are not padded.
            target = next(iter(targets.values()))
            is_plain = set(fields.values()) == {""} and target.shape[1:] == array.shape[1:]
            rows = array.read(first, last, target if is_plain else None)
            for column, field in fields.items():
                if rows is not targets[column]:
                    values = rows[field] if field else rows
                    np.copyto(within(targets[column], values.shape), values, casting="same_kind")
                advanced(targets[column].nbytes)
