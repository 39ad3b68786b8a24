"""Names in the folders that the user gave; a folder is listed once, not for each of its files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from unistore.converters.files.paths import is_inside, real_path

_KEPT = 16
"""Folders whose names are kept: files are asked about in the order of their folders."""


class Folders:
    """Names of files in folders, without hidden ones and those outside of what the user gave.

    Parameters
    ----------
    roots
        The paths that the user gave.
    """

    def __init__(self, roots: Sequence[Path] = ()) -> None:
        self._roots = tuple(roots)
        self._names: dict[str, frozenset[str]] = {}
        self._holding: dict[tuple[str, Callable[[Path], bool]], bool] = {}

    @classmethod
    def of(cls, files: Iterable[Path]) -> Folders:
        """Return folders that hold these files alone."""
        names: dict[str, list[str]] = {}
        for file in files:
            names.setdefault(str(file.parent), []).append(file.name)
        folders = cls()
        folders._names = {folder: frozenset(inside) for folder, inside in names.items()}
        return folders

    def names(self, folder: Path) -> frozenset[str]:
        """Return the names of the files in a folder; none if it is not there."""
        key = str(folder)
        if not self._roots:
            return self._names.get(key, frozenset())
        if key not in self._names:
            if len(self._names) == _KEPT:
                del self._names[next(iter(self._names))]
            self._names[key] = frozenset(self._list(folder))
        return self._names[key]

    def holds(self, folder: Path, fits: Callable[[Path], bool]) -> bool:
        """Return whether a file of a folder fits; each folder is searched once."""
        key = str(folder), fits
        if key not in self._holding:
            self._holding[key] = any(fits(folder / name) for name in self.names(folder))
        return self._holding[key]

    def has(self, path: Path) -> bool:
        """Return whether there is a file; its folder is not listed for it."""
        if not self._roots or str(path.parent) in self._names:
            return path.name in self.names(path.parent)
        return path.exists() and is_inside(path, self._roots)

    def _list(self, folder: Path) -> list[str]:
        given = [root.name for root in self._roots if real_path(root.parent) == folder and root.is_file()]
        if not is_inside(folder, [root for root in self._roots if root.is_dir()]):
            return given
        try:
            with os.scandir(folder) as entries:
                return [entry.name for entry in entries if self._is_ours(entry)]
        except OSError:
            return given

    def _is_ours(self, entry: os.DirEntry[str]) -> bool:
        if entry.name.startswith(".") or not entry.is_file():
            return False
        return not entry.is_symlink() or is_inside(Path(entry.path), self._roots)
