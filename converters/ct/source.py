"""The interface of formats of CT volumes: open a file, read its voxels.

A format is a module of `unistore.converters.ct.layouts` with a subclass of `VoxelSource`, and a `Format` with
the suffixes of its files. All other code uses `VoxelSource` only.
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

from unistore.converters.files.libraries import Open, open_with_library

Read = Callable[[int, NDArray[Any]], None]
"""``read(first, out)`` fills `out` with whole planes of the slowest axis, from number `first` on.

`out` is C-contiguous and writeable, of the source's dtype in native byte order: (n, H, W), or (n, H, D) where
the source is in Fortran order. It may be of any n, and calls may come in any order."""


@dataclass(frozen=True, kw_only=True)
class VoxelSource(ABC):
    """A volume in a file: its header, and how to open it. It holds no open file.

    It is a frozen dataclass with hashable fields, as it is the key of caches.

    Attributes
    ----------
    path, location
        The file, and what messages call it.
    shape
        (D, H, W); the scan reports other numbers of axes.
    dtype
        As in the file, byte order included.
    fortran_order
        Whether the file is in Fortran order: the last axis varies slowest.
    spacing, origin, direction
        Three, three and nine numbers in the order of `shape` and the frame of `unistore.schemas.ct.geometry`;
        None where the file does not state them. A format with another order or frame (x, y, z; the RAS of
        NIfTI) converts them.
    memory
        Bytes of memory that the open file needs, without the planes that are read.
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
        """Open the file for reading planes; several threads may open it at the same time.

        Raises
        ------
        InputError
            The file cannot be read, or, from `Read`, ends early.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of files with one volume each.

    Attributes
    ----------
    suffixes
        Lower-case endings of its files, with the dot.
    open
        ``open(path, location)`` reads the header and checks the file's size against it; raises `InputError`.
    arrays
        Opens a file for ``verify --against``: one array, (D, H, W).
    ct_only
        Whether every such file is a CT volume; if not, file names and headers decide.
    """

    suffixes: tuple[str, ...]
    open: Callable[[Path, str], VoxelSource]
    arrays: Open = open_with_library
    ct_only: bool = True
