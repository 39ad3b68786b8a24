"""Formats of files of voxels (one module each, listed in `FORMATS`) and of points.

To add a format of volumes, write a module here with a subclass of `VoxelSource` and a `Format`, and list it
in `FORMATS`.
"""

from __future__ import annotations

from pathlib import Path

from unistore.converters.ct.layouts import npy
from unistore.converters.ct.source import Format, VoxelSource

__all__ = [
    "FOREIGN",
    "FOREIGN_CURE",
    "FORMATS",
    "foreign_message",
    "format_of",
    "known_formats",
    "open_voxels",
    "stem_of",
    "suffix_of",
    "suffixes",
    "without_suffix",
]

FORMATS: tuple[Format, ...] = (npy.FORMAT,)
"""Formats of volumes, windows and masks as voxels."""

_FOREIGN_NAMES = {
    ".nii": "NIfTI",
    ".nii.gz": "NIfTI",
    ".dcm": "DICOM",
    ".mha": "MHA",
    ".mhd": "MHD",
    ".nrrd": "NRRD",
}
FOREIGN = tuple(_FOREIGN_NAMES)
"""Suffixes of volumes in formats that are not read; messages name them and a remedy."""
FOREIGN_CURE = "load it with its own library and save the voxels: np.save('volume.npy', voxels)"


def suffixes() -> tuple[str, ...]:
    """Endings of the files of all formats."""
    return tuple(suffix for each in FORMATS for suffix in each.suffixes)


def format_of(path: Path) -> Format | None:
    """Format of a file of voxels, by its suffix, or None."""
    name = path.name.lower()
    return next((each for each in FORMATS if name.endswith(each.suffixes)), None)


def suffix_of(path: Path) -> str:
    """Suffix of a file: that of its format, which may be of several parts, or else ``path.suffix``."""
    name = path.name
    return max(filter(name.endswith, suffixes()), key=len, default="") or path.suffix


def stem_of(path: Path) -> str:
    """File name without `suffix_of`."""
    return path.name.removesuffix(suffix_of(path))


def without_suffix(name: str) -> str:
    """A name without the suffix of its format; other names as they are."""
    return name.removesuffix(max(filter(name.endswith, suffixes()), key=len, default=""))


def open_voxels(path: Path, location: str | None = None) -> VoxelSource:
    """Read the header of a volume.

    Parameters
    ----------
    path
        A file with a format; see `format_of`.
    location
        Name of the file in messages; its path by default.

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


def foreign_message(path: Path) -> str | None:
    """Message for a file in a format that is not read, or None."""
    if format_of(path) is not None:
        return None
    ending = max((each for each in FOREIGN if path.name.lower().endswith(each)), key=len, default=None)
    return None if ending is None else f"is {_FOREIGN_NAMES[ending]}, which this version does not read"


def known_formats() -> str:
    """Suffixes of the formats that are read, for messages."""
    return " or ".join(suffixes())
