"""What a format of CT volumes is: how a file of it is opened, and how its voxels are read.

A format is one module of `unistore.converters.ct.layouts`: a subclass of `VoxelSource`, and a `Format` that
says which files are its own. Slabs, windows, masks and tables are made of a `VoxelSource` alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Format", "Planes", "Read", "VoxelSource"]

Read = Callable[[int, NDArray[Any]], None]
"""``read(first, out)`` fills `out` with whole planes of the slowest axis, from number `first` on.

`out` is C-contiguous and writeable, of the source's dtype in native byte order: (n, H, W), or (n, H, D) where
the source is in Fortran order. It may be of any n, and calls may come in any order."""


@dataclass(frozen=True, kw_only=True)
class VoxelSource(ABC):
    """A volume in a file, of which no more than a header has been read. No handle is kept.

    A frozen dataclass of hashable fields: it is the key under which what was counted in a volume is kept.

    Attributes
    ----------
    path
        The file.
    location
        What an error calls it.
    shape
        (D, H, W); other numbers of axes are refused by the scan, with all other problems.
    dtype
        As in the file, byte order included.
    fortran_order
        Whether the file holds plane after plane of the last axis, (W, H, D) in C order.
    spacing, origin
        Three numbers each, in mm, in the order of `shape`; None where the file does not state them.
    direction
        Nine direction cosines, row by row; None where the file does not state them.
    memory
        Bytes that `open` holds until it is closed, besides the planes that are read.
    """

    path: Path
    location: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool = False
    spacing: tuple[float, ...] | None = None
    origin: tuple[float, ...] | None = None
    direction: tuple[float, ...] | None = None
    memory: int = 0

    def geometry(self) -> dict[str, list[float]]:
        """``spacing``, ``origin`` and ``direction`` as far as the file states them."""
        stated = {"spacing": self.spacing, "origin": self.origin, "direction": self.direction}
        return {name: list(numbers) for name, numbers in stated.items() if numbers is not None}

    @abstractmethod
    def open(self) -> AbstractContextManager[Read]:
        """Open the file for reading planes; several threads may each have it open.

        Raises
        ------
        InputError
            The file cannot be read, or, from `Read`, ends early.
        """


class Planes(Protocol):
    """Voxels of a volume, read without a `VoxelSource`: a NumPy memory map is one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(D, H, W)."""
        ...

    def __getitem__(self, planes: slice, /) -> NDArray[Any]:
        """Planes ``lo:hi``, (n, H, W)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of files with one volume each.

    Attributes
    ----------
    suffixes
        Lower-case endings of its files, with the dot.
    open
        ``open(path, location)`` reads the header and checks the file's size against it; raises `InputError`.
    original
        Opens a file for ``verify --against``: with other code than `open`, so that a mistake there shows.
    ct_only
        Whether every such file is a CT volume. Where not, file names and headers decide.
    """

    suffixes: tuple[str, ...]
    open: Callable[[Path, str], VoxelSource]
    original: Callable[[Path], Planes]
    ct_only: bool = True
