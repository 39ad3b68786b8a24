"""Split boxes, rows and ranges of rows into parts of chunks, and read these into an output.

A chunk that is a contiguous part of the output is decoded into it; of others, parts are copied.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.zarr3.cache import CHUNKS
from unistore.zarr3.chunks import ChunkReader
from unistore.zarr3.sharding import EMPTY

AxisIndices = slice | NDArray[np.int64]
"""Positions along one axis."""

Selection = tuple[tuple[AxisIndices, ...], tuple[AxisIndices, ...]]
"""Indices into a chunk, and into the output; one item per axis."""

AxisPieces = list[tuple[int, slice, slice]]
"""Along one axis: number of the chunk, positions in the chunk, positions in the output."""

Group = tuple[int, list[Selection]]
"""Along axis 0: number of the chunk, and what is read of it."""

Key = tuple[int, int]
"""A chunk in the cache: token of its reader, and its number."""

_WHOLE: dict[int, np.dtype[Any]] = {2: np.dtype(np.uint16), 4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}
"""By bytes of the last axis: dtype to copy each row as one number, since numpy would loop over every row."""


def axis_pieces(lo: int, hi: int, step: int) -> AxisPieces:
    """Cut ``lo:hi`` of one axis at multiples of `step`; the output starts at `lo`."""
    pieces = []
    for chunk in range(lo // step, -(-hi // step)):
        start = chunk * step
        low, high = max(lo, start), min(hi, start + step)
        pieces.append((chunk, slice(low - start, high - start), slice(low - lo, high - lo)))
    return pieces


def group_rows(rows: NDArray[np.int64], step: int) -> list[Group]:
    """Group rows (n,), output in the order given, by chunks of `step` rows; chunks come in rising order."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    chunk, inside = np.divmod(ordered, step)
    starts = _starts(chunk)
    numbers = chunk[starts[:-1]].tolist()
    return [
        (number, [((_part(inside[a:b]),), (_part(order[a:b]),))])
        for number, (a, b) in zip(numbers, pairwise(starts.tolist()), strict=True)
    ]


def group_ranges(ranges: Iterable[tuple[int, int, int]], step: int) -> list[Group]:
    """Group ranges (first row, the one behind the last, place in the output) by chunks of `step` rows."""
    pieces = []
    for low, high, start in ranges:
        row, place = low, start
        while row < high:
            chunk, inside = divmod(row, step)
            count = min(high - row, step - inside)
            pieces.append((chunk, inside, place, count))
            row, place = row + count, place + count
    pieces.sort()
    groups: list[Group] = []
    for chunk, inside, place, count in pieces:
        if not groups or groups[-1][0] != chunk:
            groups.append((chunk, []))
        groups[-1][1].append(((slice(inside, inside + count),), (slice(place, place + count),)))
    return groups


def _starts(ordered: NDArray[np.int64]) -> NDArray[Any]:
    """Start of each run of equal values in sorted values, then their count."""
    return np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1, [len(ordered)]])


def _part(positions: NDArray[np.int64]) -> AxisIndices:
    """Positions as a slice where they are consecutive."""
    first, last = int(positions[0]), int(positions[-1])
    count = len(positions)
    if last - first == count - 1 and (count < 3 or bool((positions[1:] - positions[:-1] == 1).all())):
        return slice(first, last + 1)
    return positions


def read_whole(
    reader: ChunkReader, numbers: list[int], targets: list[NDArray[Any]]
) -> Iterator[NDArray[Any]]:
    """Read whole chunks one by one, each into its target: a C-contiguous array of its size.

    Absent ones become fill.
    """
    located = reader.locate(numbers)
    if EMPTY not in located.offsets:
        yield from reader.read_into(located, targets)
        return
    present = [at for at, offset in enumerate(located.offsets) if offset != EMPTY]
    read = reader.read_into(located.select(present), [targets[at] for at in present])
    for target, offset in zip(targets, located.offsets, strict=True):
        if offset == EMPTY:
            target[...] = reader.metadata.fill_value
            yield target
        else:
            yield next(read)


def gather_chunk_rows(reader: ChunkReader, wanted: list[int], out: NDArray[Any]) -> None:
    """Read rows that are whole chunks, in any order, every chunk once, straight into `out` (rows, …)."""
    place_of = {row: place for place, row in enumerate(wanted)}
    again: dict[int, list[int]] = {}  # further places of a row
    if len(place_of) < len(wanted):
        for place, row in enumerate(wanted):
            if place_of[row] != place:
                again.setdefault(row, []).append(place)
    ordered = sorted(place_of)
    targets = list(out.reshape(len(out), -1))  # views; the rows of a plain vector would be scalars
    numbers = [row * reader.row_stride for row in ordered]
    read = read_whole(reader, numbers, [targets[place_of[row]] for row in ordered])
    for row, target in zip(ordered, read, strict=True):
        for place in again.get(row, ()):
            targets[place][:] = target  # while it is in the processor's cache


