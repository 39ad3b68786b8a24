"""NumPy's files: one array, or several by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from unistore.converters.files.npy import NPY_NAME, FileValues, open_npz, read_header
from unistore.converters.plugin import Array, Claim, Facts, Format, Opened, SourceFile, sure

_COMPRESSED = "compressed .npz, read from the start for every shard; np.savez (uncompressed) converts faster"


_SURE = sure("")


class Npy(Format):
    """One array, called ``data``."""

    name: ClassVar[str] = "npy"
    suffixes: ClassVar[tuple[str, ...]] = (".npy",)
    offered: ClassVar[bool] = False

    def recognise(self, file: SourceFile) -> Claim:
        """Take every file with the suffix: what is wrong with others is said when they are opened."""
        return _SURE

    def open(self, file: SourceFile) -> AbstractContextManager[Opened]:
        """Read the header."""
        values = FileValues(read_header(file.path, file.name), file.name, file.path)
        # A generator would take longer than the header of millions of tiny files.
        return nullcontext(Opened({NPY_NAME: Array(values)}, file=file))

    def write(self, path: Path, arrays: Mapping[str, Array], facts: Facts) -> None:
        """Write the array in blocks."""
        (array,) = arrays.values()
        out = np.lib.format.open_memmap(path, "w+", array.dtype, array.shape)
        for lo, rows in array.blocks():
            out[lo : lo + len(rows)] = rows
        out.flush()


class Npz(Format):
    """Several arrays by name."""

    name: ClassVar[str] = "npz"
    suffixes: ClassVar[tuple[str, ...]] = (".npz",)
    offered: ClassVar[bool] = False

    def recognise(self, file: SourceFile) -> Claim:
        """Take every file with the suffix: what is wrong with others is said when they are opened."""
        return _SURE

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[Opened]:
        """Read the headers of all arrays."""
        with open_npz(file.path, file.name) as members:
            arrays = {name: Array(values) for name, values in members.items()}
            memory = max((values.memory for values in members.values()), default=0)
            compressed = [name for name, values in members.items() if values.compressed]
            yield Opened(arrays, memory=memory, notes=dict.fromkeys(compressed, _COMPRESSED))

    def write(self, path: Path, arrays: Mapping[str, Array], facts: Facts) -> None:
        """Write all arrays, each whole in memory."""
        values: dict[str, Any] = {
            name: array[0 : len(array)].astype(array.dtype, copy=False) for name, array in arrays.items()
        }
        np.savez(path, **values)
