"""Voxels of an array of three axes in a file of any format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.label_map import Numbering
from unistore.converters.plugin import Array, Format, Opened, SourceFile
from unistore.converters.seam.faults import calling
from unistore.converters.seam.formats import open_file

Read = Callable[[int, NDArray[Any]], None]
"""``read(first, out)`` fills `out` with whole planes of the slowest axis, from number `first` on.

`out` is C-contiguous and writeable, of the source's dtype in native byte order: (n, H, W), or (n, H, D) where
the source is in Fortran order. It may be of any n, and calls may come in any order."""


class Voxels(NamedTuple):
    """The only array of a file, as its header describes it; no file is open. It is the key of caches.

    Attributes
    ----------
    file, format
        The file, and what opens it.
    shape
        (D, H, W); the scan reports other numbers of axes.
    dtype
        As in the file, byte order included.
    fortran_order
        Whether the last axis varies slowest in the file.
    memory
        Bytes of memory that the open file needs, without the planes that are read.
    forward_only
        Whether planes are read best from the first to the last, in one pass.
    numbering
        How its labels are numbered in the store; None: as in the file.
    """

    file: SourceFile
    format: Format
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool
    memory: int
    forward_only: bool
    numbering: Numbering | None = None

    def numbered(self, numbering: Numbering | None) -> Voxels:
        """Return the same labels as the store numbers them."""
        if numbering is None:
            return self
        return self._replace(numbering=numbering, dtype=numbering.dtype)

    @contextmanager
    def open(self) -> Iterator[Read]:
        """Open the file for reading planes; several threads may open it at the same time."""
        with calling(self.format, self.file.name), open_file(self.format, self.file) as opened:
            array = only_array(opened, self.file)
            planes = array.T if self.fortran_order else array

            def read(first: int, out: NDArray[Any]) -> None:
                if self.numbering is not None:
                    labels = planes.read(first, first + len(out))
                    out[...] = self.numbering.stored(labels, self.file.name)
                    return
                rows = planes.read(first, first + len(out), out)
                if rows is not out:
                    out[...] = rows

            yield read


def voxels_in(opened: Opened, file: SourceFile, format: Format) -> Voxels:
    """Describe the only array of an open file."""
    array = only_array(opened, file)
    # What the user gave may be long, and is not needed to read the file again.
    file = replace(file, roots=())
    return Voxels(
        file=file,
        format=format,
        shape=array.shape,
        dtype=array.dtype,
        fortran_order=array.fortran_order,
        memory=opened.memory,
        forward_only=opened.forward_only,
    )


def voxels_of(file: SourceFile, format: Format) -> Voxels:
    """Read the header of a file."""
    with calling(format, file.name), open_file(format, file) as opened:
        return voxels_in(opened, file, format)


@contextmanager
def arrays_of(file: SourceFile, format: Format) -> Iterator[Mapping[str, Array]]:
    """Open the arrays of a file."""
    with calling(format, file.name), open_file(format, file) as opened:
        yield opened.arrays


def only_array(opened: Opened, file: SourceFile) -> Array:
    """The array of a file that holds one."""
    if len(opened.arrays) != 1:
        message = f"holds {len(opened.arrays)} arrays; a volume is one"
        raise file.problem(message, "save one a file", "layout")
    (array,) = opened.arrays.values()
    return array


State = tuple[tuple[int, int], ...]
"""Size and modification time of files."""


def state_of(paths: Iterable[Path]) -> State:
    """State of files, which differs after a change."""
    return tuple((status.st_size, status.st_mtime_ns) for status in map(Path.stat, paths))
