"""A conversion to a folder: the store grows in the build folder beside it, and a rename finishes it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from unistore.conversion.build import Build
from unistore.conversion.target import Folder
from unistore.errors import ConversionError, InputError, StoreError
from unistore.store.names import build_folder
from unistore.store.reader import Store
from unistore.zarr3.durable import sync_folder

__all__ = ["FolderBuild"]


class FolderBuild(Build):
    """Entered to convert to a folder; see `Build`.

    Besides what every build folder holds: ``store/`` (the tree that becomes the destination), and ``old/``
    for the moment in which a store is replaced.
    """

    overlap = "the destination and a source overlap; choose another destination"

    def __init__(self, destination: Path, *, restart: bool = False) -> None:
        super().__init__(str(destination), build_folder(destination), local="store", restart=restart)
        self.ground = destination
        self._old = self.folder / "old"

    @property
    def target(self) -> Folder:
        """The folder that becomes the destination."""
        return Folder(self.local)

    def check(self, *, overwrite: bool) -> None:
        """Refuse a destination that is taken; see `Build.check`. An empty folder is not."""
        destination = self.ground
        if not os.path.lexists(destination):
            return
        if destination.is_symlink():
            msg = f"{destination}: is a link and will not be touched: give the place it leads to"
            raise InputError(msg)
        if destination.is_dir() and not any(destination.iterdir()):
            return
        if _is_store(destination):
            if overwrite:
                return
            msg = f"{destination}: a finished store stands there; --overwrite replaces it"
            raise InputError(msg)
        msg = f"{destination}: exists, is not a unistore store and will not be touched: choose another place"
        raise InputError(msg)

    def move_into_place(self) -> None:
        """Give the sealed store its final name, setting an older one aside first."""
        if self.ground.exists():
            self.ground.rename(self._old)
        self.local.rename(self.ground)
        sync_folder(self.folder)
        sync_folder(self.ground.parent)

    def _standing(self) -> str | None:
        return None if self.local.exists() else super()._standing()

    def _open(self) -> None:
        self._recover()
        super()._open()

    def _recover(self) -> None:
        """Recover from a kill between two renames."""
        if not self._old.exists():
            return
        if not os.path.lexists(self.ground):
            self._old.rename(self.ground)
        elif _is_store(self.ground):
            shutil.rmtree(self._old)
        else:
            msg = (
                f"{self._old}: the store that was to be replaced, and {self.ground} holds something "
                "else now: move one of them away"
            )
            raise ConversionError(msg)


def _is_store(path: Path) -> bool:
    try:
        Store(path)
    except (StoreError, OSError):
        return False
    return True
