"""A column of the sample table, read before the splits are assigned that are grouped by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from unistore.converters.common.faults import as_problem
from unistore.converters.protocol import Converter, Finalized, Scan
from unistore.errors import InputError, Problem, first_few
from unistore.schemas.tables import Field, IndexValues, text_values

_KINDS = "bui"


def column_values(converter: Converter, scan: Scan, finalized: Finalized, name: str) -> Sequence[Any]:
    """Values of a column of the sample table, one a sample: whole numbers, or texts.

    Raises
    ------
    InputError
        If there is no such column, its values are neither, or a source cannot be read.
    """
    direct = _direct_columns(scan)
    if name in direct:
        return _read(converter, scan, direct[name])
    index = _index_columns(scan, finalized)
    if name in index:
        return index[name]()
    columns = sorted({*direct, *index})
    sample = scan.sample_table.rpartition("/")[2].removesuffix("s")
    cure = f"columns of whole numbers or texts, one a {sample}: {first_few(columns) or 'none'}"
    raise InputError(Problem(f"--group-by column:{name}", "is no column to group by", cure, "option"))


def _index_columns(scan: Scan, finalized: Finalized) -> dict[str, Callable[[], Sequence[Any]]]:
    """Return what reads each index array of one whole number, or text, a sample."""
    prefix = f"{scan.sample_table}/"
    arrays = {field.path.removeprefix(prefix): values for field, values in finalized.arrays}
    columns: dict[str, Callable[[], Sequence[Any]]] = {}
    for name, values in arrays.items():
        column, _, part = name.rpartition("/")
        if part == "offsets" and f"{column}/data" in arrays and len(values) == finalized.samples + 1:
            columns[column] = partial(_texts, arrays[f"{column}/data"], values)
        elif part == name and values.dtype.kind in _KINDS and values.shape == (finalized.samples,):
            columns[name] = partial(_numbers, values)
    return columns


def _texts(data: IndexValues, offsets: IndexValues) -> Sequence[Any]:
    return text_values(data[:], offsets[:])


def _numbers(values: IndexValues) -> Sequence[Any]:
    whole: list[Any] = values[:].tolist()
    return whole


def _direct_columns(scan: Scan) -> dict[str, Field]:
    """Return the columns of one whole number a sample that are read from the sources."""
    columns = {}
    for table in scan.tables:
        if table.name != scan.sample_table or table.spilled:
            continue
        for field in table.fields:
            if not field.row_shape and np.dtype(field.dtype).kind in _KINDS:
                columns[field.path.removeprefix(f"{table.name}/")] = field
    return columns


def _read(converter: Converter, scan: Scan, column: Field) -> Sequence[Any]:
    table = scan.sample_table
    name = column.path.removeprefix(f"{table}/")
    rows = scan.sources.rows(table)
    values = np.full(sum(rows), column.fill, column.dtype)
    first = 0
    for source, count in enumerate(rows):
        if not count:
            continue
        column_of_source = values[first : first + count]
        with as_problem(scan.sources.names[source]):
            converter.read(scan, table, source, 0, count, {name: column_of_source})
        first += count
    whole: list[Any] = values.tolist()
    return whole
