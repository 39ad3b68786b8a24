"""One scan of all files: their columns reconciled, sources, tables, names of rooms, and remarks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unistore.converters.common.columns import Column, reconcile
from unistore.converters.common.left_out import NOT_EVERYWHERE, left_out_notes
from unistore.converters.files.hdf5.attributes import AttributeCollector
from unistore.converters.point_cloud.derive import derive_memory
from unistore.converters.point_cloud.finalize import column_fields, segment_columns, tables
from unistore.converters.point_cloud.folders import (
    FolderInfo,
    Lists,
    class_notes,
    have_labels,
    room_names,
    with_folder_label,
)
from unistore.converters.point_cloud.options import PointCloudOptions
from unistore.converters.point_cloud.source import LABEL, Layout, to_json
from unistore.converters.protocol import Scan, Sources
from unistore.converters.scan import Parts, Scanned
from unistore.errors import InputError
from unistore.schemas.point_cloud.fields import FAMILY_NAME, POINTS, SEGMENTS, voxel_group
from unistore.system.sizes import count_of

_MAX_NOTES = 8


@dataclass(frozen=True, kw_only=True)
class Described(Scanned):
    """Layout of one file."""

    layout: Layout


def gather_clouds(parts: Parts, scanned: Sequence[Described], options: PointCloudOptions) -> Scan:
    """Reconcile the columns of all files, and add the names of rooms from lists."""
    clouds = _Clouds(parts, scanned, options)
    of_points, problems = reconcile(clouds.count(), options.columns)
    clouds.read_rooms()
    of_segments, unlike = reconcile(clouds.add_sources(), options.columns)
    problems += unlike + clouds.lists.problems
    if problems:
        raise InputError(problems)
    classes = clouds.classes()
    points = clouds.points
    run = max(1, points // max(1, clouds.segments))
    grids = [voxel_group(size) for size in options.voxel_size]
    return Scan(
        family=FAMILY_NAME,
        sources=clouds.sources,
        tables=tables(
            column_fields(of_points, run),
            options.voxel_size,
            xyz_dtype="float32" if clouds.xyz_dtypes == {"float32"} else "float64",
            unit=unit_of(clouds.sources),
            run=run,
            voxel_runs=[run] * len(grids),
        ),
        sample_table=SEGMENTS,
        main_table=POINTS,
        options=options.recorded(),
        notes=(
            *clouds.notes({*of_points, *of_segments}),
            *class_notes(set(classes.values())),
            *clouds.texts.notes(),
            *clouds.lists.notes,
        ),
        estimated_rows=dict.fromkeys([POINTS, *grids], points),
        shared={"segment_columns": segment_columns(of_segments, classes)},
    )


def unit_of(sources: Sources) -> str | None:
    """Unit of the coordinates, if it is the same for all files."""
    units = {detail["unit"] for detail in sources.details}
    return units.pop() if len(units) == 1 else None


class _Clouds:
    """All files of a scan: what is counted and remarked on, and the sources that they become."""

    def __init__(self, parts: Parts, scanned: Sequence[Described], options: PointCloudOptions) -> None:
        self._parts, self._scanned, self._options = parts, scanned, options
        self._labelled_by_folder = (
            LABEL not in options.map
            and any(info.of_class for info in parts.details)
            and not have_labels(file.layout for file in scanned)
        )
        self.points = 0
        self.segments = 0
        self.xyz_dtypes: set[str] = set()
        self.sources = Sources()
        self.lists = Lists()
        self.texts = AttributeCollector()
        self._kinds: Counter[str] = Counter()
        self._own_segments = 0
        self._uncut = 0
        self._first_uncut = ""
        self._rows_of_lists: dict[Path, int] = {}
        self._left_out: dict[tuple[str, str], None] = {}
        self._paths: dict[str, str] = {}
        self._remarks: list[str] = []
        self._remarked = 0

    def _files(self) -> Iterator[tuple[str, list[str], FolderInfo, Layout]]:
        """Name, paths, folders and layout of each file."""
        parts = self._parts
        for name, paths, info, file in zip(
            parts.names, parts.files(), parts.details, self._scanned, strict=True
        ):
            of_class = info.of_class if self._labelled_by_folder else None
            yield name, paths, info, with_folder_label(file.layout, of_class)

    def count(self) -> Iterator[tuple[str, dict[str, Column]]]:
        """Count all files; yields the name of each and the columns of its points."""
        for name, paths, _, layout in self._files():
            self._kinds[layout.format] += 1
            self.points += layout.points
            self.segments += layout.segments
            self.xyz_dtypes.add(layout.xyz_dtype)
            if layout.segmented:
                self._own_segments += layout.segments
            else:
                self._uncut += 1
                self._first_uncut = self._first_uncut or name
            if layout.segments_are_rooms:
                self._rows_of_lists[Path(paths[0])] = layout.segments
            self._left_out |= dict.fromkeys(layout.left_out)
            for columns in (layout.columns, layout.segment_columns):
                for key, (path, _) in columns.items():
                    self._paths.setdefault(key, path)
            for note in layout.notes:
                self._remarked += 1
                if self._remarked <= _MAX_NOTES:
                    self._remarks.append(f"{name}: {note}")
            yield name, _forms(layout.columns)

    def read_rooms(self) -> None:
        """Read the names of rooms, if there are lists of them."""
        if self._rows_of_lists:
            room_names(self.lists, self._rows_of_lists, self._parts.roots)

    def add_sources(self) -> Iterator[tuple[str, dict[str, Column]]]:
        """Add all files to the sources; yields the name of each and the columns of its segments."""
        roots = [str(root.resolve()) for root in self._parts.roots]
        options = self._options
        for name, paths, info, layout in self._files():
            detail = {**to_json(layout), **self.texts.detail(name, layout.attributes), "roots": roots}
            rooms = self.lists.rooms.get(Path(paths[0])) if self.lists.rooms else None
            if rooms is not None:
                detail["names"] = rooms
            if info.of_class and layout.segmented is None and LABEL in layout.segment_columns:
                detail["class"] = list(info.of_class)
            memory = derive_memory(
                layout,
                voxels=bool(options.voxel_size),
                windows=options.segment is not None,
                parts=options.max_points is not None,
            )
            self.sources.add(
                name=name,
                files=[paths[0], *map(str, (*layout.files, *info.lists, *self.lists.files))],
                split=info.split,
                detail=detail,
                memory=memory.on_disk,
                memory_in_core=memory.in_core,
            )
            yield name, _forms(layout.segment_columns)

    def classes(self) -> dict[int, str]:
        """Name of each class, by number, if classes are folders."""
        named = {tuple(detail["class"]) for detail in self.sources.details if "class" in detail}
        return dict(sorted(named))

    def notes(self, merged: Collection[str]) -> list[str]:
        """Remarks on all files; `merged` are the columns of the store."""
        counted = ", ".join(f"{count} of layout {kind}" for kind, count in self._kinds.items())
        files = count_of(len(self.sources), "file")
        notes = [f"point cloud: {files}, {counted}; {self._own_segments} segments of their own"]
        segment = self._options.segment
        if self._uncut:
            uncut = self._first_uncut
            if self._uncut > 1:
                uncut += f" and {count_of(self._uncut - 1, 'other file')}"
            cut = f"cut by {segment}"
            if segment is None:
                cut = "each file is one (--segment window:50 cuts it)"
            notes.append(f"{uncut}: no segments, so {cut}")
        elif segment is not None:
            notes.append(f"every file has segments of its own, so nothing is cut by {segment}")
        lacking = [(path, NOT_EVERYWHERE) for key, path in self._paths.items() if key not in merged]
        notes += self._remarks + left_out_notes([*self._left_out, *lacking])
        if self._remarked > _MAX_NOTES:
            notes.append(f"and {self._remarked - _MAX_NOTES} further remarks of this kind")
        splits = sorted({split for split in self.sources.splits if split is not None})
        if splits:
            notes.append(f"splits: {', '.join(splits)}")
        return notes


def _forms(columns: Mapping[str, tuple[str, Column]]) -> dict[str, Column]:
    return {key: form for key, (_, form) in columns.items()}
