"""Storage of a store, from its path or URL."""

from __future__ import annotations

import os
from pathlib import Path

from unistore.remote.url import file_path, is_url
from unistore.zarr3.storage import LocalStorage, Storage


def local_path(path: str | os.PathLike[str]) -> Path | None:
    """Local path of a path or ``file://`` URL, None for that of an object store; `InputError` if invalid."""
    text = os.fspath(path)
    folder = file_path(text) if is_url(text) else text
    return None if folder is None else Path(folder)


def open_storage(path: str | os.PathLike[str]) -> Storage:
    """Storage of a folder or URL; nothing is opened yet. Raises as `local_path`."""
    folder = local_path(path)
    if folder is not None:
        return LocalStorage(folder)
    from unistore.remote.object_storage import ObjectStorage

    return ObjectStorage(os.fspath(path))
