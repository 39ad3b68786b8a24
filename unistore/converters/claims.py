"""Whether a file is one of a format's or a family's."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Claim(NamedTuple):
    """Whether a file is one of a format's or a family's, and why; made by `sure`, `maybe` and `no`."""

    certainty: Literal["sure", "maybe", "no"]
    reason: str
    layout: str = ""  # Which of the family's layouts the file has; empty: the family has one


def sure(reason: str, layout: str = "") -> Claim:
    """Claim a file: ``sure("begins with RIFF")``."""
    return Claim("sure", reason, layout)


def maybe(reason: str) -> Claim:
    """Claim a file only if the user names the family: ``maybe("is headerless")``."""
    return Claim("maybe", reason)


def no(reason: str) -> Claim:
    """Leave a file to others: ``no("has 2 axes, a volume 3")``."""
    return Claim("no", reason)
