"""HDF5 files: arrays by their path, groups, and the attributes of both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from unistore.converters.array import Array, NamedArrays, as_json
from unistore.converters.common.columns import BOOKKEEPING
from unistore.converters.files.hdf5 import attributes as hdf5_attributes
from unistore.converters.files.hdf5 import file as hdf5
from unistore.converters.files.hdf5 import library as h5py
from unistore.converters.files.hdf5.attributes import Attributes
from unistore.converters.files.hdf5.chunks import native
from unistore.converters.files.hdf5.tree import Tree, members_of, unlinked, walk
from unistore.converters.files.paths import is_in_split, natural_key, real_path
from unistore.converters.opened import Format, Member, Metadata, OpenFile, Origin, SourceFile
from unistore.errors import InputError, Location, Problem, location_of
from unistore.system.types import AnyArray, Shape


class HDF5Dataset(Array):
    """A dataset of an open file: `values` is h5py's, of which `hdf5.file` reads nothing unchecked."""

    __slots__ = ("location",)

    def __init__(self, values: Any, location: Location) -> None:
        super().__init__(values)
        self.location = location

    @property
    def chunk_rows(self) -> int:
        chunks: tuple[int, ...] = self.values.chunks or (1,)
        return chunks[0]

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        return hdf5.check_dataset(self.values, self.location, allow_object=as_objects)

    def item(self, row: int | None = None) -> Any:
        return hdf5.read_objects(self.values, self.location, row)

    def objects(self, lo: int, hi: int) -> Iterable[Any]:
        rows: Iterable[Any] = hdf5.read_objects(self.values, self.location, slice(lo, hi))
        return rows

    def read(self, lo: int, hi: int, out: AnyArray | None = None) -> AnyArray:
        """Read rows as `Array.read` does. An error names the rows of the damaged chunk."""
        fits = out is not None and out.dtype == native(self.values.dtype)
        try:
            return hdf5.read_rows(self.values, self.location, lo, hi, out if fits else None)
        except InputError:
            step = self.values.chunks[0] if self.values.chunks else hi
            bounds = [lo, *range(lo - lo % step + step, hi, step), hi]
            for first, stop in pairwise(bounds):
                hdf5.read_rows(self.values, self.location, first, stop)
            raise


class ReversedDataset(HDF5Dataset):
    """A dataset whose rows are on the last axis. All axes are reversed."""

    __slots__ = ()

    @property
    def shape(self) -> Shape:
        return super().shape[::-1]

    def read(self, lo: int, hi: int, out: AnyArray | None = None) -> AnyArray:
        return hdf5.read_reversed(self.values, self.location, lo, hi)


class _Arrays(Mapping[str, Array]):
    """Sound arrays of numbers. Until they are listed, one is looked up by its path alone."""

    def __init__(self, opened: OpenedHdf5) -> None:
        self._opened = opened

    def __getitem__(self, name: str) -> Array:
        return self._opened.array(name)

    def __contains__(self, name: object) -> bool:
        return name in self._opened.sound

    def __iter__(self) -> Iterator[str]:
        return iter(self._opened.sound)

    def __len__(self) -> int:
        return len(self._opened.sound)


