"""Options of plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unistore.converters.options import COLUMNS, MAP, Columns, Options, option


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
    reverse_axes
        Rows of HDF5 arrays are on the last axis, and all axes are reversed, as MATLAB writes them. Arrays of
        ``.npy`` and ``.npz`` files are taken as they are.
    exclude
        Names of files or folders to leave out.
    """

    map: Mapping[str, str] = option({}, MAP, metavar="NAME=DATASET")
    columns: Columns = option("exact", COLUMNS)
    reverse_axes: bool = option(False, "HDF5 arrays have their rows on the last axis, as MATLAB writes them.")

    def recorded(self) -> dict[str, Any]:
        """See `Options.recorded`; `reverse_axes` is recorded only if it is true."""
        recorded = super().recorded()
        return {key: value for key, value in recorded.items() if key != "reverse_axes" or value}
