"""Robot trajectories in HDF5: robomimic, LIBERO, MimicGen, robosuite; ACT/ALOHA; D4RL; flat files.

What a conversion needs is imported by its steps: looking at a file of another family needs none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import NDArray

from unistore.converters.files.formats import has_ending
from unistore.converters.protocol import Converter, Emit, Facts, Finalized, Scan
from unistore.converters.scan import Candidate, LeftOut, Part, Parts, Taken, Verdict
from unistore.converters.trajectory import layouts
from unistore.converters.trajectory.options import TrajectoryOptions
from unistore.converters.trajectory.source import SourceFile
from unistore.schemas.trajectory.fields import FAMILY_NAME

if TYPE_CHECKING:
    from unistore.converters.trajectory.scan import ScannedFile


class TrajectoryConverter(TrajectoryOptions, Converter):
    """Converts robot trajectories; see `TrajectoryOptions`."""

    family: ClassVar[str] = FAMILY_NAME
    suffixes: ClassVar[tuple[str, ...]] = layouts.suffixes()
    scan_identifies: ClassVar[bool] = True

    def look(self, file: Candidate) -> Verdict:
        """Recognise files by their content."""
        if not has_ending(file.path, self.suffixes):
            return LeftOut(f"is no {', '.join(self.suffixes)} file")
        found = layouts.recognise(SourceFile(file))
        if found is None:
            formats = layouts.formats_for(file.path)
            return LeftOut(f"holds no {', no '.join(each.evidence for each in formats)}")
        return Taken(found.name, f"holds {found.evidence}")

    def scan(self, part: Part) -> ScannedFile:
        """Read a file's headers, flags and actions; see `Converter.scan`.

        Raises
        ------
        InputError
            With every problem of a file without a sound episode: unreadable, not a trajectory file, different
            lengths, never written, dtypes that are not numeric.
        """
        from unistore.converters.common.exclusion import Exclusion
        from unistore.converters.trajectory.naming import Naming
        from unistore.converters.trajectory.scan import scan_file

        naming = Naming(renamed=self.map, ignored=self.ignore)
        found = scan_file(part, naming, Exclusion(self.exclude))
        return replace(found, certain=not self.map)  # without a map, what is not recognised is refused

    def gather(self, parts: Parts, scanned: Sequence[ScannedFile]) -> Scan:
        """Merge the columns of all episodes; see `gather_files`."""
        from unistore.converters.trajectory.gather import gather_files

        return gather_files(parts, scanned, self)

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Read rows ``lo:hi`` of a source; see `Converter.read`."""
        from unistore.converters.trajectory.episode_index import EpisodeIndex
        from unistore.converters.trajectory.read import Reader

        origin = scan.sources[source]
        index = EpisodeIndex.from_json(origin.detail)
        resized = scan.shared["columns"].resized_columns(table)
        with index.episodes_in_problems(origin.name):
            Reader(origin, index, self.colour, resized).read(table, lo, hi, out)

    def derive(self, scan: Scan, source: int, emit: Emit, folder: Path | None) -> Facts:
        """Compare next with following observations, emit compressed frames, read attributes."""
        from unistore.converters.trajectory.episode_index import EpisodeIndex
        from unistore.converters.trajectory.read import derive_source

        kept = [table.name for table in scan.tables if table.spilled]
        origin = scan.sources[source]
        index = EpisodeIndex.from_json(origin.detail)
        with index.episodes_in_problems(origin.name):
            return derive_source(origin, index, kept, emit)

    def finalize(self, scan: Scan, facts: Sequence[Facts]) -> Finalized:
        """Index arrays of episodes and kept frames, attributes, masks, tables of next observations."""
        from unistore.converters.trajectory.finalize import finalize_episodes

        return finalize_episodes(scan, scan.shared["columns"], facts)
