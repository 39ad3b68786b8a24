"""Which family of sources the given paths belong to.

Every family's module has ``detect(paths) -> Detection | None``, which looks at names and headers only. They
are asked from the most particular to the most general: plain arrays take whatever shares axis 0, so they come
last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from unistore.converters.files.paths import expand
from unistore.errors import InputError

__all__ = ["Detection", "detect"]

_HIDDEN = ("unreadable", "special")
_FAMILIES = ("trajectory", "point_cloud", "spike", "ct", "rows")


@dataclass(frozen=True, slots=True)
class Detection:
    """What some paths were recognised as.

    Attributes
    ----------
    modality
        ``"rows"``, ``"point_cloud"``, ``"spike"``, ``"ct"`` or ``"trajectory"``.
    layout
        Name of the layout inside the family: ``"pointsuite_indices"``, ``"robomimic"``, ….
    reason
        One sentence for the user, naming what decided: ``"thin-1.h5 holds segments/segment_0000/indices"``.
    """

    modality: str
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
    for family in _FAMILIES:
        found: Detection | None = import_module(f"unistore.converters.{family}.converter").detect(paths)
        if found is not None:
            return found
    try:
        expand(paths, ("",))
    except InputError as error:
        if any(problem.kind in _HIDDEN for problem in error.problems):
            raise
    return None
