"""``d4rl``: ``observations`` is a dataset; many episodes one after another.

An episode ends where ``terminals`` or ``timeouts`` say so, and at the end of the file.
"""

from __future__ import annotations

from unistore.converters.trajectory.layouts.hdf5 import (
    ACTIONS,
    SUFFIXES,
    Hdf5Episodes,
    at_root,
    contents,
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

NAME = "d4rl"
EVIDENCE = "actions beside a dataset of observations"
JOINED = True

open_episodes = opener(Hdf5Episodes)
file = root_file
group_of = at_root


def match(look: Look) -> Match:
    """What it is recognised by."""
    _, found = top(look)
    observed = found.get("observations") or found.get("observation")
    commanded = any(found.get(name) == "dataset" for name in ACTIONS)
    return Match.CERTAIN if commanded and observed == "dataset" else Match.NO


def describe(look: Look) -> Contents:
    """The whole file."""
    tree = tree_of(look)
    return contents(look, tree, [root_group(look, tree)])
