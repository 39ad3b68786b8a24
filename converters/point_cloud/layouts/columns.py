"""``columns``: x, y and z in one group of an HDF5 file, in either case, or wherever ``--map`` says."""

from __future__ import annotations

from collections.abc import Mapping

from unistore.converters.files.hdf5.file import SUFFIXES, check_dataset
from unistore.converters.files.hdf5.tree import Tree
from unistore.converters.point_cloud.columns import choose
from unistore.converters.point_cloud.datasets import checked, described, open_datasets, open_original, seen
from unistore.converters.point_cloud.source import ROLES, Layout, Look, Match
from unistore.errors import InputError, Problem, printable

__all__ = ["NAME", "SUFFIXES", "describe", "match", "open_original", "open_points"]

NAME = "columns"

open_points = open_datasets


def match(look: Look) -> Match:
    """Any HDF5 file: ``--map`` may name its columns."""
    tree = seen(look).tree
    certain = any(_holds_coordinates(tree, group) for group in ("", *tree.groups))
    return Match.CERTAIN if certain else Match.POSSIBLE


def describe(look: Look) -> Layout:
    """Choose the group and its columns."""
    found = checked(look)
    group = _group_of_columns(found.tree, look.name, look.mapping)
    chosen = choose(found.tree.datasets, group, look.mapping, look.name, check_dataset)
    return described(found, chosen, format=NAME)


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
