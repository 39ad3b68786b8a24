"""Sources, tables and index arrays of a spike store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from statistics import median_low
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import promote
from unistore.converters.protocol import Scan, Source
from unistore.converters.spike.frames import FrameOrigin, Place, ScannedFrame, SpikeForm, VoxelForm
from unistore.converters.spike.spikes import Extent, Spikes, StreamSpikes, Voxels
from unistore.schemas.spike import fields
from unistore.schemas.spike.fields import (
    FRAMES,
    IMAGE_EXTENT,
    IMAGES,
    SEQUENCE_NAME,
    SPIKE_EXTENT,
    SPIKES,
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
    """Tables of time steps, and of voxels and images, where there are some; kept images are one each.

    Rows are padded to the most pixels of spikes (`extents`, by the frame's name) and voxels, and of images.
    Voxel sets of `counted` bins are counted; an existing set of other bins is read.
    """
    lengths = [extent.length for extent in extents.values()]
    sized: list[Extent | Voxels] = [*extents.values(), *existing]
    height = max(grid.height for grid in sized)
    width = max(grid.width for grid in sized)
    steps: list[Field] = []
    if "spike" in roles:
        steps.append(fields.bits_field(height, width, fields.chunk_steps(lengths)))
    sets = [(bins, count_dtype(max(lengths), bins), True) for bins in counted]
    if existing and existing[0].bins not in counted:
        dtype = promote([voxels.dtype for voxels in existing])
        if dtype is not None:
            sets.append((existing[0].bins, dtype.name, False))
    columns = [fields.voxel_field(bins, name, height, width, counted=own) for bins, name, own in sorted(sets)]
    kept: list[Table] = []
    headers = list(chain.from_iterable(frame.images.values() for frame in scanned))
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
    tables = [Table(name=SPIKES, fields=tuple(steps)), Table(name=FRAMES, fields=tuple(columns)), *kept]
    return tuple([table for table in tables if table.fields])


def index_arrays(scan: Scan) -> Arrays:
    """All index arrays of the sources, one source for each frame."""
    origins: list[FrameOrigin] = list(scan.sources.details)
    arrays: Arrays = [(fields.FRAME_SOURCE_FIELD, np.arange(len(origins), dtype=np.int32))]
    if scan.main_table == SPIKES:
        arrays.append((fields.FRAME_OFFSETS_FIELD, offsets_of(scan.sources.rows(SPIKES))))
    pixels = [origin.pixels for origin in origins]
    arrays.append((fields.extent_field(SPIKE_EXTENT), np.array(pixels, np.int32)))
    images = list(origins[0].images)
    if images:
        pixels = [origin.images[images[0]] for origin in origins]
        arrays.append((fields.extent_field(IMAGE_EXTENT), np.array(pixels, np.int32)))
    for image in images:
        sizes = scan.sources.rows(file_table_name(image))
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
    group = frame.group
    voxels = frame.voxels
    images = frame.images
    place: Place = group.detail
    used = [number for number, role in enumerate(group.roles) if role in roles]
    rows = {FRAMES: 1}
    if frames == "keep":
        rows |= {file_table_name(image): images[image].size for image in IMAGES if image in roles}
    spike_form = voxel_form = None
    keys = {}
    memory = 0
    if spikes is not None:
        rows[SPIKES] = spikes.extent.length
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
