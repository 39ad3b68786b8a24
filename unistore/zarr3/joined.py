"""Arrays of several stores read as one: the rows of one behind those of the other."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain

import numpy as np

from unistore.errors import StoreError
from unistore.system.hints import AnyArray, Int64s, Shape
from unistore.zarr3.array import StoredArray
from unistore.zarr3.chunks import ChunkLocations, ChunkReader
from unistore.zarr3.metadata import EMPTY, ArrayMetadata


class UnalikeError(StoreError):
    """Arrays of several stores differ in what one array has once, and cannot be read as one."""


class JoinedArray(StoredArray):
    """The rows of several arrays, one behind the other, read through one pool of chunks."""

    # Chunks are numbered array after array, and rows by their chunks, all of which count as many rows as the
    # longest ones. So what reads chunks of one array reads these, and rows that no array has are never asked

    def __init__(
        self,
        arrays: Sequence[StoredArray],  # of the same dtype and chunks, but for their rows
        rows: Int64s,  # rows of each array that count, its first ones
        added: Int64s | None = None,  # number that is added to all values of each array
    ) -> None:
        first = arrays[0]
        for array in arrays:
            _check_alike(array, first)
        steps = np.array([array.chunk_shape[0] for array in arrays], np.int64)
        step = int(steps.max())
        chunks = _starts(-(-rows // steps))
        starts = _starts(rows)
        row_shape = tuple(map(max, zip(*(array.shape[1:] for array in arrays), strict=True)))
        chunk_shape = (step, *first.chunk_shape[1:])
        whole_row = [
            -(-extent // tile) * tile for extent, tile in zip(row_shape, chunk_shape[1:], strict=True)
        ]
        metadata = replace(
            first.metadata,
            shape=(int(chunks[-1]) * step, *row_shape),
            chunk_shape=chunk_shape,
            shard_shape=(step, *whole_row),
        )
        reader = _JoinedChunks([array.reader for array in arrays], first.path, metadata, chunks)
        super().__init__(first.storage, first.path, metadata, reader)
        self.shape = (int(starts[-1]), *row_shape)
        self._starts = starts
        self._start_list = starts.tolist()
        self._spans = np.stack([starts[:-1], starts[1:], steps, chunks[:-1]], axis=1).tolist()
        self._chunks = chunks
        self._steps = steps
        self._step = step
        self._shifts = chunks[:-1] * step - starts[:-1] if (steps == step).all() else None
        self._added = added

    def read_box(self, lo: Sequence[int], hi: Sequence[int], out: AnyArray | None = None) -> AnyArray:
        """Read a box."""
        values = super().read_box(lo, hi, out)
        return values if self._added is None else self._add(values, np.arange(lo[0], hi[0]))

    def read_rows(self, rows: AnyArray | Sequence[int], out: AnyArray | None = None) -> AnyArray:
        """Read whole rows."""
        values = super().read_rows(rows, out)
        return values if self._added is None else self._add(values, np.asarray(rows))

    def read_ranges(
        self, lo: AnyArray | Sequence[int], hi: AnyArray | Sequence[int], out: AnyArray | None = None
    ) -> AnyArray:
        """Read ranges of rows."""
        values = super().read_ranges(lo, hi, out)
        if self._added is None or not len(values):
            return values
        rows = [np.arange(low, high) for low, high in zip(lo, hi, strict=True)]
        return self._add(values, np.concatenate(rows))

    def _add(self, values: AnyArray, rows: AnyArray) -> AnyArray:
        assert self._added is not None
        values += self._added[self._part_of(rows)].astype(values.dtype)
        return values

    def _part_of(self, rows: AnyArray) -> Int64s:
        return self._starts.searchsorted(rows, "right") - 1

    def _stored_rows(self, rows: Int64s) -> Int64s:
        part = self._part_of(rows)
        if self._shifts is not None:
            return rows + self._shifts[part]
        chunk, inside = np.divmod(rows - self._starts[part], self._steps[part])
        return (self._chunks[part] + chunk) * self._step + inside

    def _stored_ranges(self, low: int, high: int, place: int) -> Iterator[tuple[int, int, int]]:
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

    def __init__(
        self, readers: Sequence[ChunkReader], path: str, metadata: ArrayMetadata, chunks: Int64s
    ) -> None:
        super().__init__(readers[0].storage, path, metadata)
        self._readers = readers
        self._firsts = (chunks * self.row_stride).tolist()
        self._grid = tuple(metadata.chunks_per_shard[1:])
        self.uncompressed = False  # of all arrays

    def locate(self, numbers: list[int]) -> ChunkLocations:
        located = ChunkLocations(numbers, [], [], [])
        for reader, own in self._runs(numbers):
            part = reader.locate([number for number in own if number != EMPTY])
            if EMPTY in own:
                part = _with_absent(part, own)
            located.keys.extend(part.keys)
            located.offsets.extend(part.offsets)
            located.sizes.extend(part.sizes)
        return located

    def _decode_stored(
        self, located: ChunkLocations, targets: Sequence[AnyArray | None]
    ) -> Iterator[AnyArray]:
        start = 0
        shape = self.metadata.chunk_shape
        for reader, own in self._runs(located.numbers):
            part = slice(start, start + len(own))
            places = ChunkLocations(own, located.keys[part], located.offsets[part], located.sizes[part])
            start = part.stop
            if reader.metadata.chunk_shape == shape:
                yield from reader.decode(places, targets[part])
                continue
            # shorter chunks fill the first rows
            wholes = [np.empty(shape, reader.metadata.dtype) if out is None else out for out in targets[part]]
            count = math.prod(reader.metadata.chunk_shape)
            decoded = reader.decode(places, [whole.reshape(-1)[:count] for whole in wholes])
            for whole, _ in zip(wholes, decoded, strict=True):
                yield whole

    def _runs(self, numbers: list[int]) -> Iterator[tuple[ChunkReader, list[int]]]:
        """Yield chunks of one array that follow one another: by its numbers, `EMPTY` where it has none."""
        start = 0
        while start < len(numbers):
            part = bisect_right(self._firsts, numbers[start]) - 1
            first = self._firsts[part]
            end = self._firsts[part + 1]
            stop = start + 1
            while stop < len(numbers) and first <= numbers[stop] < end:
                stop += 1
            reader = self._readers[part]
            own = [number - first for number in numbers[start:stop]]
            grid = reader.metadata.chunks_per_shard[1:]
            yield reader, own if grid == self._grid else _in_grid(own, self._grid, grid)
            start = stop


@lru_cache(256)
def _places(grid: Shape, own: Shape) -> list[int]:
    """Return the places that chunks of a row have in a smaller grid, `EMPTY` outside of it."""
    places = np.full(grid, EMPTY)
    places[tuple(map(slice, own))] = np.arange(math.prod(own)).reshape(own)
    listed: list[int] = places.reshape(-1).tolist()
    return listed


def _in_grid(numbers: list[int], grid: Shape, own: Shape) -> list[int]:
    """Return the numbers that chunks of a grid over whole rows have in a smaller one."""
    places = _places(grid, own)
    inside = []
    for number in numbers:
        row, chunk = divmod(number, len(places))
        place = places[chunk]
        inside.append(EMPTY if place == EMPTY else row * math.prod(own) + place)
    return inside


def _with_absent(located: ChunkLocations, numbers: list[int]) -> ChunkLocations:
    places = iter(range(len(located.numbers)))
    absent = ChunkLocations([EMPTY], [""], [EMPTY], [EMPTY])
    chunks = [absent.select([0]) if number == EMPTY else located.select([next(places)]) for number in numbers]
    return ChunkLocations(*(list(chain.from_iterable(values)) for values in zip(*chunks, strict=True)))


def _starts(lengths: Int64s) -> Int64s:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _check_alike(array: StoredArray, first: StoredArray) -> None:
    is_alike = array.dtype == first.dtype and array.chunk_shape[1:] == first.chunk_shape[1:]
    is_alike = is_alike and array.metadata.fill_value.tobytes() == first.metadata.fill_value.tobytes()
    # chunks are numbered row by row where shards hold whole rows
    is_alike = is_alike and set(array.metadata.shards[1:]) <= {1} and 0 not in array.shape[1:]
    if not is_alike:
        msg = f"{array.storage}: array {array.path!r} has another form than in {first.storage}"
        raise UnalikeError(msg)
