"""Which files the user's paths stand for, in which order, and how they are named in a store.

Folders are searched without ever following a link out of what was given: a link whose target lies elsewhere
is an error, not an invitation. Names go into stores, messages and terminals: control characters are escaped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from unistore.converters.files.formats import has_ending
from unistore.errors import InputError, Problem, printable

__all__ = [
    "Listed",
    "common_root",
    "expand",
    "folders_of_targets",
    "is_inside",
    "is_special",
    "is_store",
    "list_files",
    "natural_key",
    "real_path",
    "relative_names",
    "special",
    "split_of",
    "with_real_parents",
]

_BUILD = ".unistore-build"
_ZARR = ("zarr.json", ".zgroup", ".zarray")
"""A folder with one of these is Zarr, of version 3 or 2."""

NaturalKey = tuple[tuple[tuple[int, int, str], ...], str]

_DIGITS = re.compile(r"([0-9]+)")
_SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


def natural_key(text: str) -> NaturalKey:
    """Sort key in which ``demo_2`` comes before ``demo_10`` and a folder's content stays together.

    Runs of ASCII digits compare as numbers of any length; equal numbers written differently (``7``, ``07``)
    fall back to the text itself, so the order is total.
    """
    pieces: list[tuple[int, int, str]] = []
    for part in text.split("/"):
        for index, piece in enumerate(_DIGITS.split(part)):
            if index % 2:
                digits = piece.lstrip("0")
                pieces.append((1, len(digits), digits))
            elif piece:
                pieces.append((2, 0, piece))
        pieces.append((0, 0, ""))
    return tuple(pieces), text


def real_path(path: Path) -> Path:
    """Absolute path with every link resolved; of a loop of links, as far as that goes."""
    return Path(os.path.realpath(path))


def is_inside(path: Path, roots: Sequence[Path]) -> bool:
    """Whether a path, after resolving every link, is one of the roots or lies below one."""
    real = real_path(path)
    return any(real.is_relative_to(real_path(root)) for root in roots)


def expand(paths: Sequence[Path], suffixes: Sequence[str]) -> list[Path]:
    """Files that the given files and folders stand for, in natural order, each once.

    Parameters
    ----------
    paths
        Files (taken whatever their suffix) and folders (searched to any depth; hidden names are left out).
    suffixes
        Lower-case endings to take from folders: ``(".h5", ".hdf5")``; see `has_ending`.

    Returns
    -------
    list of Path
        Parents resolved, names as found.

    Raises
    ------
    InputError
        Naming every path that does not exist, every folder that holds nothing suitable, and every link that
        leaves the given paths.
    """
    listed = list_files(paths, suffixes)
    if listed.problems:
        raise InputError(listed.problems)
    return listed.files


class Listed(NamedTuple):
    """What lies under some paths.

    Attributes
    ----------
    files
        As `expand` gives them.
    problems
        What it raises.
    passed_over
        Files and folders that are never looked into, and why, in natural order: hidden ones, stores and other
        Zarr hierarchies, unfinished conversions.
    """

    files: list[Path]
    problems: list[Problem]
    passed_over: list[tuple[Path, str]]


def list_files(paths: Sequence[Path], suffixes: Sequence[str] = ("",)) -> Listed:
    """List what lies under some paths, files with the given endings; see `expand`."""
    problems: list[Problem] = []
    found: list[Path] = []
    passed: dict[Path, str] = {}
    for path in paths:
        location = printable(str(path))
        if path.is_dir():
            listing = _search(path)
            inside = [file for file in sorted(listing.files) if has_ending(file, suffixes)]
            inside_links = [file for file in inside if file.is_symlink()]
            leaving = [
                link for link in [*inside_links, *sorted(listing.leaving)] if not is_inside(link, paths)
            ]
            passed |= dict(listing.passed)
            problems += [*map(_leaving, leaving), *listing.closed]
            if not inside and not listing.closed:
                message = f"no {' or '.join(suffixes)} file in this folder".replace("no  file", "no file")
                problems.append(Problem(location, message, kind="missing"))
            found += [file for file in inside if file not in leaving]
        elif path.exists():
            found.append(path)
        else:
            cure = "the link's target is gone" if path.is_symlink() else "check the path"
            problems.append(Problem(location, "does not exist", cure, "missing"))
    problems += [special(printable(str(path))) for path in found if is_special(path)]
    absolute = set(with_real_parents([path for path in found if not is_special(path)]))
    links = {path for path in absolute if path.is_symlink()}
    real_first = sorted(absolute, key=lambda path: (path in links, natural_key(path.as_posix())))
    unique = {real_path(path) if path in links else path: path for path in reversed(real_first)}
    return Listed(
        sorted(unique.values(), key=lambda path: natural_key(path.as_posix())),
        problems,
        sorted(passed.items(), key=lambda item: natural_key(item[0].as_posix())),
    )


def with_real_parents(files: Sequence[Path]) -> list[Path]:
    """The same files, with the links of their folders resolved, each folder once."""
    parents = {parent: parent.resolve() for parent in {file.parent for file in files}}
    return [parents[file.parent] / file.name for file in files]


def is_special(path: Path) -> bool:
    """Whether a path is a pipe, a socket or a device: opening one may wait for ever."""
    return path.exists() and not path.is_file() and not path.is_dir()


def special(location: str) -> Problem:
    """What is said of such a path."""
    return Problem(location, "is a pipe, socket or device, not a file", "save its data as a file", "special")


@dataclass(slots=True)
class _Listing:
    """Files below a folder, links to folders outside it, folders not to be listed, what is passed over."""

    files: list[Path] = field(default_factory=list)
    leaving: list[Path] = field(default_factory=list)
    closed: list[Problem] = field(default_factory=list)
    passed: list[tuple[Path, str]] = field(default_factory=list)


def _search(folder: Path) -> _Listing:
    """What lies below a folder. Each real folder is entered once.

    Stores, and the folders of unfinished conversions, are no sources: what lies in them is not looked at.
    """
    found = _Listing()
    root = folder.resolve()
    seen = {root}
    stack = [root]
    while stack:
        current = stack.pop()
        try:
            if current != root and is_store(current):
                found.passed.append((current, _zarr(current)))
                continue
            with os.scandir(current) as entries:
                visible = [entry for entry in entries if not _is_hidden(entry, found)]
        except OSError as error:
            message = f"cannot be listed: {error.strerror}"
            problem = Problem(printable(str(current)), message, "check the rights", "unreadable")
            found.closed.append(problem)
            continue
        for entry in visible:
            if not os.path.isdir(entry.path):  # noqa: PTH112  False where links lead in a circle, unlike entry.is_dir
                found.files.append(Path(entry.path))
                continue
            real = Path(entry.path).resolve()
            if not real.is_relative_to(root):
                found.leaving.append(Path(entry.path))
            elif real not in seen:
                seen.add(real)
                stack.append(real)
    return found


def _is_hidden(entry: os.DirEntry[str], found: _Listing) -> bool:
    if entry.name.startswith("."):
        found.passed.append((Path(entry.path), "hidden"))
        return True
    return False


def is_store(folder: Path) -> bool:
    """Whether a folder is Zarr or of an unfinished conversion: what lies in it is no source."""
    return folder.name.endswith(_BUILD) or any((folder / name).exists() for name in _ZARR)


def _zarr(folder: Path) -> str:
    return "an unfinished conversion" if folder.name.endswith(_BUILD) else "Zarr, which is no source"


def folders_of_targets(links: Iterable[Path], roots: Sequence[Path]) -> list[Path]:
    """The fewest folders that hold what links lead to, and none of the given paths."""
    given = [real_path(root) for root in roots]
    targets = {real_path(link) for link in links}
    return _covering({each if each.is_dir() else each.parent for each in targets}, given)


def _covering(folders: set[Path], apart: Sequence[Path]) -> list[Path]:
    if not folders:
        return []
    top = Path(os.path.commonpath(folders))
    if top in folders or not any(each.is_relative_to(top) for each in apart):
        return [top]
    groups: dict[str, set[Path]] = {}
    for folder in folders:
        groups.setdefault(folder.relative_to(top).parts[0], set()).add(folder)
    return [each for name in sorted(groups) for each in _covering(groups[name], apart)]


def _leaving(path: Path) -> Problem:
    target = printable(str(real_path(path)))
    cure = "give the folder of the target too, or copy the file"
    return Problem(printable(str(path)), f"is a link to {target}, outside the given paths", cure, "link")


def common_root(files: Sequence[Path]) -> Path:
    """Deepest folder that holds all files."""
    return Path(os.path.commonpath([parent.resolve() for parent in {file.parent for file in files}]))


def relative_names(files: Sequence[Path]) -> list[str]:
    """Printable names relative to the common root, with ``/``, in the order given; unique.

    Two names that escaping makes equal get ``~2``, ``~3``, … so that a name always stands for one file.
    """
    if not files:
        return []
    real = with_real_parents(files)
    root = common_root(real)
    names: list[str] = []
    taken: set[str] = set()
    for file in real:
        plain = printable(file.relative_to(root).as_posix())
        name, number = plain, 1
        while name in taken:
            number += 1
            name = f"{plain}~{number}"
        taken.add(name)
        names.append(name)
    return names


def split_of(name: str) -> str | None:
    """Split that a relative name tells: a folder called ``train``, or a file like ``ply_data_test0.h5``.

    Returns
    -------
    str or None
        ``"train"``, ``"val"`` or ``"test"``; the outermost part that names one decides.
    """
    *folders, file = name.lower().split("/")
    for folder in folders:
        if folder in _SPLITS:
            return _SPLITS[folder]
    words = re.findall(r"[a-z]+", file.rsplit(".", 1)[0])
    return next((_SPLITS[word] for word in words if word in _SPLITS), None)
