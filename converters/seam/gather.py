"""Merging the scans of all sources: columns, tables, remarks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from unistore.converters.common.columns import Column as Form
from unistore.converters.common.columns import Merged, reconcile
from unistore.converters.common.left_out import NOT_EVERYWHERE, left_out_notes
from unistore.converters.files.hdf5.attributes import NO_ATTRIBUTES, AttributeCollector
from unistore.converters.files.paths import split_of
from unistore.converters.opened import BLOCK_BYTES
from unistore.converters.plugin import Column, Family, Format, Schema
from unistore.converters.protocol import Scan, Sources
from unistore.converters.scan import Parts
from unistore.converters.seam.columns import Place
from unistore.converters.seam.faults import calling
from unistore.converters.seam.formats import format_by_ending
from unistore.converters.seam.sources import Origin, Planned, ScannedSource, TableRows
from unistore.converters.seam.specs import field_of
from unistore.errors import InputError, Problem, first_few, printable
from unistore.schemas.tables import Field, Table
from unistore.system.sizes import count_of

# Bytes that reading all values of a source takes beside what its format says
_DERIVING = 4 * BLOCK_BYTES
_ALIKE = 256


class _Seen:
    """What the sources hold together."""

    def __init__(self) -> None:
        self.columns: dict[str, Column] = {}
        self.tables: dict[str, dict[str, Column]] = {}
        self.extent: tuple[int, ...] = ()
        self.rows = 0
        self.table_rows: Counter[str] = Counter()
        self.sample_rows = 1
        self.forward_only = False
        self.left_out: dict[tuple[str, str], None] = {}
        self.notes: dict[str, list[str]] = {}  # sources by remark
        self.has_facts = self.has_attributes = self.has_formats = self.has_units = False

    def forms(
        self, parts: Parts, scanned: Sequence[ScannedSource]
    ) -> Iterator[tuple[str, Mapping[str, Form]]]:
        """Name and columns of each source of the family."""
        for name, one in zip(parts.names, scanned, strict=True):
            if one.picked is not None:
                self._add(name, one, one.picked.columns)
                yield name, one.picked.forms

    def table_forms(
        self, table: str, parts: Parts, scanned: Sequence[ScannedSource]
    ) -> Iterator[tuple[str, Mapping[str, Form]]]:
        """Name and columns of each source of the family in a further table."""
        for name, one in zip(parts.names, scanned, strict=True):
            if one.picked is not None:
                further_table = one.tables.get(table)
                yield name, {} if further_table is None else further_table.picked.forms

    def _add(self, name: str, one: ScannedSource, columns: Mapping[str, Column]) -> None:
        if not self.columns:
            self.sample_rows = max(1, one.sample_rows)
        if columns.keys() - self.columns.keys():
            self.columns = {**columns, **self.columns}
        for table, picked in one.tables.items():
            self.tables[table] = {**picked.picked.columns, **self.tables.get(table, {})}
            self.table_rows[table] += picked.rows
        if one.extent:
            self.extent = tuple(map(max, one.extent, self.extent or one.extent))
        self.has_facts = self.has_facts or bool(one.facts)
        self.rows += one.rows
        self.forward_only = self.forward_only or one.forward_only
        self.left_out |= dict.fromkeys(one.left_out)
        for note in one.notes:
            self.notes.setdefault(note, []).append(name)


def gather_sources(
    plugin: Family, formats: Sequence[Format], parts: Parts, scanned: Sequence[ScannedSource]
) -> Scan:
    """Merge the columns of all sources that are the family's.

    Raises
    ------
    InputError
        If there is none, if their columns differ, or if none has rows.
    """
    seen = _Seen()
    mode = getattr(plugin, "columns", "exact")
    merged, problems = reconcile(seen.forms(parts, scanned), mode)
    if not seen.columns:
        reasons = first_few([one.reason for one in scanned])
        raise InputError(Problem("files", f"are none of {plugin.name}: {reasons}", kind="missing"))
    if not problems and not seen.rows:
        problems.append(Problem(first_few(parts.names), "no rows", "check what wrote it", "empty"))
    if not problems and not merged:
        problems.append(Problem("files", "have no array in common", "convert them apart", "columns"))
    further: dict[str, dict[str, Merged]] = {}
    for table in seen.tables:
        table_forms = list(seen.table_forms(table, parts, scanned))
        further[table], wrong = reconcile([(name, form) for name, form in table_forms if form], mode)
        if mode == "exact" and not wrong:  # sources without the table have no rows in it
            further[table], _ = reconcile(table_forms, "union")
        problems += wrong
    if problems:
        raise InputError(problems)
    with calling(plugin, count_of(len(parts), "source")):
        schema = plugin.plan({name: seen.columns[name] for name in merged})
    direct = {table: {name: seen.tables[table][name] for name in further[table]} for table in further}
    schema = replace(schema, tables={**direct, **schema.derived})
    attributes = AttributeCollector()
    sources, files = _sources(schema, formats, parts, scanned, merged, further, seen, attributes)
    planned = Planned(schema, seen.has_facts, seen.has_attributes, seen.has_formats)
    fields = tuple(
        _field(schema.table, name, column, _in_space(merged[name], column, seen.extent), seen.sample_rows)
        for name, column in schema.columns.items()
    )
    tables = [Table(name=schema.table, fields=fields, spilled=seen.forward_only)]
    tables += _further_tables(schema, further, spilled=seen.forward_only)
    estimated = {table: max(seen.rows, *seen.table_rows.values(), 0) for table in schema.derived}
    if seen.forward_only:
        estimated |= {schema.table: seen.rows, **seen.table_rows}
    return Scan(
        family=plugin.name,
        sources=sources,
        tables=tuple(tables),
        sample_table=schema.samples or schema.table,
        main_table=schema.table,
        options=plugin.recorded(),
        units=_units(parts, scanned) if seen.has_units else (),
        estimated_rows=estimated,
        needs_facts=bool(schema.samples),
        notes=(
            f"{_what(plugin)}: {_counted(seen, schema)} from {count_of(files, 'file')}",
            *_remarks(seen, sources),
            *left_out_notes(seen.left_out),
            *_not_taken(parts, scanned),
            *attributes.notes(),
        ),
        shared={"planned": planned},
    )


def _sources(
    schema: Schema,
    formats: Sequence[Format],
    parts: Parts,
    scanned: Sequence[ScannedSource],
    merged: Mapping[str, Merged],
    further: Mapping[str, Mapping[str, Merged]],
    seen: _Seen,
    attributes: AttributeCollector,
) -> tuple[Sources, int]:
    """All sources, and the number of their files."""
    sources = Sources()
    count = 0
    is_derived = bool(schema.samples) or seen.forward_only or bool(schema.derived)
    stored = lru_cache(_ALIKE)(lambda items: {key: place for key, place in items if key in merged})
    columns = parts.names, parts.files(), parts.details, scanned
    for name, files, group, one in zip(*columns, strict=True):
        if one.picked is None:
            continue
        count += len(files)
        all_places = one.picked.places
        places = stored(tuple(all_places.items()))
        if len(places) < len(all_places):
            partial = (place.name for column, place in all_places.items() if column not in merged)
            seen.left_out |= dict.fromkeys((array, NOT_EVERYWHERE) for array in partial)
        text = NO_ATTRIBUTES
        if one.attributes is not None:
            text = attributes.text(name, one.attributes, _Stored(all_places, places))
            seen.has_attributes = seen.has_attributes or text != NO_ATTRIBUTES
        tables = {table: _rows_in(table, columns, one) for table, columns in further.items()}
        counts = {table: gathered.rows for table, gathered in tables.items()}
        if format_by_ending(formats, group.names[0]).name != one.formats[0]:
            seen.has_formats = True
        seen.has_units = seen.has_units or bool(group.unit)
        sources.add(
            name=name,
            files=(*files, *one.further),
            rows={} if seen.forward_only else {schema.table: one.rows, **counts},
            split=split_of(name),
            detail=Origin(
                files=group.names,
                formats=one.formats,
                arrays=group.arrays,
                rows=one.rows,
                places=places,
                facts=one.facts,
                attributes=text,
                tables=tables,
                extent=one.extent,
            ),
            memory=one.memory + _DERIVING if is_derived else 0,
            reading=one.memory,
        )
    return sources, count


def _units(parts: Parts, scanned: Sequence[ScannedSource]) -> list[str]:
    columns = zip(parts.names, parts.details, scanned, strict=True)
    return [group.unit or name for name, group, one in columns if one.picked is not None]


class _Stored:
    """Whether the object at a path of a file is stored: all groups are, and datasets of columns."""

    def __init__(self, places: Mapping[str, Place], stored: Mapping[str, Place]) -> None:
        self._left_out = {place.array for place in places.values()}
        self._left_out -= {place.array for place in stored.values()}

    def __call__(self, path: str) -> bool:
        return path not in self._left_out


def _rows_in(table: str, columns: Mapping[str, Merged], one: ScannedSource) -> TableRows:
    """Rows of a source in a further table, of which it may have none."""
    further_table = one.tables.get(table)
    if further_table is None:
        return TableRows(0, {})
    places = {name: place for name, place in further_table.picked.places.items() if name in columns}
    return TableRows(further_table.rows, places)


def _further_tables(
    schema: Schema, further: Mapping[str, Mapping[str, Merged]], *, spilled: bool
) -> Iterator[Table]:
    """Tables beside the main one: those of the files, and those that are computed."""
    for table, columns in schema.direct.items():
        fields = [_field(table, name, column, further[table][name]) for name, column in columns.items()]
        yield Table(name=table, fields=tuple(fields), spilled=spilled)
    for table, columns in schema.derived.items():
        forms = {name: Merged(column.dtype, column.shape, {}) for name, column in columns.items()}
        fields = [_field(table, name, column, forms[name]) for name, column in columns.items()]
        yield Table(name=table, fields=tuple(fields), spilled=True)


def _in_space(merged: Merged, column: Column, extent: tuple[int, ...]) -> Merged:
    """A column; one of volumes has rows of the largest extent."""
    return merged._replace(row_shape=extent) if column.spatial else merged


def _field(table: str, name: str, column: Column, merged: Merged, run: int = 1) -> Field:
    axis = table.removesuffix("s")
    path = f"{table}/{name}"
    return field_of(path, column, axis, merged.dtype, merged.row_shape, run, merged.attributes)


def _what(plugin: Family) -> str:
    """What the sources are, from the summary: ``"plain arrays"`` of ``"Plain arrays: HDF5."``."""
    what = plugin.summary.partition(":")[0]
    return what[:1].lower() + what[1:]


def _counted(seen: _Seen, schema: Schema) -> str:
    return f"{seen.rows} {schema.table} of {printable(', '.join(schema.columns))}"


def _remarks(seen: _Seen, sources: Sources) -> Iterator[str]:
    splits = sorted({split for split in sources.splits if split is not None})
    if splits:
        yield f"splits taken from folder and file names: {', '.join(splits)}"
    for note, names in seen.notes.items():
        further = " and others" if len(names) > 1 else ""
        yield f"{names[0]}{further}: {note}"


def _not_taken(parts: Parts, scanned: Sequence[ScannedSource]) -> Iterator[str]:
    """A remark on files of the folder that are none of the family's."""
    named = [
        f"{name} {one.reason}" for name, one in zip(parts.names, scanned, strict=True) if one.picked is None
    ]
    if named:
        yield f"left out: {first_few(named)}"
