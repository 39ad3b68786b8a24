"""Options of plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unistore.converters.options import COLUMNS, MAP, Columns, Options, option


@dataclass(frozen=True, kw_only=True)
class RowsOptions(Options):
    """Options of plain arrays."""

    map: Mapping[str, str] = option({}, MAP, metavar="NAME=DATASET")
    columns: Columns = option("exact", COLUMNS)
    reverse_axes: bool = option(False, "HDF5 arrays have their rows on the last axis, as MATLAB writes them.")

    def recorded(self) -> dict[str, Any]:
        """See `Options.recorded`. `reverse_axes` is recorded only if it is true."""
        recorded = super().recorded()
        return {key: value for key, value in recorded.items() if key != "reverse_axes" or value}
