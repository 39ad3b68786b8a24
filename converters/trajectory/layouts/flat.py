"""Many consecutive episodes in the datasets of a file.

``d4rl``: ``observations`` is a dataset. ``flat``: ``observations/<key>`` or keys beside ``actions`` and
``rewards``. Flags in ``terminals`` or ``timeouts`` end an episode, and so does the end of the file.
"""

from __future__ import annotations

from unistore.converters.trajectory.layouts import hdf5
from unistore.converters.trajectory.source import Contents, Match, SourceFile


class D4rl(hdf5.Hdf5Format):
    """Joined episodes with one array of observations."""

    name = "d4rl"
    evidence = "actions beside a dataset of observations"
    joined = True

    def match(self, look: SourceFile) -> Match:
        """By names."""
        _, found = hdf5.root_members(look)
        observed = found.get("observations") or found.get("observation")
        commanded = any(found.get(name) == "dataset" for name in hdf5.ACTIONS)
        return Match.CERTAIN if commanded and observed == "dataset" else Match.NO


class Flat(hdf5.Hdf5Format):
    """Joined episodes with an array for each observation."""

    name = "flat"
    evidence = "actions or cameras beside observations, rewards or terminals"
    joined = True

    def match(self, look: SourceFile) -> Match:
        """By names; any other HDF5 file is possible if the user maps its datasets."""
        opened, found = hdf5.root_members(look)
        commanded = any(found.get(name) == "dataset" for name in hdf5.ACTIONS)
        if found.get("observations") == "group":
            observed = hdf5.members(opened["observations"])
            certain = commanded or bool(observed.keys() & {"images", "rgb_images"})
        else:
            certain = commanded and bool(found.keys() & {*hdf5.RESULTS})
        return Match.CERTAIN if certain else Match.POSSIBLE

    def describe(self, look: SourceFile) -> Contents:
        """The whole file; without a group of observations, all but actions and results are observations."""
        tree = hdf5.tree_of(look)
        bare = not any(path.startswith(("observation", "obs/")) for path in tree.datasets)
        return hdf5.contents(look, tree, [hdf5.root_group(look, tree, bare=bare)])
