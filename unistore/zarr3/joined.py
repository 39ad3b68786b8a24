"""Arrays of several stores read as one: the rows of one behind those of the other."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from unistore.errors import StoreError
from unistore.system.types import AnyArray, Int64s, Rows, Shape
from unistore.zarr3.array import StoredArray
from unistore.zarr3.chunks import ChunkReader, FoundShard, RowRange
from unistore.zarr3.codecs import decoder
from unistore.zarr3.metadata import EMPTY, ArrayMetadata
from unistore.zarr3.storage import Storage


class UnalikeError(StoreError):
    """Arrays of several stores differ in what one array has once, and cannot be read as one."""


class ArrayParts(NamedTuple):
    """An array of several stores, which open with the first use of their rows."""

    folders: Sequence[str]  # of the stores in the storage, which begin its keys
    forms: Sequence[ArrayMetadata]  # of the same dtype, chunks (but for their rows) and fill value
    form_of: Int64s  # (stores,) number of the form of each
    rows: Int64s  # (stores,) rows of each that count, its first ones
    row_shape: Shape  # that all rows fit into
    open: Callable[[int], StoredArray]  # opens the array of a store


class JoinedArray(StoredArray):
    """The rows of several arrays, one behind the other, read through one pool of chunks.

    Chunks are numbered array after array, and rows by their chunks, each of which counts as many rows as
    the longest ones. Callers never ask for rows that no array has.
    """

    # So the code that reads chunks of one array reads these, too

    def __init__(
        self,
        storage: Storage,  # of all stores
        path: str,
        parts: ArrayParts,
        added: Int64s | None = None,  # number that is added to all values of each array
    ) -> None:
        first = parts.forms[0]
        for form in parts.forms:
            _check_alike(form, first, f"{storage}: array {path!r}")
        steps = np.array([form.chunk_shape[0] for form in parts.forms], np.int64)[parts.form_of]
        step = int(steps.max())
        chunks = _starts(-(-parts.rows // steps))
        starts = _starts(parts.rows)
        chunk_shape = (step, *first.chunk_shape[1:])
        whole_row = [
            -(-extent // tile) * tile for extent, tile in zip(parts.row_shape, chunk_shape[1:], strict=True)
        ]
        metadata = replace(
            first,
            shape=(int(chunks[-1]) * step, *parts.row_shape),
            chunk_shape=chunk_shape,
            shard_shape=(step, *whole_row),
        )
        super().__init__(storage, path, metadata, _JoinedChunks(storage, path, metadata, parts, chunks))
        self.shape = (int(starts[-1]), *parts.row_shape)
        self.starts = starts  # (stores + 1,) first row of each array, and the number of rows
        self.added = added
        self._start_list = starts.tolist()
        self._spans = np.stack([starts[:-1], starts[1:], steps, chunks[:-1]], axis=1).tolist()
        self._chunks = chunks
        self._steps = steps
        self._step = step
        self._shifts = chunks[:-1] * step - starts[:-1] if (steps == step).all() else None

    def read_box(self, lo: Sequence[int], hi: Sequence[int], out: AnyArray | None = None) -> AnyArray:
        values = super().read_box(lo, hi, out)
        return values if self.added is None else self._add(values, np.arange(lo[0], hi[0]))

    def read_rows(self, rows: Rows, out: AnyArray | None = None) -> AnyArray:
        values = super().read_rows(rows, out)
        return values if self.added is None else self._add(values, np.asarray(rows))

    def read_ranges(self, lo: Rows, hi: Rows, out: AnyArray | None = None) -> AnyArray:
        values = super().read_ranges(lo, hi, out)
        if self.added is None or not len(values):
            return values
        rows = [np.arange(low, high) for low, high in zip(lo, hi, strict=True)]
        return self._add(values, np.concatenate(rows))

    def _add(self, values: AnyArray, rows: AnyArray) -> AnyArray:
        assert self.added is not None
        values += self.added[self.part_of(rows)].astype(values.dtype)
        return values

    def part_of(self, rows: AnyArray) -> Int64s:
        """Return the number of the array that each row is of."""
        return self.starts.searchsorted(rows, "right") - 1

    def _stored_rows(self, rows: Int64s) -> Int64s:
        part = self.part_of(rows)
        if self._shifts is not None:
            return rows + self._shifts[part]
        chunk, inside = np.divmod(rows - self.starts[part], self._steps[part])
        return (self._chunks[part] + chunk) * self._step + inside

    def _stored_ranges(self, low: int, high: int, place: int) -> Iterator[RowRange]:
        part = bisect_right(self._start_list, low) - 1
        while low < high:
            start, stop, step, first_chunk = self._spans[part]
            chunk, inside = divmod(low - start, step)
            end = min(high, stop)
            if step < self._step:
                end = min(end, low - inside + step)
            first = (first_chunk + chunk) * self._step + inside
            if end > low:
                yield first, first + end - low, place
            place += end - low
            low = end
            part += low == stop


class _JoinedChunks(ChunkReader):
    """Reads the chunks of several arrays, numbered one array behind the other."""

    # The shards of all arrays are those of one storage, so that a batch finds, reads and decodes the chunks
    # of all arrays in one go

    def __init__(
        self, storage: Storage, path: str, metadata: ArrayMetadata, parts: ArrayParts, chunks: Int64s
    ) -> None:
        super().__init__(storage, path, metadata)
        self._parts = parts
        self._opened: dict[int, ChunkReader] = {}
        self._firsts = (chunks * self.row_stride).tolist()
        self._form_of = parts.form_of.tolist()
        self._grid = metadata.chunks_per_shard[1:]
        self._ends = None  # which are read by the readers of the arrays
        self._decoders = [
            (decoder(form.compressor, form.chunk_bytes), math.prod(form.chunk_shape)) for form in parts.forms
        ]
        forms = {(form.compressor, form.chunk_shape) for form in parts.forms}
        self._is_alike = forms == {(metadata.compressor, metadata.chunk_shape)}
        if not self._is_alike:
            self._read_into = None
            self.is_compiled = False
        self.uncompressed = False  # files hold chunks of one array

    def find_shard(self, number: int) -> FoundShard:
        part = bisect_right(self._firsts, number) - 1
        start = self._firsts[part]
        reader = self._opened.get(part) or self._open(part)
        rows = reader.per_shard // reader.row_stride
        shard = (number - start) // self.row_stride // rows
        first = start + shard * rows * self.row_stride
        key = self._keys.get(first)
        index = self._indexes.get(first)
        if key is None or index is None:
            own = reader.find_shard(shard * reader.per_shard)
            key = self._keep_key(first, self._parts.folders[part] + own.key)
            index = self._keep_index(first, self._in_grid(own.entries, reader))
        end = min(first + rows * self.row_stride, self._firsts[part + 1])
        return FoundShard(first, end, key, index)

    def _open(self, part: int) -> ChunkReader:
        reader = self._opened[part] = self._parts.open(part).reader
        if math.prod(reader.metadata.shards[1:]) > 1:
            # chunks are numbered row by row where shards hold whole rows
            msg = f"{reader.storage}: array {self._path!r} has shards with only parts of rows"
            raise StoreError(msg)
        self.most_indexes = min(self.most_indexes, reader.most_indexes)
        return reader

    def _in_grid(self, index: memoryview, reader: ChunkReader) -> memoryview:
        """Return the index of a shard whose rows may have fewer chunks."""
        grid = reader.metadata.chunks_per_shard
        if grid[1:] == self._grid:
            return index
        entries = np.full((grid[0], *self._grid, 2), EMPTY)
        entries[tuple(map(slice, grid))] = np.asarray(index).reshape(*grid, 2)
        return entries.reshape(-1).data

    def _decode_chunk(self, number: int, raw: bytes, target: AnyArray | None) -> AnyArray:
        if self._is_alike:
            return super()._decode_chunk(number, raw, target)
        decode, count = self._decoders[self._form_of[bisect_right(self._firsts, number) - 1]]
        whole = np.empty(self.metadata.chunk_shape, self.metadata.dtype) if target is None else target
        decode(raw, whole.reshape(-1)[:count])  # shorter chunks fill the first rows
        return whole

    def _coordinates_of(self, number: int) -> Shape:
        part = bisect_right(self._firsts, number) - 1
        return super()._coordinates_of(number - self._firsts[part])


def _starts(lengths: Int64s) -> Int64s:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _check_alike(form: ArrayMetadata, first: ArrayMetadata, where: str) -> None:
    is_alike = form.dtype == first.dtype and form.chunk_shape[1:] == first.chunk_shape[1:]
    if not (is_alike and form.fill_value.tobytes() == first.fill_value.tobytes()):
        msg = f"{where} has another form than in the first store"
        raise UnalikeError(msg)
