"""Split boxes, rows and ranges of rows into parts of chunks, and read these into an output."""

# A chunk that is a contiguous part of the output is decoded into it, of others parts are copied

from __future__ import annotations

import itertools
import math
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from unistore.system.types import AnyArray, Int64s, Shape
from unistore.zarr3.cache import CHUNKS, Key
from unistore.zarr3.chunks import ChunkReader, RowRange
from unistore.zarr3.compiled import can_read, read_boxes, read_ranges
from unistore.zarr3.metadata import EMPTY
from unistore.zarr3.storage import LocalStorage

# Positions along one axis.
AxisIndices = slice | Int64s

# Indices into a chunk, and into the output; one item per axis.
Selection = tuple[tuple[AxisIndices, ...], tuple[AxisIndices, ...]]

# Along one axis: number of the chunk, positions in the chunk, positions in the output.
AxisPieces = list[tuple[int, slice, slice]]

# Along axis 0: number of the chunk, and what is read of it.
Group = tuple[int, list[Selection]]

# By bytes of the last axis: dtype to copy each row as one number, since numpy would loop over every row
_WHOLE: dict[int, np.dtype[Any]] = {2: np.dtype(np.uint16), 4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}


def axis_pieces(lo: int, hi: int, step: int) -> AxisPieces:
    """Cut ``lo:hi`` of one axis at multiples of `step`. The output starts at `lo`."""
    pieces = []
    for chunk in range(lo // step, -(-hi // step)):
        start = chunk * step
        low = max(lo, start)
        high = min(hi, start + step)
        pieces.append((chunk, slice(low - start, high - start), slice(low - lo, high - lo)))
    return pieces


def group_rows(rows: Int64s, step: int) -> list[Group]:
    """Group rows (n,), output in the order given, by chunks of `step` rows. Chunks come in rising order."""
    order = np.argsort(rows, kind="stable")
    chunks, inside = np.divmod(rows[order], step)
    starts = _starts(chunks)
    numbers = chunks[starts[:-1]].tolist()
    groups: list[Group] = []
    for number, (start, stop) in zip(numbers, pairwise(starts.tolist()), strict=True):
        source = _part(inside[start:stop])
        place = _part(order[start:stop])
        groups.append((number, [((source,), (place,))]))
    return groups


def group_ranges(ranges: Iterable[RowRange], step: int) -> list[Group]:
    """Group ranges (first row, end, place in the output) by chunks of `step` rows."""
    pieces = []
    for start, end, first_place in ranges:
        row = start
        place = first_place
        while row < end:
            chunk, inside = divmod(row, step)
            count = min(end - row, step - inside)
            pieces.append((chunk, inside, place, count))
            row += count
            place += count
    pieces.sort()
    groups: list[Group] = []
    for chunk, inside, place, count in pieces:
        if not groups or groups[-1][0] != chunk:
            groups.append((chunk, []))
        groups[-1][1].append(((slice(inside, inside + count),), (slice(place, place + count),)))
    return groups


def _starts(ordered: Int64s) -> AnyArray:
    return np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1, [len(ordered)]])


def _part(positions: Int64s) -> AxisIndices:
    count = len(positions)
    first = int(positions[0])
    end = int(positions[-1]) + 1
    if end - first != count:
        return positions
    if count > 2 and not (positions[1:] - positions[:-1] == 1).all():
        return positions
    return slice(first, end)


def read_whole(reader: ChunkReader, numbers: list[int], targets: list[AnyArray]) -> Iterator[AnyArray]:
    """Read whole chunks one by one, each into its target, C-contiguous. Absent ones become fill."""
    located = reader.locate(numbers)
    if EMPTY not in located.offsets:
        yield from reader.decode(located, targets)
        return
    present = [position for position, offset in enumerate(located.offsets) if offset != EMPTY]
    decoded = reader.decode(located.select(present), [targets[position] for position in present])
    for target, offset in zip(targets, located.offsets, strict=True):
        if offset == EMPTY:
            target[...] = reader.metadata.fill_value
            yield target
        else:
            yield next(decoded)


def gather_chunk_rows(reader: ChunkReader, rows: list[int], out: AnyArray) -> None:
    """Read rows that are whole chunks, in any order, every chunk once, straight into `out` (rows, …)."""
    place_of = {row: place for place, row in enumerate(rows)}
    further_places: dict[int, list[int]] = {}
    if len(place_of) < len(rows):
        for place, row in enumerate(rows):
            if place_of[row] != place:
                further_places.setdefault(row, []).append(place)
    ordered = sorted(place_of)
    # with two axes every row is a view: the rows of a plain vector would be scalars
    targets = list(out.reshape(len(out), -1))
    numbers = [row * reader.row_stride for row in ordered]
    decoded = read_whole(reader, numbers, [targets[place_of[row]] for row in ordered])
    for row, target in zip(ordered, decoded, strict=True):
        # copied now, while the row is in the processor's cache
        for place in further_places.get(row, ()):
            targets[place][:] = target


