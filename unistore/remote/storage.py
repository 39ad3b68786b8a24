"""Storage of a store, from its path or URL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from unistore.remote.client import ObjectClient
from unistore.remote.object_storage import ObjectStorage
from unistore.remote.url import file_path, is_url
from unistore.zarr3.files import check_tree
from unistore.zarr3.local import LocalStorage
from unistore.zarr3.storage import DOCUMENT_LIMIT, Storage

__all__ = ["local_path", "open_storage", "zarr_store"]

_DOCUMENTS = frozenset({"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"})


def local_path(path: str | os.PathLike[str]) -> Path | None:
    """Local path of a path or ``file://`` URL; None if it is the URL of an object store.

    Raises
    ------
    InputError
        If it is not a valid URL.
    """
    text = os.fspath(path)
    if is_url(text):
        folder = file_path(text)
        return None if folder is None else Path(folder)
    return Path(text)


def open_storage(path: str | os.PathLike[str]) -> Storage:
    """Storage of a folder or URL; nothing is opened yet.

    Raises
    ------
    InputError
        If it is not a valid URL.
    """
    folder = local_path(path)
    return ObjectStorage(os.fspath(path)) if folder is None else LocalStorage(folder)


def zarr_store(path: str | os.PathLike[str]) -> Any:
    """Argument for ``zarr.open_group`` to read a folder or URL.

    Raises
    ------
    StoreError
        If something in the folder is not a regular file or folder.
    """
    folder = local_path(path)
    if folder is not None:
        check_tree(folder, _DOCUMENTS, DOCUMENT_LIMIT)
        return os.fspath(folder)
    from zarr.storage import ObjectStore

    return ObjectStore(ObjectClient(os.fspath(path)).handle, read_only=True)
