"""Import h5py when something of it is first used: only processes that read HDF5 files need it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def __getattr__(name: str) -> Any:
    import h5py

    with suppress(ModuleNotFoundError):  # an extra: `filters.missing_filter` names a codec that is not there
        import hdf5plugin  # noqa: F401  registers its codecs (lz4, bitshuffle, …) with the HDF5 library

    value = getattr(h5py, name)
    globals()[name] = value
    return value