class OpenedHdf5(OpenFile):
    """An open file, of which nothing is read that is not asked for."""

    forward_only = False
    notes: Mapping[str, str] = {}

    def __init__(
        self,
        handle: Any,
        file: SourceFile,
        array_type: type[HDF5Dataset],
        skipped: frozenset[str] = frozenset(),
    ) -> None:
        self.handle = handle
        self._file = file
        self._array_type = array_type
        self._skipped = skipped
        self._partly: dict[frozenset[str], OpenedHdf5] = {}
        self._group_metadata: dict[str, Metadata] = {}

    def without(self, groups: Collection[str]) -> OpenFile:
        """See `OpenFile.without`. The same object for the same groups."""
        skipped = frozenset(groups)
        if skipped not in self._partly:
            self._partly[skipped] = OpenedHdf5(self.handle, self._file, self._array_type, skipped)
        return self._partly[skipped]

    @property
    def file(self) -> SourceFile:
        return self._file

    @cached_property
    def tree(self) -> Tree:
        """All groups and datasets, found once."""
        for other in self._partly.values():
            if "tree" in other.__dict__ and other._skipped.isdisjoint(other.tree.groups):
                return other.tree
        return walk(self.handle, self._file.name, self._file.roots, self._skipped)

    # No object may lead back to this one: a circle would keep linked files open until it is collected.

    @property
    def arrays(self) -> NamedArrays:
        return _Arrays(self)

    def array(self, name: str) -> Array:
        """Return an array by its path, and read no more of the file than that."""
        if "sound" in self.__dict__:
            return self.sound[name]
        return self._array_of(name, hdf5.member(self.handle, name))

    def _array_of(self, path: str, dataset: Any) -> Array:
        return self._array_type(dataset, location_of(self._file.name, path))

    @cached_property
    def all_arrays(self) -> NamedArrays:
        """See `OpenFile`. Datasets without a dataspace have no shape and are none."""
        datasets = self.tree.datasets.items()
        return {
            path: self._array_of(path, dataset) for path, dataset in datasets if dataset.shape is not None
        }

    @cached_property
    def _unsound(self) -> dict[str, list[Problem]]:
        problems = {
            path: hdf5.check_dataset(dataset, location_of(self._file.name, path))
            for path, dataset in self.tree.datasets.items()
        }
        return {path: problems_of_path for path, problems_of_path in problems.items() if problems_of_path}

    @cached_property
    def sound(self) -> NamedArrays:
        return {
            path: array
            for path, array in self.all_arrays.items()
            if path not in self._unsound and not (array.shape and self._is_single(path))
        }

    @property
    def of_any_length(self) -> NamedArrays:
        """See `OpenFile`. One text alone is a single value."""
        return {path: array for path, array in self.objects.items() if not self._is_single(path)}

    def _is_single(self, path: str) -> bool:
        return hdf5_attributes.is_single_value(self.tree.datasets[path])

    @cached_property
    def metadata(self) -> Metadata:
        """See `OpenFile`: single values."""
        return {path: _json_value(array.item()) for path, array in self.sound.items() if not array.shape}

    @cached_property
    def further(self) -> Sequence[SourceFile]:
        """See `OpenFile`: files that links and virtual datasets lead to."""
        return [SourceFile(path, str(path), self._file.roots) for path in sorted(self.tree.files)]

    @cached_property
    def shows(self) -> Mapping[str, Sequence[Origin]]:
        """See `OpenFile`: of arrays that links and virtual datasets lead to."""
        if not self.tree.files:
            return {}
        origins = {path: self.origins(path) for path in self.all_arrays}
        own = str(real_path(self._file.path))
        return {path: places for path, places in origins.items() if {place.file for place in places} - {own}}

    def origins(self, name: str) -> Sequence[Origin]:
        """See `OpenFile`."""
        # Few files show values of others.
        from unistore.converters.formats.hdf5_origins import origins_of

        return origins_of(self.tree.datasets[name])

    @property
    def unlisted(self) -> Sequence[Origin]:
        """See `OpenFile`."""
        from unistore.converters.formats.hdf5_origins import origin_of_group

        return [origin_of_group(self.handle[path]) for path in self.tree.groups if path in self._skipped]

    @cached_property
    def memory(self) -> int:
        """See `OpenFile`: the largest chunk that is decoded."""
        return max(map(hdf5.chunk_memory, self.tree.datasets.values()), default=0)

    @cached_property
    def problems(self) -> Sequence[Problem]:
        """See `OpenFile`. Single values are left out, which have notes of their own."""
        unsound = [
            problems_of_path for path, problems_of_path in self._unsound.items() if not self._is_single(path)
        ]
        return [*self.tree.problems, *chain.from_iterable(unsound)]

    @property
    def unreachable(self) -> Sequence[Problem]:
        return self.tree.problems

    @cached_property
    def left_out(self) -> Mapping[str, str]:
        """See `OpenFile`: what only the library that wrote the file needs."""
        return dict.fromkeys(self.tree.bookkeeping, BOOKKEEPING)

    @cached_property
    def groups(self) -> Sequence[str]:
        return sorted(self.tree.groups, key=natural_key)

    def members(self, group: str = "") -> Mapping[str, Member]:
        group_object = unlinked(self.handle, *group.split("/")) if group else self.handle
        kinds = members_of(group_object) if isinstance(group_object, h5py.Group) else {}
        return {name: kinds[name] for name in sorted(kinds, key=natural_key)}

    def group_metadata(self, group: str = "") -> Metadata:
        """See `OpenFile`: attributes. The text of one that cannot be read says so."""
        if group not in self._group_metadata:
            self._group_metadata[group] = hdf5_attributes.json_attributes(self.handle[group or "/"], as_json)
        return self._group_metadata[group]

    def attributes(
        self, is_wanted: Callable[[str], bool], is_told: Callable[[str, str, bool], bool] | None = None
    ) -> Attributes:
        objects = hdf5_attributes.objects_of(self.handle, self.tree, is_wanted)
        if is_told is None:
            return hdf5_attributes.read_attributes(objects)
        return hdf5_attributes.read_attributes(
            objects, lambda path, _, name, entry: is_told(path, name, hdf5_attributes.is_plain(entry))
        )


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value if isinstance(value, str) else np.asarray(value).item()


