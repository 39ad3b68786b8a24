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
        self._shared = shared
        self._step = metadata.chunk_shape[0]
        self._rows = shared.chunks.reshape(-1).view(metadata.dtype).reshape(-1, *metadata.shape[1:])

    def take_box(self, box: tuple[slice, ...], out: NDArray[Any]) -> bool:
        """Read a box if all of its chunks are cached; returns whether they are."""
        first_chunk = box[0].start // self._step
        end_chunk = -(-box[0].stop // self._step)
        if not self._shared.there[first_chunk:end_chunk].all():
            return False
        out[...] = self._rows[box]
        self._shared.hits += 1
        return True

    def take_rows(self, rows: NDArray[np.int64], out: NDArray[Any]) -> NDArray[np.intp]:
        """Read the rows (n,) that are cached into `out` (n, …); returns the positions of the others."""
        missing = np.flatnonzero(self._shared.there[rows // self._step] == 0)
        self._shared.hits += len(rows) - len(missing)
        if not len(missing):
            # mode "raise" would copy `out`
            np.take(self._rows, rows, axis=0, out=out, mode="clip")
        elif len(missing) < len(rows):
            cached = np.delete(np.arange(len(rows)), missing)
            out[cached] = self._rows[rows[cached]]
        return missing

    def take_ranges(
        self, ranges: Iterable[tuple[int, int, int]], out: NDArray[Any]
    ) -> list[tuple[int, int, int]]:
        """Read ranges (first row, end, place in `out`) whose chunks are cached; returns the others."""
        whole_axes = (slice(None),) * (out.ndim - 1)
        missing = []
        for start, end, place in ranges:
            target = out[place : place + end - start]
            if not self.take_box((slice(start, end), *whole_axes), target):
                missing.append((start, end, place))
        return missing
