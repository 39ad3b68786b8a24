"""Layouts of trajectory files, recognised by content, never by file name.

``robomimic``
    ``data/<episode>/…`` (robomimic, LIBERO, MimicGen, robosuite, Isaac Lab); ``mask/<name>`` list episodes.
``act``
    one episode a file: ``action`` beside ``observations/{qpos, images/<camera>}`` (ACT, ALOHA).
``d4rl``
    ``observations`` is a dataset; many episodes one after another.
``flat``
    ``observations/<key>`` or keys beside ``actions`` and ``rewards``; many episodes one after another.

In the last two, an episode ends where ``terminals`` or ``timeouts`` say so, and at the end of the file.
"""

from __future__ import annotations

import re
from pathlib import Path

import h5py

from unistore.converters.files.hdf5.file import names_in, place
from unistore.converters.files.paths import natural_key
from unistore.converters.trajectory.naming import Naming
from unistore.errors import InputError, Problem

__all__ = ["EVIDENCE", "layout_of", "recognise"]

_EPISODE = re.compile(r"(demo|episode|ep|traj|trajectory|rollout)[_-]?[0-9]+", re.IGNORECASE)
_ACTIONS = ("action", "actions")
_RESULTS = ("rewards", "reward", "terminals", "terminal", "dones", "timeouts", "terminated")

EVIDENCE = {
    "robomimic": "episodes as groups of data/",
    "act": "action beside observations/qpos or observations/images",
    "d4rl": "actions beside a dataset of observations",
    "flat": "actions or cameras beside observations, rewards or terminals",
}
"""What each layout is recognised by."""


def recognise(file: h5py.File) -> str | None:
    """Layout of an open file by the names at its top; None if it is no trajectory file.

    Links are not followed.
    """
    top = _children(file)
    data = _children(file["data"]) if top.get("data") == "group" else {}
    if data and set(data.values()) == {"group"}:
        first = min(data, key=natural_key)
        inside = set(_children(file["data"][first]))
        if _EPISODE.fullmatch(first) or inside & {*_ACTIONS, "obs", "states"}:
            return "robomimic"
    commanded = any(top.get(name) == "dataset" for name in _ACTIONS)
    observed = top.get("observations") or top.get("observation")
    if top.get("observations") == "group":
        inside = set(_children(file["observations"]))
        if top.get("action") == "dataset" and inside & {"qpos", "images"} and not top.keys() & set(_RESULTS):
            return "act"
        return "flat" if commanded or inside & {"images", "rgb_images"} else None
    if commanded and observed == "dataset":
        return "d4rl"
    return "flat" if commanded and top.keys() & set(_RESULTS) else None


def _children(group: h5py.Group) -> dict[str, str]:
    """Kinds of the things directly in a group, hard links only: ``"group"`` or ``"dataset"``."""
    kinds = {}
    for name in names_in(group, place(Path(group.file.filename).name, group.name)):
        if isinstance(group.get(name, getlink=True), h5py.HardLink):
            kind = group.get(name, getclass=True)
            kinds[name] = "dataset" if kind is h5py.Dataset else "group"
    return kinds


def layout_of(file: h5py.File, name: str, naming: Naming) -> str:
    """Layout of an open file; with datasets named by the user, ``"flat"`` where it is not recognised.

    Raises
    ------
    InputError
        If it is no trajectory file, saying what it holds.
    """
    layout = recognise(file) or ("flat" if naming.renamed else None)
    if layout is None:
        holds = ", ".join(sorted(file)[:8]) or "nothing"
        message = f"is no trajectory file: it holds {holds}; expected {'; or '.join(EVIDENCE.values())}"
        cure = "name its datasets with --map, as in --map action=commands"
        raise InputError(Problem(place(name), message, cure, "layout"))
    return layout
