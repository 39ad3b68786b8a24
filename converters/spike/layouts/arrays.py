"""Spikes and voxels that are arrays in a file, whatever its format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.npy.header import NpyHeader
from unistore.converters.spike.source import Extent, FrameSource, ReadArray, VoxelGrid
from unistore.errors import InputError, Problem
from unistore.schemas.spike.bits import pack

_BLOCK = 8 << 20


@dataclass(frozen=True, kw_only=True)
class PixelSource(FrameSource):
    """Spikes as an array of pixels (T, H, W), top row first.

    Attributes
    ----------
    dtype
        As in the file: uint8 and bool are spikes.
    read_array
        Reads the array.
    """

    dtype: np.dtype[Any]
    read_array: ReadArray

    def check(self) -> list[Problem]:
        """Check that the dtype is u1 or bool, and all values are 0 or 1."""
        what = self.key or "the array"
        if self.dtype not in (np.dtype(np.uint8), np.dtype(np.bool_)):
            message = f"{what} has dtype {self.dtype}, expected uint8 or bool with values 0 and 1"
            return [Problem(self.location, message, "save it with .astype(np.uint8)", "dtype")]
        largest = max(int(block.max(initial=0)) for block in self._blocks())
        if largest > 1:
            message = f"{what} holds values up to {largest}, expected spikes of 0 and 1"
            cure = "packed bits? save them as a .dat file; counts of spikes? they belong into spike_vox/"
            return [Problem(self.location, message, cure, "values")]
        return []

    def read(self, out: NDArray[np.uint8]) -> None:
        """Pack the pixels; see `FrameSource.read`."""
        start = 0
        for block in self._blocks():
            out[start : start + len(block)] = pack(block)
            start += len(block)

    def _blocks(self) -> Iterator[NDArray[Any]]:
        values = self.read_array(self.path, self.location, self.key)
        step = max(1, _BLOCK // max(1, values[:1].nbytes))
        return (values[start : start + step] for start in range(0, len(values), step))


def pixel_source(
    path: Path, location: str, key: str, header: NpyHeader, read_array: ReadArray, *, in_memory: bool = False
) -> PixelSource:
    """Spikes in an array; `in_memory`: reading it takes as much memory as it has pixels.

    Raises
    ------
    InputError
        If it has not three axes, or an empty one.
    """
    extent = _extent(header, key, location)
    return PixelSource(
        path=path,
        location=location,
        extent=extent,
        key=key,
        memory=extent.length * extent.height * extent.width if in_memory else 0,
        dtype=header.dtype,
        read_array=read_array,
    )


def voxel_grid(path: Path, location: str, key: str, header: NpyHeader, read_array: ReadArray) -> VoxelGrid:
    """Voxel grid in an array.

    Raises
    ------
    InputError
        If it has not three axes, or an empty one.
    """
    shape = _extent(header, key, location)
    return VoxelGrid(
        path=path,
        location=location,
        bins=shape.length,
        height=shape.height,
        width=shape.width,
        dtype=header.dtype,
        read_array=read_array,
        key=key,
    )


def _extent(header: NpyHeader, key: str, location: str) -> Extent:
    if len(header.shape) != 3 or 0 in header.shape:
        message = f"{key or 'the array'} has shape {header.shape}, expected three axes of at least 1"
        raise InputError(Problem(location, message, "save it as (time or bin, height, width)", "shape"))
    return Extent(*header.shape)
