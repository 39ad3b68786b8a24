"""Many consecutive episodes in the datasets of a file.

``d4rl``: ``observations`` is a dataset. ``flat``: ``observations/<key>`` or keys beside ``actions`` and
``rewards``. Flags in ``terminals`` or ``timeouts`` end an episode, and so does the end of the file.
"""

from __future__ import annotations

from unistore.converters.trajectory.layouts.hdf5 import (
    ACTIONS,
    RESULTS,
    Hdf5Format,
    contents,
    members,
    root_group,
    root_members,
    tree_of,
)
from unistore.converters.trajectory.source import Contents, Match, SourceFile

__all__ = ["D4rl", "Flat"]


class D4rl(Hdf5Format):
    """Joined episodes with one array of observations."""

    name = "d4rl"
    evidence = "actions beside a dataset of observations"
    joined = True

    def match(self, look: SourceFile) -> Match:
        """By names."""
        _, found = root_members(look)
        observed = found.get("observations") or found.get("observation")
        commanded = any(found.get(name) == "dataset" for name in ACTIONS)
        return Match.CERTAIN if commanded and observed == "dataset" else Match.NO


class Flat(Hdf5Format):
    """Joined episodes with an array for each observation."""

    name = "flat"
    evidence = "actions or cameras beside observations, rewards or terminals"
    joined = True

    def match(self, look: SourceFile) -> Match:
        """By names; any other HDF5 file is possible if the user maps its datasets."""
        opened, found = root_members(look)
        commanded = any(found.get(name) == "dataset" for name in ACTIONS)
        if found.get("observations") == "group":
            certain = commanded or bool(members(opened["observations"]).keys() & {"images", "rgb_images"})
        else:
            certain = commanded and bool(found.keys() & {*RESULTS})
        return Match.CERTAIN if certain else Match.POSSIBLE

    def describe(self, look: SourceFile) -> Contents:
        """The whole file; without a group of observations, all but actions and results are observations."""
        tree = tree_of(look)
        bare = not any(path.startswith(("observation", "obs/")) for path in tree.datasets)
        return contents(look, tree, [root_group(look, tree, bare=bare)])
