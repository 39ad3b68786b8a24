"""Robot trajectories: robomimic, LIBERO, MimicGen, robosuite; ACT/ALOHA; D4RL; flat files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unistore.converters.plugin import Claim, Family, Format, Head
from unistore.converters.trajectory.layouts import claim_of
from unistore.converters.trajectory.options import TrajectoryOptions
from unistore.schemas.trajectory.fields import FAMILY_NAME


@dataclass(frozen=True, kw_only=True)
class Trajectory(TrajectoryOptions, Family):
    """Robot trajectories; see `TrajectoryOptions`."""

    name: ClassVar[str] = FAMILY_NAME
    summary: ClassVar[str] = "Robot trajectories in HDF5: robomimic, ACT, D4RL, flat."
    formats: ClassVar[tuple[type[Format] | str, ...]] = ("hdf5",)

    def match(self, head: Head) -> Claim:
        """Recognise files by the names in them."""
        return claim_of(head)
