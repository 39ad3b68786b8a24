"""Sources, tables and index arrays of a spike store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import median_low
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import promote
from unistore.converters.protocol import Source, Sources
from unistore.converters.spike.frames import FrameOrigin, Place, ScannedFrame, SpikeForm, VoxelForm
from unistore.converters.spike.spikes import Extent, Spikes, StreamSpikes, Voxels
from unistore.schemas.spike import fields
from unistore.schemas.spike.fields import (
    FRAMES,
    IMAGE_EXTENT,
    IMAGES,
    SEQUENCE_NAME,
    SPIKE_EXTENT,
    count_dtype,
    file_table_name,
)
from unistore.schemas.tables import Field, Table, offsets_of, text_arrays

Arrays = list[tuple[Field, NDArray[Any]]]


def make_tables(
    scanned: Sequence[ScannedFrame],
    extents: Mapping[str, Extent],
    counted: Sequence[int],
    existing: Sequence[Voxels],
    roles: Sequence[str],
    frames: str,
) -> tuple[Table, ...]:
    """The table of frames and, with ``frames="keep"``, a table of bytes for each image.

    Rows are padded to the largest extents of spikes (`extents`, by the frame's name), voxels and images.
    Voxel sets of `counted` bins are counted; an existing set of other bins is read.
    """
    length = max((extent.length for extent in extents.values()), default=0)
    sized: list[Extent | Voxels] = [*extents.values(), *existing]
    height = max(grid.height for grid in sized)
    width = max(grid.width for grid in sized)
    sets = [(bins, count_dtype(length, bins), True) for bins in counted]
    if existing and existing[0].bins not in counted:
        dtype = promote([voxels.dtype for voxels in existing])
        if dtype is not None:
            sets.append((existing[0].bins, dtype.name, False))
    columns: list[Field] = []
    if "spike" in roles:
        columns.append(fields.spike_field(length, height, width))
    for bins, name, is_counted in sorted(sets):
        columns.append(fields.voxel_field(bins, name, height, width, counted=is_counted))
    kept: list[Table] = []
    headers = [header for frame in scanned for header in frame.images.values()]
    for image in IMAGES:
        if image not in roles:
            continue
        if frames == "tiles":
            tallest = max(header.height for header in headers)
            widest = max(header.width for header in headers)
            columns.append(fields.image_field(image, tallest, widest))
        else:
            sizes = [frame.images[image].size for frame in scanned]
            kept.append(fields.file_table(image, median_low(sizes)))
    return (Table(name=FRAMES, fields=tuple(columns)), *kept)


def index_arrays(sources: Sources) -> Arrays:
    """All index arrays of the sources, one source for each frame."""
    origins: list[FrameOrigin] = list(sources.details)
    spikes = [origin.spikes.extent for origin in origins if origin.spikes is not None]
    arrays: Arrays = []
    if spikes:
        arrays.append((fields.SPIKE_LENGTH_FIELD, np.array([extent.length for extent in spikes], np.int32)))
        pixels = [(extent.height, extent.width) for extent in spikes]
    else:
        voxels = [origin.voxels for origin in origins if origin.voxels is not None]
        pixels = [(form.height, form.width) for form in voxels]
    arrays.append((fields.extent_field(SPIKE_EXTENT), np.array(pixels, np.int32)))
    images = list(origins[0].images)
    if images:
        pixels = [origin.images[images[0]] for origin in origins]
        arrays.append((fields.extent_field(IMAGE_EXTENT), np.array(pixels, np.int32)))
    for image in images:
        sizes = sources.rows(file_table_name(image))
        if any(sizes):
            arrays.append((fields.file_offsets_field(image), offsets_of(sizes)))
    names: list[str] = []
    lengths: list[int] = []
    for name, frames in groupby(origin.sequence for origin in origins):
        names.append(name)
        lengths.append(len(list(frames)))
    arrays.append((fields.SEQUENCE_OFFSETS_FIELD, offsets_of(lengths)))
    return arrays + text_arrays(SEQUENCE_NAME, names, axis="sequence", description="Name of the sequence")


def make_source(
    frame: ScannedFrame,
    roles: Sequence[str],
    spikes: Spikes | None,
    frames: str,
    upside_down: bool,
    counted: tuple[int, ...],
) -> Source:
    """The source of a frame.

    `spikes` are those of known extent, `roles` those that are converted. With `frames` ``"keep"``, rows of
    the tables of kept images are bytes of their files. `upside_down`: row 0 of its existing voxels is the
    bottom row. `counted`: bins of voxels that are counted.
    """
    group, voxels, images = frame.group, frame.voxels, frame.images
    place: Place = group.detail
    used = [number for number, role in enumerate(group.roles) if role in roles]
    rows = {FRAMES: 1}
    if frames == "keep":
        rows |= {file_table_name(image): images[image].size for image in IMAGES if image in roles}
    spike_form = voxel_form = None
    keys = {}
    memory = 0
    if spikes is not None:
        layout = spikes.layout if isinstance(spikes, StreamSpikes) else "array"
        spike_form = SpikeForm(layout, spikes.extent)
        keys["spike"] = spikes.array.key
        memory += spikes.memory
    if voxels is not None:
        voxel_form = VoxelForm(voxels.bins, voxels.height, voxels.width, upside_down)
        keys["voxel"] = voxels.array.key
        memory += voxels.memory
    decoding = [2 * 3 * header.height * header.width + header.size for header in images.values()]
    files = tuple([group.files[number].path for number in used])
    return Source(
        path=files[0],
        name=frame.name,
        files=files,
        rows=rows,
        split=place.split,
        reading=max([memory, *decoding]),
        detail=FrameOrigin(
            files=tuple([group.files[number].name for number in used]),
            formats=tuple([frame.formats[number] for number in used]),
            arrays=tuple([keys.get(group.roles[number], "image") for number in used]),
            roles=tuple([group.roles[number] for number in used]),
            sequence=place.sequence,
            spikes=spike_form,
            voxels=voxel_form,
            images={image: (header.height, header.width) for image, header in images.items()},
            counted=counted,
            inexact=tuple([image for image, header in images.items() if not header.exact]),
        ),
    )