def gather_ranges(
    reader: ChunkReader,
    ranges: list[RowRange],
    trailing: Sequence[AxisPieces],
    out: AnyArray,
) -> None:
    """Read ranges of rows, every chunk decoded once."""
    if not read_ranges(reader, ranges, out):
        gather(reader, group_ranges(ranges, reader.metadata.chunk_shape[0]), trailing, out)


def gather(
    reader: ChunkReader,
    groups: Sequence[Group],
    trailing: Sequence[AxisPieces],
    out: AnyArray,
    *,
    compiled: bool = True,
) -> None:
    """Read chunks along axis 0 times `trailing` pieces of each other axis. Every chunk is decoded once."""
    metadata = reader.metadata
    chunk_shape = metadata.chunk_shape
    first_axis = [chunk for chunk, _ in groups]
    if chunk_shape[1:] == metadata.shape[1:] == out.shape[1:]:  # chunks of whole rows
        numbers = [chunk * reader.row_stride for chunk in first_axis]
        selections = [places for _, places in groups]
    else:
        numbers = reader.numbers([first_axis, *([piece[0] for piece in pieces] for pieces in trailing)])
        selections = _selections(groups, trailing)
    located = reader.locate(numbers)
    # a chunk can be contiguous in `out` only if it spans all axes behind its first longer one
    outer = next((axis + 1 for axis, extent in enumerate(chunk_shape) if extent > 1), 0)
    straight = chunk_shape[outer:] == out.shape[outer:]
    keep = reader.shared is None and CHUNKS.keeps(metadata.chunk_bytes)
    # one call keeps a part of the cache at most, however much it reads
    room = CHUNKS.limit // 4
    compiled = compiled and can_read(reader)
    boxes: list[int] = []  # positions of chunks that the kernel reads
    # the others to decode, in three parallel lists: position; part of `out` to decode it into; else what to
    # copy from it, and its key if it is kept
    missing: list[int] = []
    targets: list[AnyArray | None] = []
    copies: list[tuple[list[Selection] | None, Key | None]] = []
    chunks = zip(numbers, located.offsets, selections, strict=True)
    for position, (number, offset, places) in enumerate(chunks):
        if offset == EMPTY:
            for _, place in places:
                out[place] = metadata.fill_value
            continue
        target: AnyArray | None = None
        if straight and len(places) == 1 and (keep or not compiled):
            target = _whole_chunk(places, out, chunk_shape)
        kept_as: Key | None = None
        if target is None and keep:
            key = reader.token, number
            cached = CHUNKS.get(key)
            if cached is not None:
                _copy(cached, places, out)
                continue
            if room > 0 and CHUNKS.missed_recently(key):
                room -= metadata.chunk_bytes
                kept_as = key
        if compiled and kept_as is None and _are_slices(places):
            boxes.append(position)
            continue
        missing.append(position)
        targets.append(target)
        copies.append((places if target is None else None, kept_as))
    if boxes and not read_boxes(reader, located.select(boxes), [selections[at] for at in boxes], out):
        # what is wrong is found again, and said
        gather(reader, groups, trailing, out, compiled=False)
        return
    if len(missing) < len(numbers):
        located = located.select(missing)
    _copy_decoded(reader.decode(located, targets), copies, out)


def _copy_decoded(
    decoded: Iterator[AnyArray], copies: Sequence[tuple[list[Selection] | None, Key | None]], out: AnyArray
) -> None:
    for places, kept_as in copies:
        chunk = next(decoded)
        if places is not None:
            _copy(chunk, places, out)
        if kept_as is not None:
            CHUNKS.put(kept_as, chunk)
        # the next chunk is decoded into this one's memory
        del chunk


def _are_slices(places: Sequence[Selection]) -> bool:
    return all(type(source[0]) is slice and type(place[0]) is slice for source, place in places)


def _selections(groups: Sequence[Group], trailing: Sequence[AxisPieces]) -> list[list[Selection]]:
    sources = itertools.product(*([piece[1] for piece in pieces] for pieces in trailing))
    targets = itertools.product(*([piece[2] for piece in pieces] for pieces in trailing))
    behind = list(zip(sources, targets, strict=True))
    selections = []
    for _, places in groups:
        for source, target in behind:
            selections.append([(first + source, place + target) for first, place in places])
    return selections


