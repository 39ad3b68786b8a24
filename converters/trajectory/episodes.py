"""Which episode of a file a problem is about, told by its location: that one can be left out alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unistore.converters.files.hdf5.file import location_of
from unistore.errors import Problem

__all__ = ["inside_group", "name_episodes"]


def name_episodes(problems: Sequence[Problem], name: str, groups: Sequence[str]) -> list[Problem]:
    """Problems of a file, those inside the group of one episode about that episode."""
    inside = {inside_group(name, group): location_of(name, group) for group in groups}
    named = []
    for problem in problems:
        owner = [source for start, source in inside.items() if f"{problem.location}/".startswith(start)]
        named.append(replace(problem, source=owner[0]) if owner else problem)
    return named


def inside_group(name: str, group: str) -> str:
    """How the location of everything in a group begins."""
    return location_of(name, f"{group}/x")[:-1]
