"""Conversion to a folder: the store is written in the build folder beside it, then renamed."""

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


class FolderBuild(Build):
    """Build folder of a conversion to a folder; see `Build`.

    It also holds ``store/``, which becomes the destination, and ``old/`` while a store is being replaced.
    """

    overlap_message = "the destination and a source overlap; choose another destination"

    def __init__(self, destination: Path, *, restart: bool = False) -> None:
        super().__init__(str(destination), build_folder(destination), local="store", restart=restart)
        self.output_path = destination
        self._old = self.folder / "old"

    @property
    def target(self) -> Folder:
        """The folder that becomes the destination."""
        return Folder(self.local)

    def check(self, *, overwrite: bool) -> None:
        """Refuse a destination that exists, unless it is an empty folder; see `Build.check`."""
        destination = self.output_path
        if not os.path.lexists(destination):
            return
        if destination.is_symlink():
            msg = f"{destination}: is a link and will not be touched: give the path that it points to"
            raise InputError(msg)
        if destination.is_dir() and not any(destination.iterdir()):
            return
        if _is_store(destination):
            if overwrite:
                return
            msg = f"{destination}: a finished store is there already; --overwrite replaces it"
            raise InputError(msg)
        msg = f"{destination}: exists, is not a unistore store and will not be touched: choose another path"
        raise InputError(msg)

    def move_into_place(self) -> None:
        """Rename the sealed store to the destination, moving an older one to ``old/`` first."""
        if self.output_path.exists():
            self.output_path.rename(self._old)
        self.local.rename(self.output_path)
        sync_folder(self.folder)
        sync_folder(self.output_path.parent)

    def _destination_digest(self) -> str | None:
        return None if self.local.exists() else super()._destination_digest()

    def _open(self) -> None:
        self._recover()
        super()._open()

    def _recover(self) -> None:
        """Recover from a kill between two renames."""
        if not self._old.exists():
            return
        if not os.path.lexists(self.output_path):
            self._old.rename(self.output_path)
        elif _is_store(self.output_path):
            shutil.rmtree(self._old)
        else:
            msg = (
                f"{self._old}: the store that was to be replaced, and {self.output_path} holds something "
                "else now: move one of them away"
            )
            raise ConversionError(msg)


def _is_store(path: Path) -> bool:
    try:
        Store(path)
    except (StoreError, OSError):
        return False
    return True
