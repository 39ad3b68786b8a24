"""Points written out as text, one a line, and rooms of S3DIS: a folder of such files, one an object."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unistore.converters.array import Array
from unistore.converters.claims import Claim, maybe, no, sure
from unistore.converters.common.faults import COPY_AGAIN
from unistore.converters.formats.lazy import LazyRows, TextRows, without_last
from unistore.converters.opened import HEAD_BYTES, Format, OpenFile, SourceFile
from unistore.system.types import AnyArray, Shape

_OBJECTS = "Annotations"
# Classes of S3DIS in the order that all its users number them; what is called otherwise is clutter.
_CLASSES = (
    *("ceiling", "floor", "wall", "beam", "column", "window", "door"),
    *("table", "chair", "sofa", "bookcase", "board", "clutter"),
)
_COMMENTS = ("#", "//", "%", ";")
_LOOKED_AT = 3  # lines that tell the form of all, so that a damaged first one does not
# What titles of columns begin with. A number of which a byte was damaged mostly does not
_TITLE = re.compile(r"[^\W\d_][^\x00-\x1f]*|_[^\x00-\x1f]*")
_OF_ROOM = np.dtype([("xyz", "f8", 3), ("rgb", "u1", 3)])


class TextPoints(Format):
    """One array ``points`` (N, k), or columns by names in the first line. Of rooms, classes and objects."""

    name = "text_points"
    suffixes = (".xyz", ".pts", ".asc", ".txt")

    def recognise(self, file: SourceFile) -> Claim:
        """Take rooms, and files that begin with three numbers a line or more. ``.txt`` if it is named."""
        if is_room(file.path):
            return sure(f"is a room with the folder {_OBJECTS}")
        is_plain = file.path.suffix.lower() == ".txt"
        if _beginning(file) is None:
            if b"\0" in file.head() and not is_plain:
                message = "contains NUL bytes in its first lines, so it is damaged or not UTF-8"
                raise file.problem(message, f"{COPY_AGAIN}, or save it as UTF-8", "damaged")
            return no("does not begin with points")
        return (maybe if is_plain else sure)("begins with lines of numbers")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
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
    """What the first lines tell."""

    names: Sequence[str]  # of the columns; empty: they have none
    width: int  # numbers of a line
    separator: str | None
    first: int  # lines before the points
    stated: int | None  # how many points there are, if a line says so


def _beginning(file: SourceFile) -> _Beginning | None:
    """Read blank lines, comments, titles and a number of points, up to the first line that is none of these.

    A line that is no point either is left to be told as one: None is returned if the next ones are none, too.
    """
    head = file.head()
    lines = head.decode("utf-8-sig", "replace").split("\n")
    if len(head) == HEAD_BYTES:
        lines.pop()  # it may be cut
    titles: list[list[str]] = []
    stated: int | None = None
    unmarked: int | None = None  # line of titles that no mark makes a comment
    first = 0
    for first, line in enumerate(lines):
        text = line.strip()
        words = _words(text.lstrip("/#%; ") if text.startswith(_COMMENTS) else text)
        is_titles = bool(words) and all(map(_is_title, words))
        if text.isdecimal() and stated is None:
            stated = int(text)
        elif text.startswith(_COMMENTS):
            titles += [words] if is_titles else []
        elif is_titles and unmarked is None:
            titles.append(words)
            unmarked = first
        elif text:
            break
    form = _form(lines[first:])
    if form is None:
        return None
    separator, width = form
    names = next((words for words in reversed(titles) if len(words) == width), [])
    if unmarked is not None and len(_words(lines[unmarked])) != width:
        first = unmarked  # no titles of these columns
    return _Beginning(names, width, separator, first, stated)


def _form(lines: Sequence[str]) -> tuple[str | None, int] | None:
    """Return separator and numbers of the lines of points, of which the first one may be damaged."""
    forms = []
    for line in islice(filter(str.strip, lines), _LOOKED_AT):
        words = _words(line)
        is_point = len(words) > 2 and all(map(_is_number, words))
        forms.append((_separator(line), len(words)) if is_point else None)
    later = forms[1:]
    if len(later) == _LOOKED_AT - 1 and len(set(later)) == 1 and later[0] is not None:
        return later[0]
    return next((form for form in forms if form is not None), None)


def _separator(line: str) -> str | None:
    return next((mark for mark in ",;" if mark in line), None)


def _words(line: str) -> list[str]:
    separator = _separator(line)
    text = without_last(line, separator)
    return [word.strip(" \t\r\"'") for word in text.split(separator)]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _is_title(word: str) -> bool:
    """Return whether a word names a column: it is no number, whole or damaged."""
    return bool(_TITLE.fullmatch(word)) and not _is_number(word)


def _points(file: SourceFile) -> OpenFile:
    begins = _beginning(file)
    if begins is None:
        message = "does not begin with points, which have three or more numbers per line"
        raise file.problem(message, "correct the file, or skip it with --exclude")
    for name in begins.names:
        if begins.names.count(name) > 1:
            raise file.problem(f"has two columns called {name!r}", "rename one of them", "name")
    fields: list[tuple[str, str, Shape]] = [(name, "f8", ()) for name in begins.names]
    dtype = np.dtype(fields or [("points", "f8", (begins.width,))])
    rows = TextRows(file, dtype, begins.first, begins.separator, begins.stated)
    arrays = {name: Array(column) for name, column in rows.columns().items()}
    return OpenFile(arrays, memory=rows.memory)


def _room(file: SourceFile) -> OpenFile:
    """Points of the objects, which are those of the room in another order, with class and number of each."""
    names = sorted(path.name for path in (file.path.parent / _OBJECTS).glob("[!.]*.txt"))
    objects = [file.beside(f"{_OBJECTS}/{name}") for name in names]
    rows = [TextRows(one, _OF_ROOM, 0) for one in objects]
    counts = [part.count for part in rows]
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
    metadata = {"classes": list(_CLASSES), "objects": names}
    return OpenFile(arrays, metadata, objects, memory=sum(part.memory for part in rows))
