"""What to do about columns, as options that work with what a file holds."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from unistore.errors import printable

__all__ = ["leaving_out", "naming", "renaming"]


class _Shaped(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...


def naming(datasets: Mapping[str, _Shaped]) -> str:
    """How to name coordinates: an array (N, 3), or the first three columns of one length; else no way."""
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


def renaming(path: str) -> str:
    """How to give a column another name, or leave it out."""
    plain = "".join(char if char.isascii() and char.isalnum() else "_" for char in path.rpartition("/")[2])
    return f"rename it, as in {_map(f'{plain}_2', path)}, or leave it out: {leaving_out(path)}"


def leaving_out(*paths: str) -> str:
    """Options that leave columns out."""
    return " ".join(_map(path, "") for path in paths)


def _map(name: str, path: str) -> str:
    return f"--map {shlex.quote(printable(f'{name}={path}'))}"
