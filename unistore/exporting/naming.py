"""Names that a store gives to files are not trusted: nothing is written outside the destination."""

from __future__ import annotations

from unistore.errors import StoreError
from unistore.store.names import file_name_problem

__all__ = ["Names", "check_name"]


def check_name(name: str) -> tuple[str, ...]:
    """Parts of a relative name.

    Raises
    ------
    StoreError
        If the name is absolute, leaves its folder, or is not a valid file name on every file system.
    """
    reason = file_name_problem(name)
    if reason is not None:
        msg = f"the store names a file {name!r}, which is not written: {reason}"
        raise StoreError(msg)
    return tuple(name.split("/"))


class Names:
    """The names of one export: each safe, each once, none inside another.

    Parameters
    ----------
    store
        Path of the store that names the files, for messages.
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def take(self, name: str) -> tuple[str, ...]:
        """Parts of a name that no file had before.

        Raises
        ------
        StoreError
            If the name is not safe (`check_name`), is taken, or lies inside a file.
        """
        try:
            parts = check_name(name)
        except StoreError as error:
            msg = f"{self._store}: {error}"
            raise StoreError(msg) from error
        above = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
        if name in self._files or name in self._folders or self._files.intersection(above):
            twice = f"two files {name!r}, or one inside another: only one can be written"
            msg = f"{self._store}: the store names {twice}"
            raise StoreError(msg)
        self._files.add(name)
        self._folders.update(above)
        return parts
