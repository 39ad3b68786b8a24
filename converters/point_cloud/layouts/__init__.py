"""The source formats of point clouds, one module each, and the choice of one for a file."""

from __future__ import annotations

from collections.abc import Mapping

from unistore.converters.parts import Candidate
from unistore.converters.point_cloud.layouts import (
    arrays,
    batches,
    columns,
    pointsuite_columns,
    pointsuite_indices,
)
from unistore.converters.point_cloud.source import Format, Match
from unistore.errors import InputError, Problem, printable

__all__ = ["FORMATS"]

FORMATS: tuple[Format, ...] = (pointsuite_indices, pointsuite_columns, batches, columns, arrays)
"""In the order in which they are tried."""


def format_named(name: str) -> Format:
    """The format of a name."""
    return next(each for each in FORMATS if name == each.NAME)


def recognise(file: Candidate, mapping: Mapping[str, str]) -> Format:
    """The first format that a file may have.

    Raises
    ------
    InputError
        If there is none, or the file cannot be read.
    """
    found = format_of(file, mapping, Match.POSSIBLE)
    if found is None:
        asked = ", ".join(each.NAME for each in _candidates(file))
        message = f"is no point cloud of a known format; looked for {asked}"
        raise InputError(Problem(printable(file.name), message, "check what wrote it", "format"))
    return found


def format_of(file: Candidate, mapping: Mapping[str, str], least: Match) -> Format | None:
    """The first format whose match with a file is at least `least`, or None.

    A file that is wrong in some detail still has its format, so that the detail can be reported.

    Raises
    ------
    InputError
        If there is none, and a format could not read the file.
    """
    failure: InputError | None = None
    for each in _candidates(file):
        try:
            if each.match(file, mapping) >= least:
                return each
        except InputError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return None


def _candidates(file: Candidate) -> tuple[Format, ...]:
    known = tuple(each for each in FORMATS if file.path.name.lower().endswith(each.SUFFIXES))
    return known or FORMATS
