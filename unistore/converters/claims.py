"""The answer of a format or a family to the question whether a file belongs to it."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Claim(NamedTuple):
    """The answer of a format or a family to "is this file yours?". Create it with `sure`, `maybe` or `no`.

    Attributes
    ----------
    certainty : {"sure", "maybe", "no"}
        ``"maybe"`` counts only if the user names the family.
    reason : str
        Why, as messages print it after the name of the file: ``"begins with RIFF"``.
    layout : str, default ""
        Name of the family's layout that the file has. Empty: the family has only one.
    """

    certainty: Literal["sure", "maybe", "no"]
    reason: str
    layout: str = ""


def sure(reason: str, layout: str = "") -> Claim:
    """Claim a file, for example ``sure("begins with RIFF")``."""
    return Claim("sure", reason, layout)


def maybe(reason: str) -> Claim:
    """Claim a file only if the user names the family, for example ``maybe("is headerless")``."""
    return Claim("maybe", reason)


def no(reason: str) -> Claim:
    """Do not claim a file, for example ``no("has 2 axes, a volume 3")``."""
    return Claim("no", reason)
