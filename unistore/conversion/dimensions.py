"""Unique dimension names: in a group and its parents, one name has one extent, as xarray requires."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from unistore.conversion.plan import ArrayPlan, TablePlan


def unique_dimension_names(
    tables: Iterable[TablePlan], index: Iterable[ArrayPlan]
) -> tuple[tuple[TablePlan, ...], tuple[ArrayPlan, ...]]:
    """Rename the axes whose name another array uses for another extent.

    An axis of rows gets the name of its table as a prefix (``points_row``), other axes that of their array
    (``rows_a_x_axis``). Families choose distinct names; what remains are columns like ``a/x`` and ``x``.
    """
    names = _Names()
    named = tuple(replace(table, arrays=tuple(map(names.renamed, table.arrays))) for table in tables)
    return named, tuple(map(names.renamed, index))


class _Names:
    """Extent of every name used so far, by group."""

    def __init__(self) -> None:
        self._used: dict[str, dict[str, int]] = defaultdict(dict)

    def renamed(self, array: ArrayPlan) -> ArrayPlan:
        path, axes = array.field.path, list(array.field.axes)
        group = path.rpartition("/")[0]
        table = path.removesuffix(f"/{array.column}")
        for number, extent in enumerate(array.shape):
            owner = (table if number == 0 else path).replace("/", "_")
            while axes[number] in axes[:number] or self._conflicts(group, axes[number], extent):
                axes[number] = f"{owner}_{axes[number]}"
            self._used[axes[number]][group] = extent
        return replace(array, field=replace(array.field, axes=tuple(axes)))

    def _conflicts(self, group: str, name: str, extent: int) -> bool:
        return any(
            other != extent and (f"{group}/".startswith(f"{where}/") or f"{where}/".startswith(f"{group}/"))
            for where, other in self._used[name].items()
        )
