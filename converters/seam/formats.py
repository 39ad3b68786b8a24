"""The formats there are: arrays in HDF5, ``.npy`` and ``.npz`` files, and those of installed packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.plugin import Array, Claim, Facts, Format, Opened, SourceFile, sure
from unistore.converters.registry import leave_out
from unistore.errors import InputError, Problem

ENTRY_POINTS = "unistore.formats"
"""Group of the entry points by which packages add formats."""


@dataclass(frozen=True, eq=False)
class _Rows:
    """An array of a file that `open_arrays` opened."""

    read: Any
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        lo, hi, step = rows.indices(self.shape[0])
        values: NDArray[Any] = self.read(self.key, lo, max(lo, hi), None)
        return values if step == 1 else values[::step]


class _ArrayFile(Format):
    """A file of named arrays."""

    def recognise(self, file: SourceFile) -> Claim:
        """Take every file with the suffix: what is wrong with others is said when they are opened."""
        return sure(f"is a {self.suffixes[0]} file")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[Opened]:
        """Open the file; arrays with an axis are arrays, scalars are facts."""
        from unistore.converters.files.arrays import list_arrays, open_arrays

        listed = list_arrays(file.path, file.name, file.roots)
        if listed.problems:
            raise InputError(listed.problems)
        with open_arrays(file.path, file.name) as read:
            arrays = {}
            facts = {}
            for key, (shape, dtype) in listed.arrays.items():
                if shape:
                    arrays[key] = Array(_Rows(read, key, shape, dtype))
                else:
                    facts[key] = self._scalar(file, key)
            further = [SourceFile(path, str(path), file.roots) for path in listed.files if path != file.path]
            yield Opened(arrays, facts, tuple(further), memory=listed.reading)

    def _scalar(self, file: SourceFile, key: str) -> Any:
        message = f"holds {key} without axes"
        raise file.problem(message, "save it with an axis", "shape")


class Hdf5(_ArrayFile):
    """HDF5: datasets by their path; scalars are facts."""

    name: ClassVar[str] = "hdf5"
    suffixes: ClassVar[tuple[str, ...]] = (".h5", ".hdf5", ".hdf", ".he5")
    library: ClassVar[str] = "h5py"

    def _scalar(self, file: SourceFile, key: str) -> Any:
        from unistore.converters.files.hdf5.file import location_of, open_hdf5, read_objects

        with open_hdf5(file.path, file.name) as opened:
            value = read_objects(opened[key], location_of(file.name, key))
        if isinstance(value, bytes):
            return value.decode("utf-8", "backslashreplace")
        return value if isinstance(value, str) else np.asarray(value).item()

    def write(self, path: Path, arrays: Mapping[str, Array], facts: Facts) -> None:
        """Write datasets and scalars, in blocks."""
        import h5py

        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                dataset = file.create_dataset(name, array.shape, array.dtype)
                for lo, rows in blocks(array):
                    dataset[lo : lo + len(rows)] = rows
            for name, value in facts.items():
                file[name] = value


class Npy(_ArrayFile):
    """One array, called ``data``."""

    name: ClassVar[str] = "npy"
    suffixes: ClassVar[tuple[str, ...]] = (".npy",)
    library: ClassVar[str] = "numpy"

    def write(self, path: Path, arrays: Mapping[str, Array], facts: Facts) -> None:
        """Write the array in blocks."""
        (array,) = arrays.values()
        out = np.lib.format.open_memmap(path, "w+", array.dtype, array.shape)
        for lo, rows in blocks(array):
            out[lo : lo + len(rows)] = rows
        out.flush()


class Npz(_ArrayFile):
    """Several arrays by name."""

    name: ClassVar[str] = "npz"
    suffixes: ClassVar[tuple[str, ...]] = (".npz",)
    library: ClassVar[str] = "numpy"

    def write(self, path: Path, arrays: Mapping[str, Array], facts: Facts) -> None:
        """Write all arrays, each whole in memory."""
        values: dict[str, Any] = {name: array[0 : len(array)] for name, array in arrays.items()}
        np.savez(path, **values)


OWN: tuple[type[Format], ...] = (Hdf5, Npy, Npz)
BLOCK_BYTES = 16 << 20


def blocks(array: Array) -> Iterator[tuple[int, NDArray[Any]]]:
    """Rows of an array some at a time, each with the number of its first row."""
    row_bytes = max(1, int(np.prod(array.shape[1:])) * array.dtype.itemsize)
    step = max(1, BLOCK_BYTES // row_bytes)
    for lo in range(0, len(array), step):
        yield lo, array[lo : min(len(array), lo + step)]


@cache
def formats() -> Mapping[str, Format]:
    """Every format by name; one of a package that fails is left out with a line on standard error."""
    from importlib.metadata import entry_points

    by_name: dict[str, Format] = {kind.name: kind() for kind in OWN}
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        try:
            kind = point.load()
            if not (isinstance(kind, type) and issubclass(kind, Format)):
                leave_out(point.name, f"{point.value} is no unistore.plugin.Format")
            elif kind.name in by_name:
                leave_out(point.name, f"{point.value} has the name of an existing format")
            else:
                by_name[kind.name] = kind()
        except Exception as error:  # noqa: BLE001  whatever a package raises, the other formats work
            leave_out(point.name, f"{point.value} cannot be used: {type(error).__name__}: {error}")
    return by_name


def formats_of(kinds: Sequence[type[Format] | str]) -> tuple[Format, ...]:
    """Formats that a family names, by class or by name.

    Raises
    ------
    InputError
        If one of these is not installed.
    """
    wanted = []
    for kind in kinds:
        if not isinstance(kind, str):
            wanted.append(kind())
        elif kind in formats():
            wanted.append(formats()[kind])
        else:
            cure = "install the package that adds it"
            raise InputError(Problem(f"format {kind}", "is not known", cure, "format"))
    return tuple(wanted)
