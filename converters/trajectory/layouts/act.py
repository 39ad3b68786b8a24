"""``act``: one episode a file, ``action`` beside ``observations/{qpos, images/<camera>}`` (ACT, ALOHA)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unistore.converters.trajectory.layouts import hdf5
from unistore.converters.trajectory.source import Match, SourceFile


class _Episode(hdf5.Hdf5Episodes):
    __slots__ = ()

    def attributes(self) -> Mapping[str, Any]:
        """Empty: those of the root are attributes of the episode."""
        return {}


class Act(hdf5.Hdf5Format):
    """One episode per file."""

    name = "act"
    evidence = "action beside observations/qpos or observations/images"
    episodes = _Episode

    def match(self, look: SourceFile) -> Match:
        """By names; files with rewards or terminals are of other formats."""
        opened, found = hdf5.root_members(look)
        if found.get("action") != "dataset" or found.get("observations") != "group":
            return Match.NO
        if found.keys() & {*hdf5.RESULTS}:
            return Match.NO
        return Match.CERTAIN if hdf5.members(opened["observations"]).keys() & {"qpos", "images"} else Match.NO
