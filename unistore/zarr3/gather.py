"""Bring chunks into an output: straight where a chunk is a contiguous part of it, else by pieces."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.zarr3.cache import CHUNKS
from unistore.zarr3.chunks import ChunkReader
from unistore.zarr3.pieces import AxisPieces, Group
from unistore.zarr3.sharding import EMPTY

__all__ = ["gather", "gather_chunk_rows", "gather_scalar"]

Index = tuple[Any, ...]
Place = tuple[Index, Index]
"""Positions in a chunk, and where they go in the output."""

_WHOLE: dict[int, np.dtype[Any]] = {2: np.dtype(np.uint16), 4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}
"""Numbers that the last axis is copied as where it has so many bytes: numpy would loop over each row."""


def gather_chunk_rows(reader: ChunkReader, wanted: list[int], out: NDArray[Any]) -> None:
    """Read rows that are whole chunks, in any order, every chunk once, straight into `out` (rows, …)."""
    place_of = {row: place for place, row in enumerate(wanted)}
    ordered = sorted(place_of)
    located = reader.locate([row * reader.row_stride for row in ordered])
    places = [place_of[row] for row in ordered]
    if EMPTY in located.offsets:
        present = [at for at, offset in enumerate(located.offsets) if offset != EMPTY]
        out[[places[at] for at, offset in enumerate(located.offsets) if offset == EMPTY]] = (
            reader.metadata.fill_value
        )
        located, places = located.pick(present), [places[at] for at in present]
    targets = list(out.reshape(len(out), -1))  # views; the rows of a plain vector would be scalars
    reader.fill(located, [targets[place] for place in places])
    if len(place_of) < len(wanted):
        for place, row in enumerate(wanted):
            if place_of[row] != place:
                targets[place][:] = targets[place_of[row]]


def gather_scalar(reader: ChunkReader, out: NDArray[Any]) -> None:
    """Read the one element of an array without axes."""
    located = reader.locate([0])
    out[()] = reader.metadata.fill_value
    if EMPTY not in located.offsets:
        for chunk in reader.decode(located, [None]):
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
    if metadata.chunk_shape[1:] == metadata.shape[1:] == out.shape[1:]:  # chunks of whole rows
        numbers, trailing = [chunk * reader.row_stride for chunk, _ in groups], ()
    else:
        axes = [[chunk for chunk, _ in groups], *([chunk for chunk, _, _ in pieces] for pieces in trailing)]
        numbers = reader.numbers(axes)
    located = reader.locate(numbers)
    keep = CHUNKS.keeps(metadata.chunk_bytes)
    tasks: list[int] = []
    targets: list[NDArray[Any] | None] = []
    rest: list[tuple[list[Place], bool]] = []  # what is copied out of each chunk, and whether to keep it
    for task, places in enumerate(_places(groups, trailing)):
        if located.offsets[task] == EMPTY:
            for _, place in places:
                out[place] = metadata.fill_value
            continue
        target = _whole_chunk(places, out, metadata.chunk_shape)
        kept = keep and target is None
        if kept and (chunk := CHUNKS.get((reader.token, numbers[task]))) is not None:
            _copy(chunk, places, out)
            continue
        if target is not None and not (metadata.codecs.direct and target.flags.c_contiguous):
            target = None
        tasks.append(task)
        targets.append(target)
        rest.append(([] if target is not None else places, kept))
    if len(tasks) < len(numbers):
        located = located.pick(tasks)
    decoded = reader.decode(located, targets, fresh=keep)
    for number, chunk, (places, kept) in zip(located.numbers, decoded, rest, strict=True):
        _copy(chunk, places, out)
        if kept:
            CHUNKS.put((reader.token, number), chunk)


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
        part = chunk[source]
        whole = _WHOLE.get(part.shape[-1] * part.itemsize) if part.ndim > 1 else None
        if whole is not None and type(place[0]) is slice:
            target = out[place]
            if target.strides[-1] == part.strides[-1] == part.itemsize:
                target.view(whole)[...] = part.view(whole)
                continue
        out[place] = part
