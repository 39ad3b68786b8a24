"""``flat``: ``observations/<key>`` or keys beside ``actions`` and ``rewards``; many consecutive episodes.

Flags in ``terminals`` or ``timeouts`` end an episode, and so does the end of the file.
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

__all__ = ["Flat"]


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
        """The whole file; without a group of observations, what is no action and no result is one."""
        tree = tree_of(look)
        bare = not any(path.startswith(("observation", "obs/")) for path in tree.datasets)
        return contents(look, tree, [root_group(look, tree, bare=bare)])
