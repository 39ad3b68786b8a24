"""Spike-camera stores: one row of ``frames`` is one recording window with its spikes, voxels and images.

====================================  ==================  ==================================================
array                                 shape, dtype        content
====================================  ==================  ==================================================
``frames/spike``                      (F, T, H, ⌈W/8⌉)    packed bits, least significant first, row 0 = top;
                                      u1                  zero-padded at the end of every axis
``frames/spike_length``               (F,) i4             time steps of the frame: ``spike[f, :length]``
``frames/spike_extent``               (F, 2) i4           true H, W in pixels of spikes and voxels
``frames/voxel/<B>``                  (F, B, H, W)        spikes per bin, ``bin = (t * B) // T`` with the
                                      u1, u2              frame's own T; zero-padded. Any number of sets; an
                                                          ingested set keeps its source's dtype
``frames/blur``, ``frames/sharp``     (F, Hi, Wi, 3) u1   RGB, row 0 = top; zero-padded
``frames/blur_file/{data, offsets}``  (N,) u1, (F+1,) i8  instead of ``frames/blur``: the source's PNG or
                                                          JPEG bytes; the same for ``sharp``
``frames/image_extent``               (F, 2) i4           true Hi, Wi of blur and sharp, decoded
``sequences/offsets``                 (Q+1,) i8           frames of a sequence are contiguous and in order
``sequences/name/{data, offsets}``    text                folder of the sequence, or name of the recording
====================================  ==================  ==================================================

A store has at least spikes or one voxel set; blur and sharp are optional, each as tiles or as files.
"""

from __future__ import annotations

import numpy as np

from unistore.schemas.spike.bits import row_bytes
from unistore.schemas.tables import Field, Table, bounds_field, own_axes

FAMILY_NAME = "spike"
FRAMES = "frames"
"""The table of samples."""
SPIKE = "frames/spike"
SPIKE_LENGTH = "frames/spike_length"
SPIKE_EXTENT = "frames/spike_extent"
IMAGE_EXTENT = "frames/image_extent"
SEQUENCE_OFFSETS = "sequences/offsets"
SEQUENCE_NAME = "sequences/name"
"""Text group: ``data`` and ``offsets``."""
IMAGES = ("blur", "sharp")

_VOXEL = "frames/voxel/"


def voxel_path(bins: int) -> str:
    """Path of the voxel set of `bins` bins."""
    return f"{_VOXEL}{bins}"


def voxel_bins(path: str) -> int | None:
    """Bins of the voxel set at `path`; None for any other array."""
    tail = path.removeprefix(_VOXEL)
    return int(tail) if tail != path and tail.isascii() and tail.isdigit() else None


def file_table_name(image: str) -> str:
    """Name of the table of compressed bytes of ``"blur"`` or ``"sharp"``: ``"frames/blur_file"``."""
    return f"{FRAMES}/{image}_file"


def spike_field(length: int, height: int, width: int) -> Field:
    """``frames/spike`` for at most `length` steps of `height` x `width` pixels."""
    stored = row_bytes(width)
    return Field(
        path=SPIKE,
        dtype="uint8",
        row_shape=(length, height, stored),
        axes=("frame", "time", "y", "x_byte"),
        unit="spike",
        description="Spikes, eight pixels a byte, least significant bit first, row 0 = top, "
        "rows padded to whole bytes",
        tile=spike_tile(length, height, stored),
        attributes={"bit_order": "little", "pixels_per_byte": 8},
    )


def voxel_field(bins: int, dtype: str, height: int, width: int, *, counted: bool) -> Field:
    """``frames/voxel/<bins>`` of at most `height` x `width` pixels, counted from the spikes or ingested."""
    description = (
        f"Spikes in {bins} bins of time, bin = (t * {bins}) // T with the frame's own T"
        if counted
        else f"Voxels of {bins} bins, as they came with the spikes"
    )
    return Field(
        path=voxel_path(bins),
        dtype=dtype,
        row_shape=(bins, height, width),
        axes=("frame", f"bin_of_{bins}", "y", "x"),
        unit="spike",
        description=description,
        tile=voxel_tile(bins, height, width, np.dtype(dtype).itemsize),
        attributes={"bins": bins, "counted": counted},
    )


def image_field(image: str, height: int, width: int) -> Field:
    """``frames/blur`` or ``frames/sharp`` of at most `height` x `width` pixels."""
    return Field(
        path=f"{FRAMES}/{image}",
        dtype="uint8",
        row_shape=(height, width, 3),
        axes=("frame", "image_y", "image_x", "channel"),
        description=f"{image.capitalize()} image, RGB, row 0 = top",
        tile=image_tile(height, width),
        attributes={"channels": ["red", "green", "blue"]},
    )


