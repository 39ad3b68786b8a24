"""The formats there are: our own, and those of installed packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.left_out import BOOKKEEPING
from unistore.converters.files.arrays import NPY_NAME, ReadRows, datasets_reader, list_datasets
from unistore.converters.files.npy.archive import open_npz
from unistore.converters.files.npy.array import open_npy
from unistore.converters.formats.pictures import Jpeg, Png
from unistore.converters.formats.raw import Raw
from unistore.converters.plugin import Array, Claim, Facts, Format, Opened, SourceFile, sure
from unistore.converters.registry import leave_out
from unistore.errors import InputError, Problem
from unistore.system.foreign import opening

ENTRY_POINTS = "unistore.formats"
"""Group of the entry points by which packages add formats."""


_COMPRESSED = "compressed .npz, read from the start for every shard; np.savez (uncompressed) converts faster"


_SURE = sure("")


@dataclass(slots=True, eq=False)
class _Rows:
    """A dataset of an open HDF5 file; `chunk_rows` are read together at least."""

    reader: ReadRows
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int

    def read_into(self, lo: int, hi: int, out: NDArray[Any] | None) -> NDArray[Any]:
        """Read rows, in `out` if they fit."""
        return self.reader(self.key, lo, hi, out)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        lo, hi, step = rows.indices(self.shape[0])
        return self.read_into(lo, max(lo, hi), None)[::step]


class _ArrayFile(Format):
    """A file of named arrays."""

    def recognise(self, file: SourceFile) -> Claim:
        """Take every file with the suffix: what is wrong with others is said when they are opened."""
        return _SURE


class Hdf5(_ArrayFile):
    """HDF5: datasets by their path; scalars are facts as well."""

    name: ClassVar[str] = "hdf5"
    suffixes: ClassVar[tuple[str, ...]] = (".h5", ".hdf5", ".hdf", ".he5")
    reverse_axes: ClassVar[bool] = False

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[Opened]:
        """Open the file and list its datasets."""
        from unistore.converters.files.hdf5.attributes import is_single_value, objects_of, read_attributes
        from unistore.converters.files.hdf5.file import open_hdf5
        from unistore.converters.files.hdf5.tree import walk

        with open_hdf5(file.path, file.name) as opened:
            tree = walk(opened, file.name, file.roots)
            listed = list_datasets(tree, file.path, file.name)
            read = datasets_reader(opened, file.name, reverse_axes=self.reverse_axes)
            arrays = {}
            facts = {}
            single = {key for key, dataset in tree.datasets.items() if is_single_value(dataset)}
            for key, (shape, dtype) in listed.arrays.items():
                if shape and key in single:  # one text
                    continue
                dataset = tree.datasets[key]
                seen = shape[::-1] if self.reverse_axes else shape
                arrays[key] = Array(_Rows(read, key, seen, dtype, (dataset.chunks or (1,))[0]))
                if not shape:
                    facts[key] = _scalar(dataset, file.name, key)
            yield Opened(
                arrays=arrays,
                facts=facts,
                further=tuple(SourceFile(path, str(path), file.roots) for path in listed.files[1:]),
                memory=listed.reading,
                problems=[problem for problem in listed.problems if problem.dataset not in single],
                left_out=dict.fromkeys(listed.bookkeeping, BOOKKEEPING),
                attributes=lambda is_wanted: read_attributes(objects_of(opened, tree, is_wanted)),
            )

    @contextmanager
    def reopen(self, file: SourceFile) -> Iterator[Mapping[str, Array]]:
        """Open the file without listing its datasets."""
        from unistore.converters.files.hdf5.file import open_hdf5

        with open_hdf5(file.path, file.name) as opened:
            yield _Datasets(opened, datasets_reader(opened, file.name, reverse_axes=self.reverse_axes))

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


class _Datasets(Mapping[str, Array]):
    """Datasets of an open HDF5 file, looked up one by one."""

    def __init__(self, file: Any, reader: ReadRows) -> None:
        self._file, self._reader = file, reader

    def __getitem__(self, name: str) -> Array:
        # What else is known of the array, the scan has said.
        return Array(_Rows(self._reader, name, (), np.dtype("V"), 1))

    def __iter__(self) -> Iterator[str]:
        return iter(self._file)

    def __len__(self) -> int:
        return len(self._file)


def _scalar(dataset: Any, name: str, key: str) -> Any:
    from unistore.converters.files.hdf5.file import location_of, read_objects

    value = read_objects(dataset, location_of(name, key))
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value if isinstance(value, str) else np.asarray(value).item()


class MatlabHdf5(Hdf5):
    """HDF5 as MATLAB writes it: the rows of an array are on its last axis, and all axes are reversed."""

    reverse_axes: ClassVar[bool] = True


class Npy(_ArrayFile):
    """One array, called ``data``."""

    name: ClassVar[str] = "npy"
    suffixes: ClassVar[tuple[str, ...]] = (".npy",)

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[Opened]:
        """Read the header."""
        with open_npy(file.path, file.name) as values:
            yield Opened({NPY_NAME: Array(values)})

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
        values: dict[str, Any] = {name: array[0 : len(array)] for name, array in arrays.items()}
        np.savez(path, **values)


OWN: tuple[type[Format], ...] = (Hdf5, Npy, Npz, Png, Jpeg, Raw)
BLOCK_BYTES = 16 << 20


def blocks(array: Array) -> Iterator[tuple[int, NDArray[Any]]]:
    """Rows of an array some at a time, each with the number of its first row."""
    row_bytes = max(1, int(np.prod(array.shape[1:])) * array.dtype.itemsize)
    step = max(1, BLOCK_BYTES // row_bytes)
    for lo in range(0, len(array), step):
        yield lo, array[lo : min(len(array), lo + step)]


def reading(kind: Format, file: SourceFile) -> AbstractContextManager[None]:
    """Name a file whose format's native library may crash, so that a worker process reads it."""
    return opening(file.path, file.name, kind.library) if kind.library else nullcontext()


@contextmanager
def open_file(kind: Format, file: SourceFile) -> Iterator[Opened]:
    """Open a file; the format's native library does so in a worker process, which it may crash."""
    native = reading(kind, file) if kind.library else nullcontext()
    with native, kind.open(file) as opened:
        yield opened._replace(file=file)


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


def format_by_ending(formats: Sequence[Format], name: str) -> Format:
    """Return the first format with the ending of a file, or the first of all."""
    return next((one for one in formats if name.lower().endswith(one.suffixes)), formats[0])


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
