"""Convert point clouds of any format: which files they are, segments, exact coordinates, voxel grids."""

# Steps import what they need: looking at a file of another family needs none of it.

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from unistore.converters.common.label_map import Numbering
from unistore.converters.files.paths import split_of
from unistore.converters.formats.ply import labels_of
from unistore.converters.formats.sweeps import is_sweep
from unistore.converters.formats.text_points import is_room, room_of
from unistore.converters.plugin import (
    Claim,
    Family,
    Format,
    Group,
    Head,
    InputError,
    Opened,
    Problem,
    SourceFile,
    no,
    sure,
)
from unistore.converters.point_cloud.layouts import Arrays, Batches, ColumnPoints, Points, is_npy
from unistore.converters.point_cloud.names import (
    Described,
    Match,
    PointOrigin,
    column_files,
    coordinate_file,
    coordinate_word,
)
from unistore.converters.point_cloud.options import PointCloudOptions
from unistore.converters.point_cloud.pointsuite import Indices, InSegments, check_names, outside_segments
from unistore.converters.protocol import Emit, Facts, Finalized, Parts, Scan, Scanned, SourcePart
from unistore.converters.registry import conversion_of
from unistore.converters.scan import TWO_FAMILIES
from unistore.converters.seam.converter import SeamConverter
from unistore.converters.seam.formats import joined
from unistore.converters.seam.record import ConverterOf
from unistore.converters.seam.sources import further_files
from unistore.errors import printable
from unistore.schemas.point_cloud.fields import DECIMAL, FAMILY_NAME
from unistore.schemas.tables import Table
from unistore.system.hints import AnyArray

# Layouts by name, in the order in which a file is asked for them.
LAYOUTS: Mapping[str, type[Points]] = {
    layout.name: layout for layout in (Arrays, Indices, InSegments, Batches, ColumnPoints)
}
_NO_SWEEP = "not called like a sweep of a lidar"


class ListedSource(NamedTuple):
    """What lists say of a source: the ``detail`` of its group."""

    split: str | None
    files: tuple[str, ...]  # paths of all lists that were read


@dataclass(frozen=True, kw_only=True)
class PointCloud(PointCloudOptions, Family):
    """Point clouds; see `PointCloudOptions`."""

    name: ClassVar[str] = FAMILY_NAME
    formats: ClassVar[tuple[type[Format] | str, ...]] = (
        *("hdf5", "npy", "npz"),
        *("las", "laz", "parquet", "ply", "pcd", "sweep", "text_points"),
    )
    any_format: ClassVar[bool] = True

    def declines(self, file: SourceFile) -> str:
        """Decline an array that is called neither like a point cloud nor like a column of one beside it."""
        # So are text and files without a header, but for rooms, sweeps and what the user named.
        if not_called := _not_called(file):
            return not_called
        if not is_npy(file) or coordinate_word(file.path) is not None or _owner(file) is not None:
            return ""
        return "is not called like a point cloud"

    def match(self, head: Head) -> Claim:
        """Take a file that certainly has one of the layouts. It may still have problems."""
        owner = _owner(head.file)
        if owner is not None:
            return sure(f"is a column of {printable(owner.name)}", Arrays.name)
        if head.format == "sweep" and not is_sweep(head.file.path):
            if head.file.is_given:
                message = "may be a sweep of a lidar, or spikes: nothing in it says which"
                raise InputError(_either(head.file, message, "spike"))
            return no(_NO_SWEEP)
        layout, match = recognise(head.opened, head.format, self.map)
        if match is Match.EITHER:
            message = "may be a point cloud, whose rows are points, or plain rows, each a sample"
            raise InputError(_either(head.file, message, "rows"))
        if layout is None or match is Match.POSSIBLE:
            return no("is no point cloud of a known format")
        return sure(f"is a point cloud of layout {layout.name}", layout.name)

    def group(
        self, files: Sequence[SourceFile]
    ) -> Iterator[SourceFile | Group | tuple[SourceFile, str] | Problem | str]:
        """Group files with the columns beside them, and leave out arrays that are not clouds."""
        # Arrays that may be clouds by shape only are taken if no other file is a cloud, or if the user named
        # them. Lists beside the files name their splits.
        matches = {
            file.path: _match(file, file.path)
            for file in files
            if file.name.lower().endswith((".npy", ".npz"))
        }
        has_clouds = len(matches) < len(files) or max(matches.values(), default=Match.NO) >= Match.EITHER
        least = Match.EITHER if has_clouds else Match.POSSIBLE
        taken_files: list[SourceFile] = []
        left_out: list[SourceFile] = []
        for file in files:
            match = matches.get(file.path, Match.CERTAIN)
            is_column = match is not Match.CERTAIN and _owner(file) is not None
            if file.is_given or (match >= least and not is_column):
                taken_files.append(file)
            elif not is_column:
                left_out.append(file)
        if taken_files:
            yield from ((file, "no point cloud by its name and shape") for file in left_out)
        by_path = {file.path: file for file in files}
        from unistore.converters.point_cloud.tables import read_splits

        lists = read_splits(list(by_path), files[0].roots if files else ())
        yield from lists.notes
        yield from lists.problems
        list_files = tuple(map(str, lists.files))
        for file in taken_files or files:
            reason = _belongs(file, by_path)
            if reason:
                yield file, reason
                continue
            columns = {}
            if is_npy(file):
                named = column_files(file.path, file.roots)
                columns = {word: by_path[path] for word, path in named.items() if path in by_path}
            arrays = ("xyz", *columns) if is_npy(file) else ()
            split = lists.splits.get(file.path) if lists.splits else split_of(file.name)
            yield Group(file.name, (file, *columns.values()), arrays, detail=ListedSource(split, list_files))