def _whole_chunk(places: Sequence[Selection], out: AnyArray, chunk_shape: Shape) -> AnyArray | None:
    # None where parts of the chunk are needed
    source, place = places[0]
    rows = source[0]
    if type(rows) is not slice or rows.stop - rows.start != chunk_shape[0] or type(place[0]) is not slice:
        return None
    target: AnyArray = out[place]
    return target if target.shape == chunk_shape and target.flags.c_contiguous else None


def _copy(chunk: AnyArray, places: Sequence[Selection], out: AnyArray) -> None:
    for source, place in places:
        part = chunk[source]
        if part.ndim > 1 and part.shape[-1] > 1 and type(place[0]) is slice:
            whole = _WHOLE.get(part.shape[-1] * part.itemsize)
            target = out[place]
            if whole is not None and target.strides[-1] == part.strides[-1] == part.itemsize:
                target.view(whole)[...] = part.view(whole)
                continue
        out[place] = part


# Rows of many chunks at once: from a pool of decoded chunks, or from verified uncompressed ones.

# Fewest rows of a chunk for which a pool is faster.
MIN_CHUNK_ROWS = 16
# Least capacity of a pool in chunks; arrays with larger chunks have no pool.
MIN_CHUNKS = 64

# Memory of all pools of a process: as much as a block shuffle of small rows needs to mix well.
POOL_BYTES = 320 << 20
# Rows of larger uncompressed arrays are read one by one, from the page cache that processes share.
MAX_POOLED_PLAIN = 64 << 20
# Where more rows of a missing chunk are wanted (on average), whole chunks are read.
MAX_SINGLE_ROWS = 4


class VerifiedRows:
    """Reads single rows of uncompressed chunks, each verified first, and again when its file changed."""

    def __init__(self, reader: ChunkReader) -> None:
        self._reader = reader
        self._checked = np.zeros(reader.count, np.bool_)
        self._files: dict[str, tuple[int, ...]] = {}

    @staticmethod
    def supports(reader: ChunkReader) -> bool:
        """Return whether chunks are uncompressed whole rows, in a storage that can detect changed files."""
        return reader.uncompressed and isinstance(reader.storage, LocalStorage) and reader.row_stride == 1

    def read(self, chunks: Int64s, inside: Int64s, out: AnyArray) -> bool:
        """Read rows `inside` of `chunks` into `out` (n, columns), or return False if a chunk is absent."""
        located = self._reader.locate(chunks.tolist())
        if EMPTY in located.offsets:
            return False
        self._check(chunks, located.keys)
        nbytes = out.shape[1] * out.itemsize
        offsets = (np.array(located.offsets) + inside * nbytes).tolist()
        raws = self._reader.storage.read_many(located.keys, offsets, [nbytes] * len(offsets))
        out.reshape(-1).view(np.uint8)[:] = np.frombuffer(b"".join(raws), np.uint8)
        return True

    def _check(self, chunks: Int64s, keys: list[str]) -> None:
        reader = self._reader
        storage = reader.storage
        assert isinstance(storage, LocalStorage)
        chunk_of_key = dict(zip(keys, chunks.tolist(), strict=True))
        for key, chunk in chunk_of_key.items():
            identity = storage.identity(key)
            if self._files.get(key) != identity:
                first = chunk // reader.per_shard * reader.per_shard
                self._checked[first : first + reader.per_shard] = False
                self._files[key] = identity
        missing = np.unique(chunks[~self._checked[chunks]])
        # decoding a chunk checks it
        for _ in reader.decode(reader.locate(missing.tolist()), [None] * len(missing)):
            pass
        self._checked[missing] = True


_pools: weakref.WeakSet[ChunkPool] = weakref.WeakSet()
# Bytes of the arrays of all pools that hold chunks: there may be thousands of pools
_bytes_in_use = [0]


def forget_chunks() -> None:
    """Drop all decoded chunks of this process: in forked children, and for measurements."""
    CHUNKS.renew()
    for pool in list(_pools):
        pool.renew()


os.register_at_fork(after_in_child=forget_chunks)


