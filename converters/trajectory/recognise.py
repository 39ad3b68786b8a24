"""Formats of trajectory files, recognised by content."""

from __future__ import annotations

import shlex

from unistore.converters.files.hdf5.file import place
from unistore.converters.trajectory import layouts
from unistore.converters.trajectory.source import Format, Look, Match
from unistore.errors import InputError, Problem, printable

__all__ = ["format_of", "recognise"]

_SHOWN = 8


def recognise(look: Look) -> Format | None:
    """Format of a file by what it holds; None if it is no trajectory file.

    Raises
    ------
    InputError
        If it cannot be looked at.
    """
    asked = layouts.formats_for(look.path)
    return next((each for each in asked if each.match(look) is Match.CERTAIN), None)


def format_of(look: Look, *, mapped: bool) -> Format:
    """Format of a file; with datasets named by the user, one that it may be of where it is not recognised.

    Raises
    ------
    InputError
        If it is no trajectory file, saying what it holds.
    """
    found = recognise(look)
    asked = layouts.formats_for(look.path)
    if found is None and mapped:
        found = next((each for each in asked if each.match(look) is Match.POSSIBLE), None)
    if found is None:
        names = asked[0].names(look)[:_SHOWN]
        holds = ", ".join(names) or "nothing"
        expected = "; or ".join(each.evidence for each in asked)
        message = f"is no trajectory file: it holds {holds}; expected {expected}"
        cure = (
            f"name the actions, as in --map {shlex.quote(printable(f'action={names[0]}'))}" if names else ""
        )
        raise InputError(Problem(place(look.name), message, cure, "layout"))
    return found
