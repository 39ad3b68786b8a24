"""``columns``: x, y and z, or one array of coordinates, in a group of a file or named by ``--map``."""

from __future__ import annotations

from collections.abc import Mapping

from unistore.converters.plugin import Array, Opened
from unistore.converters.point_cloud.columns import choose, how_to_name
from unistore.converters.point_cloud.datasets import Columns, columns_of, described
from unistore.converters.point_cloud.names import cloud_match, named_coordinates, own_names
from unistore.converters.point_cloud.source import AXES, Described, Match
from unistore.errors import InputError, Problem, printable

__all__ = ["NAME", "describe", "match", "points"]

NAME = "columns"

points = Columns


def match(opened: Opened, mapping: Mapping[str, str]) -> Match:
    """Certain with x, y, z or usual names; possible for any file, as ``--map`` may name its columns."""
    groups = ("", *opened.groups)
    if any(_holds_coordinates(opened, group) for group in groups):
        return Match.CERTAIN
    return max(Match.POSSIBLE, *(cloud_match(_own(opened, group)) for group in groups))


def describe(opened: Opened, mapping: Mapping[str, str]) -> Described:
    """Choose the group and its columns."""
    group = _group_of_columns(opened, mapping)
    return described(opened, choose(NAME, columns_of(opened), group, mapping, opened.name, wide=True))


def _group_of_columns(opened: Opened, mapping: Mapping[str, str]) -> str:
    """Group whose arrays are the columns: the one of the mapped x, or the only one with x, y and z."""
    arrays = opened.all_arrays
    anchor = (mapping.get("x") or mapping.get("xyz") or "").strip("/")
    if not anchor:
        groups = _groups_with_coordinates(opened)
    elif anchor in arrays:
        groups = [anchor.rpartition("/")[0]]
    else:
        groups = [path.rpartition("/")[0] for path in arrays if path.endswith(f"/{anchor}")]
    if len(groups) > 1:
        own = _own(opened, groups[0])
        keys = [key for key in own if key.lower() in ("x", "xyz")] or named_coordinates(own) or ["x"]
        role = "x" if keys[0].lower() == "x" else "xyz"
        cure = f"choose one: --map {role}={f'{groups[0]}/{keys[0]}'.lstrip('/')}"
        message = f"several groups hold x, y, z: {printable(', '.join(group or '/' for group in groups))}"
        raise InputError(Problem(opened.name, message, cure, "ambiguous"))
    if not groups:
        shown_datasets = printable(", ".join(list(arrays)[:40])) or "none"
        message = f"has no x, y, z; datasets: {shown_datasets}"
        raise InputError(Problem(opened.name, message, how_to_name(arrays), "missing"))
    return groups[0]


def _groups_with_coordinates(opened: Opened) -> list[str]:
    """Groups with x, y and z; else those with coordinates by another name; else with two of x, y and z."""
    groups = ("", *opened.groups)
    return (
        [group for group in groups if _holds_coordinates(opened, group)]
        or [group for group in groups if named_coordinates(_own(opened, group))]
        or [group for group in groups if _holds_coordinates(opened, group, least=2)]
    )


def _own(opened: Opened, group: str) -> dict[str, Array]:
    """Arrays directly in a group, by name."""
    arrays = opened.all_arrays
    return {key: arrays[path] for key, path in own_names(arrays, group).items()}


def _holds_coordinates(opened: Opened, group: str, least: int = 3) -> bool:
    """Whether a group has ``xyz``, or at least `least` of x, y and z; broken links count, to be reported."""
    broken = [problem.dataset for problem in opened.unreachable]
    own = {key.lower() for key in own_names((*opened.all_arrays, *broken), group)}
    return len(own.intersection(AXES)) >= least or "xyz" in own
