"""Convert CT volumes: images, windows as points or bit masks, masks, labels, distance fields."""

# Only the number of points per plane is kept of a volume. Steps import what they need: looking at a file of
# another family needs none of it.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from unistore.converters.common.exclusion import Exclusion
from unistore.converters.ct import Ct
from unistore.converters.ct.names import CASES, DATASET, DICOM, INFO, METADATA, SERIES, is_case
from unistore.converters.files.folders import ListedFolders
from unistore.converters.files.paths import Listing
from unistore.converters.protocol import Emit, Facts, Finalized, Scan
from unistore.converters.scan import Candidate, Parts, SourcePart
from unistore.converters.seam.converter import Neighbours, SeamConverter
from unistore.converters.seam.formats import group_of
from unistore.plugin import Claim, SourceFile, no, sure
from unistore.schemas.ct import fields as schema
from unistore.schemas.tables import Field, OwnForm
from unistore.system.hints import AnyArray

if TYPE_CHECKING:
    from unistore.converters.ct.scan import ScannedVolume
    from unistore.converters.ct.voxels import VolumeReader


class CtConverter(SeamConverter):
    """Converts CT volumes."""

    reads_in_place: ClassVar[bool] = True
    reads_planes: ClassVar[bool] = True
    plugin: Ct

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Endings of files of voxels and of points, and what describes them."""
        return (*super().suffixes, INFO)

    def look(self, file: Candidate) -> Claim:
        """Take ``info.json`` of case folders, too, which must be JSON. Of DICOM, look at no header."""
        if file.path.name == INFO:
            if not is_case(file.path.parent, Neighbours(self, file.folders)):
                return no("describes no case folder")
            from unistore.converters.ct.scan import read_info

            read_info(file.path, file.name)
            return sure("describes the volume of a case folder", CASES)
        if self._format_name(file.path) == DICOM:
            source = SourceFile(file.path, file.path.name, file.roots)
            return sure(self._fitting(file.path)[0].recognise(source).reason, SERIES)
        return super().look(file)

    def files(self, listing: Listing, exclusion: Exclusion) -> list[SourceFile]:
        """Files of volumes and texts about them, excluded ones too: what is paired with these is excluded."""
        paths = list(map(Path, listing.with_suffixes((*self.suffixes, METADATA, DATASET))))
        near = Neighbours(self, ListedFolders(paths))
        return [SourceFile(path, path.name, listing.roots, near, self._format_name(path)) for path in paths]

    def scan(self, part: SourcePart) -> ScannedVolume:
        """Read every header of a volume."""
        from unistore.converters.ct.scan import VolumeScan

        return VolumeScan(self.opened, self.plugin).run(group_of(part))

    def stored_arrays(self, scanned: ScannedVolume) -> None:
        """See `SeamConverter`: all."""

    def gather(self, parts: Parts, scanned: Sequence[ScannedVolume]) -> Scan:  # type: ignore[override]  # its own
        """Find what all volumes have in common."""
        from unistore.converters.ct.gather import gather

        return gather(parts, scanned, self.plugin)

    def derive(self, scan: Scan, source: int, emit: Emit, folder: Path | None) -> Facts:
        """Count the points of every window, check masks, window files and point files, and find locations."""
        reader = self._reader(scan, source)
        facts = reader.facts()
        most = scan.options.get("foreground_locations")
        return facts if most is None else {**facts, **reader.locations(most, emit)}

    def finalize(self, scan: Scan, facts: Sequence[Facts]) -> Finalized:
        """Choose points or bits for each window, and make the index arrays."""
        from unistore.converters.ct.gather import Finalizing

        return Finalizing(scan, facts).run()

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, AnyArray]
    ) -> None:
        """Read rows of volumes, masks, labels, windows (one per volume), or points of a window or field."""
        if hi <= lo:
            return
        volume = self._reader(scan, source)
        kind, _, name = table.partition("/")
        if not name:
            volume.read_planes(table, 0, None, out)
        elif kind == schema.SDF:
            volume.read_sdf(name, lo, hi, out)
        else:
            volume.read_window_points(name, lo, hi, out)

    def read_planes(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, AnyArray]
    ) -> None:
        """Read planes of the row of volumes, masks, labels or windows, see `Converter.read_planes`."""
        self._reader(scan, source).read_planes(table, lo, hi, out)

    def own(self, scan: Scan, table: str, source: int, fields: Mapping[str, Field]) -> dict[str, OwnForm]:
        """See `SourceReader.own`: without windows and locations, whose form follows from all volumes."""
        from unistore.converters.ct.voxels import own_forms

        return own_forms(scan.sources.details[source], table, fields)

    def _reader(self, scan: Scan, source: int) -> VolumeReader:
        from unistore.converters.ct.voxels import VolumeReader

        windows = scan.shared["agreement"].windows
        return VolumeReader(scan.sources.names[source], scan.sources.details[source], windows, scan.options)
