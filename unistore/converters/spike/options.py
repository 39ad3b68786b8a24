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
    """Return whether files of a format can have a role in a sequence. An empty format is unknown."""
    if role in IMAGE_ROLES:
        return format in IMAGE_FORMATS
    if role == "voxel" and format == RAW_FORMAT:
        return False
    return bool(format) and format not in IMAGE_FORMATS


@dataclass(frozen=True, kw_only=True)
class SpikeOptions(Options):
    """Options of spike recordings, for `unistore.convert` and for the command line.

    ``unistore convert spike --help`` describes each of them.

    Examples
    --------
    >>> unistore.convert("recordings/", "spikes.zarr", height=250, width=400)  # doctest: +SKIP
    """

    height: int | None = option(None, "Height of a .dat frame in pixels.", metavar="PIXELS", least=1)
    width: int | None = option(None, "Width of a .dat frame in pixels.", metavar="PIXELS", least=1)
    layout: Literal["auto", "packed", "packed-msb", "bytes"] = option(
        "auto",
        "How a .dat or .npy file stores pixels. packed is eight pixels per byte, lowest bit first; "
        "packed-msb is "
        "the order of np.packbits; bytes is one byte per pixel.",
    )
    flip: bool = option(
        True, "State that .dat files store the bottom row first. Use --no-flip if the top row comes first."
    )
    voxel_bins: tuple[int, ...] = option(
        (), "Store a voxel grid with this number of time bins.", metavar="B", least=1, most=65_535
    )
    frames: Literal["tiles", "keep"] = option(
        "tiles",
        "How to store blurred and sharp frames. tiles stores pixels in lossless tiles, so that a "
        "crop reads only "
        "a crop; keep stores the bytes of the files.",
    )
    convert_images: bool = option(
        False, "Convert gray, 16-bit and transparent frames to 8-bit RGB. Without it they are an error."
    )
    columns: Literal["exact", "intersection"] = option(
        "exact",
        "What to do with folders that only some sequences have. exact is an error, intersection leaves the "
        "folder out.",
    )
    spike_dir: str = option("spike", "Folder of the spikes in a sequence.", metavar="NAME")
    voxel_dir: str = option(
        "spike_vox", "Folder of existing voxel grids. none leaves them out.", metavar="NAME"
    )
    blur_dir: str = option("blur", "Folder of blurred frames.", metavar="NAME")
    sharp_dir: str = option("sharp", "Folder of sharp frames.", metavar="NAME")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "voxel_bins", tuple(sorted(set(self.voxel_bins))))
