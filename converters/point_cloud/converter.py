"""Point clouds, several files of any format: kept segments, exact coordinates, voxel grids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import Merged, reconcile
from unistore.converters.common.exclusion import Collected, Exclusion
from unistore.converters.detection import Detection
from unistore.converters.files.paths import expand, relative_names, split_of
from unistore.converters.point_cloud.coordinates import dequantise
from unistore.converters.point_cloud.derive import derive_points
from unistore.converters.point_cloud.lists import Lists, read_lists, room_names
from unistore.converters.point_cloud.memory import derive_memory, held_memory
from unistore.converters.point_cloud.options import PointCloudOptions, parse_window
from unistore.converters.point_cloud.order import Read
from unistore.converters.point_cloud.recognise import detect_format, recognise, suffixes
from unistore.converters.point_cloud.scratch import Scratch
from unistore.converters.point_cloud.segments import Partition, by_windows, consecutive
from unistore.converters.point_cloud.settle import (
    column_fields,
    point_columns,
    segment_columns,
    settle_points,
    tables,
)
from unistore.converters.point_cloud.source import Layout, to_json
from unistore.converters.protocol import Converter, Emit, Facts, Scan, Settled, Source
from unistore.errors import InputError, Problem
from unistore.schemas.point_cloud.fields import FAMILY_NAME, POINTS, SEGMENTS, voxel_group
from unistore.schemas.tables import Table

__all__ = ["PointCloudConverter", "detect"]

_LOOKED_AT = 8
_NOTES = 8
_READ_TO_REPORT = 1 << 28
"""Bytes of sources that are read to report their values' problems beside those of other files."""

Found = tuple[str, Path, Layout]


