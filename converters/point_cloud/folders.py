"""Read what folders and lists say of point clouds: splits, classes, and the rooms of S3DIS."""

# A folder may name a split or, if there are several, a class: ``chair/train/0001.npy``. ``train_files.txt``
# and ``test_files.txt`` list the files of a split. The paths in them are often of another machine, so files
# are matched by name, among those in the folder of the list and below.

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path

from unistore.converters.common.faults import as_problem
from unistore.converters.files.paths import split_of
from unistore.converters.point_cloud.names import LABEL, ColumnPlace, Described, FileLayout, is_label
from unistore.errors import InputError, Problem, first_few

_LIST = re.compile(r"(train|val|valid|validation|test)(_hdf5)?_file(s|_list)\.txt", re.IGNORECASE)
_NAMES = {"valid": "val", "validation": "val"}
_MAX_BYTES = 16 << 20


@dataclass(slots=True)
class ListFiles:
    """Content of list files."""

    splits: dict[Path, str] = field(default_factory=dict)  # of each file that a list names
    rooms: dict[Path, list[str]] = field(default_factory=dict)  # name of each segment of a file
    files: list[Path] = field(default_factory=list)  # the lists
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)  # files in two splits, names of several files


def read_splits(files: Sequence[Path], roots: Sequence[Path]) -> ListFiles:
    """Read the lists of splits in the folders of `files`, up to the given roots."""
    lists = ListFiles()
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


def read_rooms(segments: Mapping[Path, int], roots: Sequence[Path]) -> ListFiles:
    """Read ``room_filelist.txt`` beside ``all_files.txt`` if it names all segments of these files."""
    lists = ListFiles()
    files = list(segments)
    for folder in _folders(files, roots):
        order = folder / "all_files.txt"
        names = folder / "room_filelist.txt"
        if not (order.is_file() and names.is_file()):
            continue
        listed_files = _matched(order, files, lists)
        rooms = _lines(names)
        count = sum(segments[file] for file in listed_files)
        if len(rooms) != count:
            differing = f"{names.name} names {len(rooms)} rows, the files of {order.name} hold {count}"
            lists.notes.append(f"{differing}: rooms are left out")
            continue
        lists.files += [order, names]
        left = iter(rooms)
        lists.rooms |= {file: list(islice(left, segments[file])) for file in listed_files}
    return lists


def _folders(files: Sequence[Path], roots: Sequence[Path]) -> list[Path]:
    # Folders of the files, and those above them inside a root
    folders = {file.parent for file in files}
    above = set(chain.from_iterable(folder.parents for folder in folders))
    inside = [root.resolve() for root in roots if root.is_dir()]
    folders |= {folder for folder in above if any(map(folder.is_relative_to, inside))}
    return sorted(folders)


def _lines(path: Path) -> list[str]:
    # Lines of a list, without empty ones
    with as_problem(str(path)):
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(Problem(str(path), "is too long for a list of files", kind="format"))
        text = path.read_text(encoding="utf-8", errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


def _matched(path: Path, files: Sequence[Path], lists: ListFiles) -> list[Path]:
    # Files that a list names, in its order. A name may be that of a file that is no source
    sources = set(files)
    by_name: dict[str, list[Path]] = {}
    for file in path.parent.rglob("*"):
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
        if len(alike) > 1 and not sources.isdisjoint(alike):
            message = f"{line!r} may be {' or '.join(map(str, sorted(alike)))}"
            lists.problems.append(Problem(str(path), message, "write paths relative to the list", "split"))
        elif sources.isdisjoint(alike):
            absent.append(name)
        else:
            matched += alike
    if absent:
        lists.notes.append(f"{path.name} names {first_few(absent, 1)}, not among the sources")
    return matched


# Names with numbers are scenes, areas or parts, not classes, except for the synset numbers of ShapeNet.
_CLASS = re.compile(r"[^\d]+|\d{8}")


def folder_classes(sources: Sequence[str]) -> list[tuple[int, str] | None]:
    """Return number and name of the class of each source by its name, in the order of class names."""
    # None unless there are at least two class folders, one of them with several files. Folders named after a
    # split are skipped.
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
    """Return whether any file has labels or segments of its own, so that no folder is a label."""
    return any(file.segmented is not None or any(map(is_label, file.layout.places)) for file in described)


def with_label_dtype(layout: FileLayout, dtype: str) -> FileLayout:
    """Return the same layout whose labels are stored in a dtype."""
    columns, segment_columns = (
        {key: place._replace(dtype=dtype) if is_label(key) else place for key, place in places.items()}
        for places in (layout.columns, layout.segment_columns)
    )
    return layout._replace(columns=columns, segment_columns=segment_columns)


def with_folder_label(file: Described, of_class: tuple[int, str] | None) -> Described:
    """Return what is known of a file with the class of its folder as the label of its segment."""
    if of_class is None:
        return file
    columns = {**file.layout.segment_columns, LABEL: ColumnPlace(of_class[1], "<i4")}
    return replace(file, layout=file.layout._replace(segment_columns=columns), label=of_class)
