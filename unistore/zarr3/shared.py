"""Decoded chunks in a cache shared by several processes, and reads of rows across them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unistore.zarr3.metadata import ArrayMetadata


class SharedChunks(Protocol):
    """Decoded chunks of one array, in a cache shared by several processes."""

    chunks: NDArray[np.uint8]
    """(chunks, bytes), not to be written to: every chunk at its number."""
    there: NDArray[np.int64]
    """(chunks,): 0 if a chunk is not cached; its bytes are then undefined."""
    hits: int

    def add(self, number: int, chunk: NDArray[Any]) -> None:
        """Keep a chunk, if there is room."""


class SharedRows:
    """Rows of an array whose chunks are whole rows: they follow one another from chunk to chunk."""

    def __init__(self, shared: SharedChunks, metadata: ArrayMetadata) -> None:
        self._shared, self._step = shared, metadata.chunk_shape[0]
        self._rows = shared.chunks.reshape(-1).view(metadata.dtype).reshape(-1, *metadata.shape[1:])

    def take_box(self, box: tuple[slice, ...], out: NDArray[Any]) -> bool:
        """Read a box, if all of it is there."""
        lo, hi = box[0].start, box[0].stop
        found = bool(self._shared.there[lo // self._step : -(-hi // self._step)].all())
        if found:
            out[...] = self._rows[box]
            self._shared.hits += 1
        return found

    def take_rows(self, rows: NDArray[np.int64], out: NDArray[Any]) -> NDArray[np.intp]:
        """Read the rows (n,) that are there into `out` (n, …); gives the positions of the others."""
        missing = np.flatnonzero(self._shared.there[rows // self._step] == 0)
        self._shared.hits += len(rows) - len(missing)
        if not len(missing):
            np.take(self._rows, rows, axis=0, out=out, mode="clip")  # "raise" copies `out`
        elif len(missing) < len(rows):
            found = np.delete(np.arange(len(rows)), missing)
            out[found] = self._rows[rows[found]]
        return missing

    def take_ranges(
        self, ranges: Iterable[tuple[int, int, int]], out: NDArray[Any]
    ) -> list[tuple[int, int, int]]:
        """Read ranges (first row, the one behind the last, place in `out`) that are there, give the rest."""
        rest = (slice(None),) * (out.ndim - 1)
        return [
            (lo, hi, place)
            for lo, hi, place in ranges
            if not self.take_box((slice(lo, hi), *rest), out[place : place + hi - lo])
        ]
