"""Stacks of pages: TIFF files of one page each, which successive numbers in their names put in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from unistore.converters.ct.names import TIFF, PageName, page_name
from unistore.converters.formats.tiff import Tiff, is_page
from unistore.converters.plugin import Problem, SourceFile
from unistore.converters.seam.faults import calling
from unistore.errors import InputError, printable

Choice = tuple[SourceFile, str] | str


class Stacks(NamedTuple):
    """What becomes of files: those that may be volumes, the pages that follow one of them, and the rest."""

    files: Sequence[SourceFile]
    following: Mapping[Path, Sequence[SourceFile]]
    choices: Sequence[Choice]


def stack_pages(files: Sequence[SourceFile]) -> Stacks:
    """Find stacks among files. The first page of each stands for it."""
    kept = [file for file in files if file.format != TIFF]
    following: dict[Path, Sequence[SourceFile]] = {}
    choices: list[Choice] = []
    for pages in _numbered([file for file in files if file.format == TIFF]):
        first = pages[0][1]
        members = [file for _, file in pages]
        if not _is_page(first):
            kept += members
        elif len(members) == 1 and not first.is_given:
            choices.append((first, "is one page, no volume"))
        else:
            kept.append(first)
            following[first.path] = members[1:]
    if following:
        name = printable(next(iter(following)).name)
        choices.append(f"TIFF files of one page each, stacked by the numbers in their names: from {name} on")
    return Stacks(kept, following, choices)


def _numbered(files: Sequence[SourceFile]) -> Iterator[list[tuple[int, SourceFile]]]:
    """Yield files whose names differ in a number alone, in its order. Each other file by itself."""
    alike: dict[tuple[Path, str, str], list[tuple[PageName, SourceFile]]] = {}
    for file in files:
        name = page_name(file.path)
        if name is None:
            yield [(0, file)]
        else:
            key = file.path.parent, name.before, name.after
            alike.setdefault(key, []).append((name, file))
    for pages in alike.values():
        yield sorted([(name.number, file) for name, file in pages], key=lambda page: page[0])


def _is_page(file: SourceFile) -> bool:
    """Return whether a file has one page. Damage is told when it is scanned."""
    try:
        with calling(Tiff(), file.name):
            return is_page(file)
    except InputError:
        return False


def gap_in(name: str, pages: Sequence[SourceFile]) -> Iterator[Problem]:
    """Yield a problem for the first number that a stack lacks or has twice: nothing is interpolated."""
    numbers = [page.number for file in pages if (page := page_name(file.path)) is not None]
    for number, behind in pairwise(numbers):
        if behind != number + 1:
            what = "two pages" if behind == number else "no page"
            message = f"is a stack with {what} {min(number + 1, behind)}"
            yield Problem(name, message, "complete it, or move its pages apart", "series")
            return
