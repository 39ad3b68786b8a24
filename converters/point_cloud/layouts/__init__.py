"""The layouts of point clouds, one module each, and the choice of one for a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unistore.converters.plugin import Opened
from unistore.converters.point_cloud.layouts import (
    arrays,
    batches,
    columns,
    pointsuite_columns,
    pointsuite_indices,
)
from unistore.converters.point_cloud.pointsuite import outside_segments
from unistore.converters.point_cloud.source import LayoutModule, Match
from unistore.errors import InputError, Problem, printable

_OF_NUMPY: tuple[LayoutModule, ...] = (arrays,)
_OF_GROUPS: tuple[LayoutModule, ...] = (pointsuite_indices, pointsuite_columns, batches, columns)


def layout_named(name: str) -> LayoutModule:
    """The layout of a name."""
    return next(layout for layout in (*_OF_NUMPY, *_OF_GROUPS) if name == layout.NAME)


def recognise(opened: Opened, kind: str, mapping: Mapping[str, str]) -> tuple[LayoutModule | None, Match]:
    """The first layout that fits a file of a format best.

    A file that is wrong in some detail still has its layout, so that the detail can be reported.

    Raises
    ------
    InputError
        If none is certain, and something in the file cannot be opened.
    """
    opened = outside_segments(opened)
    best: tuple[LayoutModule | None, Match] = None, Match.NO
    for layout in _layouts_of(kind):
        match = layout.match(opened, mapping)
        if match > best[1]:
            best = layout, match
        if match is Match.CERTAIN:
            return best
    if opened.unreachable:
        raise InputError(opened.unreachable)
    return best


def no_layout(name: str, kind: str) -> Problem:
    """Problem of a file of a format that no layout fits."""
    names = ", ".join(layout.NAME for layout in _layouts_of(kind))
    message = f"is no point cloud of a known format; looked for {names}"
    return Problem(printable(name), message, "check what wrote it", "format")


def _layouts_of(kind: str) -> Sequence[LayoutModule]:
    return _OF_NUMPY if kind in ("npy", "npz") else _OF_GROUPS
