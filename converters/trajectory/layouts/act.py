"""``act``: one episode a file, ``action`` beside ``observations/{qpos, images/<camera>}`` (ACT, ALOHA)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unistore.converters.trajectory.layouts.hdf5 import RESULTS, Hdf5Episodes, Hdf5Format, kinds, top
from unistore.converters.trajectory.source import Look, Match

__all__ = ["Act"]


class _Episode(Hdf5Episodes):
    __slots__ = ()

    def attributes(self) -> Mapping[str, Any]:
        """None: those of the root are the episode's."""
        return {}


class Act(Hdf5Format):
    """One episode a file."""

    name = "act"
    evidence = "action beside observations/qpos or observations/images"
    episodes = _Episode

    def match(self, look: Look) -> Match:
        """By its names, of which none tells how the episode went."""
        opened, found = top(look)
        if found.get("action") != "dataset" or found.get("observations") != "group":
            return Match.NO
        if found.keys() & {*RESULTS}:
            return Match.NO
        return Match.CERTAIN if kinds(opened["observations"]).keys() & {"qpos", "images"} else Match.NO
