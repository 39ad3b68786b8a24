"""Convert trajectories: what is beside the seam's, episodes in groups or one after the other."""

# Steps import what they need: looking at a file of another family needs none of it.

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from unistore.converters.common.columns import SourceColumn
from unistore.converters.protocol import Emit, Facts, Finalized, Scan
from unistore.converters.scan import Parts, SourcePart
from unistore.converters.seam.converter import SeamConverter
from unistore.converters.trajectory import Trajectory
from unistore.converters.trajectory.layouts import needed_layout
from unistore.plugin import Claim, Format, Group, Head, Opened
from unistore.schemas.tables import Field, OwnForm
from unistore.system.hints import AnyArray

if TYPE_CHECKING:
    from unistore.converters.trajectory.scan import EpisodeOrigin, ScannedFile


class TrajectoryConverter(SeamConverter):
    """Converts robot trajectories, see `TrajectoryOptions`."""

    plugin: Trajectory
    reads_in_place: ClassVar[bool] = True

    def describe(
        self, part: SourcePart, group: Group, openings: Sequence[Format], opened: Sequence[Opened]
    ) -> ScannedFile:
        """Read a file's headers, flags and attributes."""
        from unistore.converters.trajectory.scan import scan_file

        is_mapped = bool(self.plugin.map)
        head = Head(group.files[0], openings[0].name, opened[0])
        layout = needed_layout(head, is_mapped=is_mapped)
        # Without a map, what is not recognised is refused.
        return scan_file(opened[0], head.format, layout, self.plugin, is_certain=not is_mapped)

    def stored_arrays(self, scanned: ScannedFile) -> Collection[str]:
        """See `SeamConverter`: those of the episodes."""
        return scanned.index.datasets()

    def not_ours(self, part: SourcePart, claim: Claim) -> ScannedFile:
        """See `SeamConverter.not_ours`. Such a file has no episodes."""
        from unistore.converters.trajectory.scan import ScannedFile

        super().not_ours(part, claim)
        return ScannedFile(notes=(f"left out: {part.name} {claim.reason}",))

    def gather(self, parts: Parts, scanned: Sequence[Any]) -> Scan:
        """Merge the columns of all episodes."""
        from unistore.converters.trajectory.gather import gather_files

        return gather_files(parts, scanned, self.plugin)

    def forms(self, parts: Parts, scanned: Sequence[Any]) -> Iterator[tuple[str, Mapping[str, SourceColumn]]]:
        """See `Converter`."""
        for name, one in zip(parts.names, scanned, strict=True):
            columns: dict[str, SourceColumn] = {}
            for variant in one.index.variants:
                columns |= {column: feature.form for column, feature in variant.features.items()}
            if columns:
                yield name, columns

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, AnyArray]
    ) -> None:
        """Read rows ``lo:hi`` of a source."""
        from unistore.converters.trajectory.read import Reader

        arrays = scan.shared["columns"].arrays_of(table)
        with self._source(scan, source) as (origin, opened):
            Reader(opened, origin.episodes, self.plugin.colour, arrays).read(table, lo, hi, out)

    def own(self, scan: Scan, table: str, source: int, fields: Mapping[str, Field]) -> dict[str, OwnForm]:
        """See `SourceReader.own`: the form that holds all episodes of a source."""
        variants = scan.sources.details[source].episodes.variants
        own_forms: dict[str, OwnForm] = scan.shared["columns"].own_forms(table, variants, fields)
        return own_forms

    def derive(self, scan: Scan, source: int, emit: Emit, folder: Path | None) -> Facts:
        """Compare next with following observations, emit what has any number of values in a row."""
        from unistore.converters.trajectory.read import derive_source

        spilled = scan.shared["columns"].spilled
        if not spilled and not scan.sources.details[source].episodes.must_be_compared:
            return {}
        with self._source(scan, source) as (origin, opened):
            return derive_source(opened, origin.episodes, spilled, emit)

    @contextmanager
    def _source(self, scan: Scan, source: int) -> Iterator[tuple[EpisodeOrigin, Opened]]:
        # A source, opened again, whose problems name the episode
        origin: EpisodeOrigin = scan.sources.details[source]
        with origin.episodes.episodes_in_problems(origin.files[0]), self.reopened(scan, source) as opened:
            yield origin, opened

    def finalize(self, scan: Scan, facts: Sequence[Facts]) -> Finalized:
        """Index arrays of episodes and kept frames, attributes, masks, tables of next observations."""
        from unistore.converters.trajectory.gather import finalize_episodes

        return finalize_episodes(scan, scan.shared["columns"], facts)
