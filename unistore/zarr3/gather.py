"""Bring chunks into an output: straight where a chunk is a contiguous part of it, else by pieces."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.zarr3.cache import CHUNKS
from unistore.zarr3.chunks import ChunkReader, Located
from unistore.zarr3.pieces import AxisPieces, Group
from unistore.zarr3.sharding import EMPTY

__all__ = ["gather", "gather_chunk_rows", "gather_scalar"]

Index = tuple[Any, ...]
Place = tuple[Index, Index]
"""Positions in a chunk, and where they go in the output."""


def gather_chunk_rows(reader: ChunkReader, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
    """Read rows (n,) that are whole chunks, in any order, every chunk once, straight into `out` (n, …)."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    again = ordered[1:] == ordered[:-1]
    if not again.any():
        _decode_rows(reader, ordered, order, out)
        return
    first = np.concatenate([[True], ~again])
    _decode_rows(reader, ordered[first], order[first], out)
    decoded = order[first][np.cumsum(first) - 1]  # place of each ordered row's first appearance
    out[order[~first]] = out[decoded[~first]]


def _decode_rows(
    reader: ChunkReader, rows: NDArray[np.int64], places: NDArray[np.int64], out: NDArray[Any]
) -> None:
    located = reader.locate_rows(rows)
    if located.offset.min() == EMPTY:
        absent = located.offset == EMPTY
        out[places[absent]] = reader.metadata.fill_value
        located, places = located[~absent], places[~absent]
    targets = list(out.reshape(len(out), -1))  # views; the rows of a plain vector would be scalars
    reader.decode_into(located, [targets[place] for place in places.tolist()])


def gather_scalar(reader: ChunkReader, out: NDArray[Any]) -> None:
    """Read the one element of an array without axes."""
    located = reader.locate([])
    out[()] = reader.metadata.fill_value
    for chunk in reader.decode_each(located[located.offset != EMPTY], fresh=False):
        out[()] = chunk


def gather(
    reader: ChunkReader, groups: Sequence[Group], trailing: Sequence[AxisPieces], out: NDArray[Any]
) -> None:
    """Read the outer product of chunks along all axes; every chunk is decoded once at most.

    Parameters
    ----------
    reader
        Of the array.
    groups
        Chunks along axis 0, each with one or more pairs of positions.
    trailing
        Pieces along each of the other axes.
    out
        C-contiguous output.
    """
    metadata = reader.metadata
    numbers = [[chunk for chunk, _ in groups], *([chunk for chunk, _, _ in pieces] for pieces in trailing)]
    located = reader.locate(numbers)
    keep = CHUNKS.keeps(metadata.chunk_bytes)
    targets: list[NDArray[Any]] = []
    direct, scratch, kept = _Picked(), _Picked(), _Picked()
    for task, (absent, places) in enumerate(
        zip((located.offset == EMPTY).tolist(), _places(groups, trailing), strict=True)
    ):
        if absent:
            for _, place in places:
                out[place] = metadata.fill_value
            continue
        target = _whole_chunk(places, out, metadata.chunk_shape)
        if target is not None and target.flags.c_contiguous and metadata.codecs.direct:
            targets.append(target)
            direct.add(task, places)
        elif not keep or target is not None:
            scratch.add(task, places)
        elif (chunk := CHUNKS.get(_key(reader, located, task))) is not None:
            _copy(chunk, places, out)
        else:
            kept.add(task, places)
    reader.decode_into(located[direct.tasks], targets)
    decoded = reader.decode_each(located[scratch.tasks], fresh=False)
    for chunk, places in zip(decoded, scratch.places, strict=True):
        _copy(chunk, places, out)
    decoded = reader.decode_each(located[kept.tasks], fresh=True)
    for chunk, places, task in zip(decoded, kept.places, kept.tasks, strict=True):
        _copy(chunk, places, out)
        CHUNKS.put(_key(reader, located, task), chunk)


class _Picked:
    """Tasks of one gathering that are read in the same way."""

    __slots__ = ("places", "tasks")

    def __init__(self) -> None:
        self.tasks: list[int] = []
        self.places: list[list[Place]] = []

    def add(self, task: int, places: list[Place]) -> None:
        self.tasks.append(task)
        self.places.append(places)


def _places(groups: Sequence[Group], trailing: Sequence[AxisPieces]) -> Iterator[list[Place]]:
    """Places of every chunk, in the C order of `ChunkReader.locate`."""
    sources = itertools.product(*([piece[1] for piece in pieces] for pieces in trailing))
    targets = itertools.product(*([piece[2] for piece in pieces] for pieces in trailing))
    rest = list(zip(sources, targets, strict=True))
    for _, pairs in groups:
        for source, target in rest:
            yield [((a, *source), (b, *target)) for a, b in pairs]


def _whole_chunk(places: list[Place], out: NDArray[Any], chunk_shape: tuple[int, ...]) -> NDArray[Any] | None:
    """The part of `out` that gets all of a chunk, in its order; None where only parts of it are needed."""
    if len(places) > 1:
        return None
    source, place = places[0]
    if not (isinstance(source[0], slice) and isinstance(place[0], slice)):
        return None
    target: NDArray[Any] = out[place]
    return target if target.shape == chunk_shape else None


def _copy(chunk: NDArray[Any], places: list[Place], out: NDArray[Any]) -> None:
    for source, place in places:
        out[place] = chunk[source]


def _key(reader: ChunkReader, located: Located, task: int) -> tuple[int, int, int]:
    return reader.token, int(located.shard[task]), int(located.chunk[task])
