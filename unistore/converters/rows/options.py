"""Options of plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unistore.converters.options import Columns, Options, option


@dataclass(frozen=True, kw_only=True)
class RowsOptions(Options):
    """Options of plain arrays."""

    map: Mapping[str, str] = option({}, metavar="NAME=DATASET")
    columns: Columns = option("exact")
    reverse_axes: bool = option(
        False, "Read rows from the last axis of HDF5 arrays, as MATLAB writes them.", late=True
    )
