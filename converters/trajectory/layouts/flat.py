"""``flat``: ``observations/<key>`` or keys beside ``actions`` and ``rewards``; many episodes in a row.

An episode ends where ``terminals`` or ``timeouts`` say so, and at the end of the file.
"""

from __future__ import annotations

from unistore.converters.trajectory.layouts.hdf5 import (
    ACTIONS,
    RESULTS,
    Hdf5Format,
    contents,
    kinds,
    root_group,
    top,
    tree_of,
)
from unistore.converters.trajectory.source import Contents, Look, Match

__all__ = ["Flat"]


class Flat(Hdf5Format):
    """Joined episodes with an array for each observation."""

    name = "flat"
    evidence = "actions or cameras beside observations, rewards or terminals"
    joined = True

    def match(self, look: Look) -> Match:
        """By its names; any HDF5 file may be one whose datasets the user names."""
        opened, found = top(look)
        commanded = any(found.get(name) == "dataset" for name in ACTIONS)
        if found.get("observations") == "group":
            certain = commanded or bool(kinds(opened["observations"]).keys() & {"images", "rgb_images"})
        else:
            certain = commanded and bool(found.keys() & {*RESULTS})
        return Match.CERTAIN if certain else Match.POSSIBLE

    def describe(self, look: Look) -> Contents:
        """The whole file; without a group of observations, what is no action and no result is one."""
        tree = tree_of(look)
        bare = not any(path.startswith(("observation", "obs/")) for path in tree.datasets)
        return contents(look, tree, [root_group(look, tree, bare=bare)])
