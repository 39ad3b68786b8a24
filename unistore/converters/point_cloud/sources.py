"""Which files are point clouds, of which layout, and which belong together."""

# Steps import what they need: looking at a file of another family needs none of it.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from unistore.converters.formats.ply import labels_of
from unistore.converters.formats.sweeps import is_sweep
from unistore.converters.formats.text_points import is_room, room_of
from unistore.converters.point_cloud.layouts import Arrays, Batches, ColumnPoints, Points, is_npy
from unistore.converters.point_cloud.names import (
    Match,
    column_files,
    coordinate_file,
    coordinate_word,
)
from unistore.converters.point_cloud.pointsuite import Indices, InSegments
from unistore.converters.point_cloud.segment_arrays import SegmentArrays
from unistore.converters.point_cloud.timed_sweeps import TimedSweeps
from unistore.errors import printable
from unistore.plugin import (
    Claim,
    FileSummary,
    Group,
    Grouping,
    InputError,
    OpenFile,
    Problem,
    SourceFile,
    conversion_of,
    no,
    split_of,
    sure,
)

# Layouts by name, in the order in which a file is asked for them.
LAYOUTS: Mapping[str, type[Points]] = {
    layout.name: layout
    for layout in (Arrays, Indices, InSegments, Batches, SegmentArrays, TimedSweeps, ColumnPoints)
}
_NO_SWEEP = "does not have the name of a lidar sweep"


class ListedSource(NamedTuple):
    """What lists say of a source: the ``detail`` of its group."""

    split: str | None
    files: tuple[str, ...]  # paths of all lists that were read


def not_called_so(file: SourceFile) -> str:
    """Say why an array is called neither like a point cloud nor like a column beside one (empty: it is).

    This includes text and files without a header, except rooms, sweeps and files that the user named.
    """
    if not_called := _not_called(file):
        return not_called
    if not is_npy(file) or coordinate_word(file.path) is not None or _owner(file) is not None:
        return ""
    return "does not have the name of a point cloud"


def match(head: FileSummary, mapping: Mapping[str, str]) -> Claim:
    """Take a file that certainly has one of the layouts. It may still have problems."""
    owner = _owner(head.file)
    if owner is not None:
        return sure(f"is a column of {printable(owner.name)}", Arrays.name)
    if head.format == "sweep" and not is_sweep(head.file.path):
        if head.file.is_given:
            message = "may be a sweep of a lidar or spikes; its content does not show which"
            raise InputError(_either(head.file, message, "spike"))
        return no(_NO_SWEEP)
    layout, fit = recognise(head.opened, head.format, mapping)
    if fit is Match.EITHER:
        message = "may be a point cloud, with a point per row, or plain arrays, with a sample per row"
        raise InputError(_either(head.file, message, "rows"))
    if layout is None or fit is Match.POSSIBLE:
        return no("is not a point cloud of a known format")
    return sure(f"is a point cloud of layout {layout.name}", layout.name)


def group(files: Sequence[SourceFile]) -> Grouping:
    """Group clouds with the files of their columns, and skip arrays that are not clouds.

    Arrays that may be clouds only by their shape are clouds if no other file is one, or if the user
    named them. Lists among the files name their splits.
    """
    matches = {
        file.path: _match(file, file.path) for file in files if file.name.lower().endswith((".npy", ".npz"))
    }
    has_clouds = len(matches) < len(files) or max(matches.values(), default=Match.NO) >= Match.EITHER
    least = Match.EITHER if has_clouds else Match.POSSIBLE
    taken_files: list[SourceFile] = []
    left_out: list[SourceFile] = []
    for file in files:
        fit = matches.get(file.path, Match.CERTAIN)
        is_column = fit is not Match.CERTAIN and _owner(file) is not None
        if file.is_given or (fit >= least and not is_column):
            taken_files.append(file)
        elif not is_column:
            left_out.append(file)
    why = "does not have the name and shape of a point cloud"
    grouping = Grouping(left_out=[(file, why) for file in left_out] if taken_files else [])
    by_path = {file.path: file for file in files}
    from unistore.converters.point_cloud.lists import read_splits

    lists = read_splits(list(by_path), files[0].roots if files else ())
    grouping.notes += lists.notes
    grouping.problems += lists.problems
    list_files = tuple(map(str, lists.files))
    for file in taken_files or files:
        reason = _belongs(file, by_path)
        if reason:
            grouping.left_out.append((file, reason))
            continue
        columns = {}
        if is_npy(file):
            named = column_files(file.path, file.roots)
            columns = {word: by_path[path] for word, path in named.items() if path in by_path}
        arrays = ("xyz", *columns) if is_npy(file) else ()
        split = lists.splits.get(file.path) if lists.splits else split_of(file.name)
        detail = ListedSource(split, list_files)
        grouping.sources.append(Group(file.name, (file, *columns.values()), arrays, detail=detail))
    return grouping


def recognise(opened: OpenFile, kind: str, mapping: Mapping[str, str]) -> tuple[type[Points] | None, Match]:
    """Return the first layout that fits a file of a format best.

    A file that is wrong in some detail still has its layout, so that the detail can be reported.
    """
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
        return "is read as the labels of a scan"
    if room_of(file.path) in by_path:
        return "is read as an object of its room"
    return _not_called(file)


def _not_called(file: SourceFile) -> str:
    # Say why a file of text or without a header is no cloud by its name (empty: it may be one)
    suffix = file.path.suffix.lower()
    if suffix not in (".txt", ".bin") or file.is_given:
        return ""
    if suffix == ".bin":
        return "" if is_sweep(file.path) else _NO_SWEEP
    return "" if is_room(file.path) else "is text, which is read as points only if you name the file"


def _match(file: SourceFile, path: Path) -> Match:
    # How sure it is that arrays near a file are a cloud. Damaged ones may be one, which a scan tells
    head = file.surroundings.head(path)
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
    return Problem(str(file.path), message, tuple(commands), "two families")
