"""What formats of HDF5 files share: names at the top, arrays, attributes, the original, the exported file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import File
from unistore.converters.common.originals import datasets_of, open_plain
from unistore.converters.files.hdf5.attributes import objects_of, read_attributes
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
    "SUFFIXES",
    "Hdf5Array",
    "Hdf5Episodes",
    "arrays_of",
    "at_root",
    "contents",
    "kinds",
    "names",
    "open_original",
    "opener",
    "plain_attributes",
    "root_file",
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


def names(look: Look) -> Sequence[str]:
    """As in `Format`."""
    return sorted(look.opened(open_hdf5))


def tree_of(look: Look) -> Tree:
    """Every dataset of a file."""
    return walk(look.opened(open_hdf5), look.name, look.roots)


def contents(look: Look, tree: Tree, groups: Sequence[Group], masks: Sequence[Mask] = ()) -> Contents:
    """Contents of a file whose groups are known."""
    file = look.opened(open_hdf5)
    told = {"", *(group.path for group in groups), *(group.path.rpartition("/")[0] for group in groups)}
    objects = objects_of(file, tree, lambda _: True)
    linked = {file_of(dataset) for dataset in tree.datasets.values()}
    return Contents(
        groups=groups,
        masks=masks,
        problems=tree.problems,
        files=(tree.files | linked) - {file_of(file)},
        memory=max(map(chunk_memory, tree.datasets.values()), default=0),
        attributes=read_attributes((path, item) for path, item in objects if path not in told),
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


def opener(
    kind: Callable[[h5py.File, str], EpisodeSource],
) -> Callable[[Source], AbstractContextManager[EpisodeSource]]:
    """``open_episodes`` of a format whose open files are of a kind."""

    @contextmanager
    def open_episodes(source: Source) -> Iterator[EpisodeSource]:
        with open_hdf5(source.path, source.name) as file:
            yield kind(file, source.name)

    return open_episodes


@contextmanager
def open_original(path: Path) -> Iterator[Original]:
    """As in `Format`: with h5py alone."""
    with open_plain(path) as file:
        yield Original(
            rows=lambda name: file[name],
            names=datasets_of(file),
            attributes_left_out=partial(attributes_left_out, file),
        )


def at_root(episode: str) -> str:  # noqa: ARG001  the same for all
    """Path of the group of any episode, where all arrays stand at the root."""
    return ""


def root_file(restored: Restored) -> File:
    """A file whose arrays and attributes stand at the root."""
    attributes = {**restored.attributes, **restored.group_attributes.get("", {})}
    return File(
        name=restored.name,
        form="hdf5",
        source=restored.source,
        values=restored.values,
        attributes={"": attributes},
    )
