"""Which of the formats a file is of: asked of those that know its suffix, or else of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from unistore.converters.common.faults import as_problem
from unistore.converters.point_cloud import layouts
from unistore.converters.point_cloud.source import Format, Layout, Look, Match
from unistore.errors import InputError, Problem, printable

__all__ = ["detect_format", "format_named", "recognise", "suffixes"]


def suffixes() -> tuple[str, ...]:
    """File name endings of all formats."""
    return tuple(dict.fromkeys(suffix for each in layouts.FORMATS for suffix in each.SUFFIXES))


def format_named(name: str) -> Format:
    """The format that a layout names."""
    return next(each for each in layouts.FORMATS if name == each.NAME)


def recognise(path: Path, name: str, roots: Sequence[Path], mapping: Mapping[str, str]) -> Layout:
    """Recognise a file's format and describe what it holds, without reading values.

    Parameters
    ----------
    path, name
        The file and how messages call it.
    roots
        Where links may lead.
    mapping
        Stored names of columns, as in `choose`.

    Raises
    ------
    InputError
        With every problem that can be seen without reading values.
    """
    with Look(path, name, roots, mapping) as look:
        return _format_of(look, Match.POSSIBLE).describe(look)


def detect_format(path: Path, roots: Sequence[Path]) -> str | None:
    """Format that a file seems to have; None if it is no point cloud.

    Looser than `recognise`: a file that is wrong in some detail still has its format, so that the detail can
    be reported.
    """
    with suppress(InputError), as_problem(str(path)), Look(path, str(path), roots) as look:
        return _format_of(look, Match.CERTAIN).NAME
    return None


def _format_of(look: Look, least: Match) -> Format:
    """The first format that is sure enough of a file."""
    known = [each for each in layouts.FORMATS if look.path.name.lower().endswith(each.SUFFIXES)]
    failure: InputError | None = None
    for each in known or layouts.FORMATS:
        try:
            if each.match(look) >= least:
                return each
        except InputError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    asked = ", ".join(each.NAME for each in known or layouts.FORMATS)
    message = f"is no point cloud of a known format; looked for {asked}"
    raise InputError(Problem(printable(look.name), message, "check what wrote it", "format"))
