"""``flat``: ``observations/<key>`` or keys beside ``actions`` and ``rewards``; many episodes in a row.

An episode ends where ``terminals`` or ``timeouts`` say so, and at the end of the file.
"""

from __future__ import annotations

from unistore.converters.trajectory.layouts.hdf5 import (
    ACTIONS,
    RESULTS,
    SUFFIXES,
    Hdf5Episodes,
    at_root,
    contents,
    kinds,
    names,
    open_original,
    opener,
    root_file,
    root_group,
    top,
    tree_of,
)
from unistore.converters.trajectory.source import Contents, Look, Match

__all__ = [
    "EVIDENCE",
    "JOINED",
    "NAME",
    "SUFFIXES",
    "describe",
    "file",
    "group_of",
    "match",
    "names",
    "open_episodes",
    "open_original",
]

NAME = "flat"
EVIDENCE = "actions or cameras beside observations, rewards or terminals"
JOINED = True

open_episodes = opener(Hdf5Episodes)
file = root_file
group_of = at_root


def match(look: Look) -> Match:
    """What it is recognised by; any HDF5 file may be one whose datasets the user names."""
    opened, found = top(look)
    commanded = any(found.get(name) == "dataset" for name in ACTIONS)
    if found.get("observations") == "group":
        certain = commanded or bool(kinds(opened["observations"]).keys() & {"images", "rgb_images"})
    else:
        certain = commanded and bool(found.keys() & {*RESULTS})
    return Match.CERTAIN if certain else Match.POSSIBLE


def describe(look: Look) -> Contents:
    """The whole file; without a group of observations, what is no action and no result is one."""
    tree = tree_of(look)
    bare = not any(path.startswith(("observation", "obs/")) for path in tree.datasets)
    return contents(look, tree, [root_group(look, tree, bare=bare)])
