"""What a schema needs to know of an array in order to judge it: its shape and its dtype."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from unistore.errors import Problem

__all__ = ["ArrayInfo", "count_problems", "name_problem"]


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """Shape and dtype of one array of a store.

    Attributes
    ----------
    shape
        All axes, axis 0 (rows) first.
    dtype
        numpy dtype name in native form: ``"int32"``.
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def kind(self) -> str:
        """Letter of numpy for the kind of number: ``"f"``, ``"i"``, ``"u"``, ``"b"``, ``"c"``."""
        return np.dtype(self.dtype).kind


def count_problems(attributes: Mapping[str, Any], rows: int, what: str) -> list[Problem]:
    """Problem of a root whose sample count is not the number of rows of its sample table.

    Parameters
    ----------
    attributes
        The root's ``unistore`` attributes; without a count nothing is wrong.
    rows
        Rows there are.
    what
        What a row is: ``"frames"``.
    """
    count = attributes.get("samples", {}).get("count", rows)
    if count == rows:
        return []
    return [Problem("samples", f"count is {count}, but there are {rows} {what}", kind="count")]


def name_problem(path: str) -> str | None:
    """Say why a path cannot name an array in a Zarr v3 store; None if it can.

    Zarr v3 core, "Node names": no empty name, none made of dots alone, none that begins with ``__``. Beyond
    that, ``zarr.json`` would collide with a node's own file, and control characters, backslashes and parts
    above 255 bytes do not survive every file system.
    """
    for part in path.split("/"):
        if part.strip(".") == "":
            return f"part {part!r} is empty or made of dots"
        if part.startswith("__"):
            return f"part {part!r} begins with '__', which Zarr reserves"
        if part == "zarr.json":
            return "part 'zarr.json' is the name of a file of every Zarr node"
        if not part.isprintable() or "\\" in part:
            return f"part {part!r} holds a control character or a backslash"
        if len(part.encode("utf-8", "surrogateescape")) > 255:
            return f"part {part[:20]!r}… is longer than 255 bytes"
    return None
