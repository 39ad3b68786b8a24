"""Remedies of column problems, as ``--map`` options that fit the file."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Mapping

from unistore.converters.point_cloud.names import ArrayHeader
from unistore.errors import printable


def how_to_name(datasets: Mapping[str, ArrayHeader]) -> str:
    """How to name the coordinates: an array (N, 3), or three columns of the same length."""
    columns: dict[int, list[str]] = defaultdict(list)
    for path, each in datasets.items():
        if len(each.shape or ()) == 2 and each.shape[1] == 3:
            return f"name the coordinates, as in {_map('xyz', path)}"
        if len(each.shape or ()) == 1 and each.dtype.kind in "fiu":
            columns[each.shape[0]].append(path)
    found = next((paths[:3] for paths in columns.values() if len(paths) > 2), None)
    if found is None:
        return "none of its arrays can be coordinates; as plain arrays: unistore convert rows"
    return f"name the columns, as in {' '.join(map(_map, 'xyz', found))}"


def how_to_rename(path: str) -> str:
    """How to rename a column or leave it out."""
    plain = "".join(char if char.isascii() and char.isalnum() else "_" for char in path.rpartition("/")[2])
    return f"rename it, as in {_map(f'{plain}_2', path)}, or leave it out: {how_to_leave_out(path)}"


def how_to_leave_out(*paths: str) -> str:
    """Options that leave columns out."""
    return " ".join(_map(path, "") for path in paths)


def _map(name: str, path: str) -> str:
    return f"--map {shlex.quote(printable(f'{name}={path}'))}"
