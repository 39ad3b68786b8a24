"""Spikes and voxels as arrays: in ``.npy`` files, and in ``.npz`` files under a known name or alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.npy.archive import NpzMember, member_runs, npz_members, open_member
from unistore.converters.files.npy.array import open_flat, open_npy, read_header
from unistore.converters.files.npy.header import NpyHeader
from unistore.converters.parts import LeftOut, Taken, Verdict
from unistore.converters.spike.source import BLOCK, LARGE, Extent, Format, FrameSource, ReadArray, VoxelGrid
from unistore.errors import InputError, Problem
from unistore.schemas.spike.bits import pack

_SPIKES = ("spk",)
_VOXELS = ("voxel", "voxels", "spike_vox", "vox", "arr_0")


@dataclass(frozen=True, kw_only=True)
class PixelSource(FrameSource):
    """Spikes as an array of pixels (T, H, W), top row first.

    Attributes
    ----------
    header
        Of the array: uint8 and bool are spikes.
    member
        The array in an archive; None in a ``.npy`` file.
    """

    header: NpyHeader
    member: NpzMember | None = None

    def check(self) -> list[Problem]:
        """Check that the dtype is u1 or bool, and that the first values are 0 or 1."""
        if self.header.dtype not in (np.dtype(np.uint8), np.dtype(np.bool_)):
            what = self.key or "the array"
            message = f"{what} has dtype {self.header.dtype}, expected uint8 or bool with values 0 and 1"
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
        if self.header.fortran_order:  # time varies fastest: a block is spread over the whole file
            values = self._mapped()
            yield from (values[start : start + step] for start in range(0, length, step))
        elif self.member is not None:
            size = height * width
            for run in member_runs(self.path, self.member, 0, length * size, step * size, self.location):
                yield run.reshape(-1, height, width)
        else:
            with open_flat(self.path, self.header, self.location) as read:
                for start in range(0, length, step):
                    block = np.empty((min(step, length - start), height, width), self.header.dtype)
                    read(start * height * width, block)
                    yield block

    def _mapped(self) -> NDArray[Any]:
        if self.member is None:
            return open_npy(self.path, self.location)
        return open_member(self.path, self.member, self.location)


def _spikes(path: Path, location: str, header: NpyHeader, member: NpzMember | None = None) -> PixelSource:
    key = member.name if member is not None else ""
    return PixelSource(
        path=path,
        location=location,
        extent=Extent(*_checked_shape(header, location, key)),
        key=key,
        memory=_decompressed_whole(member) if header.fortran_order else 0,
        header=header,
        member=member,
    )


def _decompressed_whole(member: NpzMember | None) -> int:
    """Bytes of an array that cannot be mapped, as it is compressed."""
    return member.header.nbytes if member is not None and member.compressed else 0


def _voxels(
    path: Path, location: str, header: NpyHeader, read: ReadArray, member: NpzMember | None = None
) -> VoxelGrid:
    key = member.name if member is not None else ""
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
        memory=_decompressed_whole(member),
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
    return replace(_spikes(path, location, member.header, member), others=others)


def _open_npz_voxels(path: Path, location: str) -> VoxelGrid:
    member, others = _member(path, location, _VOXELS)
    return replace(_voxels(path, location, member.header, _read_npz, member), others=others)


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
    open=lambda path, location: _spikes(path, location, read_header(path, location)),
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
