"""List files under the paths that a user gives, look into their folders, and name them in a store."""

# A link whose target lies outside the given paths is an error, never followed. Control characters in names
# are escaped, since names go into stores, messages and terminals.

from __future__ import annotations

import errno
import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.formats import may_have_ending
from unistore.errors import InputError, Problem, printable
from unistore.system.packed import PackedObjects

_BUILD = (".unistore-build", ".unistore-growth")
# A folder with one of these files is Zarr, of version 3 or 2
_ZARR = ("zarr.json", ".zgroup", ".zarray", "versions/1.json")
# A Zarr folder with this file is a source: it stands for the replay buffer
_EPISODE_ENDS = Path("meta", "episode_ends", ".zarray")
_UNFINISHED = "an unfinished conversion"

_DIGITS = re.compile(r"([0-9]+)")
_SPLIT_WORDS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
SPLIT_NAMES = tuple(_SPLIT_WORDS)  # that `split_of` returns, in the order in which splits are listed
_SPLITS: dict[str, str] = {}
for _split, _words in _SPLIT_WORDS.items():
    _SPLITS |= dict.fromkeys(_words, _split)


def name_ends(name: str) -> list[str]:
    """Return what is left of the name of a source without the first of its folders, the first two, ...

    For example, ``a/b/c.h5`` has the ends ``b/c.h5`` and ``c.h5``.
    """
    parts = name.split("/")
    return ["/".join(parts[first:]) for first in range(1, len(parts))]


def natural_key(text: str) -> bytes:
    """Return a sort key that puts ``demo_2`` before ``demo_10`` and keeps the files of a folder together.

    Digits compare as numbers of any length. Names that differ only in how numbers are written (``7``,
    ``07``) compare as text.
    """
    folder, slash, name = text.rpartition("/")
    return (_folder_key(folder) if slash else b"") + _part_key(name)


@lru_cache(1024)
def _folder_key(folder: str) -> bytes:
    return b"".join(map(_part_key, folder.split("/")))


def _part_key(part: str) -> bytes:
    pieces = []
    for index, piece in enumerate(_DIGITS.split(part)):
        if index % 2:
            digits = piece.lstrip("0")
            pieces.append(b"\2%b%b" % (len(digits).to_bytes(8), digits.encode()))
        elif piece:
            pieces.append(b"\3%b\0" % _encoded(piece))
    return b"%b\1%b\0" % (b"".join(pieces), _encoded(part))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def real_path(path: Path) -> Path:
    """Return the absolute path with every link resolved, except in a cycle of links."""
    return Path(os.path.realpath(path))


