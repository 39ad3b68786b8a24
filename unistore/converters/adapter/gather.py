"""What all sources are together: columns, tables, remarks, and the index arrays of samples and sources."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.adapter.formats import calling, fault, format_by_ending, is_own
from unistore.converters.adapter.sources import (
    PartGroup,
    Picked,
    Planned,
    RowOrigin,
    RowPlace,
    ScannedSource,
    TableRows,
)
from unistore.converters.adapter.stored_columns import FORMAT, METADATA, OF_FAMILY, field_of, ragged_field_of
from unistore.converters.adapter.values import expected_of, item_bounds, stored_value, value_arrays
from unistore.converters.array import BLOCK_BYTES
from unistore.converters.common.columns import NOT_EVERYWHERE, Merged, SourceColumn, left_out_notes, reconcile
from unistore.converters.family import Family
from unistore.converters.family_types import Cut
from unistore.converters.files.hdf5.attributes import NO_ATTRIBUTES, AttributeCollector
from unistore.converters.files.paths import split_of
from unistore.converters.opened import Format
from unistore.converters.protocol import Finalized, Scan, SourceArrays, Sources
from unistore.converters.scan_types import Parts
from unistore.converters.schema import Column, Schema, array_of, bare_name
from unistore.errors import AddOptions, Fixes, InputError, Problem, first_few
from unistore.schemas.tables import Field, IndexValues, Table, bounds_field, lazy_text_arrays, offsets_of
from unistore.system.packed import view
from unistore.system.sizes import count_of
from unistore.system.types import Int64s, JsonObject, Shape

# Bytes that reading all values of a source takes beside what its format says
_DERIVING = 4 * BLOCK_BYTES
_ALIKE = 256
_SHOWN_COLUMNS = 10  # that the note of a scan names
SIZES = "sizes/"  # before a column, how many values each row has
ROWS = "rows"  # how many rows each sample has, of a further table behind a slash

Arrays = Iterator[tuple[Field, IndexValues]]


class _SourcesTogether:
    """What the sources hold together."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, Column]] = {}
        self.rows: Counter[str] = Counter()  # by table
        self.extent: Shape = ()
        self.sample_rows = 0
        self.forward_only = False
        self.left_out: dict[tuple[str, str], None] = {}
        self.notes: dict[str, list[str]] = {}  # sources by remark
        self.not_taken: list[str] = []
        self.units: list[str] = []
        self.of_family: dict[str, None] = {}  # metadata that the family says
        # Sources by what they call a column: ``called["points", "x"]["X", "", ""]``
        self.called: dict[tuple[str, str], dict[_Called, list[int]]] = {}
        self.has_metadata = self.has_attributes = self.has_formats = self.has_units = False
        self.problems: list[Problem] = []  # columns whose classes differ
        # By table: the columns that were compared last, and those of them whose classes differ
        self._compared: dict[str, tuple[Picked, list[str]]] = {}

    def add(self, name: str, group: PartGroup, one: ScannedSource) -> None:
        if not one.tables:
            self.not_taken.append(f"{name} {one.reason}")
            return
        self.sample_rows = self.sample_rows or max(1, one.sample_rows)
        for table, (picked, rows) in one.tables.items():
            columns = self.tables.setdefault(table, {})
            if picked.columns.keys() - columns.keys():
                self.tables[table] = {**picked.columns, **columns}
            self._check_classes(table, name, picked)
            self.rows[table] += rows
        if one.extent:
            self.extent = tuple(map(max, one.extent, self.extent or one.extent))
        self.has_metadata |= bool(one.metadata)
        self.has_units |= bool(group.unit)
        self.units.append(group.unit or name)
        self.forward_only |= one.forward_only
        self.left_out |= dict.fromkeys(one.left_out)
        self.of_family |= dict.fromkeys(one.of_family)
        for note in one.notes:
            self.notes.setdefault(note, []).append(name)

    def _check_classes(self, table: str, source: str, picked: Picked) -> None:
        """Collect a problem of a column whose numbers mean other classes than in the sources before."""
        known = self.tables[table]
        before, differing = self._compared.get(table, (None, []))
        if picked is not before:  # as of sources that are not alike
            differing = [name for name, own in picked.columns.items() if own.classes != known[name].classes]
            self._compared[table] = picked, differing
        for column in differing:
            classes = first_few(known[column].classes) or "none"
            message = f"its classes of {column} differ from the sources before it, which have {classes}"
            fix = "convert this source to a separate store"
            self.problems.append(Problem(source, message, fix, "columns", source))

    def call(self, table: str, number: int, group: PartGroup, places: Mapping[str, RowPlace]) -> None:
        """Record what a source calls the columns of a table."""
        for column, place in places.items():
            array = group.arrays[place.file] if group.arrays else place.array
            names = array, place.field, str(place.position) if place.field else ""
            called = self.called.setdefault((table, column), {})
            if called and names not in called:  # all before it call it alike, and are numbered only now
                called |= {first: list(range(number)) for first, numbers in called.items() if not numbers}
            called.setdefault(names, [])
            if len(called) > 1:
                called[names].append(number)

    def names(self, plugin: Family) -> Iterator[tuple[str, str, JsonObject]]:
        """Yield table, name and attributes of columns that sources do not call as the schema does."""
        if is_own(plugin) and type(plugin).restore is not Family.restore:
            return  # it knows what its columns were
        mapped = tuple(getattr(plugin, "map", {}))  # which is among the options of a store
        for (table, column), called in self.called.items():
            path = column if table == plugin.schema.table else f"{table}/{column}"
            is_plain = not any(field for _, field, _ in called)
            names = {array for array, _, _ in called}
            bare = bare_name(column)
            is_mapped = (bare in mapped and is_plain) or column.startswith(
                tuple(f"{name}/" for name in mapped if name != bare)
            )
            if is_mapped or (is_plain and names <= {plugin.schema.source_of(path)}):
                continue
            yield table, column, {name: values for name, values in _by_source(called) if values}

    def remarks(self) -> Iterator[str]:
        """Yield notes of the sources, each once."""
        for note, names in self.notes.items():
            further = " and others" if len(names) > 1 else ""
            yield f"{names[0]}{further}: {note}"


