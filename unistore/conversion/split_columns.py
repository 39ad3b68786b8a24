"""A column of the sample table, read before the splits are assigned that are grouped by it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from unistore.converters.common.faults import as_problem
from unistore.converters.protocol import Converter, Finalized, Scan
from unistore.errors import InputError, Problem, first_few
from unistore.schemas.tables import Field, Table, text_values

_KINDS = "bui"


def column_values(converter: Converter, scan: Scan, finalized: Finalized, name: str) -> Sequence[Any]:
    """Values of a column of the sample table, one a sample: whole numbers, or texts.

    Raises
    ------
    InputError
        If there is no such column, its values are neither, or a source cannot be read.
    """
    table = scan.sample_table
    index = {field.path.removeprefix(f"{table}/"): values for field, values in finalized.arrays}
    if f"{name}/offsets" in index:
        return text_values(index[f"{name}/data"][:], index[f"{name}/offsets"][:])
    samples = finalized.samples
    columns = {key for key, values in index.items() if len(values) == samples and values.dtype.kind in _KINDS}
    direct = next((each for each in scan.tables if each.name == table and not each.spilled), None)
    rows = {} if direct is None else _whole_numbers(direct)
    if name in rows:
        return _read(converter, scan, rows[name])
    if name in columns and not name.endswith("/offsets"):
        return list(index[name][:].tolist())
    listed = first_few(sorted({*rows, *(key for key in columns if "/" not in key)})) or "none"
    cure = f"columns of whole numbers, one a {table.rpartition('/')[2].removesuffix('s')}: {listed}"
    raise InputError(Problem(f"--group-by column:{name}", "is no column to group by", cure, "option"))


def _whole_numbers(table: Table) -> dict[str, Field]:
    columns = [field for field in table.fields if not field.row_shape]
    columns = [field for field in columns if np.dtype(field.dtype).kind in _KINDS]
    return {field.path.removeprefix(f"{table.name}/"): field for field in columns}


def _read(converter: Converter, scan: Scan, column: Field) -> Sequence[Any]:
    table = scan.sample_table
    name = column.path.removeprefix(f"{table}/")
    rows = scan.sources.rows(table)
    values = np.full(sum(rows), column.fill, column.dtype)
    bounds = np.concatenate(([0], np.cumsum(rows))).tolist()
    for source, (lo, hi) in enumerate(pairwise(bounds)):
        if hi > lo:
            with as_problem(scan.sources.names[source]):
                converter.read(scan, table, source, 0, hi - lo, {name: values[lo:hi]})
    return list(values.tolist())
