"""Formats of spike files, a module each, listed in `FORMATS`.

To add a format, write a module here with a subclass of `FrameSource` or `StreamSource` and a `Format`, and
list it in `FORMATS`. Nothing else changes.
"""

from __future__ import annotations

from pathlib import Path, PurePath

from unistore.converters.spike.layouts import dat, npy, npz
from unistore.converters.spike.source import Format, FrameSource, StreamSource, VoxelGrid

__all__ = [
    "ARRAY_SUFFIX",
    "FORMATS",
    "STREAM_SUFFIX",
    "format_of",
    "open_spikes",
    "open_voxels",
    "spike_suffixes",
    "stem_of",
    "voxel_suffixes",
]

FORMATS: tuple[Format, ...] = (dat.FORMAT, npy.FORMAT, npz.FORMAT)
"""Formats of spikes; those that can also hold voxels say so."""

ARRAY_SUFFIX, STREAM_SUFFIX = npy.FORMAT.suffixes[0], dat.FORMAT.suffixes[0]
"""Endings of the files that arrays and streams are given back as where their own format is not written."""


def spike_suffixes() -> tuple[str, ...]:
    """Endings of files of spikes."""
    return tuple(suffix for each in FORMATS for suffix in each.suffixes)


def voxel_suffixes() -> tuple[str, ...]:
    """Endings of files of voxels."""
    return tuple(suffix for each in FORMATS if each.open_voxels is not None for suffix in each.suffixes)


def format_of(path: PurePath) -> Format:
    """Format of a file, by its name; a file of another name, if given, is taken for a ``.dat`` stream."""
    name = path.name.lower()
    return next((each for each in FORMATS if name.endswith(each.suffixes)), dat.FORMAT)


def stem_of(path: PurePath) -> str:
    """File name without the ending of its format, or else without its last suffix."""
    found = [each for each in spike_suffixes() if path.name.lower().endswith(each)]
    return path.name[: -max(map(len, found))] if found else path.stem


def open_spikes(path: Path, location: str) -> FrameSource | StreamSource:
    """Read the header of a file of spikes.

    Raises
    ------
    InputError
        It cannot be read, or holds no spikes.
    """
    return format_of(path).open(path, location)


def open_voxels(path: Path, location: str) -> VoxelGrid:
    """Read the header of a file of voxels, of one of `voxel_suffixes`.

    Raises
    ------
    InputError
        It cannot be read, or holds no voxels.
    """
    opened = format_of(path).open_voxels
    assert opened is not None
    return opened(path, location)
