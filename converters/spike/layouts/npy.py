"""Arrays of spikes and voxels in ``.npy`` files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.npy.array import open_npy, read_header
from unistore.converters.parts import LeftOut, Verdict
from unistore.converters.spike.layouts.arrays import PixelSource, pixel_source, voxel_grid
from unistore.converters.spike.source import Format, VoxelGrid


def _look(path: Path, location: str) -> Verdict:
    read_header(path, location)
    return LeftOut("is an array outside of a sequence's folders")


def _read_array(path: Path, location: str, _key: str) -> NDArray[Any]:
    return open_npy(path, location)


def _open(path: Path, location: str) -> PixelSource:
    return pixel_source(path, location, "", read_header(path, location), _read_array)


def _open_voxels(path: Path, location: str) -> VoxelGrid:
    return voxel_grid(path, location, "", read_header(path, location), _read_array)


def _original(path: Path, _key: str) -> NDArray[Any]:
    array: NDArray[Any] = np.load(path, allow_pickle=False)
    return array


FORMAT = Format(
    suffixes=(".npy",), look=_look, open=_open, original=_original, open_voxels=_open_voxels, form="npy"
)
