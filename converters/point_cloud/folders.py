"""What folders and lists say of point clouds: splits, classes, and the rooms of S3DIS.

A folder may name a split or, if there are several, a class: ``chair/train/0001.npy``. ``train_files.txt`` and
``test_files.txt`` list the files of a split. The paths in them are often of another machine, so files are
matched by name, among those in the folder of the list and below.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path

from unistore.converters.common.faults import as_problem
from unistore.converters.files.paths import split_of
from unistore.converters.point_cloud.names import is_label
from unistore.converters.point_cloud.source import LABEL, Described, Layout, Place
from unistore.errors import InputError, Problem, first_few

_LIST = re.compile(r"(train|val|valid|validation|test)(_hdf5)?_file(s|_list)\.txt", re.IGNORECASE)
_NAMES = {"valid": "val", "validation": "val"}
_MAX_BYTES = 16 << 20


@dataclass(slots=True)
class Lists:
    """Content of the list files.

    Attributes
    ----------
    splits
        Split of each file that a list names.
    rooms
        Name of each row (segment) of a file, from ``room_filelist.txt``.
    problems
        Files in two splits, and names of several files.
    """

    splits: dict[Path, str] = field(default_factory=dict)
    rooms: dict[Path, list[str]] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def read_lists(files: Sequence[Path], roots: Sequence[Path]) -> Lists:
    """Read the list files in the folders of `files`, up to the given roots."""
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
                    lists.problems.append(Problem(str(file), message, f"fix {path}", "split"))
    if lists.splits:
        counted = ", ".join(f"{count} {split}" for split, count in Counter(lists.splits.values()).items())
        lists.notes.append(f"splits taken from {', '.join(path.name for path in lists.files)}: {counted}")
    return lists


def room_names(lists: Lists, rows: Mapping[Path, int], roots: Sequence[Path]) -> None:
    """Add the room of every row, if ``all_files.txt`` and ``room_filelist.txt`` name all rows.

    Parameters
    ----------
    rows
        Rows (segments) of each file.
    """
    for folder in _folders(list(rows), roots):
        order, names = folder / "all_files.txt", folder / "room_filelist.txt"
        if not (order.is_file() and names.is_file()):
            continue
        files = _matched(order, list(rows), lists)
        rooms = _lines(names)
        count = sum(rows[file] for file in files)
        if len(rooms) != count:
            differing = f"{names.name} names {len(rooms)} rows, the files of {order.name} hold {count}"
            lists.notes.append(f"{differing}: rooms are left out")
            continue
        lists.files += [order, names]
        left = iter(rooms)
        lists.rooms |= {file: list(islice(left, rows[file])) for file in files}


def _folders(files: Sequence[Path], roots: Sequence[Path]) -> list[Path]:
    """Folders of the files, and those above them inside a root."""
    folders = {file.parent for file in files}
    above = set(chain.from_iterable(folder.parents for folder in folders))
    inside = [root.resolve() for root in roots if root.is_dir()]
    folders |= {folder for folder in above if any(map(folder.is_relative_to, inside))}
    return sorted(folders)


def _lines(path: Path) -> list[str]:
    """Lines of a list, without empty ones."""
    with as_problem(str(path)):
        if path.stat().st_size > _MAX_BYTES:
            message = "is too long for a list of files"
            raise InputError(Problem(str(path), message, kind="format"))
        text = path.read_text(encoding="utf-8", errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


def _matched(path: Path, files: Sequence[Path], lists: Lists) -> list[Path]:
    """Files that a list names, in its order."""
    by_name: dict[str, list[Path]] = {}
    for file in files:
        if file.is_relative_to(path.parent):
            by_name.setdefault(file.name, []).append(file)
    matched: list[Path] = []
    absent: list[str] = []
    for line in _lines(path):
        name = line.replace("\\", "/").rpartition("/")[2]
        alike = by_name.get(name, [])
        if len(alike) > 1:
            # Of files with one name, the list means the one at its place.
            exact = path.parent / line.lstrip("./")
            alike = [exact] if exact in alike else alike
        if len(alike) > 1:
            message = f"{line!r} may be {' or '.join(map(str, alike))}"
            lists.problems.append(Problem(str(path), message, "write paths relative to the list", "split"))
        elif alike:
            matched.append(alike[0])
        else:
            absent.append(name)
    if absent:
        lists.notes.append(f"{path.name} names {first_few(absent, 1)}, not among the sources")
    return matched


_CLASS = re.compile(r"[^\d]+|\d{8}")
"""Names with numbers are scenes, areas or parts, not classes, except for the synset numbers of ShapeNet."""
_DTYPE = "<i4"
_SHOWN = 8


def folder_classes(sources: Sequence[str]) -> list[tuple[int, str] | None]:
    """Number and name of the class of each source by its name; numbers follow the sorted names.

    None for all of them unless there are at least two class folders, one of them with several files. Folders
    named after a split are skipped.
    """
    named = [_class_of(source.rpartition("/")[0]) for source in sources]
    names = sorted({name for name in named if name is not None})
    if None in named or len(names) < 2 or max(Counter(named).values()) < 2:
        return [None] * len(sources)
    return [(names.index(name), name) for name in named if name is not None]


@lru_cache(1024)
def _class_of(folder: str) -> str | None:
    folders = folder.split("/") if folder else ()
    name = next((name for name in folders if split_of(f"{name}/a") is None), None)
    return name if name is not None and _CLASS.fullmatch(name) else None


def have_labels(described: Iterable[Described]) -> bool:
    """Whether any file has labels or segments of its own, so that no folder is a label."""
    return any(file.segmented is not None or _has_label(file.layout) for file in described)


def _has_label(layout: Layout) -> bool:
    return any(map(is_label, (*layout.columns, *layout.segment_columns)))


def arrays_of_labels(layout: Layout) -> set[str]:
    """Return the last names of the arrays that hold labels."""
    places = [*layout.columns.items(), *layout.segment_columns.items()]
    return {place.array.rpartition("/")[2] for key, place in places if is_label(key)}


def with_label_dtype(layout: Layout, dtype: str) -> Layout:
    """Return the same layout whose labels are stored in a dtype."""
    return layout._replace(
        columns=_numbered(layout.columns, dtype), segment_columns=_numbered(layout.segment_columns, dtype)
    )


def _numbered(places: Mapping[str, Place], dtype: str) -> dict[str, Place]:
    return {key: place._replace(dtype=dtype) if is_label(key) else place for key, place in places.items()}


def with_folder_label(layout: Layout, of_class: tuple[int, str] | None) -> Layout:
    """The layout with the class of its folder as the label of its segment."""
    if of_class is None:
        return layout
    label = Place(of_class[1], _DTYPE)
    return layout._replace(segment_columns={**layout.segment_columns, LABEL: label})


def class_notes(names: Collection[str]) -> list[str]:
    """Remark that labels are the classes of folders, if they are."""
    listed = f"labels of segments are their folders, one a class: {first_few(sorted(names), _SHOWN)}"
    return [f"{listed}; --map label= leaves them out"] if names else []
