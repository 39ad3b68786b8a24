"""What the scan of one trajectory file gives: flat, since files have thousands of episodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from unistore.converters.common.exclusion import Exclusion
from unistore.converters.parts import Part, Scanned
from unistore.converters.trajectory.files import inspect
from unistore.converters.trajectory.index import Index
from unistore.converters.trajectory.naming import Naming
from unistore.converters.trajectory.options import Colour
from unistore.errors import InputError

__all__ = ["ScannedFile", "scan_file"]


@dataclass(frozen=True, kw_only=True)
class ScannedFile(Scanned):
    """The sound episodes of one file; `problems` are those of its other episodes.

    Attributes
    ----------
    index
        The episodes, none of them without steps.
    dropped
        Datasets that are neither per step nor small.
    notes
        What was decided or left out.
    files
        Further files that links lead to.
    reading
        Bytes that HDF5 holds while it reads rows, besides the rows.
    """

    index: Index
    dropped: tuple[str, ...]
    notes: tuple[str, ...]
    files: tuple[Path, ...]
    reading: int


def scan_file(part: Part, naming: Naming, colour: Colour, exclusion: Exclusion) -> ScannedFile:
    """Find the episodes of one file.

    Parameters
    ----------
    part
        The file.
    naming
        Which column a dataset becomes.
    colour
        As for `decode_frame`.
    exclusion
        Which episodes to leave out.

    Raises
    ------
    InputError
        With all problems of the file, if no episode of it is sound.
    """
    found = inspect(part.files[0], part.name, part.roots, naming, colour, exclusion)
    if found.problems and not found.parts:
        raise InputError(found.problems)
    return ScannedFile(
        index=Index.of(found.layout, found.parts, found.masks),
        dropped=tuple(dict.fromkeys(path for each in found.parts for path in each.found.dropped)),
        notes=tuple(found.notes),
        files=tuple(sorted(found.files)),
        reading=found.reading,
        problems=tuple(found.problems),
        excluded=exclusion.covered,
    )
