"""Arrays of spikes and voxels in ``.npy`` files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.npy.array import open_npy, read_header
from unistore.converters.parts import LeftOut, Verdict
from unistore.converters.spike.layouts.arrays import PixelSource, three_axes
from unistore.converters.spike.source import Format, VoxelGrid

__all__ = ["FORMAT", "NpySource", "NpyVoxels"]


class NpySource(PixelSource):
    """A ``.npy`` file of spikes."""

    def values(self) -> NDArray[Any]:
        """The array, mapped."""
        return open_npy(self.path, self.location)


class NpyVoxels(VoxelGrid):
    """A ``.npy`` file of voxels."""

    def values(self) -> NDArray[Any]:
        """The grid, mapped."""
        return open_npy(self.path, self.location)


def _look(path: Path, location: str) -> Verdict:
    """Any array may be in a ``.npy`` file: only a sequence's folder tells."""
    read_header(path, location)
    return LeftOut("is an array outside of a sequence's folders")


def _open(path: Path, location: str) -> NpySource:
    header = read_header(path, location)
    extent = three_axes(header, "", location)
    return NpySource(path=path, location=location, extent=extent, dtype=header.dtype)


def _open_voxels(path: Path, location: str) -> NpyVoxels:
    header = read_header(path, location)
    shape = three_axes(header, "", location)
    return NpyVoxels(
        path=path,
        location=location,
        bins=shape.length,
        height=shape.height,
        width=shape.width,
        dtype=header.dtype,
    )


def _original(path: Path, _key: str) -> NDArray[Any]:
    array: NDArray[Any] = np.load(path, allow_pickle=False)
    return array


FORMAT = Format(
    suffixes=(".npy",), look=_look, open=_open, original=_original, open_voxels=_open_voxels, form="npy"
)