# Array, field of its records, and the position of that
_Called = tuple[str, str, str]


def _by_source(called: Mapping[_Called, Sequence[int]]) -> Iterator[tuple[str, Any]]:
    """Yield what all sources call a column, or the numbers of the sources by what they call it."""
    for at, attribute in enumerate(("source_array", "source_field", "source_position")):
        numbers: dict[str, list[int]] = {}
        for names, sources in called.items():
            numbers.setdefault(names[at], []).extend(sources)
        yield attribute, numbers if len(numbers) > 1 else next(iter(numbers))


def gather_sources(
    plugin: Family, formats: Sequence[Format], parts: Parts, scanned: Sequence[ScannedSource]
) -> Scan:
    """Merge the columns of all sources that are the family's."""
    seen = _SourcesTogether()
    for name, group, one in zip(parts.names, parts.details, scanned, strict=True):
        seen.add(name, group, one)
    main = plugin.schema.table
    if main not in seen.tables:
        reasons = first_few([one.reason for one in scanned])
        message = f"are not recognised as {plugin.command()}: {reasons}"
        raise InputError(Problem("files", message, "check the paths and the family", "missing"))
    merged: dict[str, dict[str, Merged]] = {}
    problems = seen.problems
    mode = getattr(plugin, "columns", "exact")
    modes = ("union", "intersection") if hasattr(plugin, "columns") else ()
    ragged = [name for name, column in seen.tables[main].items() if column.ragged]
    # Samples of several rows have no mask
    padded = set(seen.tables[main]).difference(ragged) if not plugin.schema.samples else ()
    for table in seen.tables:
        forms = list(_forms_in(table, parts, scanned))
        # Sources without a further table have no rows in it.
        having = forms if table == main else [(name, form) for name, form in forms if form]
        may_pad = (padded if table == main else ()).__contains__
        plain = {name for name, column in seen.tables[table].items() if not column.ragged}
        merged[table], differing = reconcile(having, mode, may_pad, modes, plain.__contains__)
        if len(having) < len(forms):  # the numbers of sources are those of all
            whole, _ = reconcile(forms, "union")
            merged[table] = {column: whole[column] for column in merged[table] if column in whole}
        problems += differing
    if not problems and type(plugin).specs() is None:
        problems += _not_anywhere(plugin, merged, "union" if mode == "intersection" and modes else "")
    if not problems and not seen.rows[main]:
        fix = "check the program that wrote the files"
        problems.append(Problem(first_few(parts.names), "there are no rows to store", fix, "empty"))
    for table, columns in merged.items():
        lacks_plain = all(seen.tables[table][name].ragged for name in columns)
        if not problems and lacks_plain and (columns or table == main):
            message = "they have no array of numbers in common"
            fix = "convert these files to separate stores"
            problems.append(Problem("files", message, fix, "columns"))
    if problems:
        raise InputError(problems)
    columns_of = {}
    for table, forms_of_table in merged.items():
        columns_of[table] = {name: seen.tables[table][name] for name in forms_of_table}
    with calling(plugin, count_of(len(parts), "source")):
        schema = plugin.plan(columns_of.pop(main))
    schema = replace(schema, tables={**columns_of, **schema.derived})
    attributes = AttributeCollector()
    sources, files = _sources(schema, formats, parts, scanned, merged, seen, attributes)
    for table, name, names in seen.names(plugin):
        form = merged[table][name]
        merged[table][name] = form._replace(attributes={**form.attributes, **names})
    what = plugin.summary.partition(":")[0]
    columns_shown = first_few([*schema.columns], _SHOWN_COLUMNS)
    rows = f"{seen.rows[main]} {schema.table} of {columns_shown}"
    splits = sorted({split for split in sources.splits if split is not None})
    estimated = dict.fromkeys(schema.derived, max(seen.rows.values()))
    tables = list(_tables(schema, merged, seen))
    nbytes = sources.nbytes if schema.ragged else 0
    for of_values in tables:
        if of_values.name in schema.ragged:
            estimated[of_values.name] = nbytes // of_values.fields[0].row_bytes
    return Scan(
        family=plugin.name,
        sources=sources,
        tables=tuple(tables),
        sample_table=schema.samples or schema.table,
        main_table=schema.table,
        options=plugin.recorded(),
        units=seen.units if seen.has_units else (),
        estimated_rows={**estimated, **seen.rows} if seen.forward_only else estimated,
        needs_prepare=schema.is_cut or bool(schema.ragged),
        notes=(
            f"{what[:1].lower()}{what[1:]}: {rows} from {count_of(files, 'file')}",
            *([f"splits taken from folder and file names: {', '.join(splits)}"] if splits else ()),
            *seen.remarks(),
            *left_out_notes(seen.left_out),
            *Merged.padding_notes(merged[main]),
            *chain.from_iterable(map(Merged.promotion_notes, merged.values())),
            *([f"skipped: {first_few(seen.not_taken)}"] if seen.not_taken else ()),
            *attributes.notes(),
        ),
        shared={
            "planned": Planned(
                schema,
                seen.has_metadata,
                seen.has_attributes,
                seen.has_formats,
                # A family with its own `restore` knows which metadata are its own.
                tuple(seen.of_family) if type(plugin).restore is Family.restore else (),
            )
        },
    )


