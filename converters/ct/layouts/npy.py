"""Volumes in ``.npy`` files, in C or Fortran order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.ct.source import Format, Read, VoxelSource
from unistore.converters.files.npy.array import open_flat, read_header
from unistore.converters.files.npy.header import NpyHeader


@dataclass(frozen=True, kw_only=True)
class _NpyVoxels(VoxelSource):
    header: NpyHeader

    @contextmanager
    def open(self) -> Iterator[Read]:
        dtype, swapped = self.dtype, not self.dtype.isnative
        plane = math.prod(self.shape[:2] if self.fortran_order else self.shape[1:])
        with open_flat(self.path, self.header, self.location) as read:

            def planes(first: int, out: NDArray[Any]) -> None:
                read(first * plane, out.view(dtype))
                if swapped:
                    out.byteswap(inplace=True)

            yield planes


def _open(path: Path, location: str) -> VoxelSource:
    header = read_header(path, location)
    return _NpyVoxels(
        path=path,
        location=location,
        shape=header.shape,
        dtype=header.dtype,
        fortran_order=header.fortran_order,
        header=header,
    )


def _original(path: Path) -> NDArray[Any]:
    array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


FORMAT = Format(suffixes=(".npy",), open=_open, original=_original, ct_only=False)
