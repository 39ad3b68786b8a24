"""Index arrays of a store: the offsets and numbers of its samples, and what its sources say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.hdf5.attributes import attribute_arrays
from unistore.converters.plugin import Cut, Family, Schema
from unistore.converters.protocol import Facts, Finalized, Scan
from unistore.converters.seam.faults import fault
from unistore.converters.seam.sources import Origin, Planned
from unistore.converters.seam.specs import FACTS, FORMAT, field_of, is_number, number_dtype, table_offsets
from unistore.errors import InputError, Problem
from unistore.schemas.tables import Field, IndexValues, bounds_field, lazy_text_arrays, offsets_of
from unistore.system.packed import view


def facts_of(
    cuts: Sequence[Cut], plugin: Family, schema: Schema, name: str, rows: int
) -> dict[str, NDArray[np.generic]]:
    """Rows and numbers of the samples of a source; an author who forgets or adds a number is told."""
    counts = np.array([cut.rows for cut in cuts], np.int64)
    if (counts < 0).any() or counts.sum() != rows:
        message = f"is cut into {counts.sum()} rows, and has {rows}"
        raise InputError(Problem(name, message, "tell who wrote its family", "plugin"))
    for number, cut in enumerate(cuts):
        missing = schema.per_sample.keys() - cut.numbers.keys()
        unknown = cut.numbers.keys() - schema.per_sample.keys()
        if missing:
            raise fault(plugin, "cut", name, f"gave no {', '.join(sorted(missing))} for sample {number}")
        if unknown:
            raise fault(plugin, "cut", name, f"gave {', '.join(sorted(unknown))}, not in Schema.per_sample")
    facts: dict[str, NDArray[np.generic]] = {"rows": counts}
    for key, column in schema.per_sample.items():
        numbers_of_cuts = [cut.numbers[key] for cut in cuts]
        dtype = number_dtype(column)
        for number, value in enumerate(numbers_of_cuts):
            if not is_number(value, dtype):
                message = f"gave {key} {value!r} for sample {number}, expected {dtype}"
                raise fault(plugin, "cut", name, message)
        facts[f"number/{key}"] = np.array(numbers_of_cuts, dtype)
    return facts


def finalize_sources(scan: Scan, facts: Sequence[Facts]) -> Finalized:
    """Index arrays of all sources, and how many samples each has."""
    planned: Planned = scan.shared["planned"]
    schema = planned.schema
    arrays: list[tuple[Field, IndexValues]] = []
    if schema.samples:
        counts = [np.asarray(one["rows"], np.int64) for one in facts]
        samples = np.array([len(count) for count in counts], np.int64)
        arrays += _sample_arrays(schema, facts, counts, samples)
    elif scan.tables[0].spilled:
        samples = np.array([origin.rows for origin in scan.sources.details], np.int64)
    else:
        samples = np.array(scan.sources.rows(schema.table), np.int64)
    arrays += _table_offsets(schema, scan, facts)
    if schema.spatial:
        arrays.append(_extents(schema, scan.sources.details))
    return Finalized(
        arrays=[*arrays, *_origin_arrays(planned, scan.sources.details)],
        spilled=tuple(table for table in scan.tables if table.spilled),
        samples=int(samples.sum()),
        sample_source=np.arange(len(samples)),
        sample_runs=samples,
    )


def _sample_arrays(
    schema: Schema,
    facts: Sequence[Facts],
    counts: Sequence[NDArray[np.int64]],
    samples: NDArray[np.int64],
) -> Iterator[tuple[Field, IndexValues]]:
    axis = schema.samples.removesuffix("s")
    what = f"{schema.table} of {axis} i are rows offsets[i] to offsets[i + 1] - 1"
    lengths = np.concatenate([np.zeros(0, np.int64), *counts])
    yield bounds_field(f"{schema.samples}/offsets", axis, what), offsets_of(lengths)
    numbers = np.repeat(np.arange(len(samples), dtype=np.int32), samples)
    described = Field(
        path=f"{schema.samples}/source", dtype="int32", axes=(axis,), description="Source of the sample"
    )
    yield described, numbers
    for name, column in schema.per_sample.items():
        values = np.concatenate([np.asarray(one[f"number/{name}"]) for one in facts])
        yield field_of(f"{schema.samples}/{name}", column, axis, values.dtype.name), values


def _extents(schema: Schema, origins: Sequence[Origin]) -> tuple[Field, IndexValues]:
    """How far each volume reaches."""
    extents = np.array([origin.extent or (0, 0, 0) for origin in origins], np.int32)
    described = Field(
        path=f"{schema.table}/extent",
        dtype="int32",
        row_shape=(3,),
        axes=(schema.table.removesuffix("s"), "extent_axis"),
        description="Depth, height and width of the volume; behind it is padding",
    )
    return described, np.repeat(extents, [origin.rows for origin in origins], axis=0)


def _table_offsets(schema: Schema, scan: Scan, facts: Sequence[Facts]) -> Iterator[tuple[Field, IndexValues]]:
    """Where the rows of each source begin in further tables."""
    for table in schema.tables:
        if table in schema.derived:
            lengths = [int(one[f"derived/{table}"][0]) for one in facts]
        else:
            lengths = [origin.tables[table].rows for origin in scan.sources.details]
        what = f"{table} of source i are rows offsets[i] to offsets[i + 1] - 1"
        yield bounds_field(table_offsets(table), "source", what), offsets_of(lengths)


def _origin_arrays(planned: Planned, origins: Sequence[Origin]) -> Iterator[tuple[Field, IndexValues]]:
    """What the sources say: numbers, facts, formats, attributes."""
    for name, column in planned.schema.per_source.items():
        dtype = number_dtype(column)
        values = np.array([origin.facts[column.source or name] for origin in origins], dtype)
        yield field_of(f"sources/{name}", column, "source", dtype), values
    if planned.has_facts:
        texts = view(origins, lambda origin: json.dumps(dict(origin.facts), sort_keys=True))
        what = "What the file says beside its arrays"
        yield from lazy_text_arrays(FACTS, texts, axis="source", description=what)
    if planned.has_formats:
        names = view(origins, lambda origin: origin.formats[0])
        yield from lazy_text_arrays(FORMAT, names, axis="source", description="Format of the file")
    if planned.has_attributes:
        yield from attribute_arrays(view(origins, lambda origin: origin.attributes))
