"""``d4rl``: ``observations`` is a dataset; many consecutive episodes.

Flags in ``terminals`` or ``timeouts`` end an episode, and so does the end of the file.
"""

from __future__ import annotations

from unistore.converters.trajectory.layouts.hdf5 import ACTIONS, Hdf5Format, root_members
from unistore.converters.trajectory.source import Match, SourceFile

__all__ = ["D4rl"]


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
