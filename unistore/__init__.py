"""unistore: research data as sealed, sharded Zarr v3 stores, read by one fork-safe Dataset.

>>> import unistore
>>> dataset = unistore.Dataset("train.zarr")                                    # doctest: +SKIP
>>> loader = DataLoader(dataset, 8, collate_fn=unistore.collate, num_workers=2)  # doctest: +SKIP

Importing this package imports nothing heavy: every name below is loaded with its first use.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import zarr

    from unistore.conversion.convert import convert
    from unistore.data.collate import Collate, collate
    from unistore.data.dataset import Dataset
    from unistore.data.kinds import (
        Clips,
        Patches,
        Rows,
        Segments,
        SparsePoints,
        Transitions,
        Volumes,
        Windows,
    )
    from unistore.data.kinds.replay import ReplayBuffer
    from unistore.errors import (
        ConversionError,
        CorruptionError,
        InputError,
        Problem,
        StoreError,
        UnistoreError,
        UnsupportedError,
    )
    from unistore.loader import Loader, LoaderError, SampleError, WorkerDiedError
    from unistore.order.permutation import At, Shuffle
    from unistore.report.inspection import Inspection, inspect
    from unistore.store.reader import Store

__all__ = [
    "At",
    "Clips",
    "Collate",
    "ConversionError",
    "CorruptionError",
    "Dataset",
    "InputError",
    "Inspection",
    "Loader",
    "LoaderError",
    "Patches",
    "Problem",
    "ReplayBuffer",
    "Rows",
    "SampleError",
    "Segments",
    "Shuffle",
    "SparsePoints",
    "Store",
    "StoreError",
    "Transitions",
    "UnistoreError",
    "UnsupportedError",
    "Volumes",
    "Windows",
    "WorkerDiedError",
    "collate",
    "convert",
    "inspect",
    "open",
]

_HOME = {
    "At": "order.permutation",
    "Clips": "data.kinds",
    "Collate": "data.collate",
    "ConversionError": "errors",
    "CorruptionError": "errors",
    "Dataset": "data.dataset",
    "InputError": "errors",
    "Inspection": "report.inspection",
    "Loader": "loader",
    "LoaderError": "loader",
    "Patches": "data.kinds",
    "Problem": "errors",
    "ReplayBuffer": "data.kinds.replay",
    "Rows": "data.kinds",
    "SampleError": "loader",
    "Segments": "data.kinds",
    "Shuffle": "order.permutation",
    "SparsePoints": "data.kinds",
    "Store": "store.reader",
    "StoreError": "errors",
    "Transitions": "data.kinds",
    "UnistoreError": "errors",
    "UnsupportedError": "errors",
    "Volumes": "data.kinds",
    "Windows": "data.kinds",
    "WorkerDiedError": "loader",
    "collate": "data.collate",
    "convert": "conversion.convert",
    "inspect": "report.inspection",
}
"""Module of each lazily loaded name."""


def open(path: str | os.PathLike[str]) -> zarr.Group:  # noqa: A001
    """Open a store as a plain ``zarr.Group``, read-only: for looking into it with zarr-python's own means.

    Raises
    ------
    StoreError
        If there is no Zarr group, its metadata cannot be read, or the folder holds links, pipes or devices.
    """
    import zarr

    from unistore.errors import NoStoreError, UnistoreError
    from unistore.errors import StoreError as Refused
    from unistore.remote.storage import zarr_store

    try:
        return zarr.open_group(zarr_store(path), mode="r")
    except FileNotFoundError as error:
        msg = f"{os.fspath(path)}: no such store"
        raise NoStoreError(msg) from error
    except UnistoreError:
        raise
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        msg = f"{os.fspath(path)}: cannot be opened as a Zarr group ({why})"
        raise Refused(msg) from error


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        msg = f"module 'unistore' has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f"unistore.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps ``unistore.convert`` the function: Python binds a submodule to its package under its name."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
