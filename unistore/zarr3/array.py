"""Read one array: boxes, rows and ranges of rows, decoded straight into the caller's memory where that is possible."""

from __future__ import annotations

import itertools
import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.errors import StoreError
from unistore.zarr3.cache import CHUNKS
from unistore.zarr3.chunks import ChunkReader, Located
from unistore.zarr3.metadata import ArrayMetadata
from unistore.zarr3.pieces import AxisPieces, Group, Part, axis_pieces, groups_of_ranges, groups_of_rows
from unistore.zarr3.sharding import EMPTY
from unistore.zarr3.storage import Storage

__all__ = ["Array"]

Place = tuple[tuple[Part, ...], tuple[Part, ...]]
"""Positions in a chunk and in the output."""

_tokens = itertools.count()


class Array:
    """An array of a store, for reading. Made by `Array.open`; holds no handle until it is read.

    Safe with threads and after a fork. Pickles as its storage and path.

    Attributes
    ----------
    path
        Path in the storage: ``"points/xyz"``; ``""`` for an array at the root.
    metadata
        Its ``zarr.json``.
    shape, dtype, chunk_shape, shard_shape, attributes
        From `metadata`.
    """

    def __init__(self, storage: Storage, path: str, metadata: ArrayMetadata, *, sealed: bool = False) -> None:
        self.storage = storage
        self.path = path
        self.metadata = metadata
        self.sealed = sealed
        self.shape = metadata.shape
        self.dtype = metadata.dtype
        self.chunk_shape = metadata.chunk_shape
        self.shard_shape = metadata.shard_shape
        self.attributes: Mapping[str, Any] = metadata.attributes
        self._token = next(_tokens)
        self._reader = ChunkReader(storage, path, metadata, sealed=sealed)
        whole_row = bool(self.shape) and self.chunk_shape[0] == 1 and self.chunk_shape[1:] == self.shape[1:]
        self._row_is_chunk = whole_row and metadata.index is not None and metadata.codecs.direct

    @classmethod
    def open(cls, storage: Storage, path: str, *, sealed: bool = False) -> Array:
        """Read the metadata of an array.

        Parameters
        ----------
        storage
            Where the store lies.
        path
            Path of the array in it.
        sealed
            Whether every shard must exist, as in a sealed store: a missing one is then an error, not fill.

        Raises
        ------
        StoreError
            If there is no array at `path`, or its metadata is not valid.
        UnsupportedError
            If it uses a feature of Zarr that the engine does not implement; the message names it.
        """
        key = f"{path}/zarr.json" if path else "zarr.json"
        where = f"{storage!r}: array {path!r}"
        try:
            document = json.loads(storage.get(key))
        except ValueError as error:
            msg = f"{where}: zarr.json is not readable as JSON ({error})"
            raise StoreError(msg) from error
        if not isinstance(document, dict):
            msg = f"{where}: zarr.json holds no object"
            raise StoreError(msg)
        return cls(storage, path, ArrayMetadata.from_json(document, where), sealed=sealed)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.storage, self.path, self.sealed)

    def __repr__(self) -> str:
        return f"Array({self.path!r}, shape={self.shape}, dtype={self.dtype.name}, chunks={self.chunk_shape})"

    def __len__(self) -> int:
        if not self.shape:
            msg = f"array {self.path!r} has no axis"
            raise TypeError(msg)
        return self.shape[0]

    def read_box(self, lo: Sequence[int], hi: Sequence[int], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read the box ``lo <= i < hi``.

        Parameters
        ----------
        lo, hi
            One number an axis, ``0 <= lo <= hi <= shape``.
        out
            C-contiguous array of shape ``hi - lo`` and the array's dtype to read into; made where None.

        Returns
        -------
        NDArray
            `out`.

        Raises
        ------
        IndexError
            If the box leaves the array.
        CorruptionError
            If stored bytes contradict their checksum, index or frame; names array, shard and chunk.
        """
        low, high = tuple(map(operator.index, lo)), tuple(map(operator.index, hi))
        inside = len(low) == len(high) == len(self.shape) and all(
            0 <= a <= b <= extent for a, b, extent in zip(low, high, self.shape, strict=True)
        )
        if not inside:
            msg = f"array {self.path!r} of shape {self.shape} has no box from {low} to {high}"
            raise IndexError(msg)
        out = self._output(out, tuple(b - a for a, b in zip(low, high, strict=True)))
        if out.size:
            axes = [axis_pieces(a, b, step) for a, b, step in zip(low, high, self.chunk_shape, strict=True)]
            groups: list[Group] = (
                [(chunk, [(src, dst)]) for chunk, src, dst in axes[0]] if axes else [(0, [])]
            )
            self._gather(groups, axes[1:], out)
        return out

    def read_rows(self, rows: NDArray[Any] | Sequence[int], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read whole rows of axis 0, in the order given, duplicates included.

        Parameters
        ----------
        rows
            (n,) numbers ``0 <= row < shape[0]``.
        out
            C-contiguous (n, *shape[1:]) array of the array's dtype to read into; made where None.

        Returns
        -------
        NDArray
            `out`.

        Raises
        ------
        IndexError
            If a row does not exist.
        CorruptionError
            If stored bytes contradict their checksum, index or frame; names array, shard and chunk.
        """
        numbers = self._row_numbers(rows, "rows")
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= self.shape[0]):
            wrong = int(numbers[(numbers < 0) | (numbers >= self.shape[0])][0])
            msg = f"array {self.path!r} of {self.shape[0]} rows has no row {wrong}"
            raise IndexError(msg)
        out = self._output(out, (len(numbers), *self.shape[1:]))
        if out.size:
            if self._row_is_chunk:
                self._read_chunk_rows(numbers, out)
            else:
                self._gather(groups_of_rows(numbers, self.chunk_shape[0]), self._whole_row(), out)
        return out

    def read_ranges(
        self,
        lo: NDArray[Any] | Sequence[int],
        hi: NDArray[Any] | Sequence[int],
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Read the rows ``lo[i] <= row < hi[i]`` of axis 0 for every i, one range behind the other.

        Parameters
        ----------
        lo, hi
            (n,) numbers, ``0 <= lo <= hi <= shape[0]``; ranges may overlap and come in any order.
        out
            C-contiguous (sum of ``hi - lo``, *shape[1:]) array of the array's dtype to read into; made where None.

        Returns
        -------
        NDArray
            `out`.

        Raises
        ------
        IndexError
            If a range leaves the array.
        CorruptionError
            If stored bytes contradict their checksum, index or frame; names array, shard and chunk.
        """
        low, high = self._row_numbers(lo, "lo"), self._row_numbers(hi, "hi")
        if len(low) != len(high):
            msg = f"array {self.path!r}: {len(low)} starts and {len(high)} ends of ranges"
            raise IndexError(msg)
        if len(low):
            wrong = (low < 0) | (low > high) | (high > self.shape[0])
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                msg = f"array {self.path!r} of {self.shape[0]} rows has no range from {low[at]} to {high[at]}"
                raise IndexError(msg)
        out = self._output(out, (int((high - low).sum()), *self.shape[1:]))
        if out.size:
            self._gather(groups_of_ranges(low, high, self.chunk_shape[0]), self._whole_row(), out)
        return out

    def _row_numbers(self, rows: NDArray[Any] | Sequence[int], what: str) -> NDArray[np.int64]:
        if not self.shape:
            msg = f"array {self.path!r} has no axis to take rows of"
            raise IndexError(msg)
        numbers = np.asarray(rows)
        if numbers.ndim != 1 or (numbers.dtype.kind not in "iu" and numbers.size):
            msg = f"array {self.path!r}: {what} must be one axis of integers, found {numbers.dtype} {numbers.shape}"
            raise IndexError(msg)
        return numbers.astype(np.int64, copy=False)

    def _output(self, out: NDArray[Any] | None, shape: tuple[int, ...]) -> NDArray[Any]:
        if out is None:
            return np.empty(shape, self.dtype)
        fits = (
            out.shape == shape and out.dtype == self.dtype and out.flags.c_contiguous and out.flags.writeable
        )
        if not fits:
            msg = (
                f"array {self.path!r}: out must be writeable, C-contiguous, {self.dtype} {shape}; "
                f"found {out.dtype} {out.shape}"
            )
            raise ValueError(msg)
        return out

    def _whole_row(self) -> list[AxisPieces]:
        return [
            axis_pieces(0, extent, step)
            for extent, step in zip(self.shape[1:], self.chunk_shape[1:], strict=True)
        ]

    def _read_chunk_rows(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Rows that are whole chunks: every chunk is decoded once, straight into `out`."""
        order = np.argsort(rows, kind="stable")
        numbers = rows[order]
        again = numbers[1:] == numbers[:-1]
        if again.any():
            first = np.concatenate([[True], ~again])
            self._read_chunk_rows_once(numbers[first], order[first], out)
            decoded = order[first][
                np.cumsum(first) - 1
            ]  # for each row, in rising order: where it was decoded to
            out[order[~first]] = out[decoded[~first]]
        else:
            self._read_chunk_rows_once(numbers, order, out)

    def _read_chunk_rows_once(
        self, rows: NDArray[np.int64], places: NDArray[np.int64], out: NDArray[Any]
    ) -> None:
        located = self._reader.locate_rows(rows)
        if located.offset.min() == EMPTY:
            absent = located.offset == EMPTY
            out[places[absent]] = self.metadata.fill_value
            located, places = located[~absent], places[~absent]
        targets = list(out)
        self._reader.decode_into(located, [targets[place] for place in places.tolist()])

    def _gather(self, groups: Sequence[Group], trailing: Sequence[AxisPieces], out: NDArray[Any]) -> None:
        """Read chunks of axis 0 (`groups`) by pieces of the other axes; every chunk is decoded at most once."""
        axes = [[chunk for chunk, _ in groups], *([chunk for chunk, _, _ in pieces] for pieces in trailing)]
        located = self._reader.locate(axes[: len(self.shape)])
        offsets = located.offset.tolist()
        direct, targets = _Picked(), []
        scratch, kept = _Picked(), _Picked()
        keep = CHUNKS.keeps(self.metadata.chunk_bytes)
        for task, ((_, pairs), *rest) in enumerate(itertools.product(groups, *trailing)):
            src = tuple(piece[1] for piece in rest)
            dst = tuple(piece[2] for piece in rest)
            places = [((a, *src), (b, *dst)) for a, b in pairs] if self.shape else [((), ())]
            target = _whole_chunk(places, out, self.chunk_shape)
            if offsets[task] == EMPTY:
                for _, place in places:
                    out[place] = self.metadata.fill_value
            elif target is not None and target.flags.c_contiguous and self.metadata.codecs.direct:
                direct.add(task, places)
                targets.append(target)
            elif target is not None or not keep:
                scratch.add(task, places)
            elif not self._copy_cached(located, task, places, out):
                kept.add(task, places)
        self._reader.decode_into(located[direct.tasks], targets)
        for fresh, picked in ((False, scratch), (True, kept)):
            decoded = self._reader.decode_each(located[picked.tasks], fresh=fresh)
            for task, places, chunk in zip(picked.tasks, picked.places, decoded, strict=True):
                if fresh:
                    CHUNKS.put((self._token, int(located.shard[task]), int(located.chunk[task])), chunk)
                for source, place in places:
                    out[place] = chunk[source]

    def _copy_cached(self, located: Located, task: int, places: list[Place], out: NDArray[Any]) -> bool:
        chunk = CHUNKS.get((self._token, int(located.shard[task]), int(located.chunk[task])))
        if chunk is None:
            return False
        for source, place in places:
            out[place] = chunk[source]
        return True


class _Picked:
    """Tasks of one gathering that are read in the same way."""

    __slots__ = ("places", "tasks")

    def __init__(self) -> None:
        self.tasks: list[int] = []
        self.places: list[list[Place]] = []

    def add(self, task: int, places: list[Place]) -> None:
        self.tasks.append(task)
        self.places.append(places)


def _whole_chunk(places: list[Place], out: NDArray[Any], chunk_shape: tuple[int, ...]) -> NDArray[Any] | None:
    """The part of `out` that gets all of a chunk, in its order; None where only parts of it are needed."""
    if len(places) > 1:
        return None
    source, place = places[0]
    if source and not (isinstance(source[0], slice) and isinstance(place[0], slice)):
        return None
    target = out[(*place, ...)]
    return target if target.shape == chunk_shape else None


def _reopen(storage: Storage, path: str, sealed: bool) -> Array:  # noqa: FBT001 - positional in a pickle
    return Array.open(storage, path, sealed=sealed)
