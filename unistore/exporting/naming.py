"""Checks of the file names in a store: nothing may be written outside the destination."""

from __future__ import annotations

from unistore.errors import StoreError
from unistore.store.names import file_name_problem


class FileNames:
    """The file names of one export: each safe, each once, none inside another.

    Parameters
    ----------
    store
        Path of the store, for messages.
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def take(self, name: str) -> tuple[str, ...]:
        """Split a new file name into its parts.

        Raises
        ------
        StoreError
            If the name is absolute, leaves its folder, is not a valid file name on every file system, was
            taken before, or lies inside a file.
        """
        reason = file_name_problem(name)
        if reason is not None:
            msg = f"{self._store}: the store names a file {name!r}, which is not written: {reason}"
            raise StoreError(msg)
        parts = tuple(name.split("/"))
        parents = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
        if name in self._files or name in self._folders or self._files.intersection(parents):
            twice = f"two files {name!r}, or one inside another: only one can be written"
            msg = f"{self._store}: the store names {twice}"
            raise StoreError(msg)
        self._files.add(name)
        self._folders.update(parents)
        return parts