def recognise(opened: Opened, kind: str, mapping: Mapping[str, str]) -> tuple[type[Points] | None, Match]:
    """Return the first layout that fits a file of a format best."""
    # A file that is wrong in some detail still has its layout, so that the detail can be reported.
    opened = outside_segments(opened)
    best: tuple[type[Points] | None, Match] = None, Match.NO
    for layout in LAYOUTS.values():
        if (layout is Arrays) != (kind in ("npy", "npz")):
            continue
        match = layout.match(opened, mapping)
        if match > best[1]:
            best = layout, match
        if match is Match.CERTAIN:
            return best
    if opened.unreachable:
        raise InputError(opened.unreachable)
    return best


def _belongs(file: SourceFile, by_path: Mapping[Path, SourceFile]) -> str:
    # Say why a file is no source of its own (empty: it is one)
    if labels_of(file.path) in by_path:
        return "read as labels of the scan beside it"
    if room_of(file.path) in by_path:
        return "read as an object of its room"
    return _not_called(file)


def _not_called(file: SourceFile) -> str:
    # Say why a file of text or without a header is no cloud by its name (empty: it may be one)
    suffix = file.path.suffix.lower()
    if suffix not in (".txt", ".bin") or file.is_given:
        return ""
    if suffix == ".bin":
        return "" if is_sweep(file.path) else _NO_SWEEP
    return "" if is_room(file.path) else "text, which is read as points if you name the file"


def _match(file: SourceFile, path: Path) -> Match:
    # How sure it is that arrays near a file are a cloud. Damaged ones may be one, which a scan tells
    assert file.near is not None
    head = file.near.head(path)
    return Match.DAMAGED if head is None else Arrays.match(head.opened, {})


def _owner(file: SourceFile) -> Path | None:
    # File of coordinates that a ``.npy`` file is a column of, or None
    if not is_npy(file):
        return None
    owner = coordinate_file(file.path, file.roots)
    return owner if owner is not None and _match(file, owner) >= Match.DAMAGED else None


def _either(file: SourceFile, message: str, other: str) -> Problem:
    # The problem of a file that another family could read, too, with a command for each
    commands = [conversion_of(family, [file.path]) for family in ("point_cloud", other)]
    return Problem(str(file.path), message, tuple(commands), TWO_FAMILIES)


converter = ConverterOf(PointCloud, "unistore.converters.point_cloud.converter:PointCloudConverter")