class Hdf5(Format):
    """HDF5: datasets by their path. Scalars are metadata as well."""

    name = "hdf5"
    suffixes = hdf5.SUFFIXES
    offered = False
    array_type = HDF5Dataset

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        with hdf5.open_hdf5(file.path, file.name) as handle:
            yield OpenedHdf5(handle, file, self.array_type)

    def write(self, path: Path, arrays: NamedArrays, metadata: Metadata) -> None:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                dataset = file.create_dataset(name, array.shape, array.dtype)
                is_uneven = array.dtype.hasobject and h5py.check_string_dtype(array.dtype) is None
                for lo, rows in array.blocks():
                    if is_uneven:  # h5py takes several of one length for a row of two axes
                        for row, values in enumerate(rows, lo):
                            dataset[row] = values
                    else:
                        dataset[lo : lo + len(rows)] = rows
            for name, value in metadata.items():
                file[name] = value


class MatlabHdf5(Hdf5):
    """HDF5 as MATLAB writes it: the rows of an array are on its last axis, and all axes are reversed."""

    array_type = ReversedDataset


class Hdf5WithSplits(Hdf5):
    """HDF5 whose groups ``train`` and ``test`` are read as splits if they have the same columns.

    Attributes
    ----------
    only_common
        Whether columns that only some of the groups have are left out. Else such groups are not splits.
    """

    only_common: ClassVar[bool] = False

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        with super().open(file) as opened:
            assert isinstance(opened, OpenedHdf5)
            if not any(is_in_split(f"{name}/") for name in opened.members()):
                yield opened
                return
            # Few files have such groups.
            from unistore.converters.formats.split_groups import SplitReading

            reading = SplitReading(opened)
            yield reading.opened(file) if reading.are_splits(self.only_common) else opened


class Hdf5WithCommonColumns(Hdf5WithSplits):
    """The same, by the columns that all of the groups have."""

    only_common = True


class MatlabWithSplits(Hdf5WithSplits):
    """The same as MATLAB writes it, see `MatlabHdf5`."""

    array_type = ReversedDataset


class MatlabWithCommonColumns(Hdf5WithCommonColumns):
    """The same as MATLAB writes it, by the columns that all of the groups have."""

    array_type = ReversedDataset
