"""Options of spike recordings, and the roles of their files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unistore.plugin import Options, option

# Roles of the files of a frame; the first file present names the frame.
ROLES = ("spike", "voxel", "blur", "sharp")
ROLE_FILES = {
    "spike": "spikes (.dat, .bin, .npy, .npz)",
    "voxel": "voxels (.npy, .npz)",
    "blur": "images (.png, .jpg)",
    "sharp": "images (.png, .jpg)",
}
IMAGE_ROLES = ("blur", "sharp")
IMAGE_FORMATS = ("png", "jpeg")
RAW_FORMAT = "raw"
STREAM_ENDING = ".dat"  # ending of recordings without a header that lie in no folder of a sequence


def may_be(format: str, role: str) -> bool:
    """Return whether files of a format (empty: unknown) can have a role."""
    if role in IMAGE_ROLES:
        return format in IMAGE_FORMATS
    if role == "voxel" and format == RAW_FORMAT:
        return False
    return bool(format) and format not in IMAGE_FORMATS


@dataclass(frozen=True, kw_only=True)
class SpikeOptions(Options):
    """Options of spike recordings."""

    height: int | None = option(None, "Rows of a .dat frame in pixels.", least=1)
    width: int | None = option(None, "Columns of a .dat frame in pixels.", least=1)
    layout: Literal["auto", "packed", "packed-msb", "bytes"] = option(
        "auto", "Eight pixels a byte, the lowest bit first, or one; packed-msb: arrays of np.packbits."
    )
    flip: bool = option(True, "Whether .dat holds its bottom row first.")
    voxel_bins: tuple[int, ...] = option(
        (), "Precompute a voxel grid with this number of bins.", metavar="B", least=1, most=65_535
    )
    frames: Literal["tiles", "keep"] = option(
        "tiles", "Blur and sharp frames as lossless tiles (a crop reads a crop), or the files' own bytes."
    )
    convert_images: bool = option(False, "Accept gray, 16-bit and transparent frames.")
    columns: Literal["exact", "intersection"] = option(
        "exact", "What to do with folders that only some sequences have: refuse, leave out."
    )
    spike_dir: str = option("spike", "Folder of a sequence's spikes.")
    voxel_dir: str = option("spike_vox", "Folder of voxels that exist; none: leave them out.")
    blur_dir: str = option("blur", "Folder of blurred frames.")
    sharp_dir: str = option("sharp", "Folder of sharp frames.")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "voxel_bins", tuple(sorted(set(self.voxel_bins))))
