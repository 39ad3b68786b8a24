"""Interface of the formats of spike files: how to recognise, open and read them.

A format is one module of `unistore.converters.spike.layouts` with a `Format`. Its `open` returns a
`FrameSource` or, for files without a header, a `StreamSource`, which becomes a `ShapedStream` when layout and
resolution are known. The rest of the family uses these alone.

Arrays hold their top row first, a ``.dat`` stream its bottom row (checked with a real recording: with the
right bit order and flip, the mean of its frames correlates with the scene at 0.97, unflipped below 0.15).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.libraries import Open, open_with_library
from unistore.converters.scan import Verdict
from unistore.errors import InputError, Problem
from unistore.schemas.spike.fields import bin_edges, count_dtype, pack, row_bytes, voxelize

if TYPE_CHECKING:
    from unistore.converters.common.exported import Form


ReadArray = Callable[[Path, str, str], NDArray[Any]]
"""``read(path, location, key)`` returns a whole array, memory-mapped if possible."""


class Content(Protocol):
    """Bytes of a stream, read when they are sliced: an array, or what reads a file."""

    def __getitem__(self, span: slice, /) -> NDArray[np.uint8]:
        """Bytes of a span, fewer only at the end; raises `InputError` if they cannot be read."""
        ...


BLOCK = 8 << 20
"""Pixels that are read at a time, in whole time steps."""
LARGE = 64 << 20
"""Bytes of a recording above which it is not read whole to look at it."""


class Extent(NamedTuple):
    """Size of a recording without padding: time steps, height and width in pixels."""

    length: int
    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.length} x {self.height} x {self.width}"


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file of which only a header has been read; it is not kept open, and can be pickled and compared.

    Attributes
    ----------
    path
        The file.
    location
        What messages call it.
    others
        Names of its other arrays, which are not stored.
    """

    path: Path
    location: str
    others: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FrameSource(SourceFile, ABC):
    """Spikes of one frame in a file.

    Attributes
    ----------
    extent
        Time steps, height and width.
    key
        Name of its array in the file, if arrays have names.
    memory
        Bytes that `blocks` needs besides a few blocks.
    """

    extent: Extent
    key: str = ""
    memory: int = 0

    def check(self) -> list[Problem]:
        """Return problems that the header or the first block shows; a recording may be larger than memory."""
        return []

    @abstractmethod
    def blocks(self) -> Iterator[NDArray[np.uint8]]:
        """Read the spikes as packed bits, row 0 = top, in time order. Thread-safe.

        Yields
        ------
        ndarray, (t, H, ⌈W/8⌉) u1
            Least significant bit first, padding bits 0. Together T steps, each of about `BLOCK` pixels.

        Raises
        ------
        InputError
            If the file cannot be read, ends early, or holds other values than 0 and 1.
        """

    def read(self, out: NDArray[np.uint8]) -> None:
        """Fill `out`, (t, H, ⌈W/8⌉), with the first t time steps; it may be a view of a larger array."""
        start = 0
        for block in self.blocks():
            taken = min(len(block), len(out) - start)
            out[start : start + taken] = block[:taken]
            start += taken
            if start == len(out):
                break

    def counted(self, bins: int) -> NDArray[Any]:
        """Count the spikes of each bin of time, as `voxelize` does, block by block."""
        length, height, width = self.extent
        counts = np.zeros((bins, height, width), count_dtype(length, bins))
        edges = bin_edges(length, bins)
        start = 0
        for block in self.blocks():
            stop = start + len(block)
            for number in range(bins):
                first, last = np.clip(edges[number : number + 2], start, stop) - start
                if first < last:
                    counts[number] += voxelize(block[first:last], width, 1)[0]
            start = stop
        return counts


@dataclass(frozen=True, kw_only=True)
class StreamSource(SourceFile, ABC):
    """A file of spikes without a header; layout and resolution are found from all streams of a conversion."""

    size: int
    """Bytes of the stream."""

    @abstractmethod
    def content(self) -> Content:
        """Return its bytes as they are now; more or fewer than `size` if the file has changed."""


