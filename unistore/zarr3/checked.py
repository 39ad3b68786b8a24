"""Read single rows of uncompressed chunks, once the checksum of the chunk was verified."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.zarr3.chunks import ChunkReader
from unistore.zarr3.sharding import EMPTY
from unistore.zarr3.storage import SupportsFileIdentity


class VerifiedRows:
    """Remembers which chunks were verified, until their file changes. Not thread-safe.

    A file has changed if its device, inode, size, mtime or ctime differ.

    Parameters
    ----------
    reader
        Of an array whose chunks are whole rows.
    """

    def __init__(self, reader: ChunkReader) -> None:
        self._reader = reader
        self._checked = np.zeros(reader.count, np.bool_)
        self._files: dict[str, tuple[int, ...]] = {}

    @staticmethod
    def supports(reader: ChunkReader) -> bool:
        """Whether chunks are uncompressed whole rows, in a storage that can detect changed files."""
        return (
            reader.uncompressed
            and isinstance(reader.storage, SupportsFileIdentity)
            and reader.row_stride == 1
        )

    def read(self, chunks: NDArray[np.int64], inside: NDArray[np.int64], out: NDArray[Any]) -> bool:
        """Read rows `inside` of `chunks`, (n,) each and ascending, into `out` (n, columns).

        Returns
        -------
        Whether they were read: not where a chunk is absent.
        """
        located = self._reader.locate(chunks.tolist())
        if EMPTY in located.offsets:
            return False
        self._check(chunks, located.keys)
        nbytes = out.shape[1] * out.itemsize
        offsets = (np.array(located.offsets) + inside * nbytes).tolist()
        raws = self._reader.storage.read_many(located.keys, offsets, [nbytes] * len(offsets))
        out.reshape(-1).view(np.uint8)[:] = np.frombuffer(b"".join(raws), np.uint8)
        return True

    def _check(self, chunks: NDArray[np.int64], keys: list[str]) -> None:
        storage, reader = self._reader.storage, self._reader
        assert isinstance(storage, SupportsFileIdentity)
        for key, at in {key: at for at, key in enumerate(keys)}.items():
            found = storage.identity(key)
            if self._files.get(key) != found:
                first = int(chunks[at]) // reader.per_object * reader.per_object
                self._checked[first : first + reader.per_object] = False
                self._files[key] = found
        missing = np.unique(chunks[~self._checked[chunks]])
        for _ in reader.decode(reader.locate(missing.tolist()), [None] * len(missing)):
            pass
        self._checked[missing] = True
