"""Tables of a spike store from the scanned frames, and notes on their sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_low

from unistore.converters.common.columns import promote
from unistore.converters.spike.scan import ScannedFrame
from unistore.converters.spike.source import Extent
from unistore.schemas.spike.bits import count_dtype
from unistore.schemas.spike.fields import FRAMES, IMAGES, file_table, image_field, spike_field, voxel_field
from unistore.schemas.tables import Field, Table

__all__ = ["image_size_note", "make_tables", "padding_note"]

_PIXELS = ("height", "width")
_LARGE_PADDING = 3
"""Ratio of stored to source values from which a note warns of padding."""


def make_tables(
    scanned: Sequence[ScannedFrame],
    extents: Mapping[str, Extent],
    counted: Sequence[int],
    roles: Sequence[str],
    frames: str,
) -> tuple[Table, ...]:
    """The table of frames and, with ``frames="keep"``, a table of bytes for each image.

    Rows are padded to the largest extents of spikes, voxels and images.

    Parameters
    ----------
    scanned
        All frames.
    extents
        Of the spikes, by the frame's name.
    counted
        Bins of the voxel sets that are counted; an existing set of other bins is read.
    roles
        Roles that are converted.
    frames
        ``"tiles"`` or ``"keep"``.
    """
    voxels = [each.voxel for each in scanned if each.voxel is not None]
    length = max((extent.length for extent in extents.values()), default=0)
    height, width = (max(getattr(each, axis) for each in (*extents.values(), *voxels)) for axis in _PIXELS)
    sets = [(bins, count_dtype(length, bins), True) for bins in counted]
    if voxels and voxels[0].bins not in counted:
        dtype = promote([voxel.dtype for voxel in voxels])
        if dtype is not None:
            sets.append((voxels[0].bins, dtype.name, False))
    fields: list[Field] = [spike_field(length, height, width)] if "spike" in roles else []
    fields += [voxel_field(bins, dtype, height, width, counted=new) for bins, dtype, new in sorted(sets)]
    images = [image for image in IMAGES if image in roles]
    if frames == "tiles":
        pixels = [(form.height, form.width) for each in scanned for form in each.images.values()]
        fields += [image_field(image, *map(max, zip(*pixels, strict=True))) for image in images]
        return (Table(name=FRAMES, fields=tuple(fields)),)
    kept = [file_table(image, median_low(each.images[image].size for each in scanned)) for image in images]
    return (Table(name=FRAMES, fields=tuple(fields)), *kept)


def padding_note(extents: Mapping[str, Extent]) -> list[str]:
    """A note if padding to the largest extents makes the store several times as large as its sources."""
    sizes = {name: each.length * each.height * each.width for name, each in extents.items()}
    if not sizes:
        return []
    largest = 1
    for axis in ("length", *_PIXELS):
        largest *= max(getattr(each, axis) for each in extents.values())
    factor = len(sizes) * largest / sum(sizes.values())
    if factor < _LARGE_PADDING:
        return []
    name = max(sizes, key=lambda each: sizes[each])
    note = (
        f"careful: {name} has {extents[name].length} time steps, and all frames are padded to the largest: "
        f"{factor:.1f} times the values that the sources hold; convert it apart (--exclude {name}), "
        "or cut it into frames"
    )
    return [note]


def image_size_note(scanned: Sequence[ScannedFrame], frames: str) -> list[str]:
    """Bytes of all blur and sharp frames in both ways to store them."""
    forms = [form for each in scanned for form in each.images.values()]
    if not forms:
        return []
    tiles = sum(form.height * form.width * 3 for form in forms) / 1e6
    keep = sum(form.size for form in forms) / 1e6
    note = (
        f"blur and sharp frames: at most {tiles:,.1f} MB as tiles (before compression), "
        f"{keep:,.1f} MB with --frames keep; taken: {frames}"
    )
    return [note]
