"""``robomimic``: ``data/<episode>/…``; ``mask/<name>`` list episodes.

Also LIBERO, MimicGen, robosuite and Isaac Lab.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from unistore.converters.files.hdf5 import library as h5py
from unistore.converters.files.hdf5.file import location_of, read_objects
from unistore.converters.files.hdf5.tree import Tree
from unistore.converters.files.paths import natural_key
from unistore.converters.trajectory.layouts import hdf5
from unistore.converters.trajectory.source import (
    Contents,
    Group,
    Mask,
    Match,
    RestoredFile,
    SourceFile,
    to_json,
)

if TYPE_CHECKING:
    from unistore.converters.common.exported import File


_DATA = "data"
_MASK = "mask"
_EPISODE = re.compile(r"(demo|episode|ep|traj|trajectory|rollout)[_-]?[0-9]+", re.IGNORECASE)


def _masks(look: SourceFile, tree: Tree) -> list[Mask]:
    masks = []
    for item, dataset in tree.datasets.items():
        if item.startswith(f"{_MASK}/"):
            location = location_of(look.name, item)
            value = None if dataset.shape is None else to_json(read_objects(dataset, location))
            listed = [value] if isinstance(value, str) else list(value or [])
            masks.append(Mask(name=item.removeprefix(f"{_MASK}/"), location=location, episodes=listed))
    return masks


class _Demonstrations(hdf5.Hdf5Episodes):
    __slots__ = ()

    def attributes(self) -> Mapping[str, Any]:
        """Attributes of the root and of ``data``."""
        return {**hdf5.json_attributes(self.opened), **hdf5.json_attributes(self.opened[_DATA])}


class Robomimic(hdf5.Hdf5Format):
    """One group per episode."""

    name = "robomimic"
    evidence = "episodes as groups of data/"
    episodes = _Demonstrations

    def match(self, look: SourceFile) -> Match:
        """``data`` has only groups, and the first has the name or the datasets of an episode."""
        opened, found = hdf5.root_members(look)
        data = hdf5.members(opened[_DATA]) if found.get(_DATA) == "group" else {}
        if not data or set(data.values()) != {"group"}:
            return Match.NO
        first = min(data, key=natural_key)
        if _EPISODE.fullmatch(first):
            return Match.CERTAIN
        inside = hdf5.members(opened[_DATA][first]).keys() & {*hdf5.ACTIONS, "obs", "states"}
        return Match.CERTAIN if inside else Match.NO

    def describe(self, look: SourceFile) -> Contents:
        """One group per episode, in natural order."""
        tree = hdf5.tree_of(look)
        paths = [path for path in tree.groups if path.startswith(f"{_DATA}/") and path.count("/") == 1]
        datasets: dict[str, dict[str, h5py.Dataset]] = {path: {} for path in paths}
        for item, dataset in tree.datasets.items():
            parts = item.split("/", 2)
            if len(parts) == 3 and f"{parts[0]}/{parts[1]}" in datasets:
                datasets[f"{_DATA}/{parts[1]}"][parts[2]] = dataset
        groups = []
        for path in sorted(paths, key=natural_key):
            arrays = hdf5.arrays_of(look, path, datasets[path])
            groups.append(Group(name=path.removeprefix(f"{_DATA}/"), path=path, arrays=arrays))
        return hdf5.contents(look, tree, groups, _masks(look, tree))

    def group_of(self, episode: str) -> str:
        """As in `Format`."""
        return f"{_DATA}/{episode}"

    def file(self, restored: RestoredFile) -> File:
        """One group per episode; attributes of the file are written to ``data``."""
        from unistore.converters.common.exported import File, array_values

        masks = {
            f"{_MASK}/{name}": array_values(np.array([episode.encode() for episode in listed]))
            for name, listed in restored.masks.items()
        }
        own = {_DATA: restored.attributes} if restored.attributes else {}
        return File(
            name=restored.name,
            form="hdf5",
            source=restored.source,
            values=restored.values | masks,
            attributes={**own, **restored.group_attributes},
        )
