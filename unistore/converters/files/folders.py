"""What lies in the folders that the user gave. A folder is searched once, not for each of its files."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from unistore.converters.files.paths import is_inside, real_path

Fits = Callable[[Path], bool]


class Folders:
    """Files in folders, without hidden ones and those outside of what the user gave."""

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
        # Most of what is asked for is not there, and text is faster than a Path.
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
    """Folders that hold some files alone."""

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