def file_version(status: os.stat_result) -> tuple[int, ...]:
    """Return values that change if a file does: device, inode, size and times."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def is_inside(path: Path, roots: Sequence[Path]) -> bool:
    """Return whether a path, with every link resolved, is one of the roots or below one."""
    real = real_path(path)
    return any(real.is_relative_to(real_path(root)) for root in roots)


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The files below given paths, listed once.

    Attributes
    ----------
    roots : tuple of Path
        Files and folders, as the user gave them. Folders are searched recursively, without hidden names.
    files : sequence of str
        Each file once, in natural order, with links in its parents resolved.
    given : frozenset of str
        Files that the user gave themselves, not their folder.
    aliases : mapping of str to str
        Links to another of the files, which is listed instead.
    problems : sequence of Problem
        Missing paths, folders that cannot be listed, and links to folders outside of the roots.
    file_problems : sequence of (str, Problem)
        Links out of the roots, and special files, each with its problem.
    skipped : sequence of (Path, str)
        Files and folders that are not read, with the reason, in natural order: hidden ones, stores and
        other Zarr hierarchies, unfinished conversions.
    left : bool array, optional
        Which of the files are left to other families. None: none.
    others : frozenset of Path
        Given folders that need not have a suitable file, because they belong to other families.
    """

    roots: tuple[Path, ...]
    files: Sequence[str]
    given: frozenset[str]
    aliases: Mapping[str, str]
    problems: Sequence[Problem]
    file_problems: Sequence[tuple[str, Problem]]
    skipped: Sequence[tuple[Path, str]]
    left: NDArray[np.bool_] | None = None
    others: frozenset[Path] = frozenset()

    def with_suffixes(self, suffixes: Sequence[str]) -> Sequence[str]:
        """Return given files, and files in given folders with one of the suffixes; see `may_have_ending`.

        Files that are left to other families are not among them.

        Raises
        ------
        InputError
            For every missing path, every link outside, and every folder without a suitable file.
        """

        def is_suitable(path: str) -> bool:
            return path in self.given or may_have_ending(path, suffixes)

        chosen = np.fromiter(map(is_suitable, self.files), np.bool_, len(self.files))
        links = list(filter(is_suitable, self.aliases))
        refused = {path: problem for path, problem in self.file_problems if is_suitable(path)}
        problems = [*self.problems, *refused.values()]
        left_out = (*links, *refused, *(problem.file for problem in self.problems))
        for folder in filter(Path.is_dir, [root for root in self.roots if root not in self.others]):
            inside = folder.resolve()
            below = slice(*rows_below(self.files, inside))
            start = f"{inside}{os.sep}"
            if not chosen[below].any() and not any(path.startswith(start) for path in left_out):
                problems.append(
                    Problem(
                        printable(str(folder)),
                        f"the folder contains no {' or '.join(suffixes)} file",
                        "check the path, or remove the folder from the command",
                        "missing",
                    )
                )
        if problems:
            raise InputError(sorted(problems, key=lambda problem: _path_key(problem.file)))
        if self.left is not None:
            chosen &= ~self.left
        files = PackedObjects(compress(self.files, chosen.tolist()))
        # A link whose target has another suffix is the file's only suitable name.
        named = [link for link in links if not is_suitable(self.aliases[link])]
        return PackedObjects(sorted([*files, *named], key=_path_key)) if named else files

    def is_left(self, path: Path) -> bool:
        return bool(self._left_files) and os.path.realpath(path) in self._left_files

    @cached_property
    def _left_files(self) -> frozenset[str]:
        if self.left is None:
            return frozenset()
        return frozenset(map(os.path.realpath, compress(self.files, self.left.tolist())))


def list_files(paths: Sequence[Path]) -> Listing:
    """List the files below some paths."""
    lister = _Lister(paths)
    for path in paths:
        if path.is_dir():
            lister.search(path)
        elif path.exists():
            lister.add(path)
        else:
            lister.problems.append(missing_problem(path))
    files = set(resolve_parents(lister.links))
    links = [path for path in files if path.is_symlink()]
    unique = lister.files | dict.fromkeys(map(str, files.difference(links)))
    targets: dict[str, str] = {}
    aliases: dict[str, str] = {}
    for name in sorted(map(str, links), key=_path_key):
        target = os.path.realpath(name)
        if target in unique or target in targets:
            aliases[name] = targets.get(target, target)
        else:
            targets[target] = name
    given = [path for path in paths if not path.is_dir()]
    return Listing(
        roots=tuple(paths),
        files=PackedObjects(sorted((*unique, *targets.values()), key=_path_key)),
        given=frozenset(map(str, (*given, *resolve_parents(given)))),
        aliases=aliases,
        problems=lister.problems,
        file_problems=lister.file_problems,
        skipped=sorted(lister.skipped.items(), key=lambda item: _path_key(str(item[0]))),
    )