class PointCloudConverter(PointCloudOptions, Converter):
    """Converts point clouds; see `PointCloudOptions`."""

    family: ClassVar[str] = FAMILY_NAME

    def scan(self, paths: Sequence[Path]) -> Scan:
        """Recognise every file's layout and columns; see `Converter.scan`.

        Raises
        ------
        InputError
            With every problem of every file that can be seen without reading values.
        """
        files = expand(paths, suffixes())
        exclusion = Exclusion(self.exclude)
        found: list[Found] = []
        problems: list[Problem] = []
        collected = Collected(problems)
        for name, path in zip(relative_names(files), files, strict=True):
            if exclusion.covers(name):
                continue
            with collected.attempt(name, name):
                found.append((name, path, recognise(path, name, paths, self.map)))
        if not found and not problems:
            problems.append(Problem(f"{len(files)} file(s)", "are all left out", kind="empty"))
        of_points = [
            (name, {key: form for key, (_, form) in each.columns.items()}) for name, _, each in found
        ]
        of_segments = [
            (name, {key: form for key, (_, form) in each.segment_columns.items()}) for name, _, each in found
        ]
        merged, differing = reconcile(of_points, self.columns)
        problems += [*differing, *reconcile(of_segments, self.columns)[1]]
        lists = read_lists(files, paths)
        room_names(lists, {path: each.segments for _, path, each in found if each.listed}, paths)
        problems += lists.problems
        if problems:
            raise InputError([*problems, *self._problems_of_values(found, paths)])
        lists.notes += exclusion.notes()
        return self._scanned(found, merged, lists, paths)

    def _problems_of_values(self, found: Sequence[Found], roots: Sequence[Path]) -> list[Problem]:
        """Read the files whose form is right, when others are refused anyway, so that all is said at once."""
        if sum(path.stat().st_size for _, path, _ in found) > _READ_TO_REPORT:
            return []
        collected = Collected()
        for name, path, layout in found:
            columns = {key: form for key, (_, form) in layout.columns.items()}
            merged, _ = reconcile([(name, columns)], "exact")
            with collected.attempt(name, name):
                self.derive(self._scanned([(name, path, layout)], merged, Lists(), roots), 0, _forget)
        return collected.problems

    def _scanned(
        self, found: Sequence[Found], merged: Mapping[str, Merged], lists: Lists, roots: Sequence[Path]
    ) -> Scan:
        points = [each.points for *_, each in found]
        run = max(1, sum(points) // max(1, sum(each.segments for _, _, each in found)))
        fields = column_fields(merged, run)
        sources = tuple(
            Source(
                path=path,
                name=name,
                files=(path, *each.files, *lists.files),
                split=lists.splits.get(path, None if lists.splits else split_of(name)),
                detail={
                    **to_json(each),
                    "roots": [str(root.resolve()) for root in roots],
                    **({"names": lists.rooms[path]} if path in lists.rooms else {}),
                },
                memory=derive_memory(each, voxels=bool(self.voxel_size), windows=self.segment is not None),
                held=held_memory(each, voxels=bool(self.voxel_size), windows=self.segment is not None),
            )
            for name, path, each in found
        )
        return Scan(
            family=FAMILY_NAME,
            sources=sources,
            tables=tables(
                fields,
                self.voxel_size,
                xyz_dtype="float32" if all(each.xyz_dtype == "float32" for *_, each in found) else "float64",
                unit=_unit(sources),
                run=run,
                voxel_runs=[run for _ in self.voxel_size],
            ),
            sample_table=SEGMENTS,
            main_table=POINTS,
            options=self.recorded(),
            notes=(*self._notes(found, sources), *lists.notes),
            estimated_rows={
                POINTS: sum(points),
                **{voxel_group(size): sum(points) for size in self.voxel_size},
            },
        )

    def _notes(self, found: Sequence[Found], sources: Sequence[Source]) -> list[str]:
        kinds = [each.format for _, _, each in found]
        counted = ", ".join(f"{kinds.count(kind)} of layout {kind}" for kind in dict.fromkeys(kinds))
        stored = sum(each.segments for _, _, each in found if each.segmented)
        notes = [f"point cloud: {len(found)} file(s), {counted}; {stored} segments of their own"]
        uncut = [name for name, _, each in found if not each.segmented]
        others = f" and {len(uncut) - 1} other file(s)" if len(uncut) > 1 else ""
        if uncut and self.segment is None:
            notes.append(
                f"{uncut[0]}{others}: no segments, so each file is one (--segment window:50 cuts it)"
            )
        elif uncut:
            notes.append(f"{uncut[0]}{others}: no segments, so cut by {self.segment}")
        elif self.segment is not None:
            notes.append(f"every file has segments of its own, so nothing is cut by {self.segment}")
        remarks = [f"{name}: {note}" for name, _, each in found for note in each.notes]
        notes += remarks[:_NOTES]
        if len(remarks) > _NOTES:
            notes.append(f"and {len(remarks) - _NOTES} further remarks of this kind")
        splits = sorted({source.split for source in sources if source.split is not None})
        if splits:
            notes.append(f"splits: {', '.join(splits)}")
        return notes

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Raise: every table of a point cloud is spilled."""
        msg = f"table {table!r} of a point cloud is derived, not read"
        raise ValueError(msg)

    def derive(self, scan: Scan, source: int, emit: Emit) -> Facts:
        """Read one file, holding what is larger than a block; see `Converter.derive`."""
        return self.derive_in(None, scan, source, emit)

    def derive_in(self, folder: Path | None, scan: Scan, source: int, emit: Emit) -> Facts:
        """Read one file of any size; see `Spacious.derive_in` and `derive_points`."""
        return derive_points(
            scan.sources[source],
            point_columns(scan),
            segment_columns(scan, self.columns),
            self.voxel_size,
            self._cut,
            emit,
            folder,
        )

    def _cut(self, points: int, checked: Callable[[], Read], scratch: Scratch) -> Partition:
        if self.segment is None:
            return consecutive(np.array([points]), np.zeros(1, np.int64))
        size = parse_window(self.segment)
        return by_windows(checked(), points, size, self.min_points, self.max_points, scratch)

    def settle(self, scan: Scan, facts: Sequence[Facts]) -> Settled:
        """Index arrays of segments and voxels, and the dtype of the coordinates."""
        return settle_points(scan, facts, self.voxel_size, self.columns, _unit(scan.sources))

    def pack(
        self, scan: Scan, table: Table, column: str, source: int, rows: NDArray[Any], out: NDArray[Any]
    ) -> None:
        """Copy spilled rows; coordinates that were quantised become floats where not all could be."""
        if column == "xyz" and rows.dtype.kind == "i" and out.dtype.kind == "f":
            detail = scan.sources[source].detail
            rows = dequantise(rows, np.array(detail["scale"]), np.array(detail["offset"]))
        np.copyto(out, rows, casting="same_kind")


def _forget(table: str, column: str, rows: NDArray[Any]) -> None:
    """Emit to nowhere."""


def _unit(sources: Sequence[Source]) -> str | None:
    """The unit that every file's format says it has."""
    units = {source.detail["unit"] for source in sources}
    return units.pop() if len(units) == 1 else None


def detect(paths: Sequence[Path]) -> Detection | None:
    """Recognise point clouds by the first of the files that can be read."""
    try:
        files = expand(paths, suffixes())
    except InputError:
        return None
    for path in [file for file in files if file.name.lower().endswith(suffixes())][:_LOOKED_AT]:
        layout = detect_format(path, paths)
        if layout is not None:
            return Detection(FAMILY_NAME, layout, f"{path.name} is a point cloud of layout {layout}")
    return None
