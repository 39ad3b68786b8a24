"""What formats of HDF5 files share: names at the top, arrays, attributes, the original, the exported file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import File
from unistore.converters.common.originals import dataset_paths, open_with_h5py
from unistore.converters.files.hdf5.attributes import objects_of, read_attributes
from unistore.converters.files.hdf5.file import (
    SUFFIXES,
    check_dataset,
    chunk_memory,
    location_of,
    names_in,
    open_hdf5,
    read_objects,
    read_rows,
)
from unistore.converters.files.hdf5.original_attributes import attributes_left_out
from unistore.converters.files.hdf5.tree import Tree, walk
from unistore.converters.scan import Source
from unistore.converters.trajectory.attributes import plain_value
from unistore.converters.trajectory.source import (
    Array,
    Contents,
    EpisodeSource,
    Format,
    Group,
    Look,
    Mask,
    Original,
    Restored,
)
from unistore.errors import InputError, Problem

__all__ = [
    "ACTIONS",
    "RESULTS",
    "Hdf5Array",
    "Hdf5Episodes",
    "Hdf5Format",
    "arrays_of",
    "contents",
    "kinds",
    "plain_attributes",
    "root_group",
    "top",
    "tree_of",
]

ACTIONS = ("action", "actions")
RESULTS = ("rewards", "reward", "terminals", "terminal", "dones", "timeouts", "terminated")
"""Names of datasets that tell trajectory files."""


def top(look: Look) -> tuple[h5py.File, dict[str, str]]:
    """An open file, and the kinds of the things at its top."""
    file = look.opened(open_hdf5)
    return file, kinds(file)


def kinds(group: h5py.Group) -> dict[str, str]:
    """Kinds of the things directly in a group, hard links only: ``"group"`` or ``"dataset"``."""
    found = {}
    for name in names_in(group, location_of(Path(group.file.filename).name, group.name)):
        if isinstance(group.get(name, getlink=True), h5py.HardLink):
            kind = group.get(name, getclass=True)
            found[name] = "dataset" if kind is h5py.Dataset else "group"
    return found


def tree_of(look: Look) -> Tree:
    """Every dataset of a file."""
    return walk(look.opened(open_hdf5), look.name, look.roots)


def contents(look: Look, tree: Tree, groups: Sequence[Group], masks: Sequence[Mask] = ()) -> Contents:
    """Contents of a file whose groups are known."""
    file = look.opened(open_hdf5)
    told = {"", *(group.path for group in groups), *(group.path.rpartition("/")[0] for group in groups)}
    objects = objects_of(file, tree, lambda _: True)
    linked = {Path(dataset.file.filename) for dataset in tree.datasets.values()}
    return Contents(
        groups=groups,
        masks=masks,
        problems=tree.problems,
        files=(tree.files | linked) - {Path(file.filename)},
        memory=max(map(chunk_memory, tree.datasets.values()), default=0),
        attributes=read_attributes((path, item) for path, item in objects if path not in told),
    )


def root_group(look: Look, tree: Tree, *, bare: bool = False) -> Group:
    """All datasets of a file, whose name is that of its episode."""
    return Group(name=look.path.stem, path="", arrays=arrays_of(look, "", tree.datasets), bare=bare)


def arrays_of(look: Look, group: str, datasets: Mapping[str, h5py.Dataset]) -> dict[str, Array]:
    """Datasets by path inside a group as arrays; a null dataspace holds nothing and is none."""
    return {
        path: Hdf5Array(dataset, location_of(look.name, f"{group}/{path}"), dataset.shape, dataset.dtype)
        for path, dataset in datasets.items()
        if dataset.shape is not None
    }


@dataclass(frozen=True, slots=True)
class Hdf5Array:
    """A dataset."""

    dataset: h5py.Dataset
    location: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def problems(self, *, objects: bool = False) -> Sequence[Problem]:
        """As in `Array`."""
        return check_dataset(self.dataset, self.location, allow_object=objects)

    def read(self, lo: int, hi: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """As in `Array`; where rows cannot be read, the error names the chunk that they lie in."""
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


def plain_attributes(group: h5py.Group) -> dict[str, Any]:
    """Attributes as JSON; one whose type cannot be read says so."""
    values: dict[str, Any] = {}
    for key in names_in(group.attrs, location_of(Path(group.file.filename).name, group.name)):
        try:
            value = group.attrs[key]
            values[key] = None if isinstance(value, h5py.Empty) else plain_value(value)
        except (OSError, TypeError, ValueError) as error:
            values[key] = f"unreadable: {error}"
    return values


@dataclass(frozen=True, slots=True)
class Hdf5Episodes:
    """An open file whose attributes are those of its root, and those of each group."""

    opened: h5py.File
    name: str

    def array(self, group: str, dataset: str) -> Array:
        """As in `EpisodeSource`."""
        item = f"{group}/{dataset}".strip("/")
        found = self.opened[item]
        return Hdf5Array(found, location_of(self.name, item), found.shape, found.dtype)

    def attributes(self) -> Mapping[str, Any]:
        """As in `EpisodeSource`."""
        return plain_attributes(self.opened)

    def group_attributes(self, group: str) -> Mapping[str, Any]:
        """As in `EpisodeSource`."""
        return plain_attributes(self.opened[group] if group else self.opened)


class Hdf5Format(Format):
    """A format of HDF5 files; one group at the root holds all arrays, unless a subclass says otherwise."""

    suffixes = SUFFIXES
    episodes: ClassVar[type[Hdf5Episodes]] = Hdf5Episodes

    def names(self, look: Look) -> Sequence[str]:
        """As in `Format`."""
        return sorted(look.opened(open_hdf5))

    def describe(self, look: Look) -> Contents:
        """The whole file."""
        tree = tree_of(look)
        return contents(look, tree, [root_group(look, tree)])

    @contextmanager
    def open_episodes(self, source: Source) -> Iterator[EpisodeSource]:
        """As in `Format`."""
        with open_hdf5(source.path, source.name) as file:
            yield self.episodes(file, source.name)

    @contextmanager
    def open_original(self, path: Path) -> Iterator[Original]:
        """As in `Format`: with h5py alone."""
        with open_with_h5py(path) as file:
            yield Original(
                rows=lambda name: file[name],
                names=dataset_paths(file),
                attributes_left_out=partial(attributes_left_out, file),
            )

    def file(self, restored: Restored) -> File:
        """A file whose arrays and attributes stand at the root."""
        attributes = {**restored.attributes, **restored.group_attributes.get("", {})}
        return File(
            name=restored.name,
            form="hdf5",
            source=restored.source,
            values=restored.values,
            attributes={"": attributes},
        )
