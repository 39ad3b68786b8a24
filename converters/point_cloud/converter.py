"""Point clouds, several files of any format: kept segments, exact coordinates, voxel grids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import reconcile
from unistore.converters.common.exclusion import Exclusion
from unistore.converters.files.paths import split_of
from unistore.converters.parts import Candidate, Found, LeftOut, Part, Scanned, Taken, Verdict
from unistore.converters.point_cloud.buckets import Read
from unistore.converters.point_cloud.coordinates import dequantise
from unistore.converters.point_cloud.derive import derive_points
from unistore.converters.point_cloud.lists import Listed, Lists, read_lists, room_names
from unistore.converters.point_cloud.memory import derive_memory
from unistore.converters.point_cloud.options import PointCloudOptions, parse_window
from unistore.converters.point_cloud.recognise import format_of, recognise, suffixes
from unistore.converters.point_cloud.segments import Partition, consecutive
from unistore.converters.point_cloud.settle import (
    column_fields,
    point_columns,
    segment_columns,
    settle_points,
    tables,
)
from unistore.converters.point_cloud.source import Layout, Match, to_json
from unistore.converters.point_cloud.windows import by_windows
from unistore.converters.point_cloud.workspace import Workspace
from unistore.converters.protocol import Converter, Emit, Facts, Scan, Settled, Source
from unistore.errors import InputError
from unistore.schemas.point_cloud.fields import FAMILY_NAME, POINTS, SEGMENTS, voxel_group
from unistore.schemas.tables import Table

__all__ = ["PointCloudConverter"]

_NOTES = 8


@dataclass(frozen=True, kw_only=True)
class _Described(Scanned):
    """What one file holds."""

    layout: Layout


class PointCloudConverter(PointCloudOptions, Converter):
    """Converts point clouds; see `PointCloudOptions`."""

    family: ClassVar[str] = FAMILY_NAME

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Endings of all registered formats."""
        return suffixes()

    def look(self, file: Candidate) -> Verdict:
        """Take a file that one of the formats with its suffix is certain of; details may still be wrong."""
        if not file.path.name.lower().endswith(self.suffixes):
            return LeftOut(f"is no {', '.join(self.suffixes)} file")
        found = format_of(file, self.map, Match.CERTAIN)
        if found is None:
            return LeftOut("is no point cloud of a known format")
        return Taken(found.NAME, f"is a point cloud of layout {found.NAME}")

    def find(self, paths: Sequence[Path], exclusion: Exclusion) -> Found:
        """Every file is a source; lists beside them name splits, of files that are left out too."""
        found = super().find(paths, exclusion)
        lists = read_lists([part.files[0] for part in found.parts], paths)

        def listed(part: Part) -> Listed:
            split = lists.splits.get(part.files[0], None if lists.splits else split_of(part.name))
            return Listed(split, tuple(lists.files))

        return Found(
            parts=[replace(part, detail=listed(part)) for part in found.parts],
            notes=lists.notes,
            problems=lists.problems,
        )

    def scan(self, part: Part) -> _Described:
        """Recognise a file's layout and columns; see `Converter.scan`."""
        with Candidate(part.files[0], part.roots, part.name) as file:
            return _Described(layout=recognise(file, self.map))

    def gather(self, parts: Sequence[Part], scanned: Sequence[_Described]) -> Scan:
        """Bring the columns of all files to one form, and name the rooms that lists tell."""
        found = [each.layout for each in scanned]
        named = list(zip([part.name for part in parts], found, strict=True))
        of_points = [(name, {key: form for key, (_, form) in each.columns.items()}) for name, each in named]
        of_segments = [
            (name, {key: form for key, (_, form) in each.segment_columns.items()}) for name, each in named
        ]
        merged, differing = reconcile(of_points, self.columns)
        lists = Lists()
        files = [part.files[0] for part in parts]
        rows = {path: each.segments for path, each in zip(files, found, strict=True) if each.listed}
        room_names(lists, rows, parts[0].roots)
        if problems := [*differing, *reconcile(of_segments, self.columns)[1], *lists.problems]:
            raise InputError(problems)
        points = [each.points for each in found]
        run = max(1, sum(points) // max(1, sum(each.segments for each in found)))
        sources = tuple(self._source(part, each, lists) for part, each in zip(parts, found, strict=True))
        return Scan(
            family=FAMILY_NAME,
            sources=sources,
            tables=tables(
                column_fields(merged, run),
                self.voxel_size,
                xyz_dtype="float32" if all(each.xyz_dtype == "float32" for each in found) else "float64",
                unit=_unit(sources),
                run=run,
                voxel_runs=[run for _ in self.voxel_size],
            ),
            sample_table=SEGMENTS,
            main_table=POINTS,
            options=self.recorded(),
            notes=(*self._notes(named, sources), *lists.notes),
            estimated_rows={
                POINTS: sum(points),
                **{voxel_group(size): sum(points) for size in self.voxel_size},
            },
        )

    def _source(self, part: Part, layout: Layout, lists: Lists) -> Source:
        path = part.files[0]
        memory = partial(
            derive_memory,
            layout,
            voxels=bool(self.voxel_size),
            windows=self.segment is not None,
            parts=self.max_points is not None,
        )
        return Source(
            path=path,
            name=part.name,
            files=(path, *layout.files, *part.detail.lists, *lists.files),
            split=part.detail.split,
            detail={
                **to_json(layout),
                "roots": [str(root.resolve()) for root in part.roots],
                **({"names": lists.rooms[path]} if path in lists.rooms else {}),
            },
            memory=memory(in_core=False),
            memory_in_core=memory(in_core=True),
        )

    def _notes(self, named: Sequence[tuple[str, Layout]], sources: Sequence[Source]) -> list[str]:
        kinds = [each.format for _, each in named]
        counted = ", ".join(f"{kinds.count(kind)} of layout {kind}" for kind in dict.fromkeys(kinds))
        stored = sum(each.segments for _, each in named if each.segmented)
        notes = [f"point cloud: {len(named)} file(s), {counted}; {stored} segments of their own"]
        uncut = [name for name, each in named if not each.segmented]
        others = f" and {len(uncut) - 1} other file(s)" if len(uncut) > 1 else ""
        if uncut and self.segment is None:
            notes.append(
                f"{uncut[0]}{others}: no segments, so each file is one (--segment window:50 cuts it)"
            )
        elif uncut:
            notes.append(f"{uncut[0]}{others}: no segments, so cut by {self.segment}")
        elif self.segment is not None:
            notes.append(f"every file has segments of its own, so nothing is cut by {self.segment}")
        remarks = [f"{name}: {note}" for name, each in named for note in each.notes]
        notes += remarks[:_NOTES]
        if len(remarks) > _NOTES:
            notes.append(f"and {len(remarks) - _NOTES} further remarks of this kind")
        splits = sorted({source.split for source in sources if source.split is not None})
        if splits:
            notes.append(f"splits: {', '.join(splits)}")
        return notes

    def derive(self, scan: Scan, source: int, emit: Emit, folder: Path | None) -> Facts:
        """Read one file of any size; see `Converter.derive` and `derive_points`."""
        return derive_points(
            scan.sources[source],
            point_columns(scan),
            segment_columns(scan, self.columns),
            self.voxel_size,
            self._cut,
            emit,
            folder,
        )

    def _cut(self, points: int, checked: Callable[[], Read], work: Workspace) -> Partition:
        if self.segment is None:
            return consecutive(np.array([points]), np.zeros(1, np.int64))
        size = parse_window(self.segment)
        return by_windows(checked(), points, size, self.min_points, self.max_points, work)

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


def _unit(sources: Sequence[Source]) -> str | None:
    """The unit that every file's format says it has."""
    units = {source.detail["unit"] for source in sources}
    return units.pop() if len(units) == 1 else None