class PointCloudConverter(SeamConverter):
    """Converts point clouds, see `PointCloudOptions`."""

    scan_identifies: ClassVar[bool] = True
    plugin: PointCloud

    def describe(
        self, part: SourcePart, group: Group, openings: Sequence[Format], opened: Sequence[Opened]
    ) -> Described:
        """Recognise a source's layout and columns."""
        whole = outside_segments(joined(group, opened))
        layout, match = recognise(whole, openings[0].name, self.plugin.map)
        if layout is None:
            message = "is no point cloud of a known layout"
            raise InputError.at(part.name, message, "check what wrote it", "format")
        check_names(whole)
        described = layout.describe(whole, self.plugin.map)
        numbering = self._numbering(group.files[0].path, part.name)
        if numbering is not None:
            from unistore.converters.point_cloud.tables import with_label_dtype

            described = replace(described, layout=with_label_dtype(described.layout, numbering.dtype.str))
        notes = described.notes
        used = {place.array for place in described.layout.columns.values()}
        beside = zip(group.files[1:], group.arrays[1:], strict=True)
        names = [file.path.name for file, word in beside if word in used]
        if names:
            notes = (*notes, f"columns are in files beside it: {', '.join(names)}")
        return replace(
            described,
            certain=match is Match.CERTAIN,
            notes=notes,
            formats=tuple([opening.name for opening in openings]),
            further=further_files(whole, part),
        )

    def with_origins(self, scanned: Scanned, opened: Sequence[Opened]) -> Scanned:
        """See `SeamConverter`. Segments, of which there may be millions, are not looked at."""
        return super().with_origins(scanned, list(map(outside_segments, opened)))

    def stored_arrays(self, scanned: Scanned) -> None:
        """See `SeamConverter`: all."""

    def _numbering(self, path: str | Path, name: str) -> Numbering | None:
        labels = self.plugin.labels
        return None if labels is None else labels.numbering(Path(path), name)

    def not_ours(self, part: SourcePart, claim: Claim) -> Scanned:
        """Refuse a file that no format takes. If another family does, it is left to that."""
        raise InputError.at(part.name, claim.reason, "leave it out", "missing")

    def gather(self, parts: Parts, scanned: Sequence[Any]) -> Scan:
        """Reconcile the columns of all files, see `gather_clouds`."""
        from unistore.converters.point_cloud.tables import gather_clouds, have_labels

        if self.plugin.labels is not None:
            labelled = zip(parts.files(), scanned, strict=True)
            self.plugin.labels.check_used([Path(files[0]) for files, file in labelled if have_labels([file])])
        return gather_clouds(parts, scanned, self.plugin)

    def derive(self, scan: Scan, source: int, emit: Emit, folder: Path | None) -> Facts:
        """Read one file of any size, see `DerivedCloud`."""
        from unistore.converters.point_cloud.derive import DerivedCloud
        from unistore.converters.point_cloud.tables import point_columns

        origin: PointOrigin = scan.sources.details[source]
        with self.reopened(scan, source) as opened:
            points = LAYOUTS[origin.layout.name](opened, origin.layout)
            numbering = self._numbering(scan.sources.paths(source)[0], origin.files[0])
            cloud = DerivedCloud(points, scan.sources[source], self.plugin, emit, folder, numbering)
            return cloud.derive(point_columns(scan), scan.shared["segment_columns"])

    def finalize(self, scan: Scan, facts: Sequence[Facts]) -> Finalized:
        """Index arrays of segments and voxels, and the dtype of the coordinates."""
        from unistore.converters.point_cloud.tables import finalize_clouds

        return finalize_clouds(scan, facts, self.plugin.voxel_size)

    def pack(self, scan: Scan, table: Table, column: str, source: int, rows: AnyArray, out: AnyArray) -> None:
        """Copy spilled rows. Coordinates become floats or decimals if not all sources were quantised."""
        from unistore.converters.point_cloud.derive import dequantise, quantise_decimals

        decimal = table.columns()[column].attributes.get(DECIMAL) if column == "xyz" else None
        if column == "xyz" and rows.dtype.kind == "i" and (decimal is not None or out.dtype.kind == "f"):
            scale, offset = scan.sources.details[source].layout.quantum
            rows = dequantise(rows, np.array(scale), np.array(offset))
        if isinstance(decimal, Mapping):
            quantise_decimals(rows, decimal, out)
            return
        np.copyto(out, rows, casting="same_kind")
