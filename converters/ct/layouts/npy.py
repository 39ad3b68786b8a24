"""Volumes in ``.npy`` files, in C or Fortran order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from unistore.converters.ct.source import Format, Read, VoxelSource
from unistore.converters.files.npy.array import FileValues, NpyHeader, read_header


@dataclass(frozen=True, kw_only=True)
class _NpyVoxels(VoxelSource):
    header: NpyHeader

    @contextmanager
    def open(self) -> Iterator[Read]:
        with FileValues(self.header, self.location, self.path) as values:
            planes = values.T if self.fortran_order else values

            def read(first: int, out: NDArray[Any]) -> None:
                rows = planes.read_into(first, first + len(out), out)
                if rows is not out:
                    out[...] = rows

            yield read


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


FORMAT = Format(suffixes=(".npy",), open=_open, ct_only=False)
