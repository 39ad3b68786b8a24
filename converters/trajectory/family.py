"""Robot trajectories: robomimic, LIBERO, MimicGen, robosuite. ACT/ALOHA. D4RL. Flat files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from unistore.converters.plugin import Claim, Family, Format, Head, SourceFile
from unistore.converters.trajectory.layouts import BAG, LEROBOT, METADATA, claim_of
from unistore.converters.trajectory.options import TrajectoryOptions
from unistore.schemas.trajectory.fields import FAMILY_NAME


@dataclass(frozen=True, kw_only=True)
class Trajectory(TrajectoryOptions, Family):
    """Robot trajectories; see `TrajectoryOptions`."""

    name: ClassVar[str] = FAMILY_NAME
    summary: ClassVar[str] = (
        "Robot trajectories: HDF5 of robomimic, ACT, D4RL, flat; LeRobot; RLDS; Minari; Zarr; bags."
    )
    any_format: ClassVar[bool] = True
    formats: ClassVar[tuple[type[Format] | str, ...]] = (
        "hdf5",
        "lerobot",
        "rlds",
        "minari",
        "replay_zarr",
        "bag",
    )

    def match(self, head: Head) -> Claim:
        """Recognise files by the names in them."""
        return claim_of(head)

    def declines(self, file: SourceFile) -> str:
        """Decline JSON and YAML that describe no dataset and no bag, and the files of described bags."""
        path = file.path
        if file.format == LEROBOT.name and path.parts[-2:] != ("meta", "info.json"):
            return "is no meta/info.json of LeRobot"
        if file.format != BAG.name or path.name == METADATA:
            return ""
        if path.suffix == ".yaml":
            return f"is no {METADATA} of a bag"
        is_described = file.near is not None and file.near.has(str(path.with_name(METADATA)))
        return f"is read with the {METADATA} beside it" if is_described and path.suffix != ".bag" else ""

    def group(self, files: Sequence[SourceFile]) -> Iterable[SourceFile | tuple[SourceFile, str]]:
        """Take the files that are not declined."""
        for file in files:
            reason = self.declines(file)
            yield (file, reason) if reason else file