def file_table(image: str, run: int) -> Table:
    """Table of the compressed bytes of ``"blur"`` or ``"sharp"``; `run` is the median size of a file."""
    name = file_table_name(image)
    data = Field(
        path=f"{name}/data",
        dtype="uint8",
        axes=own_axes(name, "byte", 1),
        description=f"PNG or JPEG bytes of the {image} images, as in the source",
        run=run,
    )
    return Table(name=name, fields=(data,))


def file_offsets_field(image: str) -> Field:
    """Where the file of each frame begins: the file of frame f is ``data[offsets[f]:offsets[f + 1]]``."""
    description = f"{image.capitalize()} file of frame f is data[offsets[f]:offsets[f + 1]]"
    return bounds_field(f"{file_table_name(image)}/offsets", "frame", description)


SPIKE_LENGTH_FIELD = Field(
    path=SPIKE_LENGTH,
    dtype="int32",
    axes=("frame",),
    unit="time step",
    description="Time steps of the frame; later ones are padding",
)
SEQUENCE_OFFSETS_FIELD = bounds_field(
    SEQUENCE_OFFSETS, "sequence", "Frames of sequence q are offsets[q]:offsets[q + 1]"
)


def extent_field(path: str) -> Field:
    """``frames/spike_extent`` or ``frames/image_extent``."""
    what = "spikes and voxels" if path == SPIKE_EXTENT else "blur and sharp"
    return Field(
        path=path,
        dtype="int32",
        row_shape=(2,),
        axes=("frame", "y_x"),
        unit="pixel",
        description=f"True height and width of {what}; what lies beyond is padding",
        attributes={"components": ["height", "width"]},
    )


# Tiles are measured with 360 x 640 pixels, 88 steps, crops of 128 and 256 pixels: wide tiles of about 100 KiB
# win over tiles of less amplification, since copying short rows and starting a decoder cost more than the
# bytes outside the crop (tiles of 36 x 40 bytes: 300 and 125 µs; of 36 x 16 bytes: 470 and 170 µs).
_SPIKE_BYTES = 128 << 10
_SPIKE_STEPS = 128
_SPIKE_COLUMNS = 40
_VOXEL_BYTES = 80 << 10
_PIXELS = 128
"""Rows and columns of pixels. Columns are multiples of 8 where they can be: blosc's bit shuffle takes whole
groups of 8 values and silently leaves other blocks as they are."""


def even_tile(extent: int, wanted: int, step: int = 1) -> int:
    """Tile length near `wanted` that covers `extent` with the least padding.

    Padding inside packed rows hardly compresses, so 80 bytes are cut in two of 40 and not in 32, 32, 16 + 16.
    Lengths from 0.6 to 1.6 times `wanted` are tried; the least padded extent wins, then multiples of `step`,
    then nearness in ratio.
    """
    if extent <= wanted:
        return max(1, extent)
    lengths = range(max(1, wanted * 6 // 10), min(extent, wanted * 16 // 10) + 1)

    def cost(length: int) -> tuple[int, bool, float]:
        return -(-extent // length) * length, length % step != 0, max(length / wanted, wanted / length)

    return min(lengths, key=cost)


def spike_tile(length: int, height: int, row_bytes: int) -> tuple[int, int, int]:
    """Time steps, rows and bytes of a tile of packed spikes: all steps up to 200, about 128 KiB."""
    steps = even_tile(length, _SPIKE_STEPS)
    columns = even_tile(row_bytes, _SPIKE_COLUMNS)
    rows = even_tile(height, min(_PIXELS, max(8, _SPIKE_BYTES // (steps * columns))))
    return steps, rows, columns


def voxel_tile(bins: int, height: int, width: int, itemsize: int) -> tuple[int, int, int]:
    """Bins, rows and columns of a tile of voxels: all bins, about 80 KiB."""
    columns = even_tile(width, _PIXELS, 8)
    wanted = _VOXEL_BYTES // (bins * columns * itemsize)
    return bins, even_tile(height, min(_PIXELS, max(16, wanted))), columns


def image_tile(height: int, width: int) -> tuple[int, int, int]:
    """Rows, columns and channels of a tile of pixels: about 128 x 128."""
    return even_tile(height, _PIXELS), even_tile(width, _PIXELS, 8), 3
