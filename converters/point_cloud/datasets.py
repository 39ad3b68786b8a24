"""What the HDF5 layouts share: open a file, make its `Layout`, read its datasets in blocks of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.left_out import BOOKKEEPING, NO_COLUMN
from unistore.converters.files.hdf5 import file as hdf5
from unistore.converters.files.hdf5 import library as h5py
from unistore.converters.files.hdf5.attributes import (
    Attributes,
    Entry,
    is_single_value,
    objects_of,
    read_attributes,
    single_values,
)
from unistore.converters.files.hdf5.file import location_of, names_in
from unistore.converters.files.hdf5.tree import Tree, unlinked, walk
from unistore.converters.point_cloud.columns import left_out_of
from unistore.converters.point_cloud.pointsuite import COUNT, segment_names, segment_problems
from unistore.converters.point_cloud.source import AXES, Layout, PointSource, column_paths
from unistore.converters.scan import Candidate, Source
from unistore.errors import InputError

Open = Callable[[Source], AbstractContextManager[PointSource]]

_GROUPS = frozenset({"segments"})


class OpenFile:
    """An open HDF5 file and its tree, without the groups inside ``segments/``."""

    def __init__(self, file: h5py.File, tree: Tree, name: str) -> None:
        self.file, self.tree, self.name = file, tree, name

    @cached_property
    def arrays(self) -> dict[str, h5py.Dataset]:
        """Datasets that may be columns, by path."""
        return {path: dataset for path, dataset in self.tree.datasets.items() if not is_single_value(dataset)}

    @cached_property
    def segments(self) -> list[str]:
        """Names of the groups in ``segments``, sorted by number."""
        return segment_names(self.file["segments"], self.name) if "segments" in self.tree.groups else []


@dataclass(frozen=True, slots=True)
class _Walk:
    """Opens a file and walks its tree; compares equal, so that formats share the open file."""

    name: str
    roots: tuple[Path, ...]

    @contextmanager
    def __call__(self, path: Path) -> Iterator[OpenFile]:
        with hdf5.open_hdf5(path, self.name) as file:
            yield OpenFile(file, walk(file, self.name, self.roots, skip=_GROUPS), self.name)


def open_file(file: Candidate) -> OpenFile:
    """Open a file, or return it if another format has opened it."""
    return file.opened(_Walk(file.name, file.roots))


def open_checked(file: Candidate) -> OpenFile:
    """Open a file and check that no link leads out and every member of ``segments`` has a number.

    Raises
    ------
    InputError
        Naming the wrong links or members.
    """
    found = open_file(file)
    if found.tree.problems:
        raise InputError(found.tree.problems)
    if "segments" in found.tree.groups and (wrong := segment_problems(found.file["segments"], found.name)):
        raise InputError(wrong)
    return found


def make_layout(found: OpenFile, chosen: Layout, members: Sequence[str] = (), **known: Any) -> Layout:
    """Layout of a file with its chosen columns.

    Parameters
    ----------
    members
        Datasets of each group in ``segments`` that are read.
    """
    datasets = found.tree.datasets
    header = _header(found.file, found.name)
    segment_columns = known.get("segment_columns", {})
    paths = [*chosen.xyz, *(path for path, _ in (*chosen.columns.values(), *segment_columns.values()))]
    read = [path for path in paths if path in datasets and path not in members]
    known["notes"] = (*known.get("notes", ()), *chosen.notes)
    attributes, others_in_segments = _attributes(found, read, members)
    kept = single_values({path: names for path, (names, _) in attributes.kept.items()})
    known["left_out"] = (
        *chosen.left_out,
        *left_out_of(datasets, {*read, *kept, *(path for path, _ in chosen.left_out)}),
        *((path, BOOKKEEPING) for path in found.tree.bookkeeping),
        *((path, NO_COLUMN) for path in others_in_segments),
    )
    known["memory"] = known.get("memory", 0) + 2 * sum(hdf5.chunk_memory(datasets[path]) for path in read)
    return replace(
        chosen,
        **known,
        scale=_triple(header, "scale"),
        offset=_triple(header, "offset"),
        header=header,
        attributes=attributes,
        files=tuple(sorted(found.tree.files)),
    )


def _attributes(
    found: OpenFile, columns: Sequence[str], members: Sequence[str]
) -> tuple[Attributes, list[str]]:
    """Return attributes of the groups, columns and segments of a file, and what else is in its segments."""
    others: dict[str, None] = {}
    points: dict[str, tuple[int, ...]] = {}

    def in_segments() -> Iterator[tuple[str, h5py.HLObject]]:
        parent = found.file["segments"] if found.segments else None
        for key in found.segments:
            path, group = f"segments/{key}", unlinked(parent, key)
            if isinstance(group, h5py.Group):
                others.update(
                    dict.fromkeys(
                        name for name in names_in(group, location_of(found.name, path)) if name not in members
                    )
                )
                inside = {f"{path}/{each}": unlinked(group, each) for each in members}
                datasets = {each: item for each, item in inside.items() if isinstance(item, h5py.Dataset)}
                points[path] = next((item.shape or () for item in datasets.values()), ())
                yield path, group
                yield from datasets.items()

    def is_recounted(path: str, _: h5py.HLObject, name: str, entry: Entry) -> bool:
        """Whether an export writes the same value anyway."""
        count = {"dtype": "<i8", "value": next(iter(points.get(path, ())), None)}
        return name == COUNT and path in points and entry == count

    objects = objects_of(found.file, found.tree, columns.__contains__)
    attributes = read_attributes(chain(objects, in_segments()), is_recounted)
    return attributes, [f"segments/segment_N/{name}" for name in others]


def _header(file: h5py.File, name: str) -> dict[str, Any]:
    """All attributes of the group ``header``, as JSON; empty if there is none."""
    group = hdf5.find(file, "header")
    if group is None:
        return {}
    return {key: _plain(group.attrs[key]) for key in names_in(group.attrs, location_of(name, "header"))}


def count_notes(group: h5py.Group | None, attribute: str, found: int, what: str) -> tuple[str, ...]:
    """Remark if a count in the file's attributes is wrong."""
    if group is None or attribute not in group.attrs:
        return ()
    count = _plain(group.attrs[attribute])
    if not isinstance(count, int) or count == found:
        return ()
    return (f"its header counts {count} {what}, but it holds {found}",)


