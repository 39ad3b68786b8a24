"""Robot trajectories: what users say of them, which files they are, and where the steps are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unistore.converters.trajectory.options import TrajectoryOptions
from unistore.plugin import Family, Grouping, Schema, no, sure

if TYPE_CHECKING:
    from pathlib import Path

    from unistore.converters.trajectory.alike import AlikeEpisodes
    from unistore.plugin import (
        ArraySpecs,
        Claim,
        Emit,
        Exporter,
        Field,
        FileSummary,
        Finalized,
        Group,
        Openable,
        OwnForm,
        Parts,
        Preview,
        Restore,
        Rule,
        Scan,
        Scanned,
        SourceArrays,
        SourceColumn,
        SourceFile,
        StoreView,
    )
    from unistore.system.types import AnyArray


@dataclass(frozen=True, kw_only=True)
class Trajectory(TrajectoryOptions, Family):
    """The family of robot trajectories. `TrajectoryOptions` has its options."""

    name = "trajectory"
    summary = "Robot trajectories: HDF5, LeRobot, RLDS, Minari, Zarr, ROS bags, MCAP."
    description = (
        "Robot trajectories: HDF5 (robomimic, LIBERO, ACT/ALOHA, D4RL, ManiSkill, DROID, others), LeRobot, "
        "RLDS, Minari, Zarr replay buffers, ROS bags and MCAP."
    )
    examples = (
        "unistore convert trajectory demos/ demos.zarr",
        "unistore convert trajectory demo.hdf5 demo.zarr --image-size 224",
        "unistore convert trajectory aloha/ aloha.zarr --images keep",
    )
    formats = ("hdf5", "maniskill", "lerobot", "rlds", "minari", "replay_zarr", "bag")
    any_format = True
    schema = Schema(table="steps")
    kind = "Transitions"
    other_kinds = ("unistore.Windows(history=2, horizon=8)",)
    batch_size = 64
    exports = ("lerobot", "robomimic")
    scan_identifies = True
    reads_in_place = True

    @classmethod
    def specs(cls) -> ArraySpecs:
        """See `unistore.schemas.trajectory.fields`."""
        from unistore.schemas.trajectory.fields import SPECS

        return SPECS

    @classmethod
    def rules(cls) -> Sequence[Rule]:
        """Check episodes, their ends, success and clocks."""
        from unistore.schemas.trajectory.rules import RULES

        return RULES

    @classmethod
    def exporter(cls, to: str) -> Exporter:
        """Yield the files of the sources, a LeRobot dataset, or a robomimic file."""
        if to == "lerobot":
            from unistore.converters.trajectory.lerobot_export import files as lerobot_files

            return lerobot_files
        if to == "robomimic":
            from unistore.converters.trajectory.robomimic_export import files as robomimic_files

            return robomimic_files
        from unistore.converters.trajectory.restore import files

        return files

    @classmethod
    def restorer(cls, store: StoreView, scan: Scan) -> Restore:
        """Restore the arrays of each episode."""
        from unistore.converters.trajectory.restore import restore

        return restore(store, scan)

    @classmethod
    def preview(cls) -> Preview:
        """Show the frames and curves of an episode."""
        from unistore.converters.trajectory.preview import PREVIEW

        return PREVIEW

    @classmethod
    def alike(cls) -> AlikeEpisodes:
        """Join columns by episode."""
        from unistore.converters.trajectory.alike import AlikeEpisodes

        return AlikeEpisodes()

    def match(self, head: FileSummary) -> Claim:
        """Recognise files by the names in them."""
        from unistore.converters.trajectory.layouts import LAYOUTS, layout_of

        layout = layout_of(head)
        if layout is None:
            return no(f"contains neither {', nor '.join(other.evidence for other in LAYOUTS)}")
        return sure(f"contains {layout.evidence}", layout.name)

    def claim(self, file: SourceFile) -> Claim | None:
        """Decline JSON and YAML that describe no dataset and no bag, and the files of described bags."""
        from unistore.converters.trajectory.layouts import BAG, LEROBOT, METADATA

        path = file.path
        if file.format == LEROBOT.name and path.parts[-2:] != ("meta", "info.json"):
            return no("is not meta/info.json of LeRobot")
        if file.format != BAG.name or path.name == METADATA:
            return None
        if path.suffix == ".yaml":
            return no(f"is not {METADATA} of a bag")
        text = path.with_name(METADATA)
        if path.suffix == ".bag" or file.near is None or not file.near.has(str(text)):
            return None
        from unistore.converters.formats.bag_files import describes_bag

        return no(f"is read through {METADATA} in the same folder") if describes_bag(text) else None

    def group(self, files: Sequence[SourceFile]) -> Grouping:
        """Take the files that are not declined."""
        grouping = Grouping()
        for file in files:
            claim = self.claim(file)
            if claim is None:
                grouping.sources.append(file)
            else:
                grouping.left_out.append((file, claim.reason))
        return grouping

    def scan(self, group: Group, files: Sequence[Openable]) -> Scanned:
        """Find the episodes of a file, their columns and what it says of them."""
        from unistore.converters.trajectory.scan import scan_source

        return scan_source(self, group, files[0])

    def stored_arrays(self, scanned: Any) -> Collection[str]:
        """Return the datasets of the episodes."""
        datasets: Collection[str] = scanned.index.datasets()
        return datasets

    def forms(self, scanned: Any) -> Mapping[str, SourceColumn]:
        """Return the forms of the columns of all episodes of a file."""
        forms: Mapping[str, SourceColumn] = scanned.index.forms()
        return forms

    def reconcile(self, parts: Parts, scanned: Sequence[Any]) -> Scan:
        """Merge the columns of all episodes."""
        from unistore.converters.trajectory.gather import gather_files

        return gather_files(parts, scanned, self)

    def prepare(
        self, scan: Scan, source: int, files: Sequence[Openable], emit: Emit, folder: Path | None
    ) -> SourceArrays:
        """Compare next with following observations, and emit columns with any number of values in a row."""
        from unistore.converters.trajectory.read import prepare_source

        return prepare_source(scan, source, files[0], emit)

    def finish(self, scan: Scan, prepared: Sequence[SourceArrays]) -> Finalized:
        """Make index arrays of episodes and kept frames, attributes, masks, tables of next observations."""
        from unistore.converters.trajectory.finish import finish_episodes

        return finish_episodes(scan, prepared)

    def read(
        self,
        scan: Scan,
        source: int,
        files: Sequence[Openable],
        table: str,
        lo: int,
        hi: int,
        out: Mapping[str, AnyArray],
    ) -> None:
        """Read steps, rows of other clocks, or next observations of the episodes of a file."""
        from unistore.converters.trajectory.read import read_rows

        read_rows(self.colour, scan, source, files[0], table, lo, hi, out)

    def own(self, scan: Scan, table: str, source: int, fields: Mapping[str, Field]) -> Mapping[str, OwnForm]:
        """Return the form that holds all episodes of a source, without next observations."""
        variants = scan.sources.details[source].episodes.variants
        forms: Mapping[str, OwnForm] = scan.shared["columns"].own_forms(table, variants, fields)
        return forms
