"""Import h5py when something of it is first used: only processes that read HDF5 files need it."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    import h5py
    import hdf5plugin  # noqa: F401  registers the codecs (blosc, zstd, lz4, …) with the HDF5 library

    value = getattr(h5py, name)
    globals()[name] = value
    return value
