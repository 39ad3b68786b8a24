"""Shape and dtype of an array, as schemas check them, and names that arrays can have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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
        """Numpy's ``dtype.kind``: ``"f"``, ``"i"``, ``"u"``, ``"b"`` or ``"c"``."""
        return np.dtype(self.dtype).kind


def name_problem(path: str) -> str | None:
    """Why a path cannot name an array of a Zarr v3 store, or None.

    Zarr v3 core, "Node names": no empty name, none made of dots alone, none that begins with ``__``. Beyond
    that, ``zarr.json`` is a node's own file, and not every file system has names with control characters or
    backslashes, or of more than 255 bytes.
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
