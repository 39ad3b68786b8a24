"""Open trajectories of ManiSkill: ``traj_0``, ``traj_1``, … at the root of an HDF5 file.

An episode has a row of ``obs`` and ``env_states`` more than ``actions``. A JSON file with the same name says
what the environment was, and of each episode its seed, success and control mode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from unistore.converters.claims import Claim, no, sure
from unistore.converters.common.faults import is_unreadable
from unistore.converters.files.hdf5 import library as h5py
from unistore.converters.files.hdf5.file import SUFFIXES, open_hdf5
from unistore.converters.files.hdf5.tree import unlinked
from unistore.converters.files.paths import is_inside
from unistore.converters.formats.hdf5 import Hdf5
from unistore.converters.formats.last_observations import LastObservations, metadata_in, opened_with_last
from unistore.converters.opened import Format, OpenFile, SourceFile
from unistore.errors import InputError

MANISKILL = LastObservations("obs", "env_states", "actions", "{stem}.json", "traj_{}")
_TRAJECTORY = re.compile(r"traj_[0-9]+")
_FOUND = "groups traj_0, traj_1, … of ManiSkill at its root"


class ManiSkill(Format):
    """Trajectories of ManiSkill, by the names in the HDF5 file."""

    name = "maniskill"
    suffixes = SUFFIXES
    offered = False

    def recognise(self, file: SourceFile) -> Claim:
        try:
            with open_hdf5(file.path, file.name) as handle:
                first = next(iter(handle), "")
                is_episode = _TRAJECTORY.fullmatch(first) is not None
                counted, following = (
                    unlinked(handle, first, name) if is_episode else None
                    for name in (MANISKILL.counted, f"next_{MANISKILL.observations}")
                )
                is_found = isinstance(counted, h5py.Dataset) and following is None
        except InputError as error:
            if is_unreadable(error):
                raise
            is_found = False  # what is wrong with it is said by the format of all HDF5 files
        return sure(f"has {_FOUND}") if is_found else no(f"has no {_FOUND}")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        beside = file.path.with_name(MANISKILL.metadata(file.path.name))
        further: list[SourceFile] = []
        notes: dict[str, str] = {}
        if beside.is_file() and file.roots and not is_inside(beside, file.roots):
            stated = "so seeds and success of the episodes are not stored; give the folder to store them"
            notes[beside.name] = f"{file.name}: {beside.name} of the same folder was not given, {stated}"
        elif beside.is_file():
            further = [file.beside(beside.name)]
        metadata = metadata_in(further[0]) if further else {}
        with Hdf5().open(file) as opened:
            yield opened_with_last(opened, file, MANISKILL, metadata, further, notes)