class _Lister:
    """Lists folders recursively, each real folder once, without stores and unfinished conversions."""

    # Of a replay buffer in Zarr there is the one file that stands for it.

    def __init__(self, roots: Sequence[Path]) -> None:
        self.files: dict[str, None] = {}
        self.links: list[Path] = []  # to files inside of the roots, and files that were given
        self.problems: list[Problem] = []
        self.file_problems: list[tuple[str, Problem]] = []
        self.skipped: dict[Path, str] = {}
        self._roots = roots

    def search(self, folder: Path) -> None:
        root = folder.resolve()
        visited = {root}
        stack = [root]
        while stack:
            current = stack.pop()
            try:
                entries = self._entries(current, is_root=current == root)
            except OSError as error:
                problem = Problem(
                    printable(str(current)),
                    f"cannot be listed: {error.strerror}",
                    "check the permissions of the folder",
                    "unreadable",
                )
                self.problems.append(problem)
                continue
            for entry in entries:
                if entry.name.startswith("."):
                    self.skipped[Path(entry.path)] = "hidden"
                elif entry.is_file(follow_symlinks=False):
                    self.files[entry.path] = None
                elif not os.path.isdir(entry.path):  # noqa: PTH112  False for cyclic links, unlike entry.is_dir
                    self._add_link(Path(entry.path))
                else:
                    real = Path(entry.path).resolve()
                    if real.is_relative_to(root) and real not in visited:
                        visited.add(real)
                        stack.append(real)
                    elif not is_inside(real, self._roots):
                        self.problems.append(_outside_problem(Path(entry.path)))

    def _entries(self, folder: Path, *, is_root: bool) -> list[os.DirEntry[str]]:
        """Return what a folder holds, or nothing if it is Zarr."""
        if (folder / _EPISODE_ENDS).is_file() and is_store(folder):
            self.files[str(folder / _EPISODE_ENDS)] = None
            return []
        if not is_root and is_store(folder):
            is_unfinished = folder.name.endswith(_BUILD)
            self.skipped[folder] = _UNFINISHED if is_unfinished else "Zarr, which cannot be converted"
            return []
        with os.scandir(folder) as scanned:
            return list(scanned)

    def _add_link(self, link: Path) -> None:
        if is_inside(link, self._roots):
            self.add(link)
        else:
            self.file_problems.append((str(link), _outside_problem(link)))

    def add(self, path: Path) -> None:
        """Take a file, or a link to one. Nothing special is opened."""
        if is_special_file(path):
            problem = special_file_problem(printable(str(path)))
            self.file_problems.append((str(path), problem))
        else:
            self.links.append(path)


Fits = Callable[[Path], bool]  # whether a file is one that is looked for


class Folders:
    """Files in folders. Hidden files, and files outside of the given paths, are not seen.

    A folder is searched once, not for each of its files.
    """

    def __init__(self, roots: Sequence[Path] = ()) -> None:
        self._roots = tuple(roots)
        self._holding: dict[tuple[str, Fits], bool] = {}

    def holds(self, folder: str | Path, fits: Fits) -> bool:
        """Return whether a file of a folder fits. The folder need not be there."""
        key = str(folder), fits
        if key not in self._holding:
            self._holding[key] = any(map(fits, self._files(Path(folder))))
        return self._holding[key]

    def has(self, path: str) -> bool:
        """Return whether there is a file. Its folder is not listed for it."""
        # Most paths that are asked for do not exist, and text is faster than a Path.
        return os.path.exists(path) and is_inside(Path(path), self._roots)  # noqa: PTH110

    def _files(self, folder: Path) -> Iterator[Path]:
        yield from (root for root in self._roots if real_path(root.parent) == folder and root.is_file())
        if not is_inside(folder, [root for root in self._roots if root.is_dir()]):
            return
        try:
            entries = os.scandir(folder)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return  # not there; or told of the folder, which could not be listed
        with entries:
            yield from (Path(entry.path) for entry in entries if self._is_ours(entry))

    def _is_ours(self, entry: os.DirEntry[str]) -> bool:
        try:
            is_file = not entry.name.startswith(".") and entry.is_file()
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            return False  # a link to itself, which is told of that file
        if not is_file:
            return False
        return not entry.is_symlink() or is_inside(Path(entry.path), self._roots)


class ListedFolders(Folders):
    """Folders that contain only the given files."""

    def __init__(self, files: Iterable[Path]) -> None:
        super().__init__()
        self._by_folder: dict[Path, list[Path]] = {}
        for file in files:
            self._by_folder.setdefault(file.parent, []).append(file)
        self._there = {str(file) for file in chain.from_iterable(self._by_folder.values())}

    def has(self, path: str) -> bool:
        return path in self._there

    def _files(self, folder: Path) -> Iterator[Path]:
        yield from self._by_folder.get(folder, ())


def _path_key(path: str) -> bytes:
    return natural_key(path.replace(os.sep, "/"))


def rows_below(files: Sequence[str], folder: Path) -> tuple[int, int]:
    """Return the range of the files below a folder, as start and stop in files in natural order."""
    inside = _folder_key(folder.as_posix())

    def key(path: str) -> bytes:
        return _path_key(path)[: len(inside)]

    return bisect_left(files, inside, key=key), bisect_right(files, inside, key=key)


def resolve_parents(files: Sequence[Path]) -> list[Path]:
    """Return the same files, with links in their parent folders resolved (each folder once)."""
    parents = {parent: parent.resolve() for parent in {file.parent for file in files}}
    return [parents[file.parent] / file.name for file in files]


