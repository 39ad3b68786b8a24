"""Rows whose number is known once a source was read: tables that a family computes, rows of any length."""

from __future__ import annotations

import numpy as np

from unistore.converters.common.columns import SourceColumn
from unistore.converters.family import Family
from unistore.converters.formats.ragged import items_in
from unistore.converters.opened import Array, Opened
from unistore.converters.protocol import Emit, Facts
from unistore.converters.schema import Schema
from unistore.converters.seam.gather import SIZES
from unistore.converters.seam.sources import check_derived
from unistore.errors import Location
from unistore.schemas.tables import Table
from unistore.system.hints import Int64s


def emit_derived(plugin: Family, opened: Opened, name: str, schema: Schema, emit: Emit) -> Facts:
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
    facts = {f"{SIZES}{path}": np.concatenate(of_path) for path, of_path in sizes.items()}
    return facts | {f"derived/{table}": np.array([count]) for table, count in counts.items()}


def emit_ragged(array: Array | None, location: Location, rows: int, table: Table, emit: Emit) -> Int64s:
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
