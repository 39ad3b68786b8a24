"""Spikes and voxels as arrays: in ``.npy`` files, and in ``.npz`` files under a known name or alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.npy.archive import NpzMember, npz_members, open_member
from unistore.converters.files.npy.array import open_npy, read_header
from unistore.converters.files.npy.header import NpyHeader
from unistore.converters.parts import LeftOut, Taken, Verdict
from unistore.converters.spike.source import Extent, Format, FrameSource, ReadArray, VoxelGrid
from unistore.errors import InputError, Problem
from unistore.schemas.spike.bits import pack

_BLOCK = 8 << 20
_SPIKES = ("spk",)
_VOXELS = ("voxel", "voxels", "spike_vox", "vox", "arr_0")


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


def _spikes(path: Path, location: str, header: NpyHeader, read: ReadArray, key: str = "") -> PixelSource:
    """Spikes in an array; one with a name is of an archive, and takes as much memory as it has pixels."""
    return PixelSource(
        path=path,
        location=location,
        extent=Extent(*_checked_shape(header, location, key)),
        key=key,
        memory=prod(header.shape) if key else 0,
        dtype=header.dtype,
        read_array=read,
    )


def _voxels(path: Path, location: str, header: NpyHeader, read: ReadArray, key: str = "") -> VoxelGrid:
    bins, height, width = _checked_shape(header, location, key)
    return VoxelGrid(
        path=path,
        location=location,
        bins=bins,
        height=height,
        width=width,
        dtype=header.dtype,
        read_array=read,
        key=key,
    )


def _checked_shape(header: NpyHeader, location: str, key: str) -> tuple[int, ...]:
    if len(header.shape) != 3 or 0 in header.shape:
        message = f"{key or 'the array'} has shape {header.shape}, expected three axes of at least 1"
        raise InputError(Problem(location, message, "save it as (time or bin, height, width)", "shape"))
    return header.shape


def _look_at_npy(path: Path, location: str) -> Verdict:
    read_header(path, location)
    return LeftOut("is an array outside of a sequence's folders")


def _read_npy(path: Path, location: str, _key: str) -> NDArray[Any]:
    return open_npy(path, location)


def _look_at_npz(path: Path, location: str) -> Verdict:
    members = npz_members(path, location)
    found = next((members[name] for name in _SPIKES if name in members), None)
    if found is None:
        return LeftOut(f"holds no {' or '.join(_SPIKES)}")
    return Taken("array", f"holds {found.name} {found.header.shape}")


def _read_npz(path: Path, location: str, key: str) -> NDArray[Any]:
    return open_member(path, npz_members(path, location)[key], location)


def _member(path: Path, location: str, names: Sequence[str]) -> tuple[NpzMember, tuple[str, ...]]:
    """Return the first of `names` in the file, or its only array, and the names of the other arrays."""
    members = npz_members(path, location)
    found = [each for each in names if each in members] or (list(members) if len(members) == 1 else [])
    if not found:
        message = f"holds {', '.join(members) or 'no array'}, expected {' or '.join(names)}"
        raise InputError(Problem(location, message, "save it again under that name", "missing"))
    return members[found[0]], tuple(name for name in members if name != found[0])


def _open_npz(path: Path, location: str) -> PixelSource:
    member, others = _member(path, location, _SPIKES)
    spikes = _spikes(path, location, member.header, _read_npz, member.name)
    return replace(spikes, others=others)


def _open_npz_voxels(path: Path, location: str) -> VoxelGrid:
    member, others = _member(path, location, _VOXELS)
    voxels = _voxels(path, location, member.header, _read_npz, member.name)
    return replace(voxels, others=others)


def _original(path: Path, key: str) -> NDArray[Any]:
    if not key:
        return np.asarray(np.load(path, allow_pickle=False))
    with np.load(path, allow_pickle=False) as members:
        return np.asarray(members[key])


def _original_names(path: Path) -> Sequence[str]:
    with np.load(path, allow_pickle=False) as members:
        names: list[str] = members.files
        return names


NPY = Format(
    suffixes=(".npy",),
    look=_look_at_npy,
    open=lambda path, location: _spikes(path, location, read_header(path, location), _read_npy),
    original=_original,
    open_voxels=lambda path, location: _voxels(path, location, read_header(path, location), _read_npy),
    form="npy",
)
NPZ = Format(
    suffixes=(".npz",),
    look=_look_at_npz,
    open=_open_npz,
    original=_original,
    open_voxels=_open_npz_voxels,
    names=_original_names,
    form="npz",
)
