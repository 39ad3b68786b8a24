"""NumPy's files: one array, or several by name; and files without a header, whose shape a family knows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from unistore.converters.array import Array, NamedArrays
from unistore.converters.claims import Claim, maybe, no
from unistore.converters.files.npy import NPY_NAME, FileValues, open_npz, read_header
from unistore.converters.opened import Format, Metadata, OpenFile, SourceFile

_COMPRESSED = "compressed .npz, read from the start for every shard; np.savez (uncompressed) converts faster"


class Npy(Format):
    """One array, called ``data``."""

    name = "npy"
    suffixes = (".npy",)
    offered = False

    def open(self, file: SourceFile) -> AbstractContextManager[OpenFile]:
        values = FileValues(read_header(file.path, file.name), file.name, file.path)
        # A generator would take longer than the header of millions of tiny files.
        return nullcontext(OpenFile({NPY_NAME: Array(values)}, file=file))

    def write(self, path: Path, arrays: NamedArrays, metadata: Metadata) -> None:
        (array,) = arrays.values()
        out = np.lib.format.open_memmap(path, "w+", array.dtype, array.shape)
        for lo, rows in array.blocks():
            out[lo : lo + len(rows)] = rows
        out.flush()


class Npz(Format):
    """Several arrays by name."""

    name = "npz"
    suffixes = (".npz",)
    offered = False

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        with open_npz(file.path, file.name) as members:
            arrays = {name: Array(values) for name, values in members.items()}
            memory = max((values.memory for values in members.values()), default=0)
            compressed = [name for name, values in members.items() if values.compressed]
            yield OpenFile(arrays, memory=memory, notes=dict.fromkeys(compressed, _COMPRESSED))

    def write(self, path: Path, arrays: NamedArrays, metadata: Metadata) -> None:
        values: dict[str, Any] = {
            name: array[0 : len(array)].astype(array.dtype, copy=False) for name, array in arrays.items()
        }
        np.savez(path, **values)


# Bytes in which the first line of such a header ends
_LINE = 256


def begins_with_text(file: SourceFile) -> bool:
    """Return whether a file begins with a line of text that has a percent sign at its start."""
    line, end, _ = file.head(_LINE).partition(b"\n")
    is_cut = not end and file.size < _LINE
    is_text = line.isascii() and line.decode("ascii", "replace").rstrip("\r").isprintable()
    return (bool(end) or is_cut) and line.startswith(b"% ") and is_text


# A line of such a header, behind the first: of a file with a damaged beginning
_LATER_LINE = re.compile(
    rb"\n% (?:evt [234]|format EVT|geometry \d|end\n|end\r|Version 2|Width \d|Height \d|Data file|"
    rb"date \d|Date \d|camera_|integrator_|plugin_|sensor_|serial_|system_|generation |subsystem_)"
)


def lost_its_first_line(file: SourceFile) -> bool:
    """Return whether a file has such a header but for a damaged beginning, as no values without one have."""
    return not begins_with_text(file) and _LATER_LINE.search(file.head()) is not None


class Raw(Format):
    """A file as it stands: one array, called ``bytes``."""

    name = "raw"
    suffixes = (".dat", ".bin")
    offered = False

    def recognise(self, file: SourceFile) -> Claim:
        """Take no file for sure: nothing in it says what it is. Lines of text with ``%`` are a header."""
        if begins_with_text(file) or lost_its_first_line(file):
            return no("begins with a header of lines with %")
        return maybe(f"is a {file.path.suffix.lower()} file without a known header")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        file.check_whole()
        yield OpenFile({"bytes": file.bytes()})

    def write(self, path: Path, arrays: NamedArrays, metadata: Metadata) -> None:
        with path.open("wb") as file:
            for _, block in arrays["bytes"].blocks():
                file.write(block.tobytes())
