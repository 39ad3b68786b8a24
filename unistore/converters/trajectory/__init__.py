"""Robot trajectories: what users say of them, which files they are, and where the steps are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unistore.converters.trajectory.options import TrajectoryOptions
from unistore.plugin import Family, Schema, no, sure

if TYPE_CHECKING:
    from unistore.converters.family import Alike, Exporter
    from unistore.converters.files.comparison import Restore
    from unistore.converters.preview import Preview
    from unistore.converters.protocol import Scan
    from unistore.plugin import Claim, Head, SourceFile
    from unistore.schemas.array_specs import ArraySpecs
    from unistore.schemas.indices import StoreView
    from unistore.schemas.rules import Rule


@dataclass(frozen=True, kw_only=True)
class Trajectory(TrajectoryOptions, Family):
    """Robot trajectories; see `TrajectoryOptions`."""

    name = "trajectory"
    summary = "Robot trajectories in HDF5: robomimic, ACT, D4RL, flat."
    description = "Robot trajectories in HDF5: robomimic, LIBERO, MimicGen, robosuite, ACT/ALOHA, D4RL, flat."
    examples = (
        "unistore convert trajectory demos/ demos.zarr",
        "unistore convert trajectory demo.hdf5 demo.zarr --image-size 224",
        "unistore convert trajectory aloha/ aloha.zarr --images keep",
    )
    formats = ("hdf5", "lerobot", "rlds", "minari", "replay_zarr", "bag")
    any_format = True
    schema = Schema(table="steps")
    kind = "Transitions"
    other_kinds = ("unistore.Windows(history=2, horizon=8)",)
    batch_size = 64
    exports = ("lerobot", "robomimic")
    converter = "unistore.converters.trajectory.converter:TrajectoryConverter"
    scan_identifies = True

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
        from unistore.converters.trajectory.stored import files

        return files

    @classmethod
    def restorer(cls, store: StoreView, scan: Scan) -> Restore:
        """Restore the arrays of each episode."""
        from unistore.converters.trajectory.stored import restore

        return restore(cls, store, scan)

    @classmethod
    def preview(cls) -> Preview:
        """Show the frames and curves of an episode."""
        from unistore.converters.trajectory.preview import PREVIEW

        return PREVIEW

    @classmethod
    def alike(cls) -> Alike:
        """Join columns by episode."""
        from unistore.converters.trajectory import alike

        return alike

    def match(self, head: Head) -> Claim:
        """Recognise files by the names in them."""
        from unistore.converters.trajectory.layouts import LAYOUTS, layout_of

        layout = layout_of(head)
        if layout is None:
            return no(f"holds no {', no '.join(other.evidence for other in LAYOUTS)}")
        return sure(f"holds {layout.evidence}", layout.name)

    def claim(self, file: SourceFile) -> Claim | None:
        """Decline JSON and YAML that describe no dataset and no bag, and the files of described bags."""
        from unistore.converters.trajectory.layouts import BAG, LEROBOT, METADATA

        path = file.path
        if file.format == LEROBOT.name and path.parts[-2:] != ("meta", "info.json"):
            return no("is no meta/info.json of LeRobot")
        if file.format != BAG.name or path.name == METADATA:
            return None
        if path.suffix == ".yaml":
            return no(f"is no {METADATA} of a bag")
        text = path.with_name(METADATA)
        if path.suffix == ".bag" or file.near is None or not file.near.has(str(text)):
            return None
        from unistore.converters.formats.bag_files import describes_bag

        return no(f"is read with the {METADATA} beside it") if describes_bag(text) else None

    def group(self, files: Sequence[SourceFile]) -> Iterable[SourceFile | tuple[SourceFile, str]]:
        """Take the files that are not declined."""
        for file in files:
            claim = self.claim(file)
            yield file if claim is None else (file, claim.reason)
