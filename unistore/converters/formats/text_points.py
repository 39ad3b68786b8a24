"""Points written out as text, one a line, and rooms of S3DIS: a folder of such files, one an object."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unistore.converters.formats.lazy import LazyRows, TextRows
from unistore.converters.plugin import Array, Claim, Format, Opened, SourceFile, maybe, no, sure
from unistore.system.hints import AnyArray, Shape

_OBJECTS = "Annotations"
# Classes of S3DIS in the order that all its users number them; what is called otherwise is clutter.
_CLASSES = (
    *("ceiling", "floor", "wall", "beam", "column", "window", "door"),
    *("table", "chair", "sofa", "bookcase", "board", "clutter"),
)
_OF_ROOM = np.dtype([("xyz", "f8", 3), ("rgb", "u1", 3)])


class TextPoints(Format):
    """One array ``points`` (N, k), or columns by names in the first line. Of rooms, classes and objects."""

    name = "text_points"
    suffixes = (".xyz", ".pts", ".asc", ".txt")

    def recognise(self, file: SourceFile) -> Claim:
        """Take rooms, and files that begin with three numbers a line or more. ``.txt`` if it is named."""
        if is_room(file.path):
            return sure(f"is a room with a folder {_OBJECTS}")
        if _beginning(file) is None:
            return no("does not begin with points")
        is_plain = file.path.suffix.lower() == ".txt"
        return (maybe if is_plain else sure)("begins with lines of numbers")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[Opened]:
        file.check_whole()
        yield _room(file) if is_room(file.path) else _points(file)


def is_room(path: Path) -> bool:
    """Return whether a file is called like its folder, which holds objects: ``office_1/office_1.txt``."""
    return path.stem == path.parent.name and (path.parent / _OBJECTS).is_dir()


def room_of(path: Path) -> Path | None:
    """Return the room that a file is an object of, by its folder, or None."""
    folder = path.parent.parent
    return folder / f"{folder.name}.txt" if path.parent.name == _OBJECTS else None


class _Beginning(NamedTuple):
    """What the first lines tell: the names of columns, how many there are, and where the numbers begin."""

    names: list[str]
    width: int
    first: int
    separator: str | None


def _beginning(file: SourceFile) -> _Beginning | None:
    lines = file.head().decode("latin-1").split("\n")[:-1] or [""]
    for first, line in enumerate(lines[:2]):
        separator = next((mark for mark in ",;" if mark in line), None)
        words = line.split(separator)
        if len(words) > 2 and all(map(_is_number, words)):
            before = lines[0].strip("/# \r") if first else ""
            names = [name.strip() for name in before.split(separator)]
            return _Beginning(names if len(names) == len(words) else [], len(words), first, separator)
    return None


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _count(file: SourceFile, first: int = 0) -> int:
    with file.path.open("rb") as lines:
        return sum(1 for line in islice(lines, first, None) if line.strip())


def _points(file: SourceFile) -> Opened:
    begins = _beginning(file)
    if begins is None:
        raise file.problem("does not begin with points, three numbers a line or more")
    count = _count(file, begins.first)
    fields: list[tuple[str, str, Shape]] = [(name, "f8", ()) for name in begins.names]
    dtype = np.dtype(fields or [("points", "f8", (begins.width,))])
    rows = TextRows(file, dtype, begins.first, count, begins.separator)
    arrays = {name: Array(column) for name, column in rows.columns().items()}
    return Opened(arrays, memory=rows.memory)


def _room(file: SourceFile) -> Opened:
    """Points of the objects, which are those of the room in another order, with class and number of each."""
    names = sorted(path.name for path in (file.path.parent / _OBJECTS).glob("*.txt"))
    objects = [file.beside(f"{_OBJECTS}/{name}") for name in names]
    counts = [_count(one) for one in objects]
    rows = [TextRows(one, _OF_ROOM, 0, count) for one, count in zip(objects, counts, strict=True)]
    words = [name.partition("_")[0].lower() for name in names]
    classes = [_CLASSES.index(word if word in _CLASSES else _CLASSES[-1]) for word in words]

    bounds = np.cumsum([0, *counts])

    def rows_of(field: str, lo: int, hi: int) -> AnyArray:
        parts = [np.empty((0, *_OF_ROOM[field].shape), _OF_ROOM[field].base)]
        for start, stop, part in zip(bounds, bounds[1:], rows, strict=False):
            if start < hi and lo < stop:
                parts.append(part.records[field][max(0, lo - start) : hi - start])
        return np.concatenate(parts)

    arrays = {}
    for field in ("xyz", "rgb"):
        shape = (int(bounds[-1]), *_OF_ROOM[field].shape)
        arrays[field] = Array(LazyRows(shape, _OF_ROOM[field].base, partial(rows_of, field)))
    arrays["label"] = Array(np.repeat(np.array(classes, "u1"), counts))
    arrays["instance"] = Array(np.repeat(np.arange(len(names), dtype="u2"), counts))
    facts = {"classes": list(_CLASSES), "objects": names}
    return Opened(arrays, facts, objects, memory=sum(part.memory for part in rows))