def _plain(value: object) -> object:
    """An attribute as a JSON value."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool) else str(value)


def _triple(header: Mapping[str, Any], what: str) -> tuple[float, ...] | None:
    """Three numbers of the header: ``x_scale``, ``y_scale``, ``z_scale``, or one array ``scale``."""
    found = header.get(what, header.get(f"{what}s", [header.get(f"{axis}_{what}") for axis in AXES]))
    if isinstance(found, list) and len(found) == 3 and all(isinstance(value, int | float) for value in found):
        return tuple(float(value) for value in found)
    return None


class Datasets(PointSource):
    """Reads datasets with one row per point."""

    def __init__(self, file: h5py.File, source: Source) -> None:
        self._file, self._name, self._detail = file, source.name, source.detail
        self._paths = column_paths(source.detail)
        self._datasets: dict[str, h5py.Dataset] = {}
        self._decoded: dict[str, tuple[int, NDArray[Any]]] = {}
        self.rows = self._count()

    def _count(self) -> int:
        return int(self._dataset(self._detail["xyz"][0]).shape[0])

    def _dataset(self, path: str) -> h5py.Dataset:
        if path not in self._datasets:
            self._datasets[path] = hdf5.member(self._file, path)
        return self._datasets[path]

    def block(self, columns: Sequence[str], lo: int, hi: int) -> list[NDArray[Any]]:
        """Rows ``lo:hi`` of some columns."""
        return [
            coordinates_or_features(self._paths, column, self._read(self._paths[column], lo, hi))
            for column in columns
        ]

    def _read(self, path: str, lo: int, hi: int) -> NDArray[Any]:
        """Rows ``lo:hi`` of a dataset. Large chunks that hold further rows are kept, to be decoded once.

        Small chunks stay in HDF5's own cache.
        """
        dataset, location = self._dataset(path), location_of(self._name, path)
        chunk = dataset.chunks[0] if hdf5.chunk_memory(dataset) else 0
        if 4 * chunk <= hi - lo:
            return hdf5.read_rows(dataset, location, lo, hi)
        first, rows = self._decoded.get(path, (0, np.empty(0)))
        if lo < first or hi > first + len(rows):
            self._decoded.pop(path, None)
            first = lo // chunk * chunk
            rows = hdf5.read_rows(dataset, location, first, min(-(-hi // chunk) * chunk, dataset.shape[0]))
            self._decoded[path] = first, rows
        return rows[lo - first : hi - first]


def coordinates_or_features(paths: Mapping[str, str], column: str, rows: NDArray[Any]) -> NDArray[Any]:
    """Coordinates or features of rows of one array that holds both; rows of other columns as they are.

    `paths` is from `column_paths`.
    """
    if column == "xyz":
        return rows[:, :3]
    return rows[:, 3:] if paths[column] == paths.get("xyz") else rows


def opener(points: Callable[[h5py.File, Source], PointSource]) -> Open:
    """`open_points` of a format, from the class that reads an open file."""

    @contextmanager
    def open_points(source: Source) -> Iterator[PointSource]:
        with hdf5.open_hdf5(source.path, source.name) as file:
            yield points(file, source)

    return open_points
