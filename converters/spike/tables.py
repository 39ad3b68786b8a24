"""Tables and index arrays of a spike store, and notes on their sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import median_low
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import promote
from unistore.converters.scan import Source
from unistore.converters.spike.scan import ScannedFrame
from unistore.converters.spike.source import Extent
from unistore.schemas.spike import fields
from unistore.schemas.spike.bits import count_dtype
from unistore.schemas.spike.fields import FRAMES, IMAGE_EXTENT, IMAGES, SEQUENCE_NAME, SPIKE_EXTENT
from unistore.schemas.tables import Field, Table, offsets_of, text_arrays

Arrays = list[tuple[Field, NDArray[Any]]]

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

    Rows are padded to the largest extents of spikes (`extents`, by the frame's name), voxels and images.
    Voxel sets of `counted` bins are counted; an existing set of other bins is read.
    """
    voxels = [each.voxel for each in scanned if each.voxel is not None]
    length = max((extent.length for extent in extents.values()), default=0)
    height, width = (max(getattr(each, axis) for each in (*extents.values(), *voxels)) for axis in _PIXELS)
    sets = [(bins, count_dtype(length, bins), True) for bins in counted]
    if voxels and voxels[0].bins not in counted:
        dtype = promote([voxel.dtype for voxel in voxels])
        if dtype is not None:
            sets.append((voxels[0].bins, dtype.name, False))
    columns: list[Field] = [fields.spike_field(length, height, width)] if "spike" in roles else []
    columns += [
        fields.voxel_field(bins, dtype, height, width, counted=new) for bins, dtype, new in sorted(sets)
    ]
    images = [image for image in IMAGES if image in roles]
    if frames == "tiles":
        pixels = [(form.height, form.width) for each in scanned for form in each.images.values()]
        columns += [fields.image_field(image, *map(max, zip(*pixels, strict=True))) for image in images]
        return (Table(name=FRAMES, fields=tuple(columns)),)
    kept = [
        fields.file_table(image, median_low(each.images[image].size for each in scanned)) for image in images
    ]
    return (Table(name=FRAMES, fields=tuple(columns)), *kept)


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


def index_arrays(sources: Sequence[Source]) -> Arrays:
    """All index arrays of the sources, one source for each frame."""
    details = [source.detail for source in sources]

    def stacked(of: str, name: str) -> NDArray[np.int32]:
        return np.array([detail[of][name] for detail in details], np.int32)

    if "spike" in details[0]:
        lengths, extents = np.split(stacked("spike", "extent"), [1], axis=1)
        arrays: Arrays = [(fields.spike_length_field(), np.ascontiguousarray(lengths[:, 0]))]
        arrays.append((fields.extent_field(SPIKE_EXTENT), np.ascontiguousarray(extents)))
    else:
        arrays = [(fields.extent_field(SPIKE_EXTENT), stacked("voxel", "extent"))]
    images = list(details[0].get("images", {}))
    if images:
        arrays.append((fields.extent_field(IMAGE_EXTENT), stacked("images", images[0])))
    for image in images:
        table = fields.file_table_name(image)
        if sizes := [source.rows[table] for source in sources if table in source.rows]:
            arrays.append((fields.file_offsets_field(image), offsets_of(sizes)))
    groups = [(name, len(list(each))) for name, each in groupby(detail["sequence"] for detail in details)]
    arrays.append((fields.sequence_offsets_field(), offsets_of([length for _, length in groups])))
    names = [name for name, _ in groups]
    return arrays + text_arrays(SEQUENCE_NAME, names, axis="sequence", description="Name of the sequence")


def sequence_of_frames(sources: Sequence[Source]) -> NDArray[np.int64]:
    """Index of the first frame of each frame's recording, whose parts count as one: (F,) i8."""
    names = (source.detail.get("recording", source.detail["sequence"]) for source in sources)
    lengths = [len(list(group)) for _, group in groupby(names)]
    return np.repeat(offsets_of(lengths)[:-1], lengths)
