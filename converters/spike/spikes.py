"""Spikes of one frame, in an array or in a stream without a header, and voxels that came with them.

Arrays hold their top row first, a stream its bottom row (checked with a real recording: with the right bit
order and flip, the mean of its frames correlates with the scene at 0.97, unflipped below 0.15).

Everything here knows where values lie, and opens a file whenever it reads some. It can be pickled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import storable
from unistore.converters.plugin import Array, Opened
from unistore.converters.seam.formats import FileArray
from unistore.converters.spike.config import Config
from unistore.schemas.spike.fields import bin_edges, count_dtype, pack, row_bytes, voxelize

BLOCK = 8 << 20
"""Pixels that are read at a time, in whole time steps."""
LARGE = 64 << 20
"""Bytes of a recording above which it is not read whole to look at it."""
RAW = "bytes"
"""Name of the array of a file without a header."""
_SPIKES = ("spk",)
_VOXELS = ("voxel", "voxels", "spike_vox", "vox", "arr_0")
_CHANGED = "it changed during the conversion: run again"


class Extent(NamedTuple):
    """Size of a recording without padding: time steps, height and width in pixels."""

    length: int
    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.length} x {self.height} x {self.width}"


@dataclass(frozen=True, kw_only=True)
class Spikes(ABC):
    """Spikes of one frame.

    Attributes
    ----------
    array
        Where the values lie.
    extent
        Time steps, height and width.
    memory
        Bytes that `blocks` needs besides a few blocks.
    """

    array: FileArray
    extent: Extent
    memory: int = 0

    @property
    def name(self) -> str:
        """What messages call the file."""
        return self.array.file.name

    @property
    def is_large(self) -> bool:
        """Whether so much is read at once that it is not read only to look at it."""
        return self.memory > LARGE

    @abstractmethod
    def blocks(self, first: int = 0) -> Iterator[NDArray[np.uint8]]:
        """Read the spikes from a time step on as packed bits, row 0 = top, in time order. Thread-safe.

        Yields
        ------
        ndarray, (t, H, ⌈W/8⌉) u1
            Least significant bit first, padding bits 0. Together all further steps, each of about `BLOCK`
            pixels.

        Raises
        ------
        InputError
            If the file cannot be read, ends early, or holds other values than 0 and 1.
        """

    def read(self, out: NDArray[np.uint8], first: int = 0) -> None:
        """Fill `out`, (t, H, ⌈W/8⌉), with t time steps from `first` on; it may be part of an array."""
        start = 0
        for block in self.blocks(first):
            steps = min(len(block), len(out) - start)
            out[start : start + steps] = block[:steps]
            start += steps
            if start == len(out):
                break

    def counted(self, bins: int) -> NDArray[Any]:
        """Count the spikes of each bin of time, as `voxelize` does, block by block."""
        length, height, width = self.extent
        counts = np.zeros((bins, height, width), count_dtype(length, bins))
        self.count({bins: counts})
        return counts

    def count(self, grids: Mapping[int, NDArray[Any]]) -> None:
        """Add the spikes of each bin of time to grids (bins, H, W) of zeros, by their numbers of bins."""
        length, _, width = self.extent
        start = 0
        for block in self.blocks():
            stop = start + len(block)
            for bins, grid in grids.items():
                inside = np.clip(bin_edges(length, bins), start, stop) - start
                for number in np.flatnonzero(np.diff(inside)).tolist():
                    steps = block[inside[number] : inside[number + 1]]
                    grid[number] += voxelize(steps, width, 1)[0]
            start = stop


@dataclass(frozen=True, kw_only=True)
class PixelSpikes(Spikes):
    """Spikes as an array of pixels (T, H, W), top row first."""

    def blocks(self, first: int = 0) -> Iterator[NDArray[np.uint8]]:
        """Pack the pixels."""
        with self.array.open() as pixels:
            if pixels.shape != self.extent:
                now = " x ".join(map(str, pixels.shape))
                message = f"is {now} now, and was {self.extent} when it was scanned"
                raise self.array.file.problem(message, _CHANGED, "changed")
            for start in range(first, self.extent.length, self._steps):
                yield self.block(pixels, start)

    @property
    def _steps(self) -> int:
        """Time steps that are read at a time."""
        return max(1, BLOCK // (self.extent.height * self.extent.width))

    def block(self, array: Array, start: int) -> NDArray[np.uint8]:
        """Pack the block that begins with a time step."""
        pixels = array[start : start + self._steps]
        largest = int(pixels.max(initial=0))
        if largest > 1:
            message = f"{_called(self.array)} holds values up to {largest}, expected spikes of 0 and 1"
            cure = "packed bits? save them as a .dat file; counts of spikes? they belong into spike_vox/"
            raise self.array.file.problem(message, cure, "values")
        return pack(pixels)


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Spikes without a header; layout and resolution are found from all streams of a conversion."""

    array: FileArray
    size: int
    """Bytes of the stream."""
    config: Config | None = None
    """What is said of it beside it."""

    @property
    def name(self) -> str:
        """What messages call the file."""
        return self.array.file.name


