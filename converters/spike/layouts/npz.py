"""Arrays of spikes and voxels in ``.npz`` files: of known names, or the only array."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.npy.archive import NpzMember, npz_members, open_member
from unistore.converters.parts import LeftOut, Taken, Verdict
from unistore.converters.spike.layouts.arrays import PixelSource, pixel_source, voxel_grid
from unistore.converters.spike.source import Format, VoxelGrid
from unistore.errors import InputError, Problem

_SPIKES = ("spk",)
_VOXELS = ("voxel", "voxels", "spike_vox", "vox", "arr_0")


def _look(path: Path, location: str) -> Verdict:
    members = npz_members(path, location)
    found = next((members[name] for name in _SPIKES if name in members), None)
    if found is None:
        return LeftOut(f"holds no {' or '.join(_SPIKES)}")
    return Taken("array", f"holds {found.name} {found.header.shape}")


def _read_array(path: Path, location: str, key: str) -> NDArray[Any]:
    return open_member(path, npz_members(path, location)[key], location)


def _open(path: Path, location: str) -> PixelSource:
    member = _find_member(path, location, _SPIKES)
    return pixel_source(path, location, member.name, member.header, _read_array, in_memory=True)


def _open_voxels(path: Path, location: str) -> VoxelGrid:
    member = _find_member(path, location, _VOXELS)
    return voxel_grid(path, location, member.name, member.header, _read_array)


def _find_member(path: Path, location: str, names: Sequence[str]) -> NpzMember:
    """The first of `names` in the file, or its only array under another name."""
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
