"""Columns of one cloud while it is derived: arrays in memory or, of more than a step of rows, memory maps."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.errors import ConversionError, InputError

STEP = 1 << 19  # points that are processed at a time

Ints = NDArray[np.int64]
Integers = NDArray[np.integer[Any]]


class Workspace:
    """Creates and sorts temporary columns, in memory if there is no folder."""

    def __init__(self, folder: Path | None) -> None:
        self.step = STEP
        # Folder for the files of columns of more than a step of rows. None: all columns are in memory.
        self._folder = folder

    def steps(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Divide rows ``start:stop`` into ranges of at most a step."""
        for lo in range(start, stop, self.step):
            yield lo, min(lo + self.step, stop)

    def column(self, dtype: str, rows: int, row_shape: tuple[int, ...] = ()) -> NDArray[Any]:
        """Create a column of undefined values."""
        # Its file has no name and goes with the column, or with the process.
        shape = (rows, *row_shape)
        if self._folder is None or rows <= self.step:
            return np.empty(shape, dtype)
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                # Without room on the disk, writing to the map would end the process by a signal.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, np.dtype(dtype).itemsize * prod(shape))
                return np.memmap(file, dtype, "r+", shape=shape).view(np.ndarray)
        except OSError as error:
            msg = (
                f"{self._folder}: points cannot be sorted there ({error.strerror or error}); free space "
                "(twice that of the file, uncompressed) or give more --memory, then run the same command"
            )
            raise ConversionError(msg) from error

    def fill(
        self,
        dtype: str,
        rows: int,
        values: Callable[[int, int], NDArray[Any]],
        row_shape: tuple[int, ...] = (),
    ) -> NDArray[Any]:
        """Create a column of what `values` gives for each range of rows."""
        column = self.column(dtype, rows, row_shape)
        for lo, hi in self.steps(0, rows):
            column[lo:hi] = values(lo, hi)
        return column

    def where(self, rows: int, is_wanted: Callable[[int, int], NDArray[np.bool_]]) -> Integers:
        """Return the rows for which a condition holds, ascending."""
        column = self.column(index_dtype(rows), rows)
        end = 0
        for lo, hi in self.steps(0, rows):
            wanted_rows = np.flatnonzero(is_wanted(lo, hi)) + lo
            column[end : end + len(wanted_rows)] = wanted_rows
            end += len(wanted_rows)
        return column[:end]

    def sort(self, keys: Sequence[Integers]) -> Iterator[tuple[Ints, NDArray[np.bool_]]]:
        """Yield rows sorted by several keys, in steps, and which of them are the first of their keys."""
        # Keys count from 0, and rows of equal keys keep their order. More than 2^31 rows are refused: their
        # numbers would not fit beside their keys.
        rows = len(keys[0])
        if rows > 1 << 31:
            msg = f"{rows} points of one cloud or segment are more than can be sorted: divide the file"
            raise InputError(msg)
        bits = (rows - 1).bit_length()
        packed = self.column("<i8", rows)
        packed[:] = 0
        extent = 1
        for key in keys:
            key_extent = int(key.max(initial=0)) + 1
            if extent * key_extent >= 1 << 63:
                self._rank(packed)
                extent = rows
            packed *= key_extent
            packed += key
            extent *= key_extent
        if extent << bits >= 1 << 63:
            self._rank(packed)
        # With their rows in the low bits, keys are sorted in place, several times faster than by argsort.
        packed <<= bits
        for lo, hi in self.steps(0, rows):
            packed[lo:hi] |= np.arange(lo, hi)
        packed.sort()
        last = np.array([-1])
        for lo, hi in self.steps(0, rows):
            sorted_keys = packed[lo:hi] >> bits
            yield packed[lo:hi] & ((1 << bits) - 1), np.diff(sorted_keys, prepend=last) != 0
            last = sorted_keys[-1:]

    def _rank(self, values: Ints) -> None:
        """Replace values by numbers of the same order below their count."""
        ordered = self.fill("<i8", len(values), lambda lo, hi: values[lo:hi])
        ordered.sort()
        for lo, hi in self.steps(0, len(values)):
            values[lo:hi] = np.searchsorted(ordered, values[lo:hi])


def index_dtype(rows: int) -> str:
    """Return the dtype for indices of `rows` rows."""
    return "<u4" if rows <= 1 << 32 else "<i8"