def _not_anywhere(plugin: Family, merged: Mapping[str, Mapping[str, Merged]], mode: str) -> Iterator[Problem]:
    """Yield columns that the schema declares, so that every store has them, and that these sources lack.

    `mode`: value of ``--columns`` that fills them, empty if there is none.
    """
    for table, columns in {plugin.schema.table: plugin.schema.columns, **plugin.schema.direct}.items():
        lacking = [
            array_of(name, column) for name, column in columns.items() if name not in merged.get(table, {})
        ]
        if not lacking:
            continue
        fix: Fixes = "add a file that contains them; the family can also return them from choose instead"
        if mode and table in merged:
            fix = AddOptions(("--columns", mode), "to fill what is missing")
        message = (
            f"not all of them contain {first_few(lacking)}, which a store of the family "
            f"'{plugin.command()}' needs in {table}"
        )
        yield Problem("files", message, fix, "columns")


def _forms_in(
    table: str, parts: Parts, scanned: Sequence[ScannedSource]
) -> Iterator[tuple[str, Mapping[str, SourceColumn]]]:
    """Name and columns of each source of the family in a table, of which it may have none."""
    for name, one in zip(parts.names, scanned, strict=True):
        if one.tables:
            scanned_table = one.tables.get(table)
            yield name, {} if scanned_table is None else scanned_table.picked.forms


