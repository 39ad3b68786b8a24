"""Formats of spike files; see `unistore.converters.spike.source`.

To add one, write a module here with a `Format`, and list it in `FORMATS`. Nothing else changes.
"""

from __future__ import annotations

from pathlib import Path, PurePath

from unistore.converters.spike.layouts import arrays, dat
from unistore.converters.spike.source import Format, VoxelGrid

__all__ = [
    "ARRAY_SUFFIX",
    "FORMATS",
    "STREAM_SUFFIX",
    "format_of",
    "open_voxels",
    "spike_suffixes",
    "stem_of",
    "voxel_suffixes",
]

FORMATS: tuple[Format, ...] = (dat.FORMAT, arrays.NPY, arrays.NPZ)

ARRAY_SUFFIX, STREAM_SUFFIX = arrays.NPY.suffixes[0], dat.FORMAT.suffixes[0]
"""Suffixes of exported arrays and streams whose own format cannot be written."""


def spike_suffixes() -> tuple[str, ...]:
    """Suffixes of files of spikes."""
    return tuple(suffix for each in FORMATS for suffix in each.suffixes)


def voxel_suffixes() -> tuple[str, ...]:
    """Suffixes of files of voxels."""
    return tuple(suffix for each in FORMATS if each.open_voxels is not None for suffix in each.suffixes)


def format_of(path: PurePath) -> Format:
    """Format of a file by its suffix; ``.dat`` for an unknown suffix."""
    name = path.name.lower()
    return next((each for each in FORMATS if name.endswith(each.suffixes)), dat.FORMAT)


def stem_of(path: PurePath) -> str:
    """File name without the suffix of its format, or without its last suffix if the format is unknown."""
    found = [each for each in spike_suffixes() if path.name.lower().endswith(each)]
    return path.name[: -max(map(len, found))] if found else path.stem


def open_voxels(path: Path, location: str) -> VoxelGrid:
    """Read the header of a file of voxels, of one of `voxel_suffixes`; raises `InputError`."""
    opened = format_of(path).open_voxels
    assert opened is not None
    return opened(path, location)
