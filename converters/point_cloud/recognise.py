"""Recognising a file's layout and choosing its columns, without reading values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py

from unistore.converters.files.hdf5 import file as hdf5
from unistore.converters.files.hdf5.file import place
from unistore.converters.files.hdf5.tree import Tree, follow, walk
from unistore.converters.point_cloud.batches import is_batches, recognise_batches
from unistore.converters.point_cloud.columns import ROLES, Chosen, choose
from unistore.converters.point_cloud.layout import (
    BATCHES,
    COLUMNS,
    IN_SEGMENTS,
    INDICES,
    Layout,
    header_of,
    plain,
    segment_names,
    segment_problems,
)
from unistore.errors import InputError, Problem, printable

__all__ = ["layout_of", "recognise"]

_GROUPS = frozenset({"segments"})
_SUMMARIES = ("unique_labels", "indices")
"""What a segment may hold beside its columns."""


def recognise(path: Path, name: str, roots: Sequence[Path], mapping: Mapping[str, str]) -> Layout:
    """Recognise a file's layout and choose its columns, without reading values.

    Parameters
    ----------
    path, name
        The file and how messages call it.
    roots
        Where links may lead.
    mapping
        Stored names of datasets, as in `choose`.

    Raises
    ------
    InputError
        With every problem that can be seen without reading values.
    """
    with hdf5.open_hdf5(path, name) as file:
        tree = walk(file, name, roots, skip=_GROUPS)
        if tree.problems:
            raise InputError(tree.problems)
        if "segments" in tree.groups:
            if wrong := segment_problems(file["segments"], name):
                raise InputError(wrong)
            if segment_names(file["segments"]):
                return _pointsuite(file, tree, name, roots, mapping)
        if is_batches(tree) and not {"x", "xyz"} & set(mapping):
            return recognise_batches(file, tree, name, mapping)
        group = _group_of_columns(tree, name, mapping)
        chosen = choose(tree.datasets, group, mapping, name)
        return _layout(COLUMNS, name, file, tree, chosen)


def layout_of(path: Path, roots: Sequence[Path]) -> str | None:
    """Layout that a file seems to have, judged by names and shapes; None if it is no point cloud.

    Looser than `recognise`: a file that is wrong in some detail still has its layout, so that the detail can
    be reported. ``batches`` are taken for point clouds only beside a ``label`` of integers.
    """
    with suppress(InputError), hdf5.open_hdf5(path) as file:
        tree = walk(file, str(path), roots, skip=_GROUPS)
        if "segments" in tree.groups and segment_names(file["segments"]):
            return INDICES if "data" in tree.groups else IN_SEGMENTS
        label = tree.datasets.get("label")
        if is_batches(tree) and label is not None and label.dtype.kind in "iu":
            return BATCHES
        return COLUMNS if any(_holds_coordinates(tree, group) for group in ("", *tree.groups)) else None
    return None


def _pointsuite(
    file: h5py.File, tree: Tree, name: str, roots: Sequence[Path], mapping: Mapping[str, str]
) -> Layout:
    names = segment_names(file["segments"])
    notes = _count_notes(file["segments"], "num_segments", len(names), "segments")
    if "data" in tree.groups:
        chosen = choose(tree.datasets, "data", mapping, name)
        notes += _count_notes(file.get("header"), "point_count", chosen.rows, "points")
        return _layout(INDICES, name, file, tree, chosen, segments=len(names), notes=notes)
    location = place(name, f"segments/{names[0]}")
    first = follow(file["segments"], names[0], location, roots)
    if isinstance(first, Problem):
        raise InputError(first)
    inside = walk(first, location, roots)
    if inside.problems:
        raise InputError(inside.problems)
    columns = {key: each for key, each in inside.datasets.items() if key not in _SUMMARIES}
    chosen = choose(columns, "", mapping, location)
    points = _points_inside(file["segments"], names, chosen.xyz[0])
    return _layout(IN_SEGMENTS, name, file, tree, chosen, segments=len(names), points=points, notes=notes)


def _points_inside(segments: h5py.Group, names: Sequence[str], column: str) -> int:
    """Points of all segments, those that can be counted; the others are reported when they are read."""
    points = 0
    for name in names:
        path = f"{name}/{column}"
        with suppress(KeyError, OSError, RuntimeError):
            if isinstance(segments.get(path, getlink=True), h5py.HardLink):
                points += segments[path].shape[0]
    return points


def _layout(
    kind: str,
    name: str,
    file: h5py.File,
    tree: Tree,
    chosen: Chosen,
    segments: int = 1,
    points: int | None = None,
    notes: tuple[str, ...] = (),
) -> Layout:
    header = header_of(file, name)
    scalars = tuple(f"left out, being no column: {printable(path)}" for path in chosen.left_out)
    read = [
        path
        for path in (*chosen.xyz, *(path for path, _ in chosen.columns.values()))
        if path in tree.datasets
    ]
    return Layout(
        kind=kind,
        points=chosen.rows if points is None else points,
        segments=segments,
        xyz=chosen.xyz,
        xyz_stored=chosen.xyz_stored,
        columns=chosen.columns,
        scale=_triple(header, "scale"),
        offset=_triple(header, "offset"),
        header=header,
        files=tuple(sorted(tree.files)),
        reading=2 * sum(hdf5.chunk_memory(tree.datasets[path]) for path in read),
        notes=(*notes, *scalars),
    )


def _group_of_columns(tree: Tree, name: str, mapping: Mapping[str, str]) -> str:
    """Group whose datasets are the columns: where x is mapped to, or the only one that holds x, y and z."""
    anchor = (mapping.get("x") or mapping.get("xyz") or "").strip("/")
    if not anchor:
        groups = [group for group in ("", *tree.groups) if _holds_coordinates(tree, group)]
        groups = groups or [group for group in ("", *tree.groups) if _holds_coordinates(tree, group, least=2)]
    elif anchor in tree.datasets:
        groups = [anchor.rpartition("/")[0]]
    else:
        groups = [path.rpartition("/")[0] for path in tree.datasets if path.endswith(f"/{anchor}")]
    if len(groups) > 1:
        cure = f"choose one: --map x={groups[0]}/x" if groups[0] else "choose one: --map x=PATH"
        message = f"several groups hold x, y, z: {printable(', '.join(group or '/' for group in groups))}"
        raise InputError(Problem(name, message, cure, "ambiguous"))
    if not groups:
        listed = printable(", ".join(list(tree.datasets)[:40])) or "none"
        cure = "name the columns: --map x=NAME --map y=NAME --map z=NAME"
        raise InputError(Problem(name, f"has no x, y, z; datasets: {listed}", cure, "missing"))
    return groups[0]


def _holds_coordinates(tree: Tree, group: str, least: int = 3) -> bool:
    """Whether datasets of a group are called x, y and z, or at least so many of them, or ``xyz``."""
    prefix = f"{group}/" if group else ""
    own = {path.removeprefix(prefix).lower() for path in tree.datasets if path.startswith(prefix)}
    return len(own.intersection(ROLES)) >= least or "xyz" in own


def _triple(header: Mapping[str, Any], what: str) -> tuple[float, ...] | None:
    """Three numbers of the header: ``x_scale``, ``y_scale``, ``z_scale`` or one array ``scale``."""
    found = header.get(what, header.get(f"{what}s", [header.get(f"{axis}_{what}") for axis in ROLES]))
    if isinstance(found, list) and len(found) == 3 and all(isinstance(value, int | float) for value in found):
        return tuple(float(value) for value in found)
    return None


def _count_notes(group: h5py.Group | None, attribute: str, found: int, what: str) -> tuple[str, ...]:
    """Remark on a count in the header that contradicts what is there."""
    said = None if group is None else plain(group.attrs.get(attribute))
    if said is None or said == found or not isinstance(said, int):
        return ()
    return (f"its header counts {said} {what}, but it holds {found}",)