@dataclass(frozen=True, kw_only=True)
class VoxelGrid(SourceFile):
    """A voxel grid in a file.

    Attributes
    ----------
    bins, height, width
        Its shape.
    dtype
        As in the file, byte order included.
    read_array
        Reads the array.
    key
        Name of its array in the file, if arrays have names.
    memory
        Bytes that reading it takes besides its values.
    """

    bins: int
    height: int
    width: int
    dtype: np.dtype[Any]
    read_array: ReadArray
    key: str = ""
    memory: int = 0

    def values(self) -> NDArray[Any]:
        """The grid, (B, H, W).

        Raises
        ------
        InputError
            If the file cannot be read.
        """
        return self.read_array(self.path, self.location, self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of files with the spikes of one frame each.

    Attributes
    ----------
    suffixes
        Lower-case suffixes of its files, with the dot.
    look
        ``look(path, location)``: whether the family takes a file outside of a sequence's folders; raises
        `InputError` if its header is damaged.
    open
        ``open(path, location)`` reads the header; raises `InputError`.
    headerless
        Whether `open` returns a `StreamSource`.
    open_voxels
        Reads the header of a file of voxels; None if the format has no voxels.
    arrays
        Opens a file for ``verify --against``: spikes (T, H, W) of 0 and 1, row 0 = top, voxels (B, H, W), or
        the bytes of a stream, (n,) u1.
    form
        Format of exported files, see `File.form`; None if it cannot be written: then arrays are exported as
        ``.npy`` and streams as ``.dat``.
    """

    suffixes: tuple[str, ...]
    look: Callable[[Path, str], Verdict]
    open: Callable[[Path, str], FrameSource | StreamSource]
    headerless: bool = False
    open_voxels: Callable[[Path, str], VoxelGrid] | None = None
    arrays: Open = open_with_library
    form: Form | None = None


@dataclass(frozen=True, kw_only=True)
class ShapedStream(FrameSource):
    """Spikes of a stream of known layout and resolution."""

    stream: StreamSource
    layout: str
    """``"packed"``, ``"stream"`` or ``"bytes"``; see `unistore.converters.spike.streams`."""
    flip: bool
    """Whether it holds its bottom row first."""

    @classmethod
    def of(cls, stream: StreamSource, extent: Extent, layout: str, flip: bool) -> Self:
        """Make it from a stream and its extent."""
        return cls(
            path=stream.path, location=stream.location, extent=extent, stream=stream, layout=layout, flip=flip
        )

    def blocks(self) -> Iterator[NDArray[np.uint8]]:
        """See `FrameSource.blocks`."""
        frames, height, width = self.extent
        pixels = height * width
        frame_bits = {"packed": height * row_bytes(width) * 8, "stream": pixels, "bytes": pixels * 8}[
            self.layout
        ]
        step = max(1, BLOCK // pixels)
        if self.layout == "stream":
            step = -(-step // 8) * 8  # so that every block begins at a whole byte
        content = self.stream.content()
        for start in range(0, frames, step):
            count = min(step, frames - start)
            first_byte = start * frame_bits // 8
            raw = content[first_byte : first_byte - (-count * frame_bits // 8)]
            if raw.size * 8 < count * frame_bits:
                message = f"ended in frame {start + raw.size * 8 // frame_bits} of {frames}"
                cure = "it changed during the conversion: run again when it is complete"
                raise InputError(Problem(self.location, message, cure, "truncated"))
            rows = self._rows(raw, count, height)
            yield rows[:, ::-1] if self.flip else rows

    def _rows(self, raw: NDArray[np.uint8], frames: int, height: int) -> NDArray[np.uint8]:
        """Packed rows (frames, H, ⌈W/8⌉) in file order."""
        shape = (frames, height, self.extent.width)
        if self.layout == "packed":
            return raw.reshape(frames, height, row_bytes(self.extent.width))
        if self.layout == "stream":
            pixels = np.unpackbits(raw, count=frames * height * self.extent.width, bitorder="little")
            return pack(pixels.reshape(shape))
        if raw.max(initial=0) > 1:
            message = f"holds a byte of {raw.max()}, expected 0 or 1 in one byte a pixel"
            raise InputError(Problem(self.location, message, "take --layout packed or auto", "values"))
        return pack(raw.reshape(shape))
