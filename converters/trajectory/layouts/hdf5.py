"""What formats of HDF5 files share: names at the top, arrays, attributes, the original, the exported file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from unistore.converters.common.originals import datasets_of, open_plain
from unistore.converters.files.hdf5.attribute import is_plain, type_problem
from unistore.converters.files.hdf5.attributes import Entry, objects_of, read_attributes
from unistore.converters.files.hdf5.file import (
    SUFFIXES,
    check_dataset,
    chunk_memory,
    file_of,
    member,
    names_in,
    open_hdf5,
    place,
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
    return file, look.once("top", lambda: kinds(file))


def kinds(group: h5py.Group) -> dict[str, str]:
    """Kinds of the things directly in a group, hard links only: ``"group"`` or ``"dataset"``."""
    found = {}
    for name in names_in(group, _place(group)):
        key = name.encode()
        if group.id.links.get_info(key).type == h5py.h5l.TYPE_HARD:
            kind = h5py.h5o.get_info(group.id, key).type
            found[name] = "dataset" if kind == h5py.h5o.TYPE_DATASET else "group"
    return found


def _place(group: h5py.Group) -> str:
    return place(file_of(group).name, group.name)


def tree_of(look: Look) -> Tree:
    """Every dataset of a file."""
    return walk(look.opened(open_hdf5), look.name, look.roots)


def contents(look: Look, tree: Tree, groups: Sequence[Group], masks: Sequence[Mask] = ()) -> Contents:
    """Contents of a file whose groups are known."""
    file = look.opened(open_hdf5)
    episodes = {group.path for group in groups}
    told = episodes | {path.rpartition("/")[0] for path in episodes}
    of_root = frozenset() if "" in episodes else frozenset(file.attrs)

    def in_text(path: str, _: h5py.HLObject, name: str, entry: Entry) -> bool:
        """Whether the store's text of the file and its episodes has the attribute, and its place, exactly."""
        return path in told and name not in of_root and is_plain(entry)

    objects = objects_of(file, tree, lambda _: True)
    linked = {file_of(dataset) for dataset in tree.datasets.values()}
    return Contents(
        groups=groups,
        masks=masks,
        problems=tree.problems,
        files=(tree.files | linked) - {file_of(file)},
        memory=max(map(chunk_memory, tree.datasets.values()), default=0),
        attributes=read_attributes(objects, in_text),
    )


def root_group(look: Look, tree: Tree, *, bare: bool = False) -> Group:
    """All datasets of a file, whose name is that of its episode."""
    return Group(name=look.path.stem, path="", arrays=arrays_of(look, "", tree.datasets), bare=bare)


def arrays_of(look: Look, group: str, datasets: Mapping[str, h5py.Dataset]) -> dict[str, Array]:
    """Datasets by path inside a group as arrays; a null dataspace holds nothing and is none."""
    return {
        path: Hdf5Array(dataset, place(look.name, f"{group}/{path}"), dataset.shape, dataset.dtype)
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
    for key in names_in(group.attrs, _place(group)):
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
        found = member(self.opened, item)
        return Hdf5Array(found, place(self.name, item), found.shape, found.dtype)

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
        with open_plain(path) as file:
            yield Original(
                rows=lambda name: file[name],
                names=datasets_of(file),
                attributes_left_out=partial(_left_out, file),
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


def _left_out(file: Any, text: str, stored: Callable[[str], bool], told: Collection[str]) -> list[str]:
    """Attributes that are neither kept, nor in the store's text of the file and its episodes."""

    def in_text(path: str, item: Any, name: Any) -> bool:
        try:
            return path in told and type_problem(item.attrs.get_id(name).dtype) is None
        except (OSError, TypeError, ValueError):
            return False

    return attributes_left_out(file, text, stored, in_text)
