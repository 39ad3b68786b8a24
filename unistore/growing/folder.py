"""The folder in which the next version of a store is made, and its way into place, whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from unistore.conversion.lock import Lock, check_own, check_plain
from unistore.errors import ConversionError, InputError, writing_failed
from unistore.remote.url import is_url, require_local_path
from unistore.store.listing import Listing, describe_arrays, extended
from unistore.store.names import PARTS, SIDE_TABLES, TAGS, VERSIONS, folder_beside, growth_folder
from unistore.store.reader import Store
from unistore.store.versions import GrownStore, Part, Version, check_tag, first_version, open_stores
from unistore.system.hints import PathLike
from unistore.zarr3 import durable


class Growth:
    """A locked store, the version that it has, and the folder in which the next one is made."""

    # A store that never grew becomes a grown one in `_prepared`, beside it: once its second version is
    # written there, the store is moved into it, and the folder takes its place. Killed in between, the next
    # command goes on, and readers find the folder

    def __init__(self, store: Path, work: Path) -> None:
        self.store = store
        self.new_store = work / "new.zarr"
        self._work = work
        self._prepared = work / "grown"
        self._recover()
        opened = open_stores(os.fspath(store))
        self.stores = opened.stores
        self.is_plain = opened.version is None
        self.version = opened.version or first_version(self.stores[0])

    def _recover(self) -> None:
        for leftover in [*self.store.glob(f"*/.*{durable.PART_SUFFIX}")]:  # of versions and tags
            leftover.unlink()
        if (self._prepared / VERSIONS / "2.json").exists():
            self._take_place()
        elif self._prepared.exists():
            shutil.rmtree(self._prepared)

    def commit(
        self,
        parts: Sequence[Part],
        schemas: Sequence[Mapping[str, Any]],
        new: Store | None = None,  # the new store, if it is the last part
    ) -> Version:
        """Write the next version, and return it."""
        folder = self._prepared if self.is_plain else self.store
        (folder / PARTS).mkdir(parents=True, exist_ok=True)
        if self.is_plain:
            _write_version(folder, self.version)
        arrays = self._list_arrays(parts, folder, new)
        if new is not None:
            self._add_store(folder / parts[-1].key, new)
        version = Version(
            number=self.version.number + 1,
            parent=self.version.digest,
            schemas=tuple(schemas),
            parts=tuple(parts),
            arrays=arrays,
        )
        _write_version(folder, version)
        if self.is_plain:
            self._take_place()
        return version

    def _list_arrays(self, parts: Sequence[Part], folder: Path, new: Store | None) -> Listing:
        """Return the arrays of parts, of which only new ones are opened."""
        before = self.version
        numbers = {part.key: number for number, part in enumerate(before.parts)}
        keys = [part.key for part in parts if part.key not in numbers]
        numbers |= {key: number for number, key in enumerate(keys, len(numbers))}
        stores = [Store(folder / key) for key in (keys if new is None else keys[:-1])]
        further = stores if new is None or not keys else [*stores, new]
        listing = extended(before.arrays, len(before.parts), [*map(describe_arrays, further)])
        kept = np.array([numbers[part.key] for part in parts])
        return {path: array.of(kept) for path, array in listing.items()}

    def _add_store(self, place: Path, new: Store) -> None:
        if place.exists():  # written by a killed process, or of an older version
            if Store(place).attributes["seal"] != new.attributes["seal"]:
                msg = f"{place}: is not the store of this name; restore it from a copy, then run this again"
                raise ConversionError(msg)
            shutil.rmtree(self.new_store)
            return
        durable.rename(self.new_store, place)
        durable.sync_folder(place.parent)

    def _take_place(self) -> None:
        first = GrownStore(os.fspath(self._prepared)).read(1).parts[0]
        place = self._prepared / first.key
        if not place.exists():
            if Store(self.store).attributes["seal"] != first.seal:
                raise _other_store(self.store, self._prepared)
            durable.rename(self.store, place)
            durable.sync_folder(place.parent)
            durable.sync_folder(self.store.parent)
        if os.path.lexists(self.store):
            raise _other_store(self.store, self._prepared)
        side_tables = folder_beside(self.store, SIDE_TABLES)
        if side_tables.exists():
            durable.rename(side_tables, folder_beside(place, SIDE_TABLES))
        durable.rename(self._prepared, self.store)
        durable.sync_folder(self.store.parent)

    def clear(self) -> None:
        """Remove what no later command needs."""
        for path in self._work.iterdir():
            if path.is_dir():
                shutil.rmtree(path)


def _other_store(store: Path, prepared: Path) -> ConversionError:
    return ConversionError(f"{store}: is not the store that {prepared} continues; move one of them away")


def _write_version(folder: Path, version: Version) -> None:
    durable.create_file(folder, f"{VERSIONS}/{version.number}.json", version.data)


@contextmanager
def growing(path: PathLike) -> Iterator[Growth]:
    """Lock a store, and go on where a killed process stopped."""
    if is_url(path):
        msg = f"{os.fspath(path)}: grow a copy in a folder, and upload it: parts first, versions last"
        raise InputError(msg)
    store = Path(os.path.abspath(require_local_path(path, "a store that grows")))  # noqa: PTH100
    if store.is_symlink():
        msg = f"{store}: is a link and will not be touched: give the path that it points to"
        raise InputError(msg)
    open_stores(os.fspath(store))
    work = growth_folder(store)
    check_plain(work)
    try:
        with Lock(work / "lock"):
            check_own(work, work / "lock")
            growth = Growth(store, work)
            yield growth
            growth.clear()
    except OSError as error:
        raise writing_failed(error, store) from error
    finally:
        with suppress(OSError):
            work.rmdir()


def tag_version(path: PathLike, name: str, version: int | None = None) -> int:
    """Name a version of a grown store, by default the newest, for ever, and return its number."""
    check_tag(name)
    with growing(path) as growth:
        if growth.is_plain:
            msg = f"{growth.store}: has one version, which needs no name; append something first"
            raise InputError(msg)
        grown = GrownStore(os.fspath(growth.store))
        number = grown.number_of(version)
        if grown.tags().get(name, number) != number:
            msg = f"{growth.store}: {name!r} is version {grown.tags()[name]}; choose another name"
            raise InputError(msg)
        if name not in grown.tags():
            durable.create_file(growth.store, f"{TAGS}/{name}", f"{number}\n".encode())
    return number
