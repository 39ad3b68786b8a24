"""One scan of all files: their columns reconciled, sources, tables, what folders say, and remarks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from unistore.converters.common.columns import Column, reconcile
from unistore.converters.common.left_out import NOT_EVERYWHERE, left_out_notes
from unistore.converters.files.hdf5.attributes import AttributeCollector
from unistore.converters.point_cloud.derive import derive_memory
from unistore.converters.point_cloud.finalize import column_fields, segment_columns, tables
from unistore.converters.point_cloud.folders import (
    Lists,
    class_notes,
    folder_classes,
    have_labels,
    room_names,
    with_folder_label,
)
from unistore.converters.point_cloud.options import PointCloudOptions
from unistore.converters.point_cloud.source import LABEL, Described, Layout, Origin, Place
from unistore.converters.protocol import Scan, Sources
from unistore.converters.scan import Parts
from unistore.errors import InputError
from unistore.schemas.point_cloud.fields import FAMILY_NAME, POINTS, SEGMENTS, voxel_group
from unistore.system.sizes import count_of

_MAX_NOTES = 8


def gather_clouds(parts: Parts, described: Sequence[Described], options: PointCloudOptions) -> Scan:
    """Reconcile the columns of all files, and add what folders and lists say.

    Raises
    ------
    InputError
        With all that files and lists disagree on.
    """
    clouds = _Clouds(parts, described, options)
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
            column_fields(of_points, run, options.labels.classes if options.labels else {}),
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
    units = {origin.layout.unit for origin in sources.details}
    return units.pop() if len(units) == 1 else None


class _Clouds:
    """All files of a scan: what is counted and remarked on, and the sources that they become."""

    def __init__(self, parts: Parts, described: Sequence[Described], options: PointCloudOptions) -> None:
        self._parts, self._described, self._options = parts, described, options
        self.lists = Lists()
        self._classes: Sequence[tuple[int, str] | None] = [None] * len(parts)
        # A file that is cut into windows has no segment that its folder could name.
        if options.segment is None and LABEL not in options.map and not have_labels(described):
            self._classes = folder_classes(parts.names)
        self.points = 0
        self.segments = 0
        self.xyz_dtypes: set[str] = set()
        self.sources = Sources()
        self.texts = AttributeCollector()
        self._layouts: Counter[str] = Counter()
        self._own_segments = 0
        self._uncut = 0
        self._first_uncut = ""
        self._rows_of_lists: dict[Path, int] = {}
        self._left_out: dict[tuple[str, str], None] = {}
        self._paths: dict[str, str] = {}
        self._remarks: list[str] = []
        self._remarked = 0

    def _files(self) -> Iterator[tuple[str, list[str], Described, Layout]]:
        """Name, paths and layout of each file, with the label that its folder gives it."""
        parts = self._parts
        columns = zip(parts.names, parts.files(), self._described, self._classes, strict=True)
        for name, paths, file, of_class in columns:
            yield name, paths, file, with_folder_label(file.layout, of_class)

    def count(self) -> Iterator[tuple[str, dict[str, Column]]]:
        """Count all files; yields the name of each and the columns of its points."""
        for name, paths, file, layout in self._files():
            self._layouts[layout.name] += 1
            self.points += file.points
            self.segments += file.segments
            self.xyz_dtypes.add(layout.xyz_dtype)
            if file.segmented:
                self._own_segments += file.segments
            else:
                self._uncut += 1
                self._first_uncut = self._first_uncut or name
            if file.segments_are_rooms:
                self._rows_of_lists[Path(paths[0])] = file.segments
            self._left_out |= dict.fromkeys(file.left_out)
            for key, place in (*layout.columns.items(), *layout.segment_columns.items()):
                self._paths.setdefault(key, place.array)
            for note in file.notes:
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
        room_lists = list(map(str, self.lists.files))
        known = zip(self._files(), self._parts.details, self._classes, strict=True)
        for (name, paths, file, layout), part, label in known:
            rooms = self.lists.rooms.get(Path(paths[0]), ())
            memory = derive_memory(file, self._options)
            self.sources.add(
                name=name,
                files=[*paths, *file.further, *part.lists, *room_lists],
                split=part.split,
                detail=Origin(
                    file.files,
                    file.formats,
                    file.arrays,
                    layout,
                    self.texts.text(name, file.attributes),
                    tuple(rooms),
                    label,
                ),
                memory=memory.on_disk,
                memory_in_core=memory.in_core,
            )
            yield name, _forms(layout.segment_columns)

    def classes(self) -> dict[int, str]:
        """Name of each class, by number, if classes are folders."""
        return dict(sorted({label for label in self._classes if label is not None}))

    def notes(self, merged: Collection[str]) -> list[str]:
        """Remarks on all files; `merged` are the columns of the store."""
        layouts = ", ".join(f"{count} of layout {layout}" for layout, count in self._layouts.items())
        files = count_of(len(self.sources), "file")
        notes = [f"point cloud: {files}, {layouts}; {self._own_segments} segments of their own"]
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


def _forms(columns: Mapping[str, Place]) -> dict[str, Column]:
    return {key: place.form for key, place in columns.items()}
