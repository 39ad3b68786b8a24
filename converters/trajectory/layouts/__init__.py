"""The source formats of trajectories; see `unistore.converters.trajectory.source`.

To add one, write a module here with a subclass of `Format` (of `Hdf5Format` where files are HDF5), and
list it in `FORMATS`. Nothing else changes.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from unistore.converters.trajectory.layouts.act import Act
from unistore.converters.trajectory.layouts.flat import D4rl, Flat
from unistore.converters.trajectory.layouts.robomimic import Robomimic
from unistore.converters.trajectory.source import Format, Match, SourceFile
from unistore.errors import InputError, Problem, printable

__all__ = ["FORMATS", "format_named", "format_of", "formats_for", "recognise", "suffixes"]

_LISTED = 8

FORMATS: tuple[Format, ...] = (Robomimic(), Act(), D4rl(), Flat())
"""In the order in which they are tried."""


def suffixes() -> tuple[str, ...]:
    """Suffixes of the files of all formats."""
    return tuple(dict.fromkeys(suffix for each in FORMATS for suffix in each.suffixes))


def formats_for(path: Path) -> tuple[Format, ...]:
    """Formats with the suffix of a file; all formats if none has it."""
    name = path.name.lower()
    return tuple(each for each in FORMATS if name.endswith(each.suffixes)) or FORMATS


def format_named(name: str) -> Format:
    """Format by its `Format.name`, which is known."""
    return {each.name: each for each in FORMATS}[name]


def recognise(file: SourceFile) -> Format | None:
    """Format of a file by its content; None if it is not a trajectory file.

    Raises
    ------
    InputError
        If the file cannot be read.
    """
    return next((each for each in formats_for(file.path) if each.match(file) is Match.CERTAIN), None)


def format_of(file: SourceFile, *, mapped: bool) -> Format:
    """Format of a file; if the user maps datasets, also a possible one.

    Raises
    ------
    InputError
        If it is not a trajectory file.
    """
    found = recognise(file)
    formats = formats_for(file.path)
    if found is None and mapped:
        found = next((each for each in formats if each.match(file) is Match.POSSIBLE), None)
    if found is None:
        names = formats[0].names(file)[:_LISTED]
        holds = ", ".join(names) or "nothing"
        expected = "; or ".join(each.evidence for each in formats)
        message = f"is not a trajectory file: it holds {holds}; expected {expected}"
        cure = (
            f"name the actions, as in --map {shlex.quote(printable(f'action={names[0]}'))}" if names else ""
        )
        raise InputError(Problem(file.name, message, cure, "layout"))
    return found
