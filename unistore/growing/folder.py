"""A store in a folder that grows: the next version is made beside it, and moved into place by renames."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from unistore.errors import ConversionError, InputError, Problem
from unistore.store.names import PARTS, ROOT, SIDE_TABLES, TAGS, VERSIONS, folder_beside, growth_folder
from unistore.store.reader import Store
from unistore.store.versions import GrownStore
from unistore.zarr3 import durable

SECOND_VERSION = f"{VERSIONS}/2.json"
_BLOCK = 16 << 20  # bytes that are copied at a time


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
    """A store in a folder.

    Versions and parts of a store that never grew are written to `_prepared`, next to it. Once its second
    version is there, its files are linked to the first part, parts and versions are moved into the store,
    and one rename moves its root document out of it: from then on the versioned store is read. If the
    process is killed in between, the next command continues.
    """

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
        if not durable.is_there(self._prepared):
            self._check_names()
            return
        if any(durable.is_there(folder / SECOND_VERSION) for folder in (self._prepared, self._store)):
            self.take_place()
        else:
            shutil.rmtree(self._prepared)

    def _check_names(self) -> None:
        for name in (VERSIONS, PARTS, TAGS):
            if durable.is_there(self._store / ROOT) and durable.is_there(self._store / name):
                message = f"has a folder '{name}' with data, but a versioned store needs this name"
                fix = "convert all sources together into a new store"
                raise InputError(Problem(self.store, message, fix, "name"))

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
        """Link the plain store to the first part, and take its root away, which decides."""
        versions = self._prepared / VERSIONS
        is_prepared = durable.is_there(versions)
        first = GrownStore(os.fspath(self._prepared if is_prepared else self._store)).read(1).parts[0]
        part = self._store / first.key
        side_tables = folder_beside(self._store, SIDE_TABLES)
        if durable.is_there(self._store / ROOT):
            if Store(self.store).root.seal != first.seal:
                raise other_store(self.store, self._prepared)
            if not durable.is_there(self._store / PARTS):
                self._link_first_part(first.key, side_tables)
                durable.rename(self._prepared / PARTS, self._store / PARTS)
                durable.sync_folder(self._store)
        if is_prepared:
            durable.rename(versions, self._store / VERSIONS)
            durable.sync_folder(self._store)
        _move_file(self._store / ROOT, part / ROOT)
        durable.sync_folder(self._store)
        _move_rest(self._store, part, (VERSIONS, PARTS))
        leaving = self._prepared / "side"
        if durable.is_there(side_tables):
            durable.rename(side_tables, leaving)  # at once: readers find all of them, or look beside the part
        if durable.is_there(leaving):
            _move_rest(leaving, folder_beside(part, SIDE_TABLES), ())
        shutil.rmtree(self._prepared)

    def _link_first_part(self, key: str, side_tables: Path) -> None:
        """Make a part of the same files as the plain store, and side tables of those beside it."""
        part = self._prepared / key
        copies = {self._store: part, side_tables: folder_beside(part, SIDE_TABLES)}
        for folder, copy in copies.items():
            if durable.is_there(copy):  # of a killed process; the store may have got another file since
                shutil.rmtree(copy)
            if durable.is_there(folder):
                _link_files(folder, copy)
        durable.sync_folder(part.parent)


def _link_files(folder: Path, copy: Path) -> None:
    """Link the files of a folder to another one, or copy them where the system refuses links."""
    made = []
    for path, _, names in os.walk(folder, onerror=_fail):
        target = copy / Path(path).relative_to(folder)
        target.mkdir(parents=True)
        made.append(target)
        for name in names:
            try:
                durable.link(Path(path, name), target / name)
            except OSError:  # files of another user, or a file system without links
                with Path(path, name).open("rb") as file:
                    durable.write_file(target, name, iter(lambda: file.read(_BLOCK), b""))
    durable.sync_folders(made)


def _move_rest(folder: Path, target: Path, kept: Sequence[str]) -> None:
    """Move the files of a folder to one that has links to them, and remove what is empty then."""
    for path, folders, names in os.walk(folder, onerror=_fail):
        if Path(path) == folder:
            folders[:] = [name for name in folders if name not in kept]
        for name in names:
            _move_file(Path(path, name), target / Path(path, name).relative_to(folder))
    for path, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):  # versions and parts
            os.rmdir(path)  # noqa: PTH106


def _fail(error: OSError) -> None:
    raise error  # `os.walk` would leave out what it cannot list


def _move_file(path: Path, target: Path) -> None:
    # rename() leaves two links of one file as they are
    if durable.is_there(path):
        target.parent.mkdir(parents=True, exist_ok=True)  # of a file that came after the links
        durable.rename(path, target)
        path.unlink(missing_ok=True)


def other_store(store: str, grown: object) -> ConversionError:
    """Return the error for a store that is not the first part of the grown one that is to take its place."""
    return ConversionError(
        f"{store}: this is not the store that the version in {grown} continues. Fix: move one of them away"
    )