def _sources(
    schema: Schema,
    formats: Sequence[Format],
    parts: Parts,
    scanned: Sequence[ScannedSource],
    merged: Mapping[str, Mapping[str, Merged]],
    seen: _SourcesTogether,
    attributes: AttributeCollector,
) -> tuple[Sources, int]:
    """Return all sources, and the number of their files."""
    sources = Sources()
    count = 0
    is_derived = bool(schema.is_cut or schema.derived or schema.ragged) or seen.forward_only

    @lru_cache(_ALIKE)
    def stored(table: str, places: tuple[tuple[str, RowPlace], ...]) -> dict[str, RowPlace]:
        return {column: place for column, place in places if column in merged[table]}

    columns = parts.names, parts.files(), parts.details, scanned
    for name, files, group, one in zip(*columns, strict=True):
        if not one.tables:
            continue
        count += len(files)
        tables: dict[str, TableRows] = {}
        unstored: set[str] = set()
        for table in merged:
            rows, places = 0, {}
            if table in one.tables:
                picked, rows = one.tables[table]
                places = stored(table, tuple(picked.places.items()))
                lacking = [place for column, place in picked.places.items() if column not in places]
                seen.left_out |= dict.fromkeys((place.name, NOT_EVERYWHERE) for place in lacking)
                unstored |= {place.array for place in lacking}
            tables[table] = TableRows(rows, places)
            seen.call(table, len(sources), group, places)
        main = tables[schema.table]
        unstored -= {place.array for place in main.places.values()}
        text = attributes.text(name, one.attributes, _none_of(unstored))
        seen.has_attributes |= text != NO_ATTRIBUTES
        if format_by_ending(formats, group.names[0]).name != one.formats[0]:
            seen.has_formats = True
        sources.add(
            name=name,
            files=(*files, *one.further),
            rows={} if seen.forward_only else {table: rows for table, (rows, _) in tables.items()},
            split=None if one.splits else split_of(name),
            row_splits=one.splits,
            detail=RowOrigin(
                files=group.names,
                formats=one.formats,
                arrays=group.arrays,
                rows=main.rows,
                tables=tables,
                metadata=one.metadata,
                attributes=text,
                extent=one.extent,
            ),
            memory=one.memory + _DERIVING if is_derived else 0,
            reading=one.memory,
        )
    return sources, count


def _none_of(paths: set[str]) -> Callable[[str], bool]:
    return lambda path: path not in paths


def _tables(
    schema: Schema, merged: Mapping[str, Mapping[str, Merged]], seen: _SourcesTogether
) -> Iterator[Table]:
    """Yield the main table, further ones of the files, and those that are computed."""
    for table, columns in schema.every_table.items():
        fields = []
        for name, column in columns.items():
            if column.ragged:
                continue
            if table in schema.derived:
                form = Merged(column.dtype, column.shape, {})
            elif column.spatial:
                form = merged[table][name]._replace(row_shape=seen.extent)
            else:
                form = merged[table][name]
            run = seen.sample_rows if table == schema.table else 1
            axis = table.removesuffix("s")
            fields.append(field_of(f"{table}/{name}", column, axis, *form[:2], run, form.attributes))
        is_spilled = seen.forward_only or table in schema.derived
        yield Table(name=table, fields=tuple(fields), spilled=is_spilled)
    for path, (table, name) in schema.ragged.items():
        column = schema.every_table[table][name]
        form = Merged(column.dtype, column.shape, {}) if table in schema.derived else merged[table][name]
        yield Table(name=path, fields=(ragged_field_of(path, column, *form[:3]),), spilled=True)