def is_special_file(path: Path) -> bool:
    """Return whether a path is a pipe, a socket or a device, which may block when it is opened."""
    return path.exists() and not path.is_file() and not path.is_dir()


def special_file_problem(location: str) -> Problem:
    """Return the problem of a special file, such as a pipe."""
    return Problem(location, "is a pipe, socket or device, not a file", "save its data as a file", "special")


def missing_problem(path: Path) -> Problem:
    """Return the problem of a given path that does not exist."""
    if path.is_symlink():
        target = printable(os.fspath(path.readlink()))
        message = f"is a link to {target}, which does not exist"
        return Problem(printable(str(path)), message, "correct the link", "missing")
    return Problem(printable(str(path)), "does not exist", "check the path", "missing")


def is_store(folder: Path) -> bool:
    """Return whether a folder is Zarr or an unfinished conversion, so that its files are not sources."""
    return folder.name.endswith(_BUILD) or any((folder / name).exists() for name in _ZARR)


def folders_of_targets(links: Iterable[Path], roots: Sequence[Path]) -> list[Path]:
    """Return the fewest folders that contain all targets of links and none of the given paths."""
    real_roots = [real_path(root) for root in roots]
    targets = {real_path(link) for link in links}
    return _covering({each if each.is_dir() else each.parent for each in targets}, real_roots)


def _covering(folders: set[Path], excluded: Sequence[Path]) -> list[Path]:
    if not folders:
        return []
    top = Path(os.path.commonpath(folders))
    if top in folders or not any(path.is_relative_to(top) for path in excluded):
        return [top]
    groups: dict[str, set[Path]] = {}
    for folder in folders:
        groups.setdefault(folder.relative_to(top).parts[0], set()).add(folder)
    return list(chain.from_iterable(_covering(groups[name], excluded) for name in sorted(groups)))


def _outside_problem(path: Path) -> Problem:
    target = printable(str(real_path(path)))
    return Problem(
        printable(str(path)),
        f"is a link to {target}, which is outside the given paths",
        "give the folder of the target, too, or copy the file",
        "link",
    )


def common_root(files: Sequence[Path]) -> Path:
    """Return the deepest common folder of all files."""
    return Path(os.path.commonpath([parent.resolve() for parent in {file.parent for file in files}]))


def relative_names(files: Sequence[str | Path]) -> list[str]:
    """Return unique printable names relative to the common folder, with ``/``, in the given order.

    Names that are equal after escaping get ``~2``, ``~3``, ….
    """
    if not files:
        return []
    parents: dict[str, str] = {}
    names: list[str] = []
    for file in files:
        folder, name = os.path.split(file)
        if folder not in parents:
            parents[folder] = os.path.realpath(folder)
        names.append(f"{parents[folder]}{os.sep}{name}")
    root = os.path.commonpath(list(parents.values()))
    cut = len(root.rstrip(os.sep)) + 1
    escaped = False
    for number, path in enumerate(names):
        plain = path[cut:].replace(os.sep, "/")
        names[number] = printable(plain)
        escaped = escaped or names[number] != plain
    return _numbered(names) if escaped else names


def is_in_split(path: str) -> bool:
    """Return whether a path in a file begins with a group that is called like a split: ``train/x``."""
    group, slash, _ = path.lstrip("/").partition("/")
    return bool(slash) and split_of(f"{group}/") is not None


def _numbered(plain: Sequence[str]) -> list[str]:
    """Unique names: equal ones get ``~2``, ``~3``, …."""
    names: dict[str, None] = {}
    for path in plain:
        name = path
        number = 1
        while name in names:
            number += 1
            name = f"{path}~{number}"
        names[name] = None
    return list(names)


def split_of(name: str) -> str | None:
    """Return the split that the outermost part of a relative path names, or None.

    For example, ``train/`` and ``data_test0.h5`` name a split.
    """
    lower = name.lower()
    if not any(word in lower for word in _SPLITS):
        return None
    *folders, file = lower.split("/")
    for folder in folders:
        if folder in _SPLITS:
            return _SPLITS[folder]
    words = re.findall(r"[a-z]+", file.rsplit(".", 1)[0])
    return next((_SPLITS[word] for word in words if word in _SPLITS), None)