@dataclass(frozen=True, kw_only=True)
class StreamSpikes(Spikes):
    """Spikes of a stream of known layout and resolution."""

    layout: str
    """``"packed"``, ``"stream"`` or ``"bytes"``; see `unistore.converters.spike.streams`."""
    flip: bool
    """Whether it holds its bottom row first."""

    def blocks(self, first: int = 0) -> Iterator[NDArray[np.uint8]]:
        """Read whole time steps."""
        length, height, width = self.extent
        step_bits = bits_of_step(self.layout, height, width)
        steps = max(1, BLOCK // (height * width))
        before = 0
        if self.layout == "stream":  # every block begins at a whole byte
            steps = -(-steps // 8) * 8
            before = first % 8
        with self.array.open() as content:
            for start in range(first - before, length, steps):
                count = min(steps, length - start)
                first_byte = start * step_bits // 8
                byte_count = -(-count * step_bits // 8)
                raw = content[first_byte : first_byte + byte_count]
                if raw.size < byte_count:
                    message = f"ended in frame {start + raw.size * 8 // step_bits} of {length}"
                    cure = f"{_CHANGED} when it is complete"
                    raise self.array.file.problem(message, cure, "truncated")
                rows = self._rows(raw, count)[max(0, first - start) :]
                yield rows[:, ::-1] if self.flip else rows

    def _rows(self, raw: NDArray[np.uint8], steps: int) -> NDArray[np.uint8]:
        """Packed rows (steps, H, ⌈W/8⌉) in file order."""
        _, height, width = self.extent
        if self.layout == "packed":
            return raw.reshape(steps, height, row_bytes(width))
        if self.layout == "stream":
            pixels = np.unpackbits(raw, count=steps * height * width, bitorder="little")
            return pack(pixels.reshape(steps, height, width))
        largest = raw.max(initial=0)
        if largest > 1:
            message = f"holds a byte of {largest}, expected 0 or 1 in one byte a pixel"
            raise self.array.file.problem(message, "take --layout packed or auto", "values")
        return pack(raw.reshape(steps, height, width))


def bits_of_step(layout: str, height: int, width: int) -> int:
    """Bits of one time step of a stream."""
    if layout == "packed":
        return height * row_bytes(width) * 8
    return height * width * (8 if layout == "bytes" else 1)


@dataclass(frozen=True, kw_only=True)
class Voxels:
    """A voxel grid (B, H, W) in a file.

    Attributes
    ----------
    array
        Where the values lie.
    bins, height, width
        Its shape.
    dtype
        As in the file, byte order included.
    memory
        Bytes that reading it takes besides its values.
    """

    array: FileArray
    bins: int
    height: int
    width: int
    dtype: np.dtype[Any]
    memory: int = 0

    @property
    def name(self) -> str:
        """What messages call the file."""
        return self.array.file.name

    def values(self) -> NDArray[Any]:
        """Read the grid."""
        with self.array.open() as grid:
            return grid[:]


def spikes_in(opened: Opened, open_again: FileArray) -> Spikes | Stream:
    """The spikes of an open file; the key of `open_again` is found here.

    Raises
    ------
    InputError
        If it holds no array of spikes, or another shape or dtype.
    """
    if RAW in opened.arrays:
        return Stream(array=open_again._replace(key=RAW), size=len(opened.arrays[RAW]))
    where = _located(opened, open_again, _SPIKES)
    array = opened.arrays[where.key]
    extent = Extent(*_three_axes(array, where))
    if array.dtype not in (np.dtype(np.uint8), np.dtype(np.bool_)):
        message = f"{_called(where)} has dtype {array.dtype}, expected uint8 or bool with values 0 and 1"
        raise where.file.problem(message, "save it with .astype(np.uint8)", "dtype")
    spikes = PixelSpikes(array=where, extent=extent, memory=opened.memory)
    if not spikes.is_large:
        spikes.block(array, 0)
    return spikes


def voxels_in(opened: Opened, open_again: FileArray) -> Voxels:
    """The voxels of an open file; raises `InputError`."""
    where = _located(opened, open_again, _VOXELS)
    array = opened.arrays[where.key]
    bins, height, width = _three_axes(array, where)
    if not storable(array.dtype) or array.dtype.kind == "b":
        message = f"has dtype {array.dtype}, expected integers or floats"
        raise where.file.problem(message, "save numbers", "dtype")
    return Voxels(array=where, bins=bins, height=height, width=width, dtype=array.dtype, memory=opened.memory)


def _located(opened: Opened, open_again: FileArray, names: tuple[str, ...]) -> FileArray:
    """Choose the first of some names in a file, or its only array."""
    candidates = [name for name in names if name in opened.arrays]
    if not candidates and len(opened.arrays) == 1:
        candidates = list(opened.arrays)
    if not candidates:
        message = f"holds {', '.join(opened.arrays) or 'no array'}, expected {' or '.join(names)}"
        raise open_again.file.problem(message, "save it again under that name", "missing")
    return open_again._replace(key=candidates[0])


def _called(array: FileArray) -> str:
    """What messages call an array: those of .npy files have no name."""
    return "the array" if array.format.name == "npy" else array.key


def _three_axes(array: Array, where: FileArray) -> tuple[int, ...]:
    if len(array.shape) != 3 or 0 in array.shape:
        message = f"{_called(where)} has shape {array.shape}, expected three axes of at least 1"
        raise where.file.problem(message, "save it as (time or bin, height, width)", "shape")
    return array.shape
