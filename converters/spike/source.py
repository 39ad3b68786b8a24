"""What a format of spike files is: how a file of it is opened, and how its spikes are read.

A format is one module of `unistore.converters.spike.layouts`: a subclass of `FrameSource` or, for files
without a header, of `StreamSource`, and a `Format` that says which files are its own. Frames, voxels, tables
and comparisons are made of these alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import Form
from unistore.converters.parts import Verdict
from unistore.errors import Problem

__all__ = ["Extent", "Format", "FrameSource", "ReadBytes", "StreamSource", "VoxelGrid"]

ReadBytes = Callable[[int], NDArray[np.uint8]]
"""``read(count)`` gives the next `count` bytes of a stream, fewer only at its end."""


@dataclass(frozen=True, slots=True)
class Extent:
    """True size of a recording: time steps, height and width in pixels."""

    length: int
    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.length} x {self.height} x {self.width}"


@dataclass(frozen=True, kw_only=True)
class FrameSource(ABC):
    """Spikes of one frame in a file, of which no more than a header has been read.

    A frozen dataclass of values that can be pickled and compared; no handle is kept.

    Attributes
    ----------
    path
        The file.
    location
        What an error calls it.
    extent
        Time steps, height and width.
    key
        Name of its array in the file, where the file has names.
    memory
        Bytes that `read` holds besides its output.
    """

    path: Path
    location: str
    extent: Extent
    key: str = ""
    memory: int = 0

    def check(self) -> list[Problem]:
        """What is wrong with the values, each of which is looked at; nothing where the file holds bits."""
        return []

    @abstractmethod
    def read(self, out: NDArray[np.uint8]) -> None:
        """Fill `out` with the spikes as packed bits, row 0 = top; several threads may each read.

        Parameters
        ----------
        out
            (T, H, ⌈W/8⌉) u1, least significant bit first, padding bits 0; may be a part of a larger array;
            overwritten.

        Raises
        ------
        InputError
            The file cannot be read, ends early, or holds other values than 0 and 1.
        """


@dataclass(frozen=True, kw_only=True)
class StreamSource(ABC):
    """A file of spikes without a header. All streams of a conversion together tell layout and resolution.

    Values that can be pickled and compared, as of a `FrameSource`.

    Attributes
    ----------
    path
        The file.
    location
        What an error calls it.
    size
        Bytes of the stream.
    """

    path: Path
    location: str
    size: int

    @abstractmethod
    def open(self) -> AbstractContextManager[ReadBytes]:
        """Open the stream at its first byte.

        Raises
        ------
        InputError
            The file cannot be read.
        """


@dataclass(frozen=True, kw_only=True)
class VoxelGrid(ABC):
    """A voxel grid in a file, of which no more than a header has been read.

    Attributes
    ----------
    path, location
        The file, and what an error calls it.
    bins, height, width
        Its shape.
    dtype
        As in the file, byte order included.
    key
        Name of its array in the file, where the file has names.
    """

    path: Path
    location: str
    bins: int
    height: int
    width: int
    dtype: np.dtype[Any]
    key: str = ""

    @abstractmethod
    def values(self) -> NDArray[Any]:
        """The grid, (B, H, W); mapped where the file allows it.

        Raises
        ------
        InputError
            The file cannot be read.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of files with the spikes of one frame each.

    Attributes
    ----------
    suffixes
        Lower-case endings of its files, with the dot.
    look
        ``look(path, location)``: what a file tells outside of a sequence's folders; raises `InputError` if
        its header is damaged.
    open
        ``open(path, location)`` reads the header; raises `InputError`.
    original
        ``original(path, key)`` reads a file for ``verify --against``, with other code than `open`, so that a
        mistake there shows: spikes (T, H, W) that are not 0 where there is one, row 0 = top; voxels
        (B, H, W); of a stream its bytes (n,) u1.
    headerless
        Whether `open` gives a `StreamSource`.
    open_voxels
        Reads the header of a file of voxels; None if the format holds none.
    form
        What files of its name are written as when they are given back, see `File.form`; None: they are not,
        and arrays become ``.npy`` files, streams ``.dat``.
    """

    suffixes: tuple[str, ...]
    look: Callable[[Path, str], Verdict]
    open: Callable[[Path, str], FrameSource | StreamSource]
    original: Callable[[Path, str], NDArray[Any]]
    headerless: bool = False
    open_voxels: Callable[[Path, str], VoxelGrid] | None = None
    form: Form | None = None
