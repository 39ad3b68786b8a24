"""A store in a folder that grows: the next version is made beside it, and moved into place by renames."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from pathlib import Path

from unistore.errors import ConversionError
from unistore.store.names import PARTS, ROOT, SIDE_TABLES, VERSIONS, folder_beside, growth_folder
from unistore.store.reader import Store
from unistore.store.versions import GrownStore
from unistore.zarr3 import durable

SECOND_VERSION = f"{VERSIONS}/2.json"


class Place(ABC):
    """Where a store is that grows, and how its next version gets there. One process is at work in it."""

    def __init__(self, store: str, new_store: str, work: Path) -> None:
        self.store = store
        self.new_store = new_store  # path or URL at which a store is converted that becomes a part
        self.work = work  # local folder, locked
        self.build_folder: Path | None = None  # local folder of the conversion. None: beside the new store

    @property
    def root(self) -> str:
        """Return the path or URL below which versions and parts are written."""
        return self.store

    @abstractmethod
    def begin(self) -> None:
        """Go on where a killed process stopped."""

    @abstractmethod
    def move_in(self, key: str) -> None:
        """Make the new store a part of this key."""

    @abstractmethod
    def create(self, key: str, data: bytes) -> None:
        """Write a file that must not exist, whole or not at all."""

    @abstractmethod
    def take_place(self) -> None:
        """Make a plain store the first part of the grown one, of which two versions were written."""

    def clear(self) -> None:
        """Remove what no later command needs."""
        for path in self.work.iterdir():
            if path.is_dir():
                shutil.rmtree(path)

    @abstractmethod
    def release(self) -> None:
        """Let others in. Called in any case."""


class FolderPlace(Place):
    """A store in a folder."""

    # A store that never grew becomes a grown one in `_prepared`, beside it: once its second version is
    # written there, the store is moved into it, and the folder takes its place. Killed in between, the next
    # command goes on, and readers find the folder

    def __init__(self, store: Path) -> None:
        work = growth_folder(store)
        super().__init__(os.fspath(store), os.fspath(work / "new.zarr"), work)
        self._store = store
        self._prepared = work / "grown"

    @property
    def root(self) -> str:
        return os.fspath(self._prepared if (self._store / ROOT).exists() else self._store)

    def begin(self) -> None:
        for leftover in [*self._store.glob(f"*/.*{durable.PART_SUFFIX}")]:  # of versions and tags
            leftover.unlink()
        if durable.is_there(self._prepared / SECOND_VERSION):
            self.take_place()
        elif durable.is_there(self._prepared):
            shutil.rmtree(self._prepared)

    def move_in(self, key: str) -> None:
        place = Path(self.root, key)
        place.parent.mkdir(parents=True, exist_ok=True)
        durable.rename(self.new_store, place)
        durable.sync_folder(place.parent)

    def create(self, key: str, data: bytes) -> None:
        durable.create_file(self.root, key, data)

    def release(self) -> None:
        pass  # the lock of the working folder keeps others out

    def take_place(self) -> None:
        """Move the plain store into the grown one, and that into its place."""
        first = GrownStore(os.fspath(self._prepared)).read(1).parts[0]
        place = self._prepared / first.key
        if not durable.is_there(place):
            if Store(self.store).attributes["seal"] != first.seal:
                raise other_store(self.store, self._prepared)
            (self._prepared / PARTS).mkdir(exist_ok=True)
            durable.rename(self._store, place)
            durable.sync_folder(place.parent)
            durable.sync_folder(self._store.parent)
        if os.path.lexists(self._store):
            raise other_store(self.store, self._prepared)
        side_tables = folder_beside(self._store, SIDE_TABLES)
        if durable.is_there(side_tables):
            durable.rename(side_tables, folder_beside(place, SIDE_TABLES))
        durable.rename(self._prepared, self._store)
        durable.sync_folder(self._store.parent)


def other_store(store: str, grown: object) -> ConversionError:
    """Return the error for a store that is not the first part of the grown one that is to take its place."""
    return ConversionError(f"{store}: is not the store that {grown} continues; move one of them away")
