"""Tables of a spike store from the scanned frames: extents, dtypes, voxel sets, sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from unistore.converters.common.columns import promote
from unistore.converters.spike.scan import ScannedFrame
from unistore.converters.spike.source import Extent, FrameSource
from unistore.schemas.spike.bits import count_dtype
from unistore.schemas.spike.fields import (
    FRAMES,
    IMAGES,
    file_table,
    file_table_name,
    image_field,
    spike_field,
    voxel_field,
)
from unistore.schemas.tables import Field, Table

__all__ = [
    "Sizes",
    "Voxels",
    "frame_sizes",
    "image_bytes",
    "make_tables",
    "padding_note",
    "reading_memory",
    "source_rows",
    "voxel_sets",
]

_LARGE_PADDING = 3
"""Ratio of stored to source values from which a note warns of padding."""


@dataclass(frozen=True, slots=True)
class Voxels:
    """A voxel set: bins, dtype, and whether it is counted from spikes or read from files."""

    bins: int
    dtype: str
    counted: bool


@dataclass(frozen=True, slots=True)
class Sizes:
    """Largest extents of all frames, which rows are padded to; 0 if no frame has any."""

    length: int
    height: int
    width: int
    image_height: int
    image_width: int


def frame_sizes(scanned: Sequence[ScannedFrame], extents: Mapping[str, Extent]) -> Sizes:
    """Largest extents of spikes, voxels and images."""
    forms = [form for each in scanned for form in each.images.values()]
    voxels = [each.voxel for each in scanned if each.voxel is not None]
    return Sizes(
        length=max((extent.length for extent in extents.values()), default=0),
        height=max([extent.height for extent in extents.values()] + [voxel.height for voxel in voxels]),
        width=max([extent.width for extent in extents.values()] + [voxel.width for voxel in voxels]),
        image_height=max((form.height for form in forms), default=0),
        image_width=max((form.width for form in forms), default=0),
    )


def voxel_sets(wanted: Sequence[int], scanned: Sequence[ScannedFrame], length: int) -> list[Voxels]:
    """Sets to store, by bins: the `wanted` ones are counted, an existing set of other bins is read."""
    sets = [Voxels(bins, count_dtype(length, bins), counted=True) for bins in wanted]
    found = [each.voxel for each in scanned if each.voxel is not None]
    if found and found[0].bins not in wanted:
        dtype = promote([voxel.dtype for voxel in found])
        if dtype is not None:
            sets.append(Voxels(found[0].bins, dtype.name, counted=False))
    return sorted(sets, key=lambda each: each.bins)


def make_tables(
    sizes: Sizes, sets: Sequence[Voxels], roles: Sequence[str], scanned: Sequence[ScannedFrame], frames: str
) -> tuple[Table, ...]:
    """The table of frames and, with ``frames="keep"``, a table of bytes for each image."""
    fields: list[Field] = []
    if "spike" in roles:
        fields.append(spike_field(sizes.length, sizes.height, sizes.width))
    fields += [
        voxel_field(each.bins, each.dtype, sizes.height, sizes.width, counted=each.counted) for each in sets
    ]
    images = [image for image in IMAGES if image in roles]
    if frames == "tiles":
        fields += [image_field(image, sizes.image_height, sizes.image_width) for image in images]
        return (Table(name=FRAMES, fields=tuple(fields)),)
    kept = [file_table(image, median_low(each.images[image].size for each in scanned)) for image in images]
    return (Table(name=FRAMES, fields=tuple(fields)), *kept)


def source_rows(scanned: ScannedFrame, roles: Sequence[str], frames: str) -> dict[str, int]:
    """Rows of a frame in each table: one of ``frames``, and the bytes of its kept images."""
    rows = {FRAMES: 1}
    if frames == "keep":
        rows |= {file_table_name(image): scanned.images[image].size for image in IMAGES if image in roles}
    return rows


def padding_note(extents: Mapping[str, Extent]) -> list[str]:
    """A note if padding makes the store several times as large as its sources.

    Every frame is padded with zeros to the time steps and pixels of the largest.
    """

    def pixels(each: Extent) -> int:
        return each.length * each.height * each.width

    sizes = {name: pixels(each) for name, each in extents.items()}
    if not sizes:
        return []
    longest = max(each.length for each in extents.values())
    height, width = (max(getattr(each, axis) for each in extents.values()) for axis in ("height", "width"))
    factor = len(sizes) * longest * height * width / sum(sizes.values())
    if factor < _LARGE_PADDING:
        return []
    name = max(sizes, key=lambda each: sizes[each])
    steps = extents[name].length
    note = (
        f"careful: {name} has {steps} time steps, and all frames are padded to the largest: {factor:.1f} "
        f"times the values that the sources hold; convert it apart (--exclude {name}), or cut it into frames"
    )
    return [note]


def image_bytes(scanned: Sequence[ScannedFrame]) -> dict[str, int]:
    """Bytes of all blur and sharp frames by mode: ``"tiles"`` (before compression) and ``"keep"``."""
    forms = [form for each in scanned for form in each.images.values()]
    return {
        "tiles": sum(form.height * form.width * 3 for form in forms),
        "keep": sum(form.size for form in forms),
    }


def reading_memory(scanned: ScannedFrame) -> int:
    """Bytes of memory needed to read a frame: its spikes, or an image with its file."""
    spikes = scanned.spikes.memory if isinstance(scanned.spikes, FrameSource) else 0
    images = [2 * 3 * form.height * form.width + form.size for form in scanned.images.values()]
    return max([spikes, *images])
