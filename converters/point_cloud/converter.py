"""Convert point clouds of any format: segments, exact coordinates, voxel grids.

What a conversion needs is imported by its steps: looking at a file of another family needs none of it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exclusion import Exclusion
from unistore.converters.common.faults import as_problem, is_unreadable
from unistore.converters.files.formats import has_ending
from unistore.converters.files.paths import Listing, split_of
from unistore.converters.point_cloud import layouts
from unistore.converters.point_cloud.layouts import arrays, no_format, recognise
from unistore.converters.point_cloud.names import column_files, coordinate_file, coordinate_word
from unistore.converters.point_cloud.options import PointCloudOptions, parse_window
from unistore.converters.point_cloud.source import Match
from unistore.converters.protocol import Converter, Emit, Facts, Finalized, Scan
from unistore.converters.scan import TWO_FAMILIES, Candidate, Found, LeftOut, Part, Parts, Taken, Verdict
from unistore.errors import InputError, Problem, printable
from unistore.schemas.point_cloud.fields import DECIMAL, FAMILY_NAME
from unistore.schemas.tables import Table

if TYPE_CHECKING:
    from unistore.converters.point_cloud.gather import Described


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

    def find(self, listing: Listing, exclusion: Exclusion) -> Found:
        """Every file is a source, with the columns beside it; arrays that are not clouds are left out.

        Lists beside the files name their splits.
        """
        from unistore.converters.point_cloud.folders import FolderInfo, folder_classes, read_lists

        found = super().find(listing, exclusion)
        assert isinstance(found.parts, Parts)
        kept, left_out = _choose_clouds(found.parts, listing)
        clouds = [Path(files[0]) for files in kept.files()]
        lists = read_lists(clouds, listing.roots)
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

    def scan(self, part: Part) -> Described:
        """Recognise a file's layout and columns; see `Converter.scan`."""
        from unistore.converters.point_cloud.gather import Described

        with Candidate(part.files[0], part.roots, part.name) as file:
            found, match = recognise(file, self.map)
            if found is None:
                raise InputError(no_format(file))
            return Described(layout=found.describe(file, self.map), certain=match is Match.CERTAIN)

    def gather(self, parts: Parts, scanned: Sequence[Described]) -> Scan:
        """Reconcile the columns of all files; see `gather_clouds`."""
        from unistore.converters.point_cloud.gather import gather_clouds

        return gather_clouds(parts, scanned, self)

    def derive(self, scan: Scan, source: int, emit: Emit, folder: Path | None) -> Facts:
        """Read one file of any size; see `Converter.derive` and `derive_points`."""
        from unistore.converters.point_cloud.derive import derive_points
        from unistore.converters.point_cloud.finalize import point_columns
        from unistore.converters.point_cloud.grids import Windows

        windows = None
        if self.segment is not None:
            windows = Windows(parse_window(self.segment), self.min_points, self.max_points)
        return derive_points(
            scan.sources[source],
            point_columns(scan),
            scan.shared["segment_columns"],
            self.voxel_size,
            windows,
            emit,
            folder,
        )

    def finalize(self, scan: Scan, facts: Sequence[Facts]) -> Finalized:
        """Index arrays of segments and voxels, and the dtype of the coordinates."""
        from unistore.converters.point_cloud.finalize import finalize_points
        from unistore.converters.point_cloud.gather import unit_of

        return finalize_points(scan, facts, self.voxel_size, unit_of(scan.sources))

    def pack(
        self, scan: Scan, table: Table, column: str, source: int, rows: NDArray[Any], out: NDArray[Any]
    ) -> None:
        """Copy spilled rows; coordinates become floats or decimals if not all sources were quantised."""
        from unistore.converters.point_cloud.coordinates import dequantise, quantise_decimals

        decimal = table.columns()[column].attributes.get(DECIMAL) if column == "xyz" else None
        if column == "xyz" and rows.dtype.kind == "i" and (decimal is not None or out.dtype.kind == "f"):
            detail = scan.sources[source].detail
            rows = dequantise(rows, np.array(detail["scale"]), np.array(detail["offset"]))
        if isinstance(decimal, Mapping):
            quantise_decimals(rows, decimal, out)
            return
        np.copyto(out, rows, casting="same_kind")


def _owner(path: Path, roots: Sequence[Path]) -> Path | None:
    """File of coordinates that a ``.npy`` file is a column of, or None."""
    owner = coordinate_file(path, roots) if path.suffix.lower() == ".npy" else None
    return owner if owner is not None and _match(owner, roots) in (Match.CERTAIN, None) else None


def _match(path: Path, roots: Sequence[Path]) -> Match | None:
    """How sure it is that arrays are a cloud; None if the file is damaged, which `scan` reports."""
    with Candidate(path, roots) as file:
        try:
            with as_problem(str(path)):
                return arrays.match(file, {})
        except InputError as error:
            if is_unreadable(error):
                raise
            return None


def _choose_clouds(parts: Parts, listing: Listing) -> tuple[Parts, list[tuple[Path, str]]]:
    """Parts that are clouds, with their column files; and arrays that are left out, with the reason.

    Arrays that may be clouds by shape only are taken if no other file is a cloud, or if the user named them.
    """
    if not any(files[0].lower().endswith(arrays.SUFFIXES) for files in parts.files()):
        return parts, []
    plain = [part for part in parts if part.files[0].name.lower().endswith(arrays.SUFFIXES)]
    found = ((part.name, _match(part.files[0], part.roots)) for part in plain)
    matches = {name: Match.EITHER if match is None else match for name, match in found}
    unsure = [part for part in plain if matches[part.name] is not Match.CERTAIN]
    owned = {part.name for part in unsure if _owner(part.files[0], listing.roots) is not None}
    sure = len(plain) < len(parts) or any(each >= Match.EITHER for each in matches.values())
    kept, left_out = [], []
    for part in parts:
        path, match = part.files[0], matches.get(part.name, Match.CERTAIN)
        if part.name in owned and str(path) not in listing.given:
            continue
        if str(path) not in listing.given and (match is Match.NO or (match is Match.POSSIBLE and sure)):
            left_out.append((path, "no point cloud by its name and shape"))
            continue
        beside = column_files(path, listing.roots) if path.suffix.lower() == ".npy" else {}
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
