"""HDF5 files as named arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.left_out import BOOKKEEPING
from unistore.converters.files.arrays import ReadRows, datasets_reader, list_datasets
from unistore.converters.plugin import Array, Claim, Facts, Format, Opened, SourceFile, sure

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


class Hdf5(Format):
    """HDF5: datasets by their path; scalars are facts as well."""

    name: ClassVar[str] = "hdf5"
    suffixes: ClassVar[tuple[str, ...]] = (".h5", ".hdf5", ".hdf", ".he5")
    reverse_axes: ClassVar[bool] = False

    def recognise(self, file: SourceFile) -> Claim:
        """Take every file with the suffix: what is wrong with others is said when they are opened."""
        return _SURE

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
                for lo, rows in array.blocks():
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
