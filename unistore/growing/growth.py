"""The next version of a store: it is written in a staging folder and put in place as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from unistore.conversion.lock import Lock, check_own, check_plain
from unistore.errors import ConversionError, InputError, NoStoreError, writing_failed
from unistore.growing.folder import FolderPlace, Place
from unistore.remote.url import local_path, require_local_path
from unistore.store.listing import Listing, describe_arrays, extended
from unistore.store.names import TAGS, VERSIONS, part_folder
from unistore.store.reader import Store
from unistore.store.versions import GrownStore, Part, Version, check_tag, first_version, open_stores
from unistore.system.types import Attributes, PathLike


class Growth:
    """A store that this process has locked, its newest version, and the place of the next one."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.store = place.store
        self.new_store = place.new_store
        self.opened = open_stores(place.store)
        self.stores = self.opened.stores
        self.is_plain = self.opened.version is None
        self.version = self.opened.version or first_version(self.stores[0])

    def stored(self, new: Store) -> Store:
        """Return the store of an older version that has the same files as a new one, else the new one.

        Their roots may differ, for example in the versions of libraries.
        """
        try:
            present = Store(f"{self.place.root}/{part_folder(new.root.seal.digest)}".rstrip("/"))
        except NoStoreError:
            return new
        is_same = replace(present.root.seal, root=new.root.seal.root) == new.root.seal
        return present if is_same else new

    def commit(
        self,
        parts: Sequence[Part],
        schemas: Sequence[Attributes],
        new: Store | None = None,
    ) -> Version:
        """Write the next version, and put it in place.

        Parameters
        ----------
        parts : sequence of Part
            Parts of the version.
        schemas : sequence of mapping
            Schemas of the parts.
        new : Store, optional
            The new store, if it is the last part, as `stored` returns it. None: no store is new.

        Returns
        -------
        Version
            The new version.
        """
        if self.is_plain:
            self._write(self.version)
        version = Version(
            number=self.version.number + 1,
            parent=self.version.digest,
            schemas=tuple(schemas),
            parts=tuple(parts),
            arrays=self._list_arrays(parts, new),
        )
        if new is not None:
            self._add_store(parts[-1].key, new)
        self._write(version)
        if self.is_plain:
            self.place.take_place()
        return version

    def _write(self, version: Version) -> None:
        self.place.create(f"{VERSIONS}/{version.number}.json", version.data)

    def _list_arrays(self, parts: Sequence[Part], new: Store | None) -> Listing:
        """Return the arrays of parts, of which only the new store is opened."""
        before = self.version
        numbers = {part.key: number for number, part in enumerate(before.parts)}
        further = []
        if new is not None and parts[-1].key not in numbers:
            numbers[parts[-1].key] = len(before.parts)
            further.append(describe_arrays(new))
        listing = extended(before.arrays, len(before.parts), further)
        kept = np.array([numbers[part.key] for part in parts])
        return {path: array.of(kept) for path, array in listing.items()}

    def _add_store(self, key: str, new: Store) -> None:
        place = f"{self.place.root}/{key}"
        try:
            present = Store(place)  # of a killed process, or of an older version
        except NoStoreError:
            self.place.move_in(key)
            return
        if present.root.seal != new.root.seal:
            msg = (
                f"{place}: its content does not match its name. "
                "Fix: restore it from a copy, then run the same command"
            )
            raise ConversionError(msg)


def _place_of(path: PathLike, work: PathLike | None) -> Place:
    folder = local_path(path)
    if folder is None:
        from unistore.conversion.object_build import bucket_location
        from unistore.growing.bucket import BucketPlace

        return BucketPlace(bucket_location(os.fspath(path)), Path(require_local_path(work or ".", "--work")))
    store = Path(os.path.abspath(folder))  # noqa: PTH100  links stay links
    if store.is_symlink():
        message = "is a link, which unistore does not change"
        raise InputError.at(str(store), message, "give the path that it points to", "target")
    return FolderPlace(store)


@contextmanager
def growing(path: PathLike, work: PathLike | None = None) -> Iterator[Growth]:
    """Lock a store, continue where a killed process stopped, and yield a `Growth`."""
    place = _place_of(path, work)
    open_stores(place.store)
    check_plain(place.work)
    try:
        with Lock(place.work / "lock"):
            check_own(place.work, place.work / "lock")
            try:
                place.begin()
                yield Growth(place)
                place.clear()
            finally:
                place.release()
    except OSError as error:
        raise writing_failed(error, place.work) from error
    finally:
        with suppress(OSError):
            place.work.rmdir()


def tag_version(path: PathLike, name: str, version: int | None = None) -> int:
    """Name a version of a versioned store, and return its number.

    A name belongs to its version forever.

    Parameters
    ----------
    path : path
        The store.
    name : str
        The new name.
    version : int, optional
        Number of the version. None: the newest.
    """
    check_tag(name)
    with growing(path) as growth:
        if growth.is_plain:
            message = "has only one version, which cannot get a name"
            raise InputError.at(growth.store, message, "append sources first", "version")
        grown = GrownStore(growth.store)
        number = grown.number_of(version)
        before = grown.tags().get(name)
        if before is None:
            growth.place.create(f"{TAGS}/{name}", f"{number}\n".encode())
        elif before != number:
            message = f"the name '{name}' belongs to version {before}, and names never change"
            raise InputError.at(growth.store, message, "choose another name", "version")
    return number
