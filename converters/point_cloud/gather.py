"""One scan of all files: their columns reconciled, sources, tables, names of rooms, and remarks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from unistore.converters.common.columns import Column, reconcile
from unistore.converters.common.left_out import NOT_EVERYWHERE, left_out_notes
from unistore.converters.files.hdf5.attributes import AttributeCollector
from unistore.converters.parts import Parts, Scanned
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
    labelled_by_folder = (
        LABEL not in options.map
        and any(info.of_class for info in parts.details)
        and not have_labels(each.layout for each in scanned)
    )

    def found() -> Iterator[tuple[str, Layout]]:
        for name, info, each in zip(parts.names, parts.details, scanned, strict=True):
            yield name, with_folder_label(each.layout, info.of_class if labelled_by_folder else None)

    seen, lists, texts = _Seen(), Lists(), AttributeCollector()
    counted = (seen.add(*each) for each in found())
    of_points, differing = reconcile(_forms(counted, attrgetter("columns")), options.columns)
    if seen.listed:
        rows = (
            (files[0], seen.listed.get(name)) for name, files in zip(parts.names, parts.files(), strict=True)
        )
        room_names(lists, {Path(path): count for path, count in rows if count is not None}, parts.roots)
    sources, roots = Sources(), [str(root.resolve()) for root in parts.roots]

    def added() -> Iterator[tuple[str, Layout]]:
        for (name, layout), files, info in zip(found(), parts.files(), parts.details, strict=True):
            _add(options, sources, name, layout, files, info, lists, texts, roots)
            yield name, layout

    of_segments, unlike = reconcile(_forms(added(), attrgetter("segment_columns")), options.columns)
    if problems := [*differing, *unlike, *lists.problems]:
        raise InputError(problems)
    merged = {*of_points, *of_segments}
    partial = [(path, NOT_EVERYWHERE) for key, path in seen.columns.items() if key not in merged]
    run = max(1, seen.points // max(1, seen.segments))
    classes = dict(sorted({tuple(each["class"]) for each in sources.details if "class" in each}))
    return Scan(
        family=FAMILY_NAME,
        sources=sources,
        tables=tables(
            column_fields(of_points, run),
            options.voxel_size,
            xyz_dtype="float32" if seen.xyz_dtypes == {"float32"} else "float64",
            unit=unit_of(sources),
            run=run,
            voxel_runs=[run for _ in options.voxel_size],
        ),
        sample_table=SEGMENTS,
        main_table=POINTS,
        options=options.recorded(),
        notes=(
            *_notes(seen, sources, options.segment, partial),
            *class_notes(set(classes.values())),
            *texts.notes(),
            *lists.notes,
        ),
        estimated_rows={
            POINTS: seen.points,
            **{voxel_group(size): seen.points for size in options.voxel_size},
        },
        shared={"segment_columns": segment_columns(of_segments, classes)},
    )


def _add(
    options: PointCloudOptions,
    sources: Sources,
    name: str,
    layout: Layout,
    files: Sequence[str],
    info: FolderInfo,
    lists: Lists,
    texts: AttributeCollector,
    roots: Sequence[str],
) -> None:
    memory = partial(
        derive_memory,
        layout,
        voxels=bool(options.voxel_size),
        windows=options.segment is not None,
        parts=options.max_points is not None,
    )
    rooms = lists.rooms.get(Path(files[0])) if lists.rooms else None
    by_folder = layout.segmented is None and LABEL in layout.segment_columns
    sources.add(
        name=name,
        files=list(map(str, (files[0], *layout.files, *info.lists, *lists.files))),
        split=info.split,
        detail={
            **to_json(layout),
            **texts.detail(name, layout.attributes),
            "roots": roots,
            **({} if rooms is None else {"names": rooms}),
            **({"class": list(info.of_class)} if info.of_class and by_folder else {}),
        },
        memory=memory(in_core=False),
        memory_in_core=memory(in_core=True),
    )


def _notes(
    seen: _Seen, sources: Sources, segment: str | None, partial: Iterable[tuple[str, str]]
) -> list[str]:
    counted = ", ".join(f"{count} of layout {kind}" for kind, count in seen.kinds.items())
    files = count_of(len(sources), "file")
    notes = [f"point cloud: {files}, {counted}; {seen.own_segments} segments of their own"]
    uncut = seen.uncut
    others = f" and {count_of(uncut - 1, 'other file')}" if uncut > 1 else ""
    if uncut and segment is None:
        notes.append(
            f"{seen.first_uncut}{others}: no segments, so each file is one (--segment window:50 cuts it)"
        )
    elif uncut:
        notes.append(f"{seen.first_uncut}{others}: no segments, so cut by {segment}")
    elif segment is not None:
        notes.append(f"every file has segments of its own, so nothing is cut by {segment}")
    notes += seen.remarks + left_out_notes([*seen.left_out, *partial])
    if seen.remarked > _MAX_NOTES:
        notes.append(f"and {seen.remarked - _MAX_NOTES} further remarks of this kind")
    splits = sorted({split for split in sources.splits if split is not None})
    if splits:
        notes.append(f"splits: {', '.join(splits)}")
    return notes


def unit_of(sources: Sources) -> str | None:
    """Unit of the coordinates, if it is the same for all files."""
    units = {detail["unit"] for detail in sources.details}
    return units.pop() if len(units) == 1 else None


@dataclass(slots=True)
class _Seen:
    """What a scan counts and remarks on, over all files."""

    kinds: Counter[str] = field(default_factory=Counter)
    points: int = 0
    segments: int = 0
    own_segments: int = 0
    uncut: int = 0
    first_uncut: str = ""
    xyz_dtypes: set[str] = field(default_factory=set)
    listed: dict[str, int] = field(default_factory=dict)
    left_out: dict[tuple[str, str], None] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    remarked: int = 0

    def add(self, name: str, each: Layout) -> tuple[str, Layout]:
        """Add a file; returns it."""
        self.kinds[each.format] += 1
        self.points += each.points
        self.segments += each.segments
        self.xyz_dtypes.add(each.xyz_dtype)
        if each.segmented:
            self.own_segments += each.segments
        else:
            self.uncut += 1
            self.first_uncut = self.first_uncut or name
        if each.segments_are_rooms:
            self.listed[name] = each.segments
        self.left_out |= dict.fromkeys(each.left_out)
        for key, (path, _) in (*each.columns.items(), *each.segment_columns.items()):
            self.columns.setdefault(key, path)
        for note in each.notes:
            self.remarked += 1
            self.remarks += [f"{name}: {note}"] if self.remarked <= _MAX_NOTES else []
        return name, each


def _forms(
    found: Iterable[tuple[str, Layout]], columns: Callable[[Layout], Mapping[str, Any]]
) -> Iterator[tuple[str, dict[str, Column]]]:
    """Name of each file, and its columns."""
    for name, each in found:
        yield name, {key: form for key, (_, form) in columns(each).items()}