def gather(
    reader: ChunkReader, groups: Sequence[Group], trailing: Sequence[AxisPieces], out: NDArray[Any]
) -> None:
    """Read the outer product of chunks along all axes; every chunk is decoded once at most.

    `groups` are the chunks along axis 0, each with one or more places; `trailing` the pieces along each other
    axis; `out` is C-contiguous.
    """
    metadata = reader.metadata
    if metadata.chunk_shape[1:] == metadata.shape[1:] == out.shape[1:]:  # chunks of whole rows
        numbers = [chunk * reader.row_stride for chunk, _ in groups]
        wanted = [places for _, places in groups]
    else:
        axes = [[chunk for chunk, _ in groups], *([chunk for chunk, _, _ in pieces] for pieces in trailing)]
        numbers, wanted = reader.numbers(axes), _selections(groups, trailing)
    located = reader.locate(numbers)
    chunk_shape = metadata.chunk_shape
    outer = next((axis + 1 for axis, extent in enumerate(chunk_shape) if extent > 1), 0)
    straight = chunk_shape[outer:] == out.shape[outer:]  # else no chunk is contiguous in `out`
    keep = reader.shared is None and CHUNKS.keeps(metadata.chunk_bytes)
    room = CHUNKS.limit // 4  # bytes that one call keeps at most, however much it reads
    tasks: list[int] = []
    targets: list[NDArray[Any] | None] = []
    rest: list[tuple[list[Selection] | None, Key | None]] = []  # what to copy from a chunk; its key if kept
    for task, (number, places, offset) in enumerate(zip(numbers, wanted, located.offsets, strict=True)):
        if offset == EMPTY:
            for _, place in places:
                out[place] = metadata.fill_value
            continue
        target = _whole_chunk(places, out, chunk_shape) if straight and len(places) == 1 else None
        kept_as: Key | None = None
        if target is None and keep:
            key = reader.token, number
            if (chunk := CHUNKS.get(key)) is not None:
                _copy(chunk, places, out)
                continue
            if room > 0 and CHUNKS.missed_recently(key):
                room -= metadata.chunk_bytes
                kept_as = key
        tasks.append(task)
        targets.append(target)
        rest.append((places if target is None else None, kept_as))
    if len(tasks) < len(numbers):
        located = located.select(tasks)
    decoded = reader.decode(located, targets)
    for copied, kept_as in rest:
        chunk = next(decoded)
        if copied is not None:
            _copy(chunk, copied, out)
        if kept_as is not None:
            CHUNKS.put(kept_as, chunk)
        del chunk  # the next one is decoded into its memory


def _selections(groups: Sequence[Group], trailing: Sequence[AxisPieces]) -> list[list[Selection]]:
    """Places of every chunk, in the C order of `ChunkReader.locate`."""
    sources = itertools.product(*([piece[1] for piece in pieces] for pieces in trailing))
    targets = itertools.product(*([piece[2] for piece in pieces] for pieces in trailing))
    rest = list(zip(sources, targets, strict=True))
    return [
        [(first + source, place + target) for first, place in places]
        for _, places in groups
        for source, target in rest
    ]


def _whole_chunk(
    places: Sequence[Selection], out: NDArray[Any], chunk_shape: tuple[int, ...]
) -> NDArray[Any] | None:
    """The part of `out` that gets all of a chunk, in its order; None where only parts of it are needed."""
    source, place = places[0]
    first = source[0]
    if type(first) is not slice or first.stop - first.start != chunk_shape[0] or type(place[0]) is not slice:
        return None
    target: NDArray[Any] = out[place]
    return target if target.shape == chunk_shape and target.flags.c_contiguous else None


def _copy(chunk: NDArray[Any], places: Sequence[Selection], out: NDArray[Any]) -> None:
    for source, place in places:
        part = chunk[source]
        whole = _WHOLE.get(part.shape[-1] * part.itemsize) if part.ndim > 1 else None
        if whole is not None and type(place[0]) is slice:
            target = out[place]
            if target.strides[-1] == part.strides[-1] == part.itemsize:
                target.view(whole)[...] = part.view(whole)
                continue
        out[place] = part
