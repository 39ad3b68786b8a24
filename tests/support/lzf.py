"""LZF, as the filter of HDF5 compresses by it."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np


def lzf(content: bytes, folder: Path) -> bytes:
    """Return the compressed bytes; the folder is for a file of HDF5."""
    with h5py.File(folder / "packed.h5", "w") as file:
        file.create_dataset("a", data=np.frombuffer(content, "u1"), chunks=(len(content),), compression="lzf")
        return bytes(file["a"].id.read_direct_chunk((0,))[1])
