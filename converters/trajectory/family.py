"""Robot trajectories: robomimic, LIBERO, MimicGen, robosuite; ACT/ALOHA; D4RL; flat files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from unistore.converters.plugin import Claim, Family, Format, Head, SourceFile
from unistore.converters.trajectory.layouts import LEROBOT, claim_of
from unistore.converters.trajectory.options import TrajectoryOptions
from unistore.schemas.trajectory.fields import FAMILY_NAME


@dataclass(frozen=True, kw_only=True)
class Trajectory(TrajectoryOptions, Family):
    """Robot trajectories; see `TrajectoryOptions`."""

    name: ClassVar[str] = FAMILY_NAME
    summary: ClassVar[str] = (
        "Robot trajectories: HDF5 of robomimic, ACT, D4RL, flat; LeRobot; RLDS; Minari; Zarr."
    )
    any_format: ClassVar[bool] = True
    formats: ClassVar[tuple[type[Format] | str, ...]] = ("hdf5", "lerobot", "rlds", "minari", "replay_zarr")

    def match(self, head: Head) -> Claim:
        """Recognise files by the names in them."""
        return claim_of(head)

    def declines(self, file: SourceFile) -> str:
        """Decline what a dataset of LeRobot has beside its ``info.json``, and other JSON."""
        if file.format != LEROBOT.name or (file.path.name == "info.json" and file.path.parent.name == "meta"):
            return ""
        return "is no meta/info.json of LeRobot"

    def group(self, files: Sequence[SourceFile]) -> Iterable[SourceFile | tuple[SourceFile, str]]:
        """Take the files that are not declined."""
        for file in files:
            reason = self.declines(file)
            yield (file, reason) if reason else file
