"""Added columns of a sealed store, each sealed by itself in a folder next to the store.

The folder of the added columns of ``clouds.zarr`` is ``clouds.zarr.unistore-side``. An added column
consists of a document, ``prediction.json``, and the folder that the document names. That folder is in
form a store, and its root names the seal of ``clouds.zarr``. The document is written last, by a rename:
the column is absent, the old or the new one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from unistore.errors import StoreError, without_fix
from unistore.remote.url import local_path
from unistore.schemas.recorded_rules import StoreRoot
from unistore.store.manifest import GrammarError, SideRoot, parse_digest, parse_side
from unistore.store.names import SIDE_FAMILY, SIDE_TABLES, folder_beside
from unistore.store.reader import Store
from unistore.system.types import JsonObject
from unistore.zarr3.documents import DocumentError, parse_document
from unistore.zarr3.storage import AbsentError, FailedReadError, LocalStorage

# Names of attached columns: plain on every file system, and none that Zarr reserves
NAME = re.compile(r"(?!c$|__)[A-Za-z_][A-Za-z0-9_.-]{0,99}")
_DOCUMENT = ".json"
_LIMIT = 1 << 16  # Most bytes of a document


@dataclass(frozen=True, slots=True)
class SideTable:
    """An added column of a store, or the result of `unistore.derive`.

    Attributes
    ----------
    name : str
        Its name: ``"prediction"``.
    folder : Path
        Its own sealed folder, in form a store.
    root : StoreRoot
        What its root states.
    side : SideRoot
        What its root states about the store to which it belongs.
    """

    name: str
    folder: Path
    root: StoreRoot
    side: SideRoot

    @property
    def attributes(self) -> JsonObject:
        """The ``unistore`` object of its root. ``side`` states the store and the table."""
        return self.root.to_json()

    @property
    def table(self) -> str:
        """Table whose rows the column has. Empty for a result of ``unistore derive``."""
        return self.side.table

    @property
    def paths(self) -> list[str]:
        """Paths of its arrays, as they would be in the store."""
        return sorted(self.root.fields)

    def is_of(self, store: Store) -> bool:
        """Return whether it belongs to this store in its current state."""
        return self.side.store == store.root.seal.digest

    def stale(self, store: Store) -> str:
        """Return what is wrong with an added column of another store, and the fix."""
        what = f"attach {store.path} {self.name} FILE" if self.table else f"derive {store.path}"
        where = self.folder.with_name(f"{self.name}{_DOCUMENT}")
        return (
            f"the added column '{self.name}' was made for other values of this store. "
            f"Fix: unistore {what} --overwrite, or remove {where}"
        )


def side_folder(store: Store) -> Path | None:
    """Return the folder of the added columns of a store. None for a store in an object store."""
    folder = store.storage.root if isinstance(store.storage, LocalStorage) else local_path(store.place)
    return None if folder is None else folder_beside(folder, SIDE_TABLES)


def side_names(store: Store) -> list[str]:
    """Return the names of the added columns of a store, sorted. StoreError if the folder cannot be read."""
    folder = side_folder(store)
    if folder is None:
        return []
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except FileNotFoundError:
        # Once a first append moved the store, they are elsewhere
        return [] if side_folder(store) == folder else side_names(store)
    except OSError as error:
        msg = f"{folder}: cannot be read, so the added columns are unknown: {error.strerror or error}"
        raise StoreError(msg) from error
    documents = [name for name in names if name.endswith(_DOCUMENT) and not name.startswith(".")]
    return sorted(name.removesuffix(_DOCUMENT) for name in documents)


class DamagedError(StoreError):
    """An added column was read, and differs from what was written."""


class SideDocument(NamedTuple):
    """The document of an added column.

    Attributes
    ----------
    folder : str
        Name of its folder.
    digest : str
        Checksum of the seal of that folder.
    """

    folder: str
    digest: str


def read_document(folder: Path, name: str) -> SideDocument:
    """Read the document of an added column.

    Raises
    ------
    AbsentError
        If there is no document.
    DamagedError
        If the document is not valid.
    FailedReadError
        If it could not be read.
    """
    where = folder / document_of(name)
    try:
        document = parse_document(LocalStorage(folder).get(where.name, _LIMIT))
        digest = parse_digest(document.get("digest"), "'digest'")
        own = str(document.get("folder"))
        if not is_folder_of(name, own):
            msg = f"'folder' is {own!r}, expected a folder of {name}"
            raise GrammarError(msg)
    except (AbsentError, FailedReadError):
        raise
    except (DocumentError, GrammarError, StoreError) as error:
        raise _damaged(where, without_fix(error)) from error
    return SideDocument(own, digest)


def _damaged(where: Path, why: object) -> DamagedError:
    msg = f"{where}: this added column is damaged: {why}. Fix: remove the file, and add the column again"
    return DamagedError(msg)


def read_side_table(store: Store, name: str) -> SideTable:
    """Read the document and the root of an added column. It raises the errors of `read_document`."""
    folder = side_folder(store)
    if folder is None:
        msg = f"{store.path}: has no added columns, because it is in a bucket"
        raise StoreError(msg)
    where = folder / document_of(name)
    document = read_document(folder, name)
    try:
        root = Store(folder / document.folder).root
        side = parse_side(root.document.get("side"))
    except FailedReadError:
        raise
    except (GrammarError, StoreError) as error:
        raise _damaged(where, without_fix(error)) from error
    if root.family != SIDE_FAMILY or root.seal.digest != document.digest:
        raise _damaged(where, f"{document.folder} is not the column that was written")
    return SideTable(name, folder / document.folder, root, side)


def document_of(name: str) -> str:
    """Return the file name of the document of an added column."""
    return f"{name}{_DOCUMENT}"


def is_folder_of(name: str, folder: str) -> bool:
    """Return whether a folder belongs, by its name, to the added column `name`."""
    return re.fullmatch(rf"{re.escape(name)}\.[a-z0-9_]{{8}}\.zarr", folder) is not None


def folders_beside(store: Store, keys: Sequence[str]) -> tuple[str, ...]:
    """Return the folders of the added columns to read: results of `derive`, and columns that keys name."""
    folders = []
    for name in side_names(store):
        # ``episode.weight`` is the column ``weight`` of episodes
        is_requested = any(f".{key}".endswith(f".{name}") for key in keys)
        try:
            side = read_side_table(store, name)
        except StoreError as error:
            # Nothing of it is read, and ``verify`` names it. What failed to be read may be what a conversion
            # would have precomputed, unless it is another user's alone
            is_of_others = isinstance(error.__cause__, PermissionError)
            if is_requested or (isinstance(error, FailedReadError) and not is_of_others):
                raise
            continue
        if is_requested and not side.is_of(store):
            msg = f"{store.path}: {side.stale(store)}"
            raise StoreError(msg)
        if side.is_of(store) and (is_requested or not side.table):
            folders.append(str(side.folder))
    return tuple(folders)
