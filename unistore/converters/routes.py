"""Sources that show the same values by two routes: a link and its target, a virtual dataset and its parts."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unistore.converters.opened import Origin
from unistore.converters.scan_types import Stored
from unistore.errors import AddOptions, Problem, first_few

_LISTED = 3

# File and place of an origin
_Key = tuple[str, str]


class Routes(NamedTuple):
    """Numbers of sources that are left out, each with the name of the one that shows its values."""

    left_out: Mapping[int, str]
    problems: Sequence[Problem]


class _Shown:
    """The values that a source shows, by where they lie."""

    def __init__(self, number: int, name: str, origins: Iterable[Origin], *, is_owner: bool) -> None:
        self.number = number
        self.name = name
        self.is_owner = is_owner  # whether all of them lie in files of its own
        self.places: dict[_Key, list[Origin]] = defaultdict(list)
        for origin in origins:
            if origin.stop > origin.start:
                self.places[origin.file, origin.place].append(origin)
        self.files = {file for file, _ in self.places}

    def covers(self, other: _Shown) -> bool:
        """Return whether it shows every value of another source."""
        return all(self._covers(key, origins) for key, origins in other.places.items())

    def _covers(self, key: _Key, origins: Sequence[Origin]) -> bool:
        file, place = key
        raw = self.places.get((file, ""), [])
        if place and raw:  # it shows bytes of a file whose format knows arrays
            return sum(origin.size for origin in raw) >= sum(origin.size for origin in origins)
        whole = [(origin.start, origin.stop) for origin in self.places.get(key, ()) if origin.is_whole]
        blocks = _joined(whole)
        return all(any(lo <= origin.start and origin.stop <= hi for lo, hi in blocks) for origin in origins)


def _joined(blocks: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join rows that follow each other or overlap."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(blocks):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((start, stop))
    return joined


def routes_among(
    names: Sequence[str],
    files: Iterable[Sequence[str]],
    shown: Mapping[int, Sequence[Origin]],
    origins_of: Callable[[Sequence[int]], Iterable[Sequence[Origin]]],
    stored: Stored,
) -> Routes:
    """Find sources that show the values of others.

    Parameters
    ----------
    names, files
        Names and files of all sources.
    shown
        Where the values of those sources lie that show the values of other files, by number.
    origins_of
        The same of sources of these numbers, which are opened for it.
    stored
        What the store has already.
    """
    targets = {origin.file for origins in shown.values() for origin in origins}
    owners: dict[str, int] = {}
    for number, paths in enumerate(files):
        for path in map(os.path.realpath, paths):
            if path in targets:
                owners.setdefault(path, number)
    opened = sorted(set(owners.values()) - shown.keys())
    of_owners = dict(zip(opened, origins_of(opened), strict=True))
    sources = []
    for number, origins in sorted({**shown, **of_owners}.items()):
        sources.append(_Shown(number, names[number], origins, is_owner=number in of_owners))
    pairs = list(_overlapping(sources))
    left_out: dict[int, str] = {}
    for first, second in pairs:
        shower, target = _ordered(first, second)
        if shower.covers(target):
            left_out.setdefault(target.number, shower.name)
    problems = []
    for first, second in pairs:
        if left_out.keys().isdisjoint((first.number, second.number)):
            problems.append(_partly(*_ordered(first, second)))
    problems += _stored_already(sources, left_out, stored)
    return Routes(left_out, problems)


def _ordered(first: _Shown, second: _Shown) -> tuple[_Shown, _Shown]:
    """Return two sources, the one first that shows the values of the other."""
    if first.is_owner != second.is_owner:
        return (second, first) if first.is_owner else (first, second)
    is_reversed = second.covers(first) and not first.covers(second)
    return (second, first) if is_reversed else (first, second)


def _overlapping(sources: Sequence[_Shown]) -> Iterator[tuple[_Shown, _Shown]]:
    """Yield each two sources that show a value in common, or may do."""
    by_key: dict[_Key, list[tuple[int, int, int]]] = defaultdict(list)
    places: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, source in enumerate(sources):
        for (file, place), origins in source.places.items():
            by_key[file, place] += [(origin.start, origin.stop, row) for origin in origins]
            places[file][place].append(row)
    found: dict[tuple[int, int], None] = {}
    for blocks in by_key.values():
        reaching: list[tuple[int, int]] = []  # blocks that go on beyond the start of the next one
        for start, stop, row in sorted(blocks):
            reaching = [(end, other) for end, other in reaching if end > start]
            found |= dict.fromkeys(
                (min(row, other), max(row, other)) for _, other in reaching if other != row
            )
            reaching.append((stop, row))
    for of_file in places.values():
        raw = of_file.pop("", [])
        for other in {row for rows in of_file.values() for row in rows} if raw else ():
            for row in raw:
                found[min(row, other), max(row, other)] = None
    for first, second in sorted(pair for pair in found if pair[0] != pair[1]):
        yield sources[first], sources[second]


def _partly(shower: _Shown, target: _Shown) -> Problem:
    """Return the problem of two sources of which neither shows all that the other does."""
    message = f"links to some of the values of {target.name}, which would be stored twice"
    return Problem(shower.name, message, _without(shower.name, target.name), "twice", shower.name)


def _without(*names: str) -> tuple[AddOptions, ...]:
    return tuple([AddOptions(("--exclude", name)) for name in names])


def _stored_already(
    sources: Sequence[_Shown], left_out: Mapping[int, str], stored: Stored
) -> Iterator[Problem]:
    """Yield a problem for each source that shows values of files that the store has."""
    for source in sources:
        if source.is_owner or source.number in left_out:
            continue
        # Names begin at the folder of all sources, so that the store may have them under other ones.
        files = [
            Path(file).name
            for file in sorted(source.files)
            if file in stored.files or stored.has_like(Path(file).name, Path(file).stat().st_size)
        ]
        if files:
            message = f"links to values of {first_few(files, _LISTED)}, which the store already contains"
            yield Problem(source.name, message, _without(source.name), "twice", source.name)


# Two names of one file


def hard_links(files: Iterable[Sequence[str]]) -> Iterator[tuple[int, int]]:
    """Yield the number of each source whose files are those of one before it, by other names, and of that.

    `files`: paths of the files of each source.
    """
    seen: dict[tuple[tuple[int, int], ...], int] = {}
    for number, paths in enumerate(files):
        try:
            states = [os.stat(path) for path in paths]  # noqa: PTH116  of many files
        except OSError:  # told where it is read
            continue
        if states and all(state.st_nlink > 1 for state in states):
            first = seen.setdefault(tuple([(state.st_dev, state.st_ino) for state in states]), number)
            if first != number:
                yield number, first


# Two files of one name, in two compressions or containers


class Twins(NamedTuple):
    """Numbers of two files of one folder whose names differ in their ending alone, the better one first."""

    first: int
    second: int
    is_declared: bool  # whether a format says that they hold the same, see `Format.twins`


def twins_among(paths: Sequence[str], declared: Sequence[tuple[str, ...]]) -> Iterator[Twins]:
    """Yield each two files of one name. `declared`: see `Format.twins`, of all formats."""
    endings = sorted({ending for twins in declared for ending in twins}, key=len, reverse=True)
    hashes = np.fromiter((hash(_stem(path, endings)) for path in paths), np.int64, len(paths))
    order = np.argsort(hashes, kind="stable")
    is_like_next = np.diff(hashes[order]) == 0
    is_double = np.append(is_like_next, np.False_) | np.append(np.False_, is_like_next)
    by_stem: dict[str, list[int]] = defaultdict(list)
    for number in sorted(order[is_double[: len(paths)]].tolist()):
        by_stem[_stem(paths[number], endings)].append(number)
    for stem, numbers in by_stem.items():
        for first, second in pairwise(numbers):
            own = [paths[number][len(stem) :].lower() for number in (first, second)]
            ranks = next((twins for twins in declared if own[0] in twins and own[1] in twins), ())
            if not ranks or ranks.index(own[0]) <= ranks.index(own[1]):
                yield Twins(first, second, bool(ranks))
            else:
                yield Twins(second, first, is_declared=True)


def _stem(path: str, endings: Sequence[str]) -> str:
    """Return a path without its ending: one of `endings`, else what follows the last dot."""
    name = path.lower()
    ending = next((ending for ending in endings if name.endswith(ending)), "")
    return path[: -len(ending)] if ending else os.path.splitext(path)[0]  # noqa: PTH122  text is faster


def are_alike(first: Sequence[Origin], second: Sequence[Origin]) -> bool:
    """Return whether two sources have equally many rows."""
    return bool(first and second) and _most_rows(first) == _most_rows(second)


def _most_rows(origins: Iterable[Origin]) -> int:
    return max(origin.stop - origin.start for origin in origins)


def twin_problem(taken: str, name: str) -> Problem:
    """Return the problem of a second source of the same name."""
    message = f"has the same name as {taken}, apart from its ending, so its values would be stored twice"
    return Problem(name, message, _without(name, taken), "twice", name)
