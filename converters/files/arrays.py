"""Names of files of arrays, and of the array in one that has no names."""

from __future__ import annotations

from pathlib import Path

NPY_NAME = "data"
"""Name given to the array of a ``.npy`` file."""


def format_of(path: Path) -> str:
    """Format of a file by its suffix: ``"npy"``, ``"npz"``, or ``"hdf5"`` for all others."""
    suffix = path.suffix.lower()
    return suffix[1:] if suffix in (".npy", ".npz") else "hdf5"
