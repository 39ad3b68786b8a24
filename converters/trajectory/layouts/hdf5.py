"""Base class of the formats of HDF5 files, and functions for their members, arrays and attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import VALUE
from unistore.converters.common.faults import is_read_error
from unistore.converters.common.left_out import BOOKKEEPING, has_values
from unistore.converters.files.hdf5 import library as h5py
from unistore.converters.files.hdf5.attributes import (
    Entry,
    is_plain,
    objects_of,
    read_attributes,
    single_values,
)
from unistore.converters.files.hdf5.file import (
    SUFFIXES,
    check_dataset,
    chunk_memory,
    file_of,
    location_of,
    member,
    names_in,
    open_hdf5,
    read_objects,
    read_rows,
)
from unistore.converters.files.hdf5.tree import Tree, walk
from unistore.converters.scan import Source
from unistore.converters.trajectory.source import (
    Array,
    Contents,
    EpisodeSource,
    Format,
    Group,
    Mask,
    RestoredFile,
    SourceFile,
    to_json,
)
from unistore.errors import InputError, Location, Problem

if TYPE_CHECKING:
    from unistore.converters.common.exported import File


ACTIONS = ("action", "actions")
RESULTS = ("rewards", "reward", "terminals", "terminal", "dones", "timeouts", "terminated")
"""Names of datasets by which trajectory files are recognised."""


def root_members(look: SourceFile) -> tuple[h5py.File, dict[str, str]]:
    """An open file, and the members of its root."""
    file = look.opened(open_hdf5)
    return file, look.once("root", lambda: members(file))


def members(group: h5py.Group) -> dict[str, str]:
    """Members of a group (hard links only): ``"group"`` or ``"dataset"`` by name."""
    found = {}
    for name in names_in(group, _location(group)):
        key = name.encode()
        if group.id.links.get_info(key).type == h5py.h5l.TYPE_HARD:
            kind = h5py.h5o.get_info(group.id, key).type
            found[name] = "dataset" if kind == h5py.h5o.TYPE_DATASET else "group"
    return found


def _location(group: h5py.Group) -> Location:
    return location_of(file_of(group).name, group.name)


def tree_of(look: SourceFile) -> Tree:
    """Every dataset of a file."""
    return walk(look.opened(open_hdf5), look.name, look.roots)


def contents(look: SourceFile, tree: Tree, groups: Sequence[Group], masks: Sequence[Mask] = ()) -> Contents:
    """Contents of a file with the given groups."""
    file = look.opened(open_hdf5)
    episodes = {group.path for group in groups}
    known_groups = episodes | {path.rpartition("/")[0] for path in episodes}
    root_attributes = frozenset() if "" in episodes else frozenset(file.attrs)

    listed = {mask.location for mask in masks}

    def in_text(path: str, _: h5py.HLObject, name: str, entry: Entry) -> bool:
        """Whether a mask has the value, or `EpisodeSource` the attribute of the file or an episode."""
        if name == VALUE:
            return location_of(look.name, path) in listed
        return path in known_groups and name not in root_attributes and is_plain(entry)

    objects = objects_of(file, tree, lambda _: True)
    inside = {f"{group.path}/{path}".lstrip("/") for group in groups for path in group.arrays}
    attributes = read_attributes(objects, in_text)
    inside |= single_values({path: names for path, (names, _) in attributes.kept.items()})
    outside = [
        path
        for path, dataset in tree.datasets.items()
        if path not in inside and location_of(look.name, path) not in listed and has_values(dataset)
    ]
    linked = {file_of(dataset) for dataset in tree.datasets.values()}
    return Contents(
        groups=groups,
        masks=masks,
        problems=tree.problems,
        files=(tree.files | linked) - {file_of(file)},
        memory=max(map(chunk_memory, tree.datasets.values()), default=0),
        left_out=[
            *((path, "in no episode") for path in outside),
            *((path, BOOKKEEPING) for path in tree.bookkeeping),
        ],
        attributes=attributes,
    )


def root_group(look: SourceFile, tree: Tree, *, bare: bool = False) -> Group:
    """All datasets of a file as one group, named after the file."""
    return Group(name=look.path.stem, path="", arrays=arrays_of(look, "", tree.datasets), bare=bare)


def arrays_of(look: SourceFile, group: str, datasets: Mapping[str, h5py.Dataset]) -> dict[str, Array]:
    """Arrays of datasets, by path inside a group; those with a null dataspace are skipped."""
    return {
        path: Hdf5Array(dataset, location_of(look.name, f"{group}/{path}"), dataset.shape, dataset.dtype)
        for path, dataset in datasets.items()
        if dataset.shape is not None
    }


@dataclass(frozen=True, slots=True)
class Hdf5Array:
    """`Array` of a dataset."""

    dataset: h5py.Dataset
    location: Location
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def problems(self, *, objects: bool = False) -> Sequence[Problem]:
        """As in `Array`."""
        return check_dataset(self.dataset, self.location, allow_object=objects)

    def read(self, lo: int, hi: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """As in `Array`; a reading error names the rows of the damaged chunk."""
        try:
            return read_rows(self.dataset, self.location, lo, hi, out)
        except InputError:
            rows = self.dataset.chunks[0] if self.dataset.chunks else hi
            bounds = [lo, *range(lo - lo % rows + rows, hi, rows), hi]
            for start, stop in pairwise(bounds):
                read_rows(self.dataset, self.location, start, stop)
            raise

    def value(self, row: int | None = None) -> Any:
        """As in `Array`."""
        return read_objects(self.dataset, self.location, row)


def json_attributes(group: h5py.Group) -> dict[str, Any]:
    """Attributes as JSON; those that cannot be read have a text that says so."""
    values: dict[str, Any] = {}
    for key in names_in(group.attrs, _location(group)):
        try:
            value = group.attrs[key]
            values[key] = None if isinstance(value, h5py.Empty) else to_json(value)
        except (OSError, TypeError, ValueError) as error:
            if is_read_error(error):
                raise
            values[key] = f"unreadable: {error}"
    return values


@dataclass(frozen=True, slots=True)
class Hdf5Episodes:
    """`EpisodeSource` of an open file, with the attributes of its root and of each group."""

    opened: h5py.File
    name: str

    def array(self, group: str, dataset: str) -> Array:
        """As in `EpisodeSource`."""
        item = f"{group}/{dataset}".strip("/")
        found = member(self.opened, item)
        return Hdf5Array(found, location_of(self.name, item), found.shape, found.dtype)

    def attributes(self) -> Mapping[str, Any]:
        """As in `EpisodeSource`."""
        return json_attributes(self.opened)

    def group_attributes(self, group: str) -> Mapping[str, Any]:
        """As in `EpisodeSource`."""
        return json_attributes(self.opened[group] if group else self.opened)


class Hdf5Format(Format):
    """A format of HDF5 files. By default, the root is the only group of arrays."""

    suffixes = SUFFIXES
    episodes: ClassVar[type[Hdf5Episodes]] = Hdf5Episodes

    def names(self, look: SourceFile) -> Sequence[str]:
        """As in `Format`."""
        return sorted(look.opened(open_hdf5))

    def describe(self, look: SourceFile) -> Contents:
        """The whole file as one group."""
        tree = tree_of(look)
        return contents(look, tree, [root_group(look, tree)])

    @contextmanager
    def open_episodes(self, source: Source) -> Iterator[EpisodeSource]:
        """As in `Format`."""
        with open_hdf5(source.path, source.name) as file:
            yield self.episodes(file, source.name)

    def episodes_in(self, look: SourceFile) -> EpisodeSource:
        """As in `Format`."""
        return self.episodes(look.opened(open_hdf5), look.name)

    def file(self, restored: RestoredFile) -> File:
        """A file with its arrays and attributes at the root."""
        from unistore.converters.common.exported import File

        attributes = {**restored.attributes, **restored.group_attributes.get("", {})}
        return File(
            name=restored.name,
            form="hdf5",
            source=restored.source,
            values=restored.values,
            attributes={"": attributes},
        )
