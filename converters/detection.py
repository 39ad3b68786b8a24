"""Which family of sources the given paths belong to.

Every family has a function ``detect(paths) -> Detection | None``, which looks at names and headers only. They
are asked in the order of the registry, the most general last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unistore.converters.files.paths import expand
from unistore.converters.registry import Family, families, is_own, leave_out
from unistore.errors import InputError

__all__ = ["Detection", "detect"]

_HIDDEN = ("unreadable", "special")


@dataclass(frozen=True, slots=True)
class Detection:
    """What some paths were recognised as.

    Attributes
    ----------
    family
        Name of the family: ``"point_cloud"``.
    layout
        Name of the layout inside the family: ``"pointsuite_indices"``, ``"robomimic"``, ….
    reason
        One sentence for the user, naming what decided: ``"thin-1.h5 holds segments/segment_0000/indices"``.
    """

    family: str
    layout: str
    reason: str


def detect(paths: Sequence[Path]) -> Detection | None:
    """Ask each family in turn; None when no family knows the paths.

    Parameters
    ----------
    paths
        Files or folders as the user gave them.

    Raises
    ------
    InputError
        If none does, and folders cannot be listed or files are pipes or devices.
    """
    for family in families().values():
        found = _asked(family, paths)
        if found is not None:
            return found
    try:
        expand(paths, ("",))
    except InputError as error:
        if any(problem.kind in _HIDDEN for problem in error.problems):
            raise
    return None


def _asked(family: Family, paths: Sequence[Path]) -> Detection | None:
    """What a family takes paths for; one of an installed package that fails leaves the others their turn."""
    try:
        look = family.part("detect")
    except InputError as error:
        leave_out(family.command, str(error))
        return None
    try:
        found: Detection | None = look(paths)
    except Exception as error:
        if is_own(family.name):
            raise
        leave_out(family.command, f"{family.detect} failed: {type(error).__name__}: {error}")
        return None
    return found
