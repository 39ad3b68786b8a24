"""Arrays of spikes and voxels in ``.npz`` files: of known names, or the only one there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.npy.archive import NpzMember, npz_members, open_member
from unistore.converters.parts import LeftOut, Taken, Verdict
from unistore.converters.spike.layouts.arrays import PixelSource, three_axes
from unistore.converters.spike.source import Format, VoxelGrid
from unistore.errors import InputError, Problem

__all__ = ["FORMAT", "NpzSource", "NpzVoxels"]

_SPIKES = ("spk",)
_VOXELS = ("voxel", "voxels", "spike_vox", "vox", "arr_0")


class NpzSource(PixelSource):
    """Spikes in a ``.npz`` file."""

    def values(self) -> NDArray[Any]:
        """The array, mapped unless it is compressed."""
        return open_member(self.path, npz_members(self.path, self.location)[self.key], self.location)


class NpzVoxels(VoxelGrid):
    """Voxels in a ``.npz`` file."""

    def values(self) -> NDArray[Any]:
        """The grid, mapped unless it is compressed."""
        return open_member(self.path, npz_members(self.path, self.location)[self.key], self.location)


def _look(path: Path, location: str) -> Verdict:
    members = npz_members(path, location)
    found = next((members[name] for name in _SPIKES if name in members), None)
    if found is None:
        return LeftOut(f"holds no {' or '.join(_SPIKES)}")
    return Taken("array", f"holds {found.name} {found.header.shape}")


def _open(path: Path, location: str) -> NpzSource:
    member = _chosen(path, location, _SPIKES)
    extent = three_axes(member.header, member.name, location)
    return NpzSource(
        path=path,
        location=location,
        extent=extent,
        key=member.name,
        memory=extent.length * extent.height * extent.width,
        dtype=member.header.dtype,
    )


def _open_voxels(path: Path, location: str) -> NpzVoxels:
    member = _chosen(path, location, _VOXELS)
    shape = three_axes(member.header, member.name, location)
    return NpzVoxels(
        path=path,
        location=location,
        bins=shape.length,
        height=shape.height,
        width=shape.width,
        dtype=member.header.dtype,
        key=member.name,
    )


def _chosen(path: Path, location: str, names: Sequence[str]) -> NpzMember:
    """The first of `names` that is there, or the only array of another name."""
    members = npz_members(path, location)
    found = [each for each in names if each in members] or (list(members) if len(members) == 1 else [])
    if not found:
        message = f"holds {', '.join(members) or 'no array'}, expected {' or '.join(names)}"
        raise InputError(Problem(location, message, "save it again under that name", "missing"))
    return members[found[0]]


def _original(path: Path, key: str) -> NDArray[Any]:
    with np.load(path, allow_pickle=False) as members:
        return np.asarray(members[key])


FORMAT = Format(
    suffixes=(".npz",),
    look=_look,
    open=_open,
    original=_original,
    open_voxels=_open_voxels,
    form="npz",
)
