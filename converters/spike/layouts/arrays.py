"""Spikes and voxels as arrays: in ``.npy`` files, and in ``.npz`` files under a known name or alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.npy.archive import open_npz
from unistore.converters.files.npy.array import ArrayValues, open_npy, read_header
from unistore.converters.scan import LeftOut, Taken, Verdict
from unistore.converters.spike.source import BLOCK, LARGE, Extent, Format, FrameSource, VoxelGrid
from unistore.errors import InputError, Problem
from unistore.schemas.spike.fields import pack

_SPIKES = ("spk",)
_VOXELS = ("voxel", "voxels", "spike_vox", "vox", "arr_0")


@dataclass(frozen=True, kw_only=True)
class PixelSource(FrameSource):
    """Spikes as an array of pixels (T, H, W), top row first.

    Attributes
    ----------
    dtype
        uint8 and bool are spikes.
    """

    dtype: np.dtype[Any]

    def check(self) -> list[Problem]:
        """Check that the dtype is u1 or bool, and that the first values are 0 or 1."""
        if self.dtype not in (np.dtype(np.uint8), np.dtype(np.bool_)):
            what = self.key or "the array"
            message = f"{what} has dtype {self.dtype}, expected uint8 or bool with values 0 and 1"
            return [Problem(self.location, message, "save it with .astype(np.uint8)", "dtype")]
        if self.memory > LARGE:
            return []
        try:
            next(self.blocks())
        except InputError as error:
            return list(error.problems)
        return []

    def blocks(self) -> Iterator[NDArray[np.uint8]]:
        """Pack the pixels; see `FrameSource.blocks`."""
        for pixels in self._pixels():
            largest = int(pixels.max(initial=0))
            if largest > 1:
                what = self.key or "the array"
                message = f"{what} holds values up to {largest}, expected spikes of 0 and 1"
                cure = "packed bits? save them as a .dat file; counts of spikes? they belong into spike_vox/"
                raise InputError(Problem(self.location, message, cure, "values"))
            yield pack(pixels)

    def _pixels(self) -> Iterator[NDArray[Any]]:
        length, height, width = self.extent
        step = max(1, BLOCK // (height * width))
        with _opened(self.path, self.location, self.key) as values:
            for start in range(0, length, step):
                yield values[start : start + step]


@contextmanager
def _opened(path: Path, location: str, key: str) -> Iterator[ArrayValues]:
    """Context of the values of a ``.npy`` file, or of a member."""
    if not key:
        with open_npy(path, location) as values:
            yield values
        return
    with open_npz(path, location) as arrays:
        yield arrays[key]


def _read(path: Path, location: str, key: str) -> NDArray[Any]:
    with _opened(path, location, key) as values:
        return values.whole()


def _spikes(path: Path, location: str, values: ArrayValues, key: str = "") -> PixelSource:
    extent = Extent(*_checked_shape(values, location, key))
    return PixelSource(
        path=path, location=location, extent=extent, key=key, memory=values.memory, dtype=values.dtype
    )


def _voxels(path: Path, location: str, values: ArrayValues, key: str = "") -> VoxelGrid:
    bins, height, width = _checked_shape(values, location, key)
    return VoxelGrid(
        path=path,
        location=location,
        bins=bins,
        height=height,
        width=width,
        dtype=values.dtype,
        read_array=_read,
        key=key,
        memory=values.header.nbytes if values.compressed else 0,
    )


def _checked_shape(values: ArrayValues, location: str, key: str) -> tuple[int, ...]:
    if len(values.shape) != 3 or 0 in values.shape:
        message = f"{key or 'the array'} has shape {values.shape}, expected three axes of at least 1"
        raise InputError(Problem(location, message, "save it as (time or bin, height, width)", "shape"))
    return values.shape


def _look_at_npy(path: Path, location: str) -> Verdict:
    read_header(path, location)
    return LeftOut("is an array outside of a sequence's folders")


def _look_at_npz(path: Path, location: str) -> Verdict:
    with open_npz(path, location) as arrays:
        found = [name for name in _SPIKES if name in arrays]
        if not found:
            return LeftOut(f"holds no {' or '.join(_SPIKES)}")
        return Taken("array", f"holds {found[0]} {arrays[found[0]].shape}")


def _chosen(arrays: Mapping[str, ArrayValues], names: Sequence[str], location: str) -> str:
    """Return the first of `names` in the file, or its only array."""
    found = [name for name in names if name in arrays] or (list(arrays) if len(arrays) == 1 else [])
    if not found:
        message = f"holds {', '.join(arrays) or 'no array'}, expected {' or '.join(names)}"
        raise InputError(Problem(location, message, "save it again under that name", "missing"))
    return found[0]


def _open_npy(path: Path, location: str) -> PixelSource:
    with open_npy(path, location) as values:
        return _spikes(path, location, values)


def _open_npy_voxels(path: Path, location: str) -> VoxelGrid:
    with open_npy(path, location) as values:
        return _voxels(path, location, values)


def _open_npz(path: Path, location: str) -> PixelSource:
    with open_npz(path, location) as arrays:
        key = _chosen(arrays, _SPIKES, location)
        others = tuple(name for name in arrays if name != key)
        return replace(_spikes(path, location, arrays[key], key), others=others)


def _open_npz_voxels(path: Path, location: str) -> VoxelGrid:
    with open_npz(path, location) as arrays:
        key = _chosen(arrays, _VOXELS, location)
        others = tuple(name for name in arrays if name != key)
        return replace(_voxels(path, location, arrays[key], key), others=others)


NPY = Format(
    suffixes=(".npy",),
    look=_look_at_npy,
    open=_open_npy,
    open_voxels=_open_npy_voxels,
    form="npy",
)
NPZ = Format(
    suffixes=(".npz",),
    look=_look_at_npz,
    open=_open_npz,
    open_voxels=_open_npz_voxels,
    form="npz",
)
