"""List files beside point clouds: ``train_files.txt`` and ``test_files.txt``, and the rooms of S3DIS.

The paths in them are often of another machine, so files are matched by name, among those in the folder of the
list and below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from unistore.converters.common.faults import as_problem
from unistore.converters.files.hdf5.file import location_of
from unistore.errors import InputError, Problem, printable

_LIST = re.compile(r"(train|val|valid|validation|test)(_hdf5)?_file(s|_list)\.txt", re.IGNORECASE)
_NAMES = {"valid": "val", "validation": "val"}
_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class Listed:
    """Split of one file, all lists that were read, and the class of the file's folder."""

    split: str | None
    lists: tuple[Path, ...]
    of_class: tuple[int, str] | None = None


@dataclass(slots=True)
class Lists:
    """Content of the list files.

    Attributes
    ----------
    splits
        Split of each file that a list names.
    rooms
        Name of each row (segment) of a file, from ``room_filelist.txt``.
    files
        The list files that were read.
    notes
        Remarks for the user.
    problems
        Files in two splits, and names of several files.
    """

    splits: dict[Path, str] = field(default_factory=dict)
    rooms: dict[Path, list[str]] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def read_lists(files: Sequence[Path], roots: Sequence[Path]) -> Lists:
    """Read the list files in the folders of `files`, up to the given roots.

    Parameters
    ----------
    files
        Point cloud files.
    roots
        Paths as the user gave them.
    """
    lists = Lists()
    for folder in _folders(files, roots):
        for path in sorted(folder.glob("*.txt")):
            match = _LIST.fullmatch(path.name)
            if match is None or not path.is_file():
                continue
            split = _NAMES.get(match[1].lower(), match[1].lower())
            lists.files.append(path)
            for file in _matched(path, files, lists):
                before = lists.splits.setdefault(file, split)
                if before != split:
                    message = f"is in the lists of {before} and of {split}"
                    lists.problems.append(Problem(location_of(str(file)), message, f"fix {path}", "split"))
    if lists.splits:
        counted = ", ".join(
            f"{list(lists.splits.values()).count(split)} {split}"
            for split in dict.fromkeys(lists.splits.values())
        )
        lists.notes.append(f"splits taken from {', '.join(path.name for path in lists.files)}: {counted}")
    return lists


def room_names(lists: Lists, rows: Mapping[Path, int], roots: Sequence[Path]) -> None:
    """Add the room of every row, if ``all_files.txt`` and ``room_filelist.txt`` name all rows.

    Parameters
    ----------
    lists
        Completed in place.
    rows
        Rows (segments) of each file.
    roots
        Paths as the user gave them.
    """
    for folder in _folders(list(rows), roots):
        order, names = folder / "all_files.txt", folder / "room_filelist.txt"
        if not (order.is_file() and names.is_file()):
            continue
        files = _matched(order, list(rows), lists)
        rooms = _lines(names)
        if len(rooms) != sum(rows[file] for file in files):
            lists.notes.append(
                f"{names.name} names {len(rooms)} rows, the files of {order.name} hold "
                f"{sum(rows[file] for file in files)}: rooms are left out"
            )
            continue
        lists.files += [order, names]
        at = 0
        for file in files:
            lists.rooms[file] = rooms[at : at + rows[file]]
            at += rows[file]


def _folders(files: Sequence[Path], roots: Sequence[Path]) -> list[Path]:
    """Folders of the files, and those above them inside a root."""
    found: dict[Path, None] = {}
    inside = [root.resolve() for root in roots if root.is_dir()]
    for parent in {file.parent for file in files}:
        found[parent] = None
        for folder in (parent, *parent.parents):
            if any(folder.is_relative_to(root) for root in inside):
                found[folder] = None
    return sorted(found)


def _lines(path: Path) -> list[str]:
    """Lines of a list, without empty ones."""
    with as_problem(str(path)):
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(
                Problem(location_of(str(path)), "is too long for a list of files", kind="format")
            )
        text = path.read_text(encoding="utf-8", errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


def _matched(path: Path, files: Sequence[Path], lists: Lists) -> list[Path]:
    """Files that a list names, in its order."""
    below = [file for file in files if file.is_relative_to(path.parent)]
    by_name: dict[str, list[Path]] = {}
    for file in below:
        by_name.setdefault(file.name, []).append(file)
    matched: list[Path] = []
    absent: list[str] = []
    for line in _lines(path):
        parts = line.replace("\\", "/").split("/")
        alike = by_name.get(parts[-1], [])
        if len(alike) > 1:
            alike = [
                file for file in alike if file.relative_to(path.parent).as_posix() == line.lstrip("./")
            ] or alike
        if len(alike) > 1:
            message = f"{line!r} may be {' or '.join(str(file) for file in alike)}"
            lists.problems.append(
                Problem(location_of(str(path)), message, "write paths relative to the list", "split")
            )
        elif alike:
            matched.append(alike[0])
        else:
            absent.append(printable(parts[-1]))
    if absent:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        lists.notes.append(f"{path.name} names {absent[0]}{more}, not among the sources")
    return matched
