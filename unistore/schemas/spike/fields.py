"""The stored form of spike-camera recordings: names, axes, packed bits and the voxels counted from them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from unistore.errors import Problem
from unistore.schemas import tables
from unistore.schemas.array_specs import BYTES, SAMPLES, SOURCE_BOUNDS, ArrayInfo, ArraySpec, Limit, spec_of
from unistore.schemas.declared_rules import ArraySpecs, Declared, text_columns
from unistore.schemas.tables import Field, Table, bounds_field, check_width, own_axes
from unistore.system.types import AnyArray, Int64s, UInt8s

# Spikes as bits: eight pixels a byte, least significant bit first, rows padded to whole bytes.
#
# The converter and the readers share these functions, so that voxels computed while reading equal stored
# ones bit for bit. Voxel grid (reference formula of the spike-camera literature): ``bin = (t * B) // T``
# with the frame's own length T, ``voxel[bin] += spike[t]``; this is not ``np.array_split`` (T = 88, B = 5
# gives 18, 18, 17, 18, 17).

# Bytes of unpacked spikes summed at a time: they stay in the cache between unpacking and adding
_PIECE = 4 << 20
_MOST_U1 = 255


def row_bytes(width: int) -> int:
    """Return the bytes of one packed row of `width` pixels."""
    return -(-width // 8)


def pack(spikes: AnyArray) -> UInt8s:
    """Pack spikes (…, W) of 0 and 1 (u1 or bool) into bits (…, ⌈W/8⌉), padding with zeros."""
    return np.packbits(spikes, axis=-1, bitorder="little")


unpack = tables.unpack  # what `pack` packed


def bin_edges(length: int, bins: int) -> Int64s:
    """Return the first time step of every bin, and the length at the end: (bins + 1,) int64.

    Bin b has the steps t with ``(t * bins) // length == b``. It is empty if there are more bins than steps.
    """
    return -(-(np.arange(bins + 1, dtype=np.int64) * length) // bins)


def count_dtype(length: int, bins: int) -> str:
    """Smallest unsigned dtype that holds the spikes of one bin of a recording of `length` steps."""
    longest = -(-length // bins)
    return "uint8" if longest <= _MOST_U1 else "uint16" if longest <= 65_535 else "uint32"


def voxelize(
    packed: UInt8s,
    width: int,
    bins: int,
    *,
    left: int = 0,
    out: AnyArray | None = None,
) -> AnyArray:
    """Count spikes in bins of time, directly from packed bits.

    Parameters
    ----------
    packed : uint8 array of shape (T, H, bytes)
        Time steps of one frame, without padding in time, lowest bit first.
    width : int
        Number of pixels of a row.
    bins : int
        Number of bins B.
    left : int, default 0
        Bit of the first pixel of each row.
    out : unsigned integer array of shape (B, H, width), optional
        Receives the counts. None: new memory.

    Returns
    -------
    unsigned integer array of shape (B, H, width)
        Number of spikes of each pixel in each bin; see `bin_edges`.
    """
    check_width(packed, width, left)
    length, height, stored = packed.shape
    if bins < 1:
        msg = f"bins is {bins}, expected at least 1"
        raise ValueError(msg)
    needed = count_dtype(length, bins)
    if out is None:
        out = np.empty((bins, height, width), needed)
    if out.shape != (bins, height, width) or not np.can_cast(needed, out.dtype):
        expected = f"shape ({bins}, {height}, {width}) and at least {needed}"
        msg = f"out has shape {out.shape} and dtype {out.dtype}, expected {expected}"
        raise ValueError(msg)
    most = max(1, min(_MOST_U1, _PIECE // max(1, height * stored * 8)))
    whole_rows = left == 0 and width == stored * 8
    edges = bin_edges(length, bins).tolist()
    for number, (first, last) in enumerate(pairwise(edges)):
        target = out[number]
        if first == last:
            target[...] = 0
        for start in range(first, last, most):
            piece = np.ascontiguousarray(packed[start : min(start + most, last)])
            steps = np.unpackbits(piece.reshape(-1), bitorder="little").reshape(-1, height, stored * 8)
            if start == first and whole_rows and out.dtype == np.uint8:
                np.add.reduce(steps, axis=0, dtype=np.uint8, out=target)
                continue
            counts = np.add.reduce(steps, axis=0, dtype=np.uint8)[:, left : left + width]
            if start == first:
                target[...] = counts
            else:
                target += counts
    return out


FAMILY_NAME = "spike"
SPIKES = "spikes"  # the table of time steps
BITS = f"{SPIKES}/bits"
FRAMES = "frames"  # samples, each of them a range of time steps; the table of their voxels and images
FRAME_OFFSETS = f"{FRAMES}/offsets"
FRAME_SOURCE = f"{FRAMES}/source"
SPIKE_EXTENT = f"{FRAMES}/spike_extent"
IMAGE_EXTENT = f"{FRAMES}/image_extent"
SEQUENCE_OFFSETS = "sequences/offsets"
SEQUENCE_NAME = "sequences/name"  # text group: `data` and `offsets`
IMAGES = ("blur", "sharp")

_VOXEL = f"{FRAMES}/voxel/"


# Tiles are measured with 360 x 640 pixels, 88 steps, crops of 128 and 256 pixels: wide tiles of about 100 KiB
# win over tiles of less amplification, since copying short rows and starting a decoder cost more than the
# bytes outside the crop (tiles of 36 x 40 bytes: 300 and 125 µs; of 36 x 16 bytes: 470 and 170 µs).
_SPIKE_BYTES = 128 << 10
_FRAME_STEPS = 200
_STREAM_STEPS = 32
_SPIKE_COLUMNS = 40
_VOXEL_BYTES = 80 << 10
# Rows and columns of pixels. Columns are multiples of 8 where they can be: blosc's bit shuffle takes whole
# groups of 8 values and silently leaves other blocks as they are.
_PIXELS = 128


def voxel_path(bins: int | str) -> str:
    """Return the path of the voxel set of `bins` bins."""
    return f"{_VOXEL}{bins}"


def voxel_bins(path: str) -> int | None:
    """Bins of the voxel set at `path`, or None for any other array."""
    tail = path.removeprefix(_VOXEL)
    return int(tail) if tail != path and tail.isascii() and tail.isdigit() else None


def file_table_name(image: str) -> str:
    """Name of the table of compressed bytes of ``"blur"`` or ``"sharp"``: ``"frames/blur_file"``."""
    return f"{FRAMES}/{image}_file"


def bits_field(height: int, width: int, chunk_steps: int) -> Field:
    """``spikes/bits`` for at most `height` x `width` pixels, in chunks of so many time steps."""
    stored = row_bytes(width)
    columns = even_tile(stored, _SPIKE_COLUMNS)
    return Field(
        path=BITS,
        dtype="uint8",
        row_shape=(height, stored),
        axes=("step", "y", "x_byte"),
        unit="spike",
        description="Spikes, eight pixels a byte, least significant bit first, row 0 = top, "
        "rows padded to whole bytes",
        tile=(even_tile(height, min(_PIXELS, max(8, _SPIKE_BYTES // (chunk_steps * columns)))), columns),
        run=chunk_steps,
        attributes={"bit_order": "little", "pixels_per_byte": 8},
    )


def voxel_field(bins: int, dtype: str, height: int, width: int, *, counted: bool) -> Field:
    """``frames/voxel/<bins>`` of at most `height` x `width` pixels, counted from the spikes or ingested."""
    columns = even_tile(width, _PIXELS, 8)
    rows = _VOXEL_BYTES // (bins * columns * np.dtype(dtype).itemsize)
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
        tile=(bins, even_tile(height, min(_PIXELS, max(16, rows))), columns),
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
        tile=(even_tile(height, _PIXELS), even_tile(width, _PIXELS, 8), 3),
        attributes={"channels": ["red", "green", "blue"]},
    )


def file_table(image: str, run: int) -> Table:
    """Table of the compressed bytes of ``"blur"`` or ``"sharp"``. `run` is the median size of a file."""
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


FRAME_OFFSETS_FIELD = bounds_field(
    FRAME_OFFSETS, "frame", "Steps of frame f are rows offsets[f]:offsets[f + 1]"
)
FRAME_SOURCE_FIELD = Field(
    path=FRAME_SOURCE, dtype="int32", axes=("frame",), description="Source of the frame"
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


def even_tile(extent: int, wanted: int, step: int = 1) -> int:
    """Return a tile length near `wanted` that covers `extent` with the least padding.

    Lengths from 0.6 to 1.6 times `wanted` are tried. The least padded extent wins, then multiples of
    `step`, then nearness in ratio.
    """
    # Padding inside packed rows hardly compresses, so 80 bytes are cut in two of 40 and not in 32, 32, 16 +
    # 16.
    if extent <= wanted:
        return max(1, extent)
    lengths = range(max(1, wanted * 6 // 10), min(extent, wanted * 16 // 10) + 1)

    def cost(length: int) -> tuple[int, bool, float]:
        return -(-extent // length) * length, length % step != 0, max(length / wanted, wanted / length)

    return min(lengths, key=cost)


def chunk_steps(lengths: Collection[int]) -> int:
    """Return the time steps of a chunk for recordings of these lengths.

    Frames of one length, not too long, are one chunk each. All others begin and end anywhere in chunks,
    which are short for it.
    """
    # A clip then reads only its own steps.
    longest = max(lengths)
    if longest == min(lengths) <= _FRAME_STEPS:
        return longest
    return even_tile(sum(lengths), _STREAM_STEPS)


# What the arrays must be

_ROWS = (SAMPLES, 0)
_VOXELS = voxel_path("<#bins>")
_OF_EXTENT = spec_of("int32", 2, rows=_ROWS, least=1)


def _image_arrays(image: str) -> dict[str, Declared]:
    """Declare the pixels of an image, or the bytes of its files."""
    data, offsets = (f"{file_table_name(image)}/{name}" for name in ("data", "offsets"))
    return {
        f"{FRAMES}/{image}": spec_of("uint8", None, None, 3, rows=_ROWS, beside=(IMAGE_EXTENT,)),
        data: replace(BYTES, beside=(offsets, IMAGE_EXTENT)),
        offsets: spec_of("int64", rows=(SAMPLES, 1), offsets_of=data),
    }


def _no_frames(arrays: Mapping[str, ArrayInfo]) -> Iterator[Problem]:
    if BITS not in arrays and all(voxel_bins(path) is None for path in arrays):
        yield Problem(FRAMES, f"has neither {BITS} nor {FRAMES}/voxel/<bins>", kind="missing")


SPECS = ArraySpecs(
    arrays={
        SPIKE_EXTENT: replace(_OF_EXTENT, limits=(Limit(BITS, (1, 2), 8), Limit(_VOXELS, (2, 3)))),
        SEQUENCE_OFFSETS: spec_of("int64", offsets_of=SPIKE_EXTENT),
        **text_columns(SEQUENCE_NAME, (SEQUENCE_OFFSETS, 0)),
    },
    optional={
        BITS: spec_of("uint8", None, None, beside=(FRAME_OFFSETS,), like=(Limit(_VOXELS, (2, 3), 8),)),
        FRAME_OFFSETS: spec_of("int64", rows=(SAMPLES, 1), offsets_of=BITS),
        FRAME_SOURCE: spec_of("int32", rows=_ROWS, indexes=(SOURCE_BOUNDS, -1), ascending=True),
        _VOXELS: ArraySpec(kinds="uif", row_shape=("<#bins>", None, None), rows=_ROWS),
        IMAGE_EXTENT: replace(
            _OF_EXTENT, limits=tuple([Limit(f"{FRAMES}/{image}", (1, 2)) for image in IMAGES])
        ),
        **_image_arrays("blur"),
        **_image_arrays("sharp"),
        **text_columns("sequences/<column>", (SEQUENCE_OFFSETS, 0)),
        f"{FRAMES}/<column>": ArraySpec(rows=_ROWS),
    },
    check=_no_frames,
)
