"""The source formats of point clouds, one module each, and the choice of one for a file."""

from __future__ import annotations

from collections.abc import Mapping

from unistore.converters.common.faults import is_unreadable
from unistore.converters.point_cloud.layouts import (
    arrays,
    batches,
    columns,
    pointsuite_columns,
    pointsuite_indices,
)
from unistore.converters.point_cloud.source import Format, Match
from unistore.converters.scan import Candidate
from unistore.errors import InputError, Problem, printable

__all__ = ["FORMATS"]

FORMATS: tuple[Format, ...] = (pointsuite_indices, pointsuite_columns, batches, columns, arrays)
"""In the order in which they are tried."""


def format_named(name: str) -> Format:
    """The format of a name."""
    return next(each for each in FORMATS if name == each.NAME)


def recognise(file: Candidate, mapping: Mapping[str, str]) -> tuple[Format | None, Match]:
    """The first format that fits a file best, among those with its suffix, or all if none has it.

    A file that is wrong in some detail still has its format, so that the detail can be reported.

    Raises
    ------
    InputError
        If the file cannot be read; or none is certain, and it is wrong for a format.
    """
    best: tuple[Format | None, Match] = None, Match.NO
    failure: InputError | None = None
    for each in _candidates(file):
        try:
            match = each.match(file, mapping)
        except InputError as error:
            if is_unreadable(error):
                raise
            failure = failure or error
            continue
        if match is Match.CERTAIN:
            return each, match
        if match > best[1]:
            best = each, match
    if failure is not None:
        raise failure
    return best


def no_format(file: Candidate) -> Problem:
    """Problem of a file that no format fits."""
    asked = ", ".join(each.NAME for each in _candidates(file))
    message = f"is no point cloud of a known format; looked for {asked}"
    return Problem(printable(file.name), message, "check what wrote it", "format")


def _candidates(file: Candidate) -> tuple[Format, ...]:
    known = tuple(each for each in FORMATS if file.path.name.lower().endswith(each.SUFFIXES))
    return known or FORMATS
