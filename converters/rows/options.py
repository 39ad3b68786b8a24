"""Options of plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unistore.converters.common.options import COLUMNS, MAP, Columns
from unistore.converters.options import Options, option

__all__ = ["RowsOptions"]


@dataclass(frozen=True, kw_only=True)
class RowsOptions(Options):
    """Options of plain arrays.

    Attributes
    ----------
    map
        Stored name by the array's name in the file. If given, only these arrays are taken.
    columns
        What to do with arrays that some files lack: ``"exact"`` refuses, ``"union"`` fills them (NaN for
        floats, else 0), ``"intersection"`` leaves them out.
    exclude
        Names of files or folders to leave out.
    """

    map: Mapping[str, str] = option({}, MAP, metavar="NAME=DATASET")
    columns: Columns = option("exact", COLUMNS)
