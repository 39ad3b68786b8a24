"""Source formats of CT: volumes (a module a format, listed in `FORMATS`), points, and folders of cases."""

from __future__ import annotations

from pathlib import Path

from unistore.converters.ct.layouts import npy
from unistore.converters.ct.source import Format, VoxelSource

__all__ = ["FORMATS", "format_of", "open_voxels", "stem_of", "suffix_of", "suffixes", "without_suffix"]

FORMATS: tuple[Format, ...] = (npy.FORMAT,)
"""Formats of volumes, windows and masks as voxels."""


def suffixes() -> tuple[str, ...]:
    """Endings of the files of all formats."""
    return tuple(suffix for each in FORMATS for suffix in each.suffixes)


def format_of(path: Path) -> Format | None:
    """Format of a file, by its name; None if it is of no format of volumes."""
    name = path.name.lower()
    return next((each for each in FORMATS if name.endswith(each.suffixes)), None)


def suffix_of(path: Path) -> str:
    """Ending of a file's name: that of its format, such as ``.nii.gz``, or else its last suffix."""
    return max((each for each in suffixes() if path.name.endswith(each)), key=len, default=path.suffix)


def stem_of(path: Path) -> str:
    """File name without `suffix_of`."""
    return path.name.removesuffix(suffix_of(path))


def without_suffix(name: str) -> str:
    """A name without the ending of its format; other names as they are."""
    return name.removesuffix(max((each for each in suffixes() if name.endswith(each)), key=len, default=""))


def open_voxels(path: Path, location: str | None = None) -> VoxelSource:
    """Read the header of a volume.

    Parameters
    ----------
    path
        A file that `format_of` knows.
    location
        What an error calls the file; its path by default.

    Raises
    ------
    InputError
        The file is damaged, truncated, or not of its format.
    """
    found = format_of(path)
    if found is None:
        msg = f"{path} is not of a format of CT volumes: {', '.join(suffixes())}"
        raise ValueError(msg)
    return found.open(path, location or str(path))
