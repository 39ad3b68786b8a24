"""Stacks of pages: TIFF files of one page each, which successive numbers in their names put in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from unistore.converters.ct.names import TIFF, page_name
from unistore.converters.formats.tiff import is_page
from unistore.errors import printable
from unistore.plugin import Problem, ProblemCollector, SourceFile


class Stacks(NamedTuple):
    """Files that may be volumes, the pages that follow some of them, by path, and what is said of others."""

    files: Sequence[SourceFile]
    following: Mapping[Path, Sequence[SourceFile]]
    left_out: Sequence[tuple[SourceFile, str]]
    notes: Sequence[str]


def stack_pages(files: Sequence[SourceFile]) -> Stacks:
    """Find stacks among files. The first page of each stands for it."""
    kept = [file for file in files if file.format != TIFF]
    following: dict[Path, Sequence[SourceFile]] = {}
    left_out: list[tuple[SourceFile, str]] = []
    notes: list[str] = []
    for members in _numbered([file for file in files if file.format == TIFF]):
        first, *others = members
        if not _is_page(first):
            kept += members
        elif not others and not first.is_given:
            left_out.append((first, "is a single page, not a volume"))
        else:
            kept.append(first)
            following[first.path] = others
    if following:
        name = printable(next(iter(following)).name)
        notes.append(f"TIFF files of one page each, stacked by the numbers in their names, from {name} on")
    return Stacks(kept, following, left_out, notes)


def _numbered(files: Sequence[SourceFile]) -> Iterator[list[SourceFile]]:
    """Yield files whose names differ only in a number, in its order, and each other file by itself."""
    alike: dict[tuple[Path, str, str], list[tuple[int, SourceFile]]] = {}
    for file in files:
        name = page_name(file.path)
        if name is None:
            yield [file]
        else:
            key = file.path.parent, name.before, name.after
            alike.setdefault(key, []).append((name.number, file))
    for pages in alike.values():
        pages.sort(key=lambda page: page[0])
        yield [file for _, file in pages]


def _is_page(file: SourceFile) -> bool:
    """Return whether a file has one page. Damage is told when it is scanned."""
    collected = ProblemCollector()
    with collected.attempt(file.name):
        has_one_page = is_page(file)
    return not collected.problems and has_one_page


def gap_in(name: str, pages: Sequence[SourceFile]) -> Iterator[Problem]:
    """Yield a problem for the first number that a stack lacks or has twice: nothing is interpolated."""
    numbers = [page.number for file in pages if (page := page_name(file.path)) is not None]
    for number, behind in pairwise(numbers):
        if behind != number + 1:
            wrong = f"has two pages {number}" if behind == number else f"has no page {number + 1}"
            fix = "complete the stack", "move pages of different volumes into different folders"
            yield Problem(name, f"the stack of TIFF files {wrong}", fix, "series")
            return
