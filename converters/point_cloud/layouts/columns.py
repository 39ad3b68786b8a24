"""``columns``: x, y and z, or one array of coordinates, in a group of an HDF5 file or named by ``--map``."""

from __future__ import annotations

from collections.abc import Mapping

from unistore.converters.files.hdf5 import library as h5py
from unistore.converters.files.hdf5.file import SUFFIXES, check_dataset
from unistore.converters.files.hdf5.tree import Tree
from unistore.converters.point_cloud.columns import choose, how_to_name
from unistore.converters.point_cloud.datasets import (
    Datasets,
    make_layout,
    open_checked,
    open_file,
    opener,
)
from unistore.converters.point_cloud.names import cloud_match, named_coordinates, own_names
from unistore.converters.point_cloud.source import AXES, Layout, Match
from unistore.converters.scan import Candidate
from unistore.errors import InputError, Problem, printable

__all__ = ["NAME", "SUFFIXES", "describe", "match", "open_points"]

NAME = "columns"

open_points = opener(Datasets)


def match(file: Candidate, mapping: Mapping[str, str]) -> Match:
    """Certain with x, y, z or usual names; possible for any HDF5 file, as ``--map`` may name its columns."""
    tree = open_file(file).tree
    if any(_holds_coordinates(tree, group) for group in ("", *tree.groups)):
        return Match.CERTAIN
    named = max(cloud_match(_own(tree, group)) for group in ("", *tree.groups))
    if named is Match.CERTAIN:
        return named
    if tree.problems:
        raise InputError(tree.problems)
    return max(named, Match.POSSIBLE)


def describe(file: Candidate, mapping: Mapping[str, str]) -> Layout:
    """Choose the group and its columns."""
    found = open_checked(file)
    group = _group_of_columns(found.tree, file.name, mapping)
    return make_layout(found, choose(NAME, found.arrays, group, mapping, file.name, check_dataset, wide=True))


def _group_of_columns(tree: Tree, name: str, mapping: Mapping[str, str]) -> str:
    """Group whose datasets are the columns: the one of the mapped x, or the only one with x, y and z."""
    anchor = (mapping.get("x") or mapping.get("xyz") or "").strip("/")
    if not anchor:
        groups = [group for group in ("", *tree.groups) if _holds_coordinates(tree, group)]
        groups = groups or [group for group in ("", *tree.groups) if named_coordinates(_own(tree, group))]
        groups = groups or [group for group in ("", *tree.groups) if _holds_coordinates(tree, group, least=2)]
    elif anchor in tree.datasets:
        groups = [anchor.rpartition("/")[0]]
    else:
        groups = [path.rpartition("/")[0] for path in tree.datasets if path.endswith(f"/{anchor}")]
    if len(groups) > 1:
        own = _own(tree, groups[0])
        keys = [key for key in own if key.lower() in ("x", "xyz")] or named_coordinates(own) or ["x"]
        role = "x" if keys[0].lower() == "x" else "xyz"
        cure = f"choose one: --map {role}={f'{groups[0]}/{keys[0]}'.lstrip('/')}"
        message = f"several groups hold x, y, z: {printable(', '.join(group or '/' for group in groups))}"
        raise InputError(Problem(name, message, cure, "ambiguous"))
    if not groups:
        listed = printable(", ".join(list(tree.datasets)[:40])) or "none"
        cure = how_to_name(tree.datasets)
        raise InputError(Problem(name, f"has no x, y, z; datasets: {listed}", cure, "missing"))
    return groups[0]


def _own(tree: Tree, group: str) -> dict[str, h5py.Dataset]:
    """Datasets directly in a group, by name."""
    own = {key: tree.datasets[path] for key, path in own_names(tree.datasets, group).items()}
    return {key: each for key, each in own.items() if each.shape is not None}


def _holds_coordinates(tree: Tree, group: str, least: int = 3) -> bool:
    """Whether a group has datasets ``xyz``, or at least `least` of x, y and z."""
    own = {key.lower() for key in own_names((*tree.datasets, *tree.broken), group)}
    return len(own.intersection(AXES)) >= least or "xyz" in own
