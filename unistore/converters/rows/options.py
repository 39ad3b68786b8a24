"""Options of plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unistore.converters.options import Columns, Options, option


@dataclass(frozen=True, kw_only=True)
class RowsOptions(Options):
    """Options of plain arrays, for `unistore.convert` and for the command line.

    ``unistore convert rows --help`` describes each of them.

    Examples
    --------
    >>> unistore.convert("arrays/", "arrays.zarr", map={"label": "targets/y"})  # doctest: +SKIP
    """

    map: Mapping[str, str] = option({}, metavar="NAME=DATASET")
    columns: Columns = option("exact")
    reverse_axes: bool = option(
        False, "Read rows from the last axis of HDF5 arrays, as MATLAB writes them.", late=True
    )
