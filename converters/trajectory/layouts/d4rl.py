"""``d4rl``: ``observations`` is a dataset; many episodes one after another.

An episode ends where ``terminals`` or ``timeouts`` say so, and at the end of the file.
"""

from __future__ import annotations

from unistore.converters.trajectory.layouts.hdf5 import ACTIONS, Hdf5Format, top
from unistore.converters.trajectory.source import Look, Match

__all__ = ["D4rl"]


class D4rl(Hdf5Format):
    """Joined episodes with one array of observations."""

    name = "d4rl"
    evidence = "actions beside a dataset of observations"
    joined = True

    def match(self, look: Look) -> Match:
        """By its names."""
        _, found = top(look)
        observed = found.get("observations") or found.get("observation")
        commanded = any(found.get(name) == "dataset" for name in ACTIONS)
        return Match.CERTAIN if commanded and observed == "dataset" else Match.NO
