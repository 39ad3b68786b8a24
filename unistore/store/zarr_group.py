"""``unistore.open_zarr``: a store as a group of zarr-python."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from unistore.errors import NoStoreError, StoreError, UnistoreError
from unistore.remote.client import ObjectClient
from unistore.remote.storage import local_path
from unistore.zarr3.storage import DOCUMENT_LIMIT, check_tree

if TYPE_CHECKING:
    import zarr

_DOCUMENTS = frozenset({"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"})


def open_zarr(path: str | os.PathLike[str]) -> zarr.Group:
    """Open a store with zarr-python, read-only.

    Parameters
    ----------
    path
        Folder or URL of a store, or of any other Zarr group.

    Raises
    ------
    StoreError
        If there is no Zarr group, its metadata cannot be read, or the folder holds links, pipes or devices.

    Notes
    -----
    For dask give the shards as chunks: by itself it makes a task of each small inner chunk.

    Examples
    --------
    >>> unistore.open_zarr("train.zarr")["rows/data"][:3]  # doctest: +SKIP
    >>> images = unistore.open_zarr("train.zarr")["rows/image"]  # doctest: +SKIP
    >>> dask.array.from_array(images, chunks=images.shards)  # doctest: +SKIP
    """
    import zarr
    from zarr.storage import ObjectStore

    try:
        folder = local_path(path)
        if folder is None:
            objects = ObjectStore(ObjectClient(os.fspath(path)).handle, read_only=True)
            return zarr.open_group(objects, mode="r")
        check_tree(folder, _DOCUMENTS, DOCUMENT_LIMIT)
        return zarr.open_group(os.fspath(folder), mode="r")
    except FileNotFoundError as error:
        msg = f"{os.fspath(path)}: no such store"
        raise NoStoreError(msg) from error
    except UnistoreError:
        raise
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        msg = f"{os.fspath(path)}: cannot be opened as a Zarr group ({why})"
        raise StoreError(msg) from error
