"""Gather point clouds: the columns of all files together, and what folders and lists say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from unistore.converters.point_cloud.derive import derive_memory
from unistore.converters.point_cloud.labels import folder_classes, have_labels, with_folder_label
from unistore.converters.point_cloud.lists import FileLists, read_rooms
from unistore.converters.point_cloud.names import ID_COLUMNS, LABEL, ColumnPlace, Described, PointOrigin
from unistore.converters.point_cloud.options import PointCloudOptions
from unistore.converters.point_cloud.tables import field_of, tables_of, unit_of
from unistore.converters.point_cloud.timed_sweeps import (
    TIME_DESCRIPTION,
    TIME_UNIT,
    TimedSweeps,
    times_of_layout,
)
from unistore.errors import InputError, Problem, first_few
from unistore.plugin import (
    AttributeCollector,
    Field,
    Merged,
    Parts,
    Scan,
    SourceColumn,
    Sources,
    count_of,
    left_out_notes,
    reconcile,
)
from unistore.schemas.point_cloud.fields import FAMILY_NAME, POINTS, SEGMENTS, voxel_group

_SHOWN_NOTES = 8
_SHOWN_CLASSES = 8


def gather_clouds(parts: Parts, scanned: Sequence[Described], options: PointCloudOptions) -> Scan:
    """Reconcile the columns of all files, and add what folders and lists say.

    Raises
    ------
    InputError
        If files have columns that do not fit together, if lists contradict each other, or if a label map
        names a dataset without a label in these files.
    """
    _check_label_map(parts, scanned, options)
    files = _with_folder_labels(parts.names, scanned, options)
    columns, problems = _reconciled(parts.names, files, options.columns)
    rooms = _rooms(parts, files)
    problems += rooms.problems
    if problems:
        raise InputError(problems)
    attributes = AttributeCollector()
    sources = _sources(parts, files, rooms, attributes, options)
    classes = _class_names(files)
    points = sum(file.points for file in files)
    run = max(1, points // max(1, sum(file.segments for file in files)))
    return Scan(
        family=FAMILY_NAME,
        sources=sources,
        tables=tables_of(
            _point_fields(columns, options, run),
            voxel_runs=dict.fromkeys(options.voxel_size, run),
            xyz_dtype=_xyz_dtype(files),
            unit=unit_of(sources),
            run=run,
        ),
        sample_table=SEGMENTS,
        main_table=POINTS,
        options=options.recorded(),
        notes=(
            *_notes(parts, files, options),
            *_left_out_notes(files, columns),
            *_folder_notes(sources, sorted(classes.values())),
            *attributes.notes(),
            *rooms.notes,
            *Merged.promotion_notes(columns.together),
        ),
        estimated_rows=dict.fromkeys([POINTS, *map(voxel_group, options.voxel_size)], points),
        shared={"segment_columns": _segment_fields(files, columns, classes)},
    )


def _check_label_map(parts: Parts, files: Sequence[Described], options: PointCloudOptions) -> None:
    """Refuse a label map of a dataset without a label in these files."""
    if options.labels is None:
        return
    labelled = [
        Path(paths[0]) for paths, file in zip(parts.files(), files, strict=True) if have_labels([file])
    ]
    options.labels.check_used(labelled)


def _with_folder_labels(
    names: Sequence[str], files: Sequence[Described], options: PointCloudOptions
) -> Sequence[Described]:
    """Return the files with the classes of their folders as labels, if no file has labels."""
    # A file that is cut into windows has no segment that its folder could name.
    if options.segment is not None or LABEL in options.map or have_labels(files):
        return files
    return list(map(with_folder_label, files, folder_classes(names)))


class _MergedColumns(NamedTuple):
    """Reconciled columns of points and of segments, by name, and of both together."""

    points: Mapping[str, Merged]
    segments: Mapping[str, Merged]

    @property
    def together(self) -> Mapping[str, Merged]:
        return {**self.points, **self.segments}


def _reconciled(
    names: Sequence[str], files: Sequence[Described], mode: str
) -> tuple[_MergedColumns, list[Problem]]:
    """Return the columns of all files together, and what does not fit together."""
    of_points = [_forms(file.layout.columns) for file in files]
    points, problems = reconcile(zip(names, of_points, strict=True), mode)
    of_segments = [_forms(file.layout.segment_columns) for file in files]
    segments, further_problems = reconcile(zip(names, of_segments, strict=True), mode)
    return _MergedColumns(points, segments), problems + further_problems


def _forms(places: Mapping[str, ColumnPlace]) -> dict[str, SourceColumn]:
    return {name: place.form for name, place in places.items()}


def _rooms(parts: Parts, files: Sequence[Described]) -> FileLists:
    """Read the names of the segments that are rooms."""
    segments = {}
    for paths, file in zip(parts.files(), files, strict=True):
        if file.segments_are_rooms:
            segments[Path(paths[0])] = file.segments
    return read_rooms(segments, parts.roots)


def _sources(
    parts: Parts,
    files: Sequence[Described],
    rooms: FileLists,
    attributes: AttributeCollector,
    options: PointCloudOptions,
) -> Sources:
    """Return all sources, whose attributes are added to those of the store."""
    sources = Sources()
    list_files = list(map(str, rooms.files))
    for name, paths, group, file in zip(parts.names, parts.files(), parts.details, files, strict=True):
        memory = derive_memory(file, options)
        sources.add(
            name=name,
            files=[*paths, *file.further, *group.detail.files, *list_files],
            split=group.detail.split,
            detail=PointOrigin(
                files=group.names,
                formats=file.formats,
                arrays=group.arrays,
                layout=file.layout,
                attributes=attributes.text(name, file.attributes),
                rooms=tuple(rooms.rooms.get(Path(paths[0]), ())),
                segment_arrays=file.segment_arrays,
                label=file.label,
            ),
            memory=memory.on_disk,
            memory_in_core=memory.in_core,
        )
    return sources


def _class_names(files: Sequence[Described]) -> dict[str, str]:
    """Return the names of the classes that folders are named after, by number."""
    labels = {file.label for file in files if file.label is not None}
    return {str(number): name for number, name in sorted(labels)}


def _xyz_dtype(files: Sequence[Described]) -> str:
    is_single = all(file.layout.xyz_dtype == "float32" for file in files)
    return "float32" if is_single else "float64"


def _point_fields(columns: _MergedColumns, options: PointCloudOptions, run: int) -> list[Field]:
    classes = options.labels.classes if options.labels else {}
    return [field_of(POINTS, name, form, classes, run) for name, form in columns.points.items()]


def _segment_fields(
    files: Sequence[Described], columns: _MergedColumns, classes: Mapping[str, str]
) -> dict[str, Field]:
    fields = {name: field_of(SEGMENTS, name, form, classes) for name, form in columns.segments.items()}
    if all(file.layout.name == TimedSweeps.name for file in files):
        times = {name for file in files for name in times_of_layout(file.layout.segment_columns)}
        for name in times & fields.keys():
            fields[name] = replace(fields[name], unit=TIME_UNIT, description=TIME_DESCRIPTION)
    return fields


def _notes(parts: Parts, files: Sequence[Described], options: PointCloudOptions) -> Iterator[str]:
    """Yield notes on layouts and segments, and those on single files."""
    layouts = Counter(file.layout.name for file in files)
    counts = ", ".join(f"{count} of layout {layout}" for layout, count in layouts.items())
    segments = sum(file.segments for file in files if file.segmented)
    yield f"point cloud: {count_of(len(parts), 'file')}, {counts}; {segments} segments of their own"
    yield from _cut_notes(parts, files, options)
    sources_of_note: dict[str, list[str]] = {}
    for name, file in zip(parts.names, files, strict=True):
        for note in file.notes:
            sources_of_note.setdefault(note, []).append(name)
    notes = [f"{first_few(names, 1)}: {note}" for note, names in sources_of_note.items()]
    yield from notes[:_SHOWN_NOTES]
    if len(notes) > _SHOWN_NOTES:
        yield f"there are {count_of(len(notes) - _SHOWN_NOTES, 'more note')} of this kind"


def _cut_notes(parts: Parts, files: Sequence[Described], options: PointCloudOptions) -> Iterator[str]:
    """Yield a note on files without segments, or on an option that cuts nothing."""
    uncut = [name for name, file in zip(parts.names, files, strict=True) if not file.segmented]
    if uncut and options.segment:
        yield f"{first_few(uncut, 1)}: no segments in the file, so --segment {options.segment} divides it"
    elif uncut:
        ids = [key for file in files for key in file.layout.columns if key.lower() in ID_COLUMNS]
        rule = f"column:{ids[0]}" if ids else "window:50"
        yield f"{first_few(uncut, 1)}: no segments, so each file becomes one; --segment {rule} divides it"
    elif options.segment:
        yield f"every file has its own segments, so --segment {options.segment} has no effect"


def _left_out_notes(files: Sequence[Described], columns: _MergedColumns) -> list[str]:
    """Return notes on arrays that are not stored."""
    stored = columns.together
    left_out: dict[tuple[str, str], None] = {}
    for file in files:
        left_out |= dict.fromkeys(file.left_out)
        for name, place in file.layout.places.items():
            if name not in stored:
                left_out[place.array, ""] = None
    return left_out_notes(left_out)


def _folder_notes(sources: Sources, classes: Collection[str]) -> Iterator[str]:
    """Yield notes on splits, and on folders that are labels."""
    splits = sorted({split for split in sources.splits if split is not None})
    if splits:
        yield f"splits: {', '.join(splits)}"
    if classes:
        names = first_few(list(classes), _SHOWN_CLASSES)
        yield f"folders are stored as the labels of segments: {names}; --map label= does not store them"
