"""The engine: the part of Zarr v3 that a unistore store uses, on plain numpy buffers."""

# No threads, no event loop, no handle at construction: safe with threads and after a fork

from __future__ import annotations

from unistore.zarr3.array import StoredArray
from unistore.zarr3.metadata import ArrayMetadata
from unistore.zarr3.storage import LocalStorage, Storage

__all__ = [
    "ArrayMetadata",
    "LocalStorage",
    "Storage",
    "StoredArray",
]
