"""Dimension names that other readers can align: one extent a name inside a group and the groups above it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from unistore.conversion.plan import ArrayPlan, TablePlan

__all__ = ["with_own_names"]


def with_own_names(
    tables: Iterable[TablePlan], index: Iterable[ArrayPlan]
) -> tuple[tuple[TablePlan, ...], tuple[ArrayPlan, ...]]:
    """The same arrays; an axis whose name another array has for another extent is named after its own.

    Families choose names that differ. What is left are columns whose own names are alike (``a/x`` and ``x``):
    rows are named after their table (``points_row``), other axes after their array (``rows_a_x_axis``).
    """
    names = _Names()
    named = tuple(replace(table, arrays=tuple(map(names.name, table.arrays))) for table in tables)
    return named, tuple(map(names.name, index))


class _Names:
    """Extents of all names so far, by the group that they were used in."""

    def __init__(self) -> None:
        self._used: dict[str, dict[str, int]] = defaultdict(dict)

    def name(self, array: ArrayPlan) -> ArrayPlan:
        path, axes = array.field.path, list(array.field.axes)
        group = path.rpartition("/")[0]
        table = path.removesuffix(f"/{array.column}")
        for number, extent in enumerate(array.shape):
            owner = (table if number == 0 else path).replace("/", "_")
            while axes[number] in axes[:number] or self._taken(group, axes[number], extent):
                axes[number] = f"{owner}_{axes[number]}"
            self._used[axes[number]][group] = extent
        return replace(array, field=replace(array.field, axes=tuple(axes)))

    def _taken(self, group: str, name: str, extent: int) -> bool:
        return any(
            other != extent and (f"{group}/".startswith(f"{where}/") or f"{where}/".startswith(f"{group}/"))
            for where, other in self._used[name].items()
        )
