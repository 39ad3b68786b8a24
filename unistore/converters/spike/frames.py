"""Describe frames as a scan finds them in their files, and read their spikes."""

# Arrays hold their top row first, a stream its bottom row (checked with a real recording: with the right bit
# order and flip, the mean of its frames correlates with the scene at 0.97, unflipped below 0.15).

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from unistore.converters.formats.images import ImageHeader
from unistore.errors import AddOptions
from unistore.plugin import Array, Group, Openable, OpenFile, Scanned, SourceFile, advanced, storable
from unistore.schemas.spike.fields import bin_edges, count_dtype, pack, row_bytes, voxelize
from unistore.system.types import AnyArray, Dtype, Shape, UInt8s

HIGHEST_FIRST = "packed-msb"  # layout of arrays whose first pixel is the highest bit
REVERSED_BITS = np.packbits(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1), axis=1, bitorder="little"
).ravel()
BLOCK = 8 << 20  # pixels that are read at a time, in whole time steps
RAW_ARRAY = "bytes"  # name of the array of a file without a header
_NAMES = {"spike": ("spk",), "voxel": ("voxel", "voxels", "spike_vox", "vox", "arr_0")}


class Extent(NamedTuple):
    """Size of a recording without padding: time steps, height and width in pixels."""

    length: int
    height: int
    width: int


class FrameArray(NamedTuple):
    """An array of a file of a frame, which is opened anew for each reading."""

    source: Openable
    key: str = ""

    @property
    def file(self) -> SourceFile:
        return self.source.file

    @contextmanager
    def open(self) -> Iterator[Array]:
        """Open the file for the values of the array."""
        with self.source.open() as opened:
            yield opened.arrays[self.key]


class FrameValues(NamedTuple):
    """Spikes or voxels of a frame, as the header of their file says. Of a stream, its bytes."""

    array: FrameArray
    shape: Shape
    dtype: Dtype
    memory: int  # bytes that reading them takes besides some blocks

    @property
    def name(self) -> str:
        """What messages call the file."""
        return self.array.file.name

    @property
    def is_stream(self) -> bool:
        """Whether the file has no header."""
        return self.array.key == RAW_ARRAY


class Config(NamedTuple):
    """Height and width in pixels, and the name of the file beside the streams that says so."""

    height: int
    width: int
    name: str


class FrameName(NamedTuple):
    """What names say of a frame."""

    sequence: str
    split: str | None


@dataclass(frozen=True, kw_only=True)
class ScannedFrame(Scanned):
    """Headers of the files of one frame, by their roles. Files with problems are missing."""

    group: Group
    formats: tuple[str, ...]
    values: Mapping[str, FrameValues]
    images: Mapping[str, ImageHeader]
    config: Config | None = None
    others: tuple[str, ...] = ()  # arrays of the files that are not stored

    @property
    def name(self) -> str:
        return self.group.name

    @property
    def sequence(self) -> str:
        place: FrameName = self.group.detail
        return place.sequence

    def called(self, role: str) -> str:
        """Return what messages call the file of a role."""
        return self.group.files[self.group.roles.index(role)].name


def first_frames(frames: Iterable[ScannedFrame]) -> list[ScannedFrame]:
    """Return the first frame of every sequence."""
    firsts: dict[str, ScannedFrame] = {}
    for frame in frames:
        firsts.setdefault(frame.sequence, frame)
    return list(firsts.values())


class FrameOrigin(NamedTuple):
    """Where the row of a frame comes from: the ``detail`` of its source."""

    files: tuple[str, ...]  # names, as messages call them
    formats: tuple[str, ...]  # of these
    arrays: tuple[str, ...]  # the one that is read of each
    roles: tuple[str, ...]
    sequence: str
    shapes: Mapping[str, Shape]  # by role: an extent, (B, H, W), or (H, W) of images
    inexact: tuple[str, ...]  # roles of images that lose values as 8-bit RGB
    layout: str = "array"  # of an array of spikes

    @property
    def pixels(self) -> tuple[int, ...]:
        """Height and width of its spikes and voxels."""
        return self.shapes["spike" if "spike" in self.shapes else "voxel"][1:]