# Index arrays


def counts_of(
    cuts: Sequence[Cut], plugin: Family, schema: Schema, name: str, rows: Mapping[str, int]
) -> dict[str, NDArray[np.generic]]:
    """Return rows and numbers of the samples of a source, which has `rows` in each table.

    An author who forgets or adds some is told.
    """
    prepared: dict[str, NDArray[np.generic]] = {
        ROWS: _rows_cut([cut.rows for cut in cuts], name, rows[schema.table])
    }
    if not schema.samples and (prepared[ROWS] != 1).any():
        message = f"returned samples of several {schema.table}, but each of these is a sample"
        raise fault(plugin, "cut", name, message)
    for number, cut in enumerate(cuts):
        for what, given, declared, where in (
            ("numbers", cut.numbers, schema.per_sample, "Schema.per_sample"),
            ("rows", cut.tables, schema.of_samples, "Schema.per"),
        ):
            if set(given) != set(declared):
                names = ", ".join(sorted(given)) or f"no {what}"
                expected = ", ".join(sorted(declared)) or "none"
                message = f"returned {names} for sample {number}, but {where} has {expected}"
                raise fault(plugin, "cut", name, message)
    for table in schema.of_samples:
        counts = [cut.tables[table] for cut in cuts]
        prepared[f"{ROWS}/{table}"] = _rows_cut(counts, f"{name}: {table}", rows.get(table, 0))
    for key, column in schema.per_sample.items():
        values = [stored_value(key, column, cut.numbers[key]) for cut in cuts]
        for number, value in enumerate(values):
            if value is None:
                message = f"returned the {key} {cuts[number].numbers[key]!r:.60} for sample {number}"
                raise fault(plugin, "cut", name, f"{message}, not {expected_of(key, column)}")
        known = [value for value in values if value is not None]
        prepared[f"{SIZES}{schema.samples}/{key}"] = np.array(list(map(len, known)), np.int64)
        prepared[f"number/{key}"] = np.concatenate([np.empty(0, np.uint8), *known])
    return prepared


def _rows_cut(counts: Sequence[int], what: str, rows: int) -> Int64s:
    """Return the rows of each sample, which together are all rows."""
    cut = np.array(counts, np.int64)
    negative = np.flatnonzero(cut < 0)
    if len(negative) or cut.sum() != rows:
        message = f"its samples have {cut.sum():,} rows together, but it has {rows:,}"
        if len(negative):
            message = f"its sample {negative[0]} has {cut[negative[0]]} rows"
        fix = "report this to the authors of its family"
        raise InputError(Problem(what, message, fix, "plugin"))
    return cut


def finalize_sources(scan: Scan, prepared: Sequence[SourceArrays]) -> Finalized:
    """Index arrays of all sources, and how many samples each has."""
    planned: Planned = scan.shared["planned"]
    origins: Sequence[RowOrigin] = scan.sources.details
    schema = planned.schema
    arrays: list[tuple[Field, IndexValues]] = []
    if schema.is_cut:
        counts = [np.asarray(one[ROWS], np.int64) for one in prepared]
        samples = np.array([len(count) for count in counts], np.int64)
        arrays += _sample_arrays(schema, prepared, counts, samples)
    elif scan.tables[0].spilled:
        samples = np.array([origin.rows for origin in origins], np.int64)
    else:
        samples = np.array(scan.sources.rows(schema.table), np.int64)
    if schema.spatial:
        arrays.append(_extents(schema, origins))
    spilled = {one.name: one for one in scan.tables if one.spilled}
    for path, (table, _) in schema.ragged.items():
        sizes = _joined(prepared, f"{SIZES}{path}")
        arrays.append((item_bounds(path, table.removesuffix("s")), offsets_of(sizes)))
        values = replace(spilled[path].fields[0], run=max(1, int(np.median(sizes))) if len(sizes) else 1)
        spilled[path] = replace(spilled[path], fields=(values,))
    return Finalized(
        arrays=[*arrays, *_origin_arrays(planned, origins)],
        spilled=tuple(spilled.values()),
        samples=int(samples.sum()),
        sample_source=np.arange(len(samples)),
        sample_runs=samples,
    )


