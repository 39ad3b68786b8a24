"""Convert point clouds of any format: segments, exact coordinates, voxel grids."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import Column, reconcile
from unistore.converters.common.exclusion import Exclusion
from unistore.converters.common.faults import as_problem
from unistore.converters.files.formats import has_ending
from unistore.converters.files.hdf5.attributes import AttributeCollector
from unistore.converters.files.paths import split_of
from unistore.converters.parts import (
    TWO_FAMILIES,
    Candidate,
    Found,
    LeftOut,
    Part,
    Parts,
    Scanned,
    Taken,
    Verdict,
)
from unistore.converters.point_cloud import layouts
from unistore.converters.point_cloud.coordinates import dequantise, quantise_decimals
from unistore.converters.point_cloud.derive import derive_memory, derive_points
from unistore.converters.point_cloud.finalize import (
    column_fields,
    finalize_points,
    point_columns,
    segment_columns,
    tables,
)
from unistore.converters.point_cloud.folders import (
    FolderInfo,
    Lists,
    class_notes,
    folder_classes,
    have_labels,
    read_lists,
    room_names,
    with_folder_label,
)
from unistore.converters.point_cloud.layouts import arrays, no_format, recognise
from unistore.converters.point_cloud.names import column_files, coordinate_file, coordinate_word
from unistore.converters.point_cloud.options import PointCloudOptions, parse_window
from unistore.converters.point_cloud.order import Partition
from unistore.converters.point_cloud.sorting import Read
from unistore.converters.point_cloud.source import LABEL, Layout, Match, to_json
from unistore.converters.point_cloud.windows import by_windows
from unistore.converters.point_cloud.workspace import Workspace
from unistore.converters.protocol import Converter, Emit, Facts, Finalized, Scan, Sources
from unistore.errors import InputError, Problem, printable
from unistore.schemas.point_cloud.fields import DECIMAL, FAMILY_NAME, POINTS, SEGMENTS, voxel_group
from unistore.schemas.tables import Table
from unistore.system.sizes import count_of

_MAX_NOTES = 8


@dataclass(frozen=True, kw_only=True)
class _Described(Scanned):
    """Layout of one file."""

    layout: Layout


class PointCloudConverter(PointCloudOptions, Converter):
    """Converts point clouds; see `PointCloudOptions`."""

    family: ClassVar[str] = FAMILY_NAME
    scan_identifies: ClassVar[bool] = True

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Endings of all registered formats."""
        return tuple(dict.fromkeys(suffix for each in layouts.FORMATS for suffix in each.SUFFIXES))

    def look(self, file: Candidate) -> Verdict:
        """Take a file that certainly has one of the formats with its suffix; it may still have problems."""
        if not has_ending(file.path, self.suffixes):
            return LeftOut(f"is no {', '.join(self.suffixes)} file")
        if (owner := _owner(file.path, file.roots)) is not None:
            return Taken(arrays.NAME, f"is a column of {printable(owner.name)}")
        if file.path.suffix.lower() == ".npy" and coordinate_word(file.path) is None:
            return LeftOut("is not called like a point cloud")
        found, match = recognise(file, self.map)
        if match is Match.EITHER:
            raise InputError(_either(file))
        if found is None or match is Match.POSSIBLE:
            return LeftOut("is no point cloud of a known format")
        return Taken(found.NAME, f"is a point cloud of layout {found.NAME}")

    def find(self, paths: Sequence[Path], exclusion: Exclusion) -> Found:
        """Every file is a source, with the columns beside it; arrays that are not clouds are left out.

        Lists beside the files name their splits.
        """
        found = super().find(paths, exclusion)
        assert isinstance(found.parts, Parts)
        kept, left_out = _choose_clouds(found.parts, paths)
        clouds = [Path(files[0]) for files in kept.files()]
        lists = read_lists(clouds, paths)
        classes = folder_classes(kept.names) if self.segment is None else [None] * len(kept)
        parts = Parts(roots=kept.roots)
        for name, files, path, of_class in zip(kept.names, kept.files(), clouds, classes, strict=True):
            split = lists.splits.get(path) if lists.splits else split_of(name)
            parts.add(name, files, FolderInfo(split, tuple(lists.files), of_class))
        return Found(
            parts=parts,
            left_out=left_out,
            notes=lists.notes,
            problems=lists.problems,
        )

    def scan(self, part: Part) -> _Described:
        """Recognise a file's layout and columns; see `Converter.scan`."""
        with Candidate(part.files[0], part.roots, part.name) as file:
            found, match = recognise(file, self.map)
            if found is None:
                raise InputError(no_format(file))
            return _Described(layout=found.describe(file, self.map), certain=match is Match.CERTAIN)

    def gather(self, parts: Parts, scanned: Sequence[_Described]) -> Scan:
        """Reconcile the columns of all files, and add the names of rooms from lists."""
        labelled_by_folder = (
            LABEL not in self.map
            and any(info.of_class for info in parts.details)
            and not have_labels(each.layout for each in scanned)
        )

        def found() -> Iterator[tuple[str, Layout]]:
            for name, info, each in zip(parts.names, parts.details, scanned, strict=True):
                yield name, with_folder_label(each.layout, info.of_class if labelled_by_folder else None)

        seen, lists, texts = _Seen(), Lists(), AttributeCollector()
        counted = (seen.add(*each) for each in found())
        of_points, differing = reconcile(_forms(counted, attrgetter("columns")), self.columns)
        if seen.listed:
            rows = (
                (files[0], seen.listed.get(name))
                for name, files in zip(parts.names, parts.files(), strict=True)
            )
            room_names(lists, {Path(path): count for path, count in rows if count is not None}, parts.roots)
        sources, roots = Sources(), [str(root.resolve()) for root in parts.roots]

        def added() -> Iterator[tuple[str, Layout]]:
            for (name, layout), files, info in zip(found(), parts.files(), parts.details, strict=True):
                self._add(sources, name, layout, files, info, lists, texts, roots)
                yield name, layout

        of_segments, unlike = reconcile(_forms(added(), attrgetter("segment_columns")), self.columns)
        if problems := [*differing, *unlike, *lists.problems]:
            raise InputError(problems)
        run = max(1, seen.points // max(1, seen.segments))
        classes = dict(sorted({tuple(each["class"]) for each in sources.details if "class" in each}))
        return Scan(
            family=FAMILY_NAME,
            sources=sources,
            tables=tables(
                column_fields(of_points, run),
                self.voxel_size,
                xyz_dtype="float32" if seen.xyz_dtypes == {"float32"} else "float64",
                unit=_unit(sources),
                run=run,
                voxel_runs=[run for _ in self.voxel_size],
            ),
            sample_table=SEGMENTS,
            main_table=POINTS,
            options=self.recorded(),
            notes=(
                *self._notes(seen, sources),
                *class_notes(set(classes.values())),
                *texts.notes(),
                *lists.notes,
            ),
            estimated_rows={
                POINTS: seen.points,
                **{voxel_group(size): seen.points for size in self.voxel_size},
            },
            shared={"segment_columns": segment_columns(of_segments, classes)},
        )

    def _add(
        self,
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
            voxels=bool(self.voxel_size),
            windows=self.segment is not None,
            parts=self.max_points is not None,
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

    def _notes(self, seen: _Seen, sources: Sources) -> list[str]:
        counted = ", ".join(f"{count} of layout {kind}" for kind, count in seen.kinds.items())
        files = count_of(len(sources), "file")
        notes = [f"point cloud: {files}, {counted}; {seen.own_segments} segments of their own"]
        uncut = seen.uncut
        others = f" and {count_of(uncut - 1, 'other file')}" if uncut > 1 else ""
        if uncut and self.segment is None:
            notes.append(
                f"{seen.first_uncut}{others}: no segments, so each file is one (--segment window:50 cuts it)"
            )
        elif uncut:
            notes.append(f"{seen.first_uncut}{others}: no segments, so cut by {self.segment}")
        elif self.segment is not None:
            notes.append(f"every file has segments of its own, so nothing is cut by {self.segment}")
        notes += seen.remarks
        if seen.remarked > _MAX_NOTES:
            notes.append(f"and {seen.remarked - _MAX_NOTES} further remarks of this kind")
        splits = sorted({split for split in sources.splits if split is not None})
        if splits:
            notes.append(f"splits: {', '.join(splits)}")
        return notes

    def derive(self, scan: Scan, source: int, emit: Emit, folder: Path | None) -> Facts:
        """Read one file of any size; see `Converter.derive` and `derive_points`."""
        return derive_points(
            scan.sources[source],
            point_columns(scan),
            scan.shared["segment_columns"],
            self.voxel_size,
            self._make_windows,
            emit,
            folder,
        )

    def _make_windows(self, points: int, read_all: Callable[[], Read], work: Workspace) -> Partition:
        if self.segment is None:
            return Partition(None, np.array([points]), np.zeros(1, np.int64))
        size = parse_window(self.segment)
        return by_windows(read_all(), points, size, self.min_points, self.max_points, work)

    def finalize(self, scan: Scan, facts: Sequence[Facts]) -> Finalized:
        """Index arrays of segments and voxels, and the dtype of the coordinates."""
        return finalize_points(scan, facts, self.voxel_size, _unit(scan.sources))

    def pack(
        self, scan: Scan, table: Table, column: str, source: int, rows: NDArray[Any], out: NDArray[Any]
    ) -> None:
        """Copy spilled rows; coordinates become floats or decimals if not all sources were quantised."""
        decimal = table.columns()[column].attributes.get(DECIMAL) if column == "xyz" else None
        if column == "xyz" and rows.dtype.kind == "i" and (decimal is not None or out.dtype.kind == "f"):
            detail = scan.sources[source].detail
            rows = dequantise(rows, np.array(detail["scale"]), np.array(detail["offset"]))
        if isinstance(decimal, Mapping):
            quantise_decimals(rows, decimal, out)
            return
        np.copyto(out, rows, casting="same_kind")


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


def _owner(path: Path, roots: Sequence[Path]) -> Path | None:
    """File of coordinates that a ``.npy`` file is a column of, or None."""
    owner = coordinate_file(path, roots) if path.suffix.lower() == ".npy" else None
    return owner if owner is not None and _match(owner, roots) in (Match.CERTAIN, None) else None


def _match(path: Path, roots: Sequence[Path]) -> Match | None:
    """How sure it is that arrays are a cloud; None if they cannot be read, which `scan` reports."""
    with Candidate(path, roots) as file:
        try:
            with as_problem(str(path)):
                return arrays.match(file, {})
        except InputError:
            return None


def _choose_clouds(parts: Parts, paths: Sequence[Path]) -> tuple[Parts, list[tuple[Path, str]]]:
    """Parts that are clouds, with their column files; and arrays that are left out, with the reason.

    Arrays that may be clouds by shape only are taken if no other file is a cloud, or if the user named them.
    """
    given = {path.parent.resolve() / path.name for path in paths if not path.is_dir()}
    if not any(files[0].lower().endswith(arrays.SUFFIXES) for files in parts.files()):
        return parts, []
    plain = [part for part in parts if part.files[0].name.lower().endswith(arrays.SUFFIXES)]
    found = ((part.name, _match(part.files[0], part.roots)) for part in plain)
    matches = {name: Match.EITHER if match is None else match for name, match in found}
    unsure = [part for part in plain if matches[part.name] is not Match.CERTAIN]
    owned = {part.name for part in unsure if _owner(part.files[0], paths) is not None}
    sure = len(plain) < len(parts) or any(each >= Match.EITHER for each in matches.values())
    kept, left_out = [], []
    for part in parts:
        path, match = part.files[0], matches.get(part.name, Match.CERTAIN)
        if part.name in owned and path not in given:
            continue
        if path not in given and (match is Match.NO or (match is Match.POSSIBLE and sure)):
            left_out.append((path, "no point cloud by its name and shape"))
            continue
        beside = column_files(path, paths) if path.suffix.lower() == ".npy" else {}
        kept.append(replace(part, files=(path, *beside.values())))
    return (Parts(kept), left_out) if kept else (parts, [])


def _either(file: Candidate) -> Problem:
    """Problem of a file that two families could read, with a command for each."""
    path = shlex.quote(str(file.path))
    stem = file.path.stem
    commands = [
        f"unistore convert {family} {path} {shlex.quote(stem)}.zarr" for family in ("point-cloud", "rows")
    ]
    message = "may be a point cloud, whose rows are points, or plain rows, each a sample"
    return Problem(str(file.path), message, " or ".join(commands), TWO_FAMILIES)


def _unit(sources: Sources) -> str | None:
    """Unit of the coordinates, if it is the same for all files."""
    units = {detail["unit"] for detail in sources.details}
    return units.pop() if len(units) == 1 else None
