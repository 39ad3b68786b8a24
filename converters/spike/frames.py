"""Frames: roles of their files, what is known after a scan, and where a row is read from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from unistore.converters.formats.images import ImageHeader
from unistore.converters.plugin import Group
from unistore.converters.scan import Scanned

if TYPE_CHECKING:
    from unistore.converters.spike.spikes import Extent, Spikes, Stream, Voxels

ROLES = ("spike", "voxel", "blur", "sharp")
"""Roles of the files of a frame; the first file present names the frame."""
IMAGE_ROLES = ("blur", "sharp")
IMAGE_FORMATS = ("png", "jpeg")
RAW_FORMAT = "raw"
STREAM_ENDING = ".dat"
"""Ending of recordings without a header that lie in no folder of a sequence."""


class Place(NamedTuple):
    """What names say of a frame."""

    sequence: str
    split: str | None


def may_be(format: str, role: str) -> bool:
    """Whether files of a format (empty: unknown) can have a role."""
    if role in IMAGE_ROLES:
        return format in IMAGE_FORMATS
    if role == "voxel" and format == RAW_FORMAT:
        return False
    return bool(format) and format not in IMAGE_FORMATS


@dataclass(frozen=True, kw_only=True)
class ScannedFrame(Scanned):
    """Headers of the files of one frame; files with problems may be missing."""

    group: Group
    formats: tuple[str, ...]
    spikes: Spikes | Stream | None = None
    voxels: Voxels | None = None
    images: Mapping[str, ImageHeader] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    """Arrays of the files that are not stored."""

    @property
    def name(self) -> str:
        """Name of the frame."""
        return self.group.name

    @property
    def sequence(self) -> str:
        """Name of its sequence in the store."""
        place: Place = self.group.detail
        return place.sequence

    @property
    def stream(self) -> Stream | None:
        """Its spikes, if they have no header."""
        from unistore.converters.spike.spikes import Stream

        return self.spikes if isinstance(self.spikes, Stream) else None

    def called(self, role: str) -> str:
        """What messages call the file of a role."""
        return self.group.files[self.group.roles.index(role)].name


def first_frames(frames: Iterable[ScannedFrame]) -> list[ScannedFrame]:
    """The first frame of every sequence."""
    firsts: dict[str, ScannedFrame] = {}
    for frame in frames:
        firsts.setdefault(frame.sequence, frame)
    return list(firsts.values())


class SpikeForm(NamedTuple):
    """How spikes lie in their file: in a layout of streams, or in an ``"array"``."""

    layout: str
    extent: Extent


class VoxelForm(NamedTuple):
    """What existing voxels are like, and whether row 0 is the bottom row."""

    bins: int
    height: int
    width: int
    upside_down: bool


class FrameOrigin(NamedTuple):
    """Where the row of a frame comes from: the ``detail`` of its source."""

    files: tuple[str, ...]  # names, as messages call them
    formats: tuple[str, ...]  # of these
    arrays: tuple[str, ...]  # the one that is read of each
    roles: tuple[str, ...]
    sequence: str
    spikes: SpikeForm | None
    voxels: VoxelForm | None
    images: Mapping[str, tuple[int, int]]  # height and width by role
    counted: tuple[int, ...]  # bins of voxels that are counted
    inexact: tuple[str, ...]  # roles of images that lose values as 8-bit RGB

    @property
    def pixels(self) -> tuple[int, int]:
        """Height and width of its spikes and voxels."""
        extent = self.voxels if self.spikes is None else self.spikes.extent
        assert extent is not None
        return extent.height, extent.width
