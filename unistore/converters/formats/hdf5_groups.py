"""Groups of HDF5 files with so many members that these are opened one by one, by their names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

from unistore.converters.files.hdf5 import library as h5py
from unistore.converters.files.hdf5.attributes import Attributes, objects_of, read_attributes
from unistore.converters.files.hdf5.file import names_in
from unistore.converters.files.hdf5.tree import follow, unlinked, walk
from unistore.converters.formats.hdf5 import HDF5Dataset, OpenedHdf5
from unistore.converters.opened import OpenFile
from unistore.errors import InputError, Location, Problem, location_of
from unistore.system.types import JsonObject

T = TypeVar("T")


class LargeGroup:
    """A group of an open HDF5 file that `OpenFile.without` does not list.

    Its members are groups of arrays. What cannot be opened is an `InputError` with the first problem.

    Attributes
    ----------
    path
        Of the group in the file.
    fix
        What helps if a member or an array is not what it should be.
    names
        Of all members.
    other_names
        Names of what members hold beside the arrays of which `attributes` was asked.
    """

    def __init__(self, opened: OpenFile, path: str, fix: str) -> None:
        assert isinstance(opened, OpenedHdf5)
        self.path = path
        self.fix = fix
        self.other_names: dict[str, None] = {}
        self._opened = opened
        self._group = opened.handle[path]
        self.names = names_in(self._group, self.location())

    @staticmethod
    def is_in(opened: OpenFile, path: str) -> bool:
        """Return whether an open file is an HDF5 file with such a group."""
        return isinstance(opened, OpenedHdf5) and path in opened.groups

    def location(self, *names: str) -> Location:
        """Place of the group, of a member, or of an array of a member."""
        return location_of(self._opened.file.name, "/".join((self.path, *names)))

    def is_array(self, name: str) -> bool:
        """Return whether a member is an array, and no link leads to it."""
        link = self._group.get(name, getlink=True)
        return isinstance(link, h5py.HardLink) and not isinstance(self._group[name], h5py.Group)

    def own_arrays(self) -> dict[str, HDF5Dataset]:
        """Return the arrays directly in the group, to which no link leads, by name."""
        members = {name: unlinked(self._group, name) for name in self.names}
        return {
            name: HDF5Dataset(item, self.location(name))
            for name, item in members.items()
            if isinstance(item, h5py.Dataset) and item.shape is not None
        }

    def inner_names(self, name: str) -> list[str]:
        """Return the names of what a member holds."""
        return list(self._member(name))

    def arrays(self, name: str) -> dict[str, HDF5Dataset]:
        """Return all arrays of a member, and of groups in it, by their paths there."""
        location = self.location(name)
        tree = walk(self._member(name), location, self._opened.file.roots)
        if tree.problems:
            raise InputError(tree.problems)
        datasets = tree.datasets.items()
        return {
            path: HDF5Dataset(dataset, location_of(location, path))
            for path, dataset in datasets
            if dataset.shape is not None
        }

    def array(self, name: str, inner: str) -> HDF5Dataset:
        """Return an array of a member, whose values can be read."""
        location = self.location(name, inner)
        item: object = unlinked(self._group, name, inner)  # faster
        if not isinstance(item, h5py.Dataset):
            member = self._member(name)
            if inner not in member:
                raise InputError.at(location, "is missing", self.fix, "missing")
            item = self._follow(member, inner, location, h5py.Dataset, "is not a dataset")
        array = HDF5Dataset(item, location)
        if problems := array.problems():
            raise InputError(problems)
        return array

    def attributes(
        self,
        is_wanted: Callable[[str], bool],
        names: Sequence[str],
        inner_names: Collection[str],
        is_told: Callable[[str, Any, str, JsonObject], bool],
    ) -> Attributes:
        """Read the attributes of the file, see `OpenFile.attributes`, and of some members.

        Parameters
        ----------
        is_wanted
            Of the path of a listed array: whether its attributes are wanted.
        names, inner_names
            Members, and arrays of each, whose attributes are wanted if no link leads to them.
        is_told
            ``(path, object, name, entry)``: whether the family says an attribute in its own words.
        """
        listed = objects_of(self._opened.handle, self._opened.tree, is_wanted)
        return read_attributes(chain(listed, self._objects(names, inner_names)), is_told)

    def _objects(self, names: Sequence[str], inner_names: Collection[str]) -> Iterator[tuple[str, Any]]:
        for name in names:
            member = unlinked(self._group, name)
            if isinstance(member, h5py.Group):
                held = names_in(member, self.location(name))
                self.other_names |= dict.fromkeys(inner for inner in held if inner not in inner_names)
                yield f"{self.path}/{name}", member
                for inner in inner_names:
                    item = unlinked(member, inner)
                    if isinstance(item, h5py.Dataset):
                        yield f"{self.path}/{name}/{inner}", item

    def _member(self, name: str) -> h5py.Group:
        return self._follow(self._group, name, self.location(name), h5py.Group, "is not a group")

    def _follow(self, parent: h5py.Group, name: str, location: Location, kind: type[T], message: str) -> T:
        item = follow(parent, name, location, self._opened.file.roots)
        if isinstance(item, Problem):
            raise InputError(item)
        if not isinstance(item, kind):
            raise InputError.at(location, message, self.fix, "format")
        return item


def rows_of_first(group: Any, names: Collection[str]) -> int | None:
    """Return the rows of the first of these arrays of a group to which no link leads. None: it has none."""
    datasets = [unlinked(group, name) for name in names]
    shapes = [dataset.shape for dataset in datasets if isinstance(dataset, h5py.Dataset)]
    return shapes[0][0] if shapes and shapes[0] else None