def _joined(prepared: Sequence[SourceArrays], name: str) -> Int64s:
    """Return counts of all sources, one after the other."""
    return np.concatenate([np.zeros(0, np.int64), *[np.asarray(one[name], np.int64) for one in prepared]])


def _sample_arrays(
    schema: Schema,
    prepared: Sequence[SourceArrays],
    counts: Sequence[Int64s],
    samples: Int64s,
) -> Arrays:
    axis = schema.sample_table.removesuffix("s")
    for table in schema.of_samples:
        what = f"{table} of {axis} i are rows offsets[i] to offsets[i + 1] - 1"
        field = bounds_field(f"{schema.sample_table}/{table}/offsets", axis, what)
        yield field, offsets_of(_joined(prepared, f"{ROWS}/{table}"))
    if not schema.samples:
        return
    what = f"{schema.table} of {axis} i are rows offsets[i] to offsets[i + 1] - 1"
    lengths = np.concatenate([np.zeros(0, np.int64), *counts])
    yield bounds_field(f"{schema.samples}/offsets", axis, what), offsets_of(lengths)
    source = Field(
        path=f"{schema.samples}/source", dtype="int32", axes=(axis,), description="Source of the sample"
    )
    yield source, np.repeat(np.arange(len(samples), dtype=np.int32), samples)
    for name, column in schema.per_sample.items():
        values = [np.asarray(one[f"number/{name}"]) for one in prepared]
        sizes = _joined(prepared, f"{SIZES}{schema.samples}/{name}")
        yield from value_arrays(schema.samples, name, column, values, sizes, axis)


def _extents(schema: Schema, origins: Sequence[RowOrigin]) -> tuple[Field, IndexValues]:
    """Return how far each volume reaches."""
    extents = np.array([origin.extent or (0, 0, 0) for origin in origins], np.int32)
    described = Field(
        path=f"{schema.table}/extent",
        dtype="int32",
        row_shape=(3,),
        axes=(schema.table.removesuffix("s"), "extent_axis"),
        description="Depth, height and width of the volume; behind it is padding",
    )
    return described, np.repeat(extents, [origin.rows for origin in origins], axis=0)


def _origin_arrays(planned: Planned, origins: Sequence[RowOrigin]) -> Arrays:
    """Return what the sources say: numbers, metadata, formats, attributes."""
    for name, column in planned.schema.per_source.items():
        given = (stored_value(name, column, origin.metadata[array_of(name, column)]) for origin in origins)
        values = [value for value in given if value is not None]
        counts = np.array(list(map(len, values)), np.int64)
        yield from value_arrays("sources", name, column, values, counts, "source")
    if planned.has_metadata:
        texts = view(origins, lambda origin: json.dumps(dict(origin.metadata), sort_keys=True))
        what = "What the file says beside its arrays"
        data, bounds = lazy_text_arrays(METADATA, texts, axis="source", description=what)
        if planned.of_family:  # which formats do not know
            data = replace(data[0], attributes={OF_FAMILY: sorted(planned.of_family)}), data[1]
        yield from (data, bounds)
    if planned.has_formats:
        names = view(origins, lambda origin: origin.formats[0])
        yield from lazy_text_arrays(FORMAT, names, axis="source", description="Format of the file")
    if planned.has_attributes:
        yield from AttributeCollector.arrays(origins)
