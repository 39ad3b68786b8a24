"""HDF5 files that crash the HDF5 library or hang it."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

NODE = 24
"""Bytes of a tree's node before its entries."""
CRASHES = "is damaged: it crashes the HDF5 library (signal 11)"
HANGS_IT = "is damaged: it hangs the HDF5 library"

Change = Callable[[bytearray], None]


def write(path: Path) -> Path:
    """Write a sound file with a plain and a chunked dataset."""
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)
        file.create_dataset("chunked", data=np.arange(3), chunks=(1,))
        file.attrs["text"] = "text"
    return path


def _tree(data: bytearray, kind: int) -> int:
    return next(found.start() for found in re.finditer(b"TREE", data) if data[found.start() + 4] == kind)


def own_branch(data: bytearray) -> None:
    """The root group's tree has itself for its only branch."""
    at = _tree(data, 0)
    data[at + 5] = 1
    struct.pack_into("<Q", data, at + NODE + 8, at)


def own_neighbour_of_chunks(data: bytearray) -> None:
    """The tree of chunks has itself for both neighbours."""
    at = _tree(data, 1)
    struct.pack_into("<QQ", data, at + 8, at, at)


def free_space_of_nothing(data: bytearray) -> None:
    """The global heap, which holds texts and mappings of virtual datasets, ends in 0 bytes of free space."""
    at = data.index(b"GCOL") + 16
    while struct.unpack_from("<H", data, at)[0]:
        at += 16 + -(-struct.unpack_from("<Q", data, at + 8)[0] // 8) * 8
    struct.pack_into("<Q", data, at + 8, 0)


def changed(path: Path, change: Change) -> Path:
    """Write a file and change its bytes."""
    data = bytearray(write(path).read_bytes())
    change(data)
    path.write_bytes(data)
    return path


def write_damaged(folder: Path) -> Path:
    """Two sound files, one that crashes the library and one that hangs it."""
    (folder / "sources").mkdir()
    for name in ("a", "d"):
        write(folder / "sources" / f"{name}.h5")
    changed(folder / "sources" / "b.h5", own_branch)
    changed(folder / "sources" / "c.h5", free_space_of_nothing)
    return folder / "sources"


WRONG = [("b.h5", CRASHES, "damaged"), ("c.h5", HANGS_IT, "damaged")]
"""Place, message and kind of the problems of `write_damaged`."""