class Spikes(NamedTuple):
    """Spikes of known extent in a file, which is opened whenever they are read."""

    array: FrameArray
    extent: Extent
    layout: str  # "packed" or "bytes" of streams, "array", "array packed" or "array packed-msb"
    flip: bool  # whether the bottom row is the first

    def blocks(self, first: int = 0) -> Iterator[UInt8s]:
        """Read the spikes from a time step on, as packed bits (t, H, ⌈W/8⌉) uint8, row 0 at the top.

        The lowest bit comes first, and bits of padding are 0. Blocks have about `BLOCK` pixels each.
        """
        length, height, width = self.extent
        row = row_bytes(width) if self.layout == "packed" else width
        steps = max(1, BLOCK // (height * width))
        with self.array.open() as values:
            for start in range(first, length, steps):
                stop = min(start + steps, length)
                if self.layout.startswith("array"):
                    rows = values[start:stop]
                else:
                    content = values[start * height * row : stop * height * row]
                    rows = content.reshape(stop - start, height, row)
                if self.layout == f"array {HIGHEST_FIRST}":
                    packed = REVERSED_BITS[rows]
                else:
                    packed = rows if "packed" in self.layout else pack(self._checked(rows))
                if width % 8 and (packed[..., -1] >> width % 8).any():
                    message = (
                        f"rows of {width} pixels have bits after the last pixel, where only 0 is expected"
                    )
                    raise self.array.file.problem(message, ("check --width", "save a .npy file"), "values")
                yield packed[:, ::-1] if self.flip else packed

    def _checked(self, pixels: UInt8s) -> UInt8s:
        largest = int(pixels.max(initial=0))
        if largest > 1:
            what = self.array.key if self.array.source.format.name == "npz" else "the file"
            message = f"{what} contains values up to {largest}, but spikes are 0 or 1"
            packed = AddOptions(("--layout", "packed"), "if these are packed bits")
            highest = AddOptions(("--layout", "packed-msb"), "if np.packbits packed them")
            counts = "move counts of spikes to spike_vox/"
            fix = (packed, highest, counts) if self.layout == "array" else (packed, counts)
            raise self.array.file.problem(message, fix, "values")
        return pixels

    def read(self, out: UInt8s, first: int = 0) -> None:
        """Fill `out`, (t, H, ⌈W/8⌉), with t time steps from `first` on."""
        start = 0
        for block in self.blocks(first):
            steps = min(len(block), len(out) - start)
            out[start : start + steps] = block[:steps]
            advanced(out[start : start + steps].nbytes)
            start += steps
            if start == len(out):
                break

    def counted(self, bins: int) -> AnyArray:
        """Count the spikes of each bin of time, as `voxelize` does, block by block."""
        length, height, width = self.extent
        counts = np.zeros((bins, height, width), count_dtype(length, bins))
        self.add_counts({bins: counts})
        return counts

    def add_counts(self, grids: Mapping[int, AnyArray]) -> None:
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


def values_in(opened: OpenFile, file_array: FrameArray, role: str) -> FrameValues:
    """Find the spikes or voxels of an open file."""
    file = file_array.file
    if RAW_ARRAY in opened.arrays:
        content = opened.arrays[RAW_ARRAY]
        return FrameValues(file_array._replace(key=RAW_ARRAY), content.shape, content.dtype, opened.memory)
    candidates = [name for name in _NAMES[role] if name in opened.arrays]
    if not candidates and len(opened.arrays) == 1:
        candidates = list(opened.arrays)
    if not candidates:
        message = f"contains {', '.join(opened.arrays) or 'no array'}, expected {' or '.join(_NAMES[role])}"
        raise file.problem(message, f"name the array {_NAMES[role][0]}", "missing")
    key = candidates[0]
    array = opened.arrays[key]
    if len(array.shape) != 3 or 0 in array.shape:
        message = f"{key} has shape {array.shape}, expected three axes of at least 1"
        raise file.problem(message, "save it as (time or bin, height, width)", "shape")
    is_flag = array.dtype in (np.dtype(np.uint8), np.dtype(np.bool_))
    if role == "spike" and not is_flag:
        message = f"{key} has dtype {array.dtype}, expected uint8 or bool with values 0 and 1"
        raise file.problem(message, "save it with .astype(np.uint8)", "dtype")
    if role == "voxel" and (array.dtype.kind == "b" or not storable(array.dtype)):
        message = f"{key} has dtype {array.dtype}, expected integers or floats"
        raise file.problem(message, "save it as integers or floats", "dtype")
    return FrameValues(file_array._replace(key=key), array.shape, array.dtype, opened.memory)
