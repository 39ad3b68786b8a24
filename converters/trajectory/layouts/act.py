"""``act``: one episode a file, ``action`` beside ``observations/{qpos, images/<camera>}`` (ACT, ALOHA)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unistore.converters.trajectory.layouts.hdf5 import (
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

NAME = "act"
EVIDENCE = "action beside observations/qpos or observations/images"
JOINED = False

file = root_file
group_of = at_root


def match(look: Look) -> Match:
    """What it is recognised by, and nothing that tells how the episode went."""
    opened, found = top(look)
    if found.get("action") != "dataset" or found.get("observations") != "group" or found.keys() & {*RESULTS}:
        return Match.NO
    return Match.CERTAIN if kinds(opened["observations"]).keys() & {"qpos", "images"} else Match.NO


def describe(look: Look) -> Contents:
    """The whole file."""
    tree = tree_of(look)
    return contents(look, tree, [root_group(look, tree)])


class _Episode(Hdf5Episodes):
    __slots__ = ()

    def attributes(self) -> Mapping[str, Any]:
        """None: those of the root are the episode's."""
        return {}


open_episodes = opener(_Episode)
