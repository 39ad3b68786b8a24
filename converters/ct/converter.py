"""CT volumes: images, windows as points or bit masks, masks, labels, distance fields.

A source is one volume. `scan` reads headers. `derive` reads every volume once, slab by slab, to count and
check voxels. `finalize` then chooses points or bits for each window. `read` computes the rows that a shard
needs, or some planes of one. Only the number of points per plane is kept of a volume.

What a conversion needs is imported by its steps: looking at a file of another family needs none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import NDArray

from unistore.converters.common.exclusion import Exclusion
from unistore.converters.ct.files import INFO, POINTS
from unistore.converters.ct.layouts import suffixes
from unistore.converters.ct.look import look
from unistore.converters.ct.options import CtOptions
from unistore.converters.files.paths import Listing
from unistore.converters.protocol import Converter, Emit, Facts, Finalized, Scan, Sources
from unistore.converters.scan import Candidate, Found, Part, Verdict
from unistore.schemas.ct import fields as schema

if TYPE_CHECKING:
    from unistore.converters.ct.headers import ScannedVolume
    from unistore.converters.ct.volume import VolumeReader


class CtConverter(CtOptions, Converter):
    """Converts CT volumes; see `CtOptions`, and `unistore.converters.ct.find` for a volume's files."""

    family: ClassVar[str] = schema.FAMILY_NAME
    suffixes: ClassVar[tuple[str, ...]] = (*suffixes(), POINTS, INFO)
    reads_planes: ClassVar[bool] = True

    def look(self, file: Candidate) -> Verdict:
        """Take volumes, windows and masks; see `unistore.converters.ct.look.look`."""
        return look(file)

    def find(self, listing: Listing, exclusion: Exclusion) -> Found:
        """Group the files into volumes; see `find_volumes`."""
        from unistore.converters.ct.find import find_volumes
        from unistore.schemas.ct.windows import parse_window

        return find_volumes(listing, [parse_window(each).name for each in self.window])

    def scan(self, part: Part) -> ScannedVolume:
        """Read every header of a volume; see `scan_volume`."""
        from unistore.converters.ct.headers import scan_volume

        return scan_volume(part, self.resolution, self.info_order)

    def gather(self, parts: Sequence[Part], scanned: Sequence[ScannedVolume]) -> Scan:
        """Find what all volumes have in common; see `agree`."""
        from unistore.converters.ct.agreement import agree, notes_of
        from unistore.converters.ct.tables import make_source, make_tables, possible_tables
        from unistore.schemas.ct.windows import parse_window

        asked = [parse_window(each) for each in self.window]
        agreement = agree(scanned, asked, self.sparse, [part.name for part in parts])
        windows = [
            {"name": window.name, "width": float(window.width), "level": float(window.level)}
            for window in agreement.windows
        ]
        found: dict[str, Any] = {"windows": windows, "values": dict(agreement.values)}
        if agreement.scaled:
            found["scaled"] = dict(agreement.scaled)
        if agreement.labels:
            found["labels"] = dict(agreement.labels)
        return Scan(
            family=schema.FAMILY_NAME,
            sources=Sources(
                make_source(volume, part.name, part.roots, agreement)
                for part, volume in zip(parts, scanned, strict=True)
            ),
            tables=make_tables(scanned, agreement, self.tile),
            sample_table=schema.VOLUMES,
            main_table=schema.VOLUMES,
            options={**self.recorded(), "found": found},
            notes=tuple(notes_of(scanned, agreement, asked, self.sparse)),
            possible=possible_tables(scanned, agreement, self.tile, self.sparse),
            needs_facts=True,
        )

    def derive(self, scan: Scan, source: int, emit: Emit, folder: Path | None) -> Facts:
        """Count the points of every window; check masks, window files and point files."""
        return _reader(scan, source).facts()

    def finalize(self, scan: Scan, facts: Sequence[Facts]) -> Finalized:
        """Choose points or bits for each window; index arrays of offsets, extents, names and geometry."""
        from unistore.converters.ct.finalize import finalize

        return finalize(scan, facts)

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Read rows of volumes, masks, labels, windows (one per volume), or points of a window or field."""
        if hi <= lo:
            return
        volume = _reader(scan, source)
        if table in (schema.VOLUMES, schema.MASKS, schema.LABELS, schema.WINDOWS):
            volume.read_planes(table, 0, None, out)
        elif table.startswith(f"{schema.SDF}/"):
            volume.read_sdf(table.removeprefix(f"{schema.SDF}/"), lo, hi, out)
        else:
            volume.read_window_points(table.removeprefix(f"{schema.WINDOWS}/"), lo, hi, out)

    def read_planes(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Read planes of the row of volumes, masks, labels or windows; see `Converter.read_planes`."""
        _reader(scan, source).read_planes(table, lo, hi, out)


def _reader(scan: Scan, source: int) -> VolumeReader:
    from unistore.converters.ct.volume import VolumeReader

    return VolumeReader.of(scan, source)