class ChunkPool:
    """A FIFO cache of decoded chunks of one array in one buffer, from which ``np.take`` reads rows.

    All pools of a process together take `POOL_BYTES`, each in proportion to its array.
    """

    def __init__(self, reader: ChunkReader) -> None:
        self._reader = reader
        self._step = reader.metadata.chunk_shape[0]
        self._chunks = -(-reader.metadata.shape[0] // self._step)
        self._columns = math.prod(reader.metadata.chunk_shape[1:])
        self._chunk_bytes = reader.metadata.chunk_bytes
        self._array_bytes = self._chunks * self._chunk_bytes
        large = self._array_bytes > min(MAX_POOLED_PLAIN, POOL_BYTES)
        self._single_rows = VerifiedRows(reader) if large and VerifiedRows.supports(reader) else None
        self._memory = np.empty((0, 0))
        self.renew()
        _pools.add(self)

    @staticmethod
    def supports(reader: ChunkReader) -> bool:
        """Return whether the chunks of an array are many small rows each."""
        metadata = reader.metadata
        return metadata.chunk_shape[0] >= MIN_CHUNK_ROWS and metadata.chunk_shape[1:] == metadata.shape[1:]

    @property
    def fits(self) -> bool:
        """Return whether enough chunks can be kept. Otherwise `take` reads nothing."""
        return MIN_CHUNKS * self._chunk_bytes <= POOL_BYTES

    def renew(self) -> None:
        self.__del__()
        self._lock = threading.Lock()
        self._memory = np.empty((0, 0))
        self._next = 0

    def __del__(self) -> None:
        if len(self._memory):
            _bytes_in_use[0] -= self._array_bytes

    def take(self, rows: Int64s, out: AnyArray) -> bool:
        """Read rows (n,) into `out` (n, …), False if another thread does or chunks are too large to keep."""
        if not self.fits or not self._lock.acquire(blocking=False):
            return False
        try:
            if not len(self._memory):
                self._allocate()
            capacity = self._capacity()
            flat = out.reshape(len(rows), self._columns)
            chunks, inside = np.divmod(rows, self._step)
            if self._read_alone(chunks, inside, flat):
                return True
            together = len(rows) if capacity >= self._chunks else capacity
            for start in range(0, len(rows), together):
                part = slice(start, start + together)
                places = self._slots(chunks[part], capacity) * self._step + inside[part]
                # mode "raise" would copy `out`
                np.take(self._rows, places, axis=0, out=flat[part], mode="clip")
        finally:
            self._lock.release()
        return True

    def _read_alone(self, chunks: Int64s, inside: Int64s, out: AnyArray) -> bool:
        # If most chunks are missing and few rows of each are wanted, rows are read without their chunks
        # a shared cache keeps whole chunks
        if self._single_rows is None or self._reader.shared is not None:
            return False
        missing = chunks[self._slot_of[chunks] < 0]
        if 2 * len(missing) < len(chunks) or len(missing) > MAX_SINGLE_ROWS * len(np.unique(missing)):
            return False
        order = np.argsort(chunks)
        rows = np.empty_like(out)
        if not self._single_rows.read(chunks[order], inside[order], rows):
            return False
        out[order] = rows
        return True

    def _allocate(self) -> None:
        slots = min(self._chunks, POOL_BYTES // self._chunk_bytes)
        self._memory = np.empty((slots, self._step * self._columns), self._reader.metadata.dtype)
        self._rows = self._memory.reshape(-1, self._columns)
        self._slot_of = np.full(self._chunks, -1, np.int32)
        self._chunk_in = np.full(slots, -1, np.int64)
        self._in_use = np.zeros(slots, np.bool_)
        _bytes_in_use[0] += self._array_bytes

    def _capacity(self) -> int:
        share = POOL_BYTES * self._array_bytes // max(self._array_bytes, _bytes_in_use[0])
        return min(len(self._memory), max(MIN_CHUNKS, share // self._chunk_bytes))

    def _slots(self, chunks: Int64s, capacity: int) -> Int64s:
        slots = self._slot_of[chunks]
        missing = slots < 0
        if missing.any():
            self._read(np.unique(chunks[missing]), slots[~missing], capacity)
            slots = self._slot_of[chunks]
        return slots.astype(np.int64)

    def _read(self, chunks: Int64s, in_use: AnyArray, capacity: int) -> None:
        # Slots that this call reads from are spared, of others the one filled longest ago goes first
        self._in_use[in_use] = True
        oldest = (self._next + np.arange(min(capacity, len(chunks) + len(in_use)))) % capacity
        free = oldest[~self._in_use[oldest]][: len(chunks)]
        self._in_use[in_use] = False
        self._next = (int(free[-1]) + 1) % capacity
        evicted = self._chunk_in[free]
        self._slot_of[evicted[evicted >= 0]] = -1
        # until the chunks are read, the slots hold nothing: reading may fail
        self._chunk_in[free] = -1
        numbers = (chunks * self._reader.row_stride).tolist()
        for _ in read_whole(self._reader, numbers, [self._memory[slot] for slot in free.tolist()]):
            pass
        self._chunk_in[free] = chunks
        self._slot_of[chunks] = free
