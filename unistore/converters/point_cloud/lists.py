"""Read lists of files in folders of point clouds: the split of each file, and the rooms of S3DIS.

``train_files.txt`` and ``test_files.txt`` list the files of a split. ``all_files.txt`` and
``room_filelist.txt`` name the room of each segment. The paths in a list are often those of another machine,
so files are matched by name, among the files in the folder of the list and below.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from unistore.errors import Problem, first_few
from unistore.plugin import ProblemCollector, SourceFile, count_of

_SPLIT_LIST = re.compile(r"(train|val|valid|validation|test)(_hdf5)?_file(s|_list)\.txt", re.IGNORECASE)
_SPLIT_NAMES = {"valid": "val", "validation": "val"}
_MAX_LIST_BYTES = 16 << 20


@dataclass(slots=True)
class FileLists:
    """Content of the lists that were read."""

    splits: dict[Path, str] = field(default_factory=dict)  # of each file that a list names
    rooms: dict[Path, list[str]] = field(default_factory=dict)  # name of each segment of a file
    files: list[Path] = field(default_factory=list)  # the lists
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)  # files in two splits, names of several files


def read_splits(files: Sequence[Path], roots: Sequence[Path]) -> FileLists:
    """Read the lists of splits in the folders of `files` and above them, up to the given roots."""
    lists = FileLists()
    for path, split in _split_lists(files, roots):
        lists.files.append(path)
        for file in _listed_files(path, files, lists):
            other_split = lists.splits.setdefault(file, split)
            if other_split != split:
                message = f"is in the lists of {other_split} and of {split}"
                lists.problems.append(
                    Problem(str(file), message, f"remove it from one of them, such as {path}", "split")
                )
    if lists.splits:
        files_of_split = Counter(lists.splits.values())
        counts = ", ".join(f"{count} {split}" for split, count in files_of_split.items())
        names = ", ".join(path.name for path in lists.files)
        lists.notes.append(f"splits are read from {names}: {counts}")
    return lists


def read_rooms(segments: Mapping[Path, int], roots: Sequence[Path]) -> FileLists:
    """Read ``room_filelist.txt`` beside ``all_files.txt``, if it names every segment of the listed files.

    Parameters
    ----------
    segments
        Number of segments of each file.
    roots
        Paths that the user gave.
    """
    lists = FileLists()
    files = list(segments)
    for folder in _folders_to_search(files, roots):
        order = folder / "all_files.txt"
        names = folder / "room_filelist.txt"
        if not (order.is_file() and names.is_file()):
            continue
        listed_files = _listed_files(order, files, lists)
        rooms = _lines(names, lists)
        count = sum(segments[file] for file in listed_files)
        if len(rooms) != count:
            lines = count_of(len(rooms), "line")
            found = f"{names.name} has {lines}, but the files of {order.name} have {count:,} segments"
            lists.notes.append(f"rooms are not stored, because {found}")
            continue
        lists.files += [order, names]
        remaining_rooms = iter(rooms)
        for file in listed_files:
            lists.rooms[file] = list(islice(remaining_rooms, segments[file]))
    return lists


def _split_lists(files: Sequence[Path], roots: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    for folder in _folders_to_search(files, roots):
        for path in sorted(folder.glob("*.txt")):
            match = _SPLIT_LIST.fullmatch(path.name)
            if match is not None and path.is_file():
                split = match[1].lower()
                yield path, _SPLIT_NAMES.get(split, split)


def _folders_to_search(files: Sequence[Path], roots: Sequence[Path]) -> list[Path]:
    """Return the folders of the files, and those above them inside a root."""
    folders = {file.parent for file in files}
    folders_above = set(chain.from_iterable(folder.parents for folder in folders))
    given_folders = [root.resolve() for root in roots if root.is_dir()]
    for folder in folders_above:
        if any(map(folder.is_relative_to, given_folders)):
            folders.add(folder)
    return sorted(folders)


def _lines(path: Path, lists: FileLists) -> list[str]:
    """Return the lines of a list that are not empty. What is wrong with it is added to the problems."""
    with ProblemCollector(lists.problems).attempt(str(path)):
        content = SourceFile(path, str(path)).head(_MAX_LIST_BYTES + 1)
        if len(content) <= _MAX_LIST_BYTES:
            lines = [line.strip() for line in content.decode("utf-8", "replace").splitlines()]
            return [line for line in lines if line]
        message = f"is too long for a list of files: at most {_MAX_LIST_BYTES:,} bytes are read"
        lists.problems.append(Problem(str(path), message, "rename it", "format"))
    return []


def _listed_files(path: Path, files: Sequence[Path], lists: FileLists) -> list[Path]:
    """Return the files that a list names, in its order."""
    # A name may be that of a file that is no source.
    sources = set(files)
    by_name: dict[str, list[Path]] = {}
    for file in path.parent.rglob("*"):
        by_name.setdefault(file.name, []).append(file)
    listed_files: list[Path] = []
    absent: list[str] = []
    for line in _lines(path, lists):
        name = line.replace("\\", "/").rpartition("/")[2]
        candidates = by_name.get(name, [])
        if len(candidates) > 1:
            # Of files with one name, the list means the one at its place.
            exact = path.parent / line.lstrip("./")
            candidates = [exact] if exact in candidates else candidates
        if sources.isdisjoint(candidates):
            absent.append(name)
        elif len(candidates) > 1:
            message = f"the line {line!r} may mean {' or '.join(map(str, sorted(candidates)))}"
            lists.problems.append(Problem(str(path), message, "write paths relative to the list", "split"))
        else:
            listed_files += candidates
    if absent:
        lists.notes.append(f"{path.name} names files that are not among the sources: {first_few(absent, 1)}")
    return listed_files
