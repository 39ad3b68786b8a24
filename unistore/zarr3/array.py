"""Read one array: boxes, rows and ranges of rows, into the caller's memory."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from unistore.errors import CorruptionError, StoreError, without_fix
from unistore.system.types import AnyArray, Attributes, Int64s, Rows, Shape
from unistore.zarr3.chunks import ChunkReader, RowRange, SharedChunks
from unistore.zarr3.documents import DocumentError, parse_document
from unistore.zarr3.gather import (
    AxisPieces,
    ChunkPool,
    axis_pieces,
    gather,
    gather_chunk_rows,
    gather_ranges,
    group_ranges,
    group_rows,
)
from unistore.zarr3.metadata import ArrayMetadata
from unistore.zarr3.storage import AbsentError, Storage


class StoredArray:
    """An array of a store, for reading. Made by `StoredArray.open`. Holds no handle until it is read.

    Safe with threads and after a fork. Pickles as its storage and path.

    Attributes
    ----------
    path
        Path in the storage: ``"points/xyz"``. ``""`` for an array at the root.
    metadata
        Its ``zarr.json``.
    shape, dtype, chunk_shape, shard_shape, attributes
        From `metadata`.
    """

    def __init__(
        self, storage: Storage, path: str, metadata: ArrayMetadata, reader: ChunkReader | None = None
    ) -> None:
        self.storage = storage
        self.path = path
        self.metadata = metadata
        self.shape = metadata.shape
        self.dtype = metadata.dtype
        self.chunk_shape = metadata.chunk_shape
        self.shard_shape = metadata.shard_shape
        self.attributes: Attributes = metadata.attributes
        self.reader = ChunkReader(storage, path, metadata) if reader is None else reader
        self._pool = ChunkPool(self.reader) if ChunkPool.supports(self.reader) else None
        self._row_is_chunk = self.chunk_shape == (1, *self.shape[1:])

    @classmethod
    def open(cls, storage: Storage, path: str) -> StoredArray:
        """Read the metadata of an array.

        Raises `StoreError` if there is none at `path` or it is not valid, `UnsupportedError`, which names the
        first difference, if the array is not as unistore writes arrays.
        """
        try:
            return cls(storage, path, read_metadata(storage, path))
        except CorruptionError as error:
            msg = f"{without_fix(error)}. Fix: unistore verify STORE"
            raise CorruptionError(msg) from error

    @property
    def pooled(self) -> bool:
        """Return whether single rows are read from a pool of decoded chunks, see `ChunkPool`."""
        return self._pool is not None and self._pool.fits

    @property
    def chunk_count(self) -> int:
        """Return the chunks of the whole grid of shards."""
        return self.reader.count

    def share(self, chunks: SharedChunks | None) -> None:
        """Look up and store decoded chunks in a cache shared with other processes. None: stop doing so."""
        self.reader.shared = chunks

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredArray.open, (self.storage, self.path)

    def __repr__(self) -> str:
        return f"Array({self.path!r}, shape={self.shape}, dtype={self.dtype.name}, chunks={self.chunk_shape})"

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, lo: int = 0, hi: int | None = None) -> AnyArray:
        """Read rows `lo` to `hi` of axis 0, by default all."""
        end = len(self) if hi is None else hi
        row_start = [0] * (len(self.shape) - 1)
        return self.read_box([lo, *row_start], [end, *self.shape[1:]])

    def read_box(self, lo: Sequence[int], hi: Sequence[int], out: AnyArray | None = None) -> AnyArray:
        """Read the box ``lo <= i < hi``, one number an axis, ``0 <= lo <= hi <= shape``.

        `out` is C-contiguous, of shape ``hi - lo`` and the array's dtype. Made where None. Raises
        `IndexError` if the box leaves the array, `CorruptionError` if stored bytes contradict their checksum,
        index or frame. It names array, shard and chunk.
        """
        start = tuple(map(operator.index, lo))
        stop = tuple(map(operator.index, hi))
        inside = len(start) == len(stop) == len(self.shape) and all(
            0 <= low <= high <= extent for low, high, extent in zip(start, stop, self.shape, strict=True)
        )
        if not inside:
            msg = f"array {self.path!r}: the box from {start} to {stop} is not inside its shape {self.shape}"
            raise IndexError(msg)
        out = self._output(out, tuple(high - low for low, high in zip(start, stop, strict=True)))
        if not out.size:
            return out
        groups = group_ranges(self._stored_ranges(start[0], stop[0], 0), self.chunk_shape[0])
        trailing = list(map(axis_pieces, start[1:], stop[1:], self.chunk_shape[1:]))
        gather(self.reader, groups, trailing, out)
        return out

    def read_rows(self, rows: Rows, out: AnyArray | None = None) -> AnyArray:
        """Read whole rows of axis 0, in the order given, duplicates included.

        `rows` are (n,) numbers ``0 <= row < shape[0]``, `out` is (n, *shape[1:]). Both, and errors, as for
        `read_box`.
        """
        numbers = self._row_numbers(rows, "rows")
        self._check_rows(numbers)
        out = self._output(out, (len(numbers), *self.shape[1:]))
        if not out.size:
            return out
        numbers = self._stored_rows(numbers)
        if self._row_is_chunk:
            gather_chunk_rows(self.reader, numbers.tolist(), out)
            return out
        # rows that stand together are decoded straight into `out`, which no pool does faster
        scattered = int(numbers.max() - numbers.min()) >= len(numbers)
        if not scattered or self._pool is None or not self._pool.take(numbers, out):
            gather(self.reader, group_rows(numbers, self.chunk_shape[0]), self._whole_row(), out)
        return out

    def read_ranges(
        self,
        lo: Rows,
        hi: Rows,
        out: AnyArray | None = None,
    ) -> AnyArray:
        """Read the rows ``lo[i] <= row < hi[i]`` of axis 0 for every i, one range behind the other.

        `lo` and `hi` are (n,) numbers, ``0 <= lo <= hi <= shape[0]``. Ranges may overlap and come in any
        order. `out` is (sum of ``hi - lo``, *shape[1:]). The rest is as for `read_box`.
        """
        lows = self._row_numbers(lo, "lo").tolist()
        highs = self._row_numbers(hi, "hi").tolist()
        if len(lows) != len(highs):
            msg = f"array {self.path!r}: there are {len(lows):,} starts of ranges, but {len(highs):,} ends"
            raise IndexError(msg)
        ranges: list[RowRange] = []
        place = 0
        for low, high in zip(lows, highs, strict=True):
            if not 0 <= low <= high <= self.shape[0]:
                msg = (
                    f"array {self.path!r}: the range {low} to {high} is not inside its {self.shape[0]:,} rows"
                )
                raise IndexError(msg)
            ranges += self._stored_ranges(low, high, place)
            place += high - low
        out = self._output(out, (place, *self.shape[1:]))
        if out.size:
            gather_ranges(self.reader, ranges, self._whole_row(), out)
        return out

    def _stored_rows(self, rows: Int64s) -> Int64s:
        """Return the numbers that rows have in the chunks."""
        return rows

    def _stored_ranges(self, low: int, high: int, place: int) -> Iterable[RowRange]:
        """Return the ranges of rows in the chunks that a range is, each with its place in the output."""
        return ((low, high, place),)

    def _row_numbers(self, rows: Rows, what: str) -> Int64s:
        numbers = np.asarray(rows)
        if numbers.ndim != 1 or (numbers.dtype.kind not in "iu" and numbers.size):
            dtype_and_shape = f"{numbers.dtype} {numbers.shape}"
            msg = f"array {self.path!r}: {what} must be integers on one axis, got {dtype_and_shape}"
            raise IndexError(msg)
        return numbers.astype(np.int64, copy=False)

    def _check_rows(self, numbers: Int64s) -> None:
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= self.shape[0]):
            wrong = numbers[(numbers < 0) | (numbers >= self.shape[0])][0]
            msg = f"array {self.path!r}: there is no row {wrong:,}; it has {self.shape[0]:,} rows"
            raise IndexError(msg)

    def _output(self, out: AnyArray | None, shape: Shape) -> AnyArray:
        if out is None:
            try:
                return np.empty(shape, self.dtype)
            except (MemoryError, ValueError) as error:
                needed = math.prod(shape) * self.dtype.itemsize
                where = f"{self.storage}: array {self.path!r}"
                msg = f"{where}: there is no memory for {needed:,} bytes. Fix: read fewer rows at once"
                raise StoreError(msg) from error
        fits = (
            out.shape == shape and out.dtype == self.dtype and out.flags.c_contiguous and out.flags.writeable
        )
        if not fits:
            rule = f"writeable, C-contiguous, {self.dtype} {shape}"
            msg = f"array {self.path!r}: out must be {rule}, got {out.dtype} {out.shape}"
            raise ValueError(msg)
        return out

    def _whole_row(self) -> list[AxisPieces]:
        return [axis_pieces(0, *axis) for axis in zip(self.shape[1:], self.chunk_shape[1:], strict=True)]


def read_metadata(storage: Storage, path: str) -> ArrayMetadata:
    """Read the ``zarr.json`` of an array. Raises as `StoredArray.open`."""
    where = f"{storage}: array {path!r}"
    try:
        raw = storage.get(f"{path}/zarr.json" if path else "zarr.json")
    except AbsentError as error:
        msg = f"{error}. Fix: if another program wrote this Zarr store, use unistore.open_zarr"
        raise AbsentError(msg) from error
    try:
        return ArrayMetadata.from_json(parse_document(raw), where)
    except DocumentError as error:
        msg = f"{where}: zarr.json is damaged: {error}"
        raise CorruptionError(msg) from error
    except StoreError as error:
        raise CorruptionError(str(error)) from error
