"""Sources, tables and index arrays of a spike store, and reading the row of a frame, padded with zeros."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import promote
from unistore.converters.formats.images import LIBRARY, decode, read_file
from unistore.converters.protocol import Source
from unistore.converters.spike.frames import Frame, file_name
from unistore.converters.spike.layouts import format_of, open_voxels
from unistore.converters.spike.scan import ScannedFrame
from unistore.converters.spike.source import Extent, FrameSource, ShapedStream, StreamSource
from unistore.errors import InputError, Problem
from unistore.schemas.spike import fields
from unistore.schemas.spike.fields import (
    FRAMES,
    IMAGE_EXTENT,
    IMAGES,
    SEQUENCE_NAME,
    SPIKE_EXTENT,
    count_dtype,
    file_table_name,
    row_bytes,
    voxelize,
)
from unistore.schemas.tables import Field, Table, offsets_of, text_arrays
from unistore.system.foreign import opening

Arrays = list[tuple[Field, NDArray[Any]]]

_PIXELS = ("height", "width")


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


def index_arrays(sources: Sequence[Source]) -> Arrays:
    """All index arrays of the sources, one source for each frame."""
    details = [source.detail for source in sources]

    def stacked(of: str, name: str) -> NDArray[np.int32]:
        return np.array([detail[of][name] for detail in details], np.int32)

    if "spike" in details[0]:
        lengths, extents = np.split(stacked("spike", "extent"), [1], axis=1)
        arrays: Arrays = [(fields.SPIKE_LENGTH_FIELD, np.ascontiguousarray(lengths[:, 0]))]
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
    arrays.append((fields.SEQUENCE_OFFSETS_FIELD, offsets_of([length for _, length in groups])))
    names = [name for name, _ in groups]
    return arrays + text_arrays(SEQUENCE_NAME, names, axis="sequence", description="Name of the sequence")


def recordings_of(sources: Sequence[Source]) -> list[str]:
    """Name of each frame's recording, whose parts count as one."""
    return [str(source.detail.get("recording", source.detail["sequence"])) for source in sources]


def make_source(
    scanned: ScannedFrame,
    roles: Sequence[str],
    spikes: FrameSource | None,
    frames: str,
    upside_down: bool,
    counted: Sequence[int] | None,
) -> Source:
    """The source of a frame, with what is needed to read it in its ``detail``.

    `spikes` are those of known extent, `roles` those that are converted. With `frames` ``"keep"``, rows of
    the tables of kept images are bytes of their files. `upside_down`: row 0 of its existing voxels is the
    bottom row. `counted`: bins of voxels that are counted for this source; None: those of the options.
    """
    info, voxel, images = scanned.info, scanned.voxel, scanned.images
    rows = {FRAMES: 1}
    if frames == "keep":
        rows |= {file_table_name(image): images[image].size for image in IMAGES if image in roles}
    detail: dict[str, Any] = {"sequence": info.sequence, "roles": list(roles)}
    if info.sequence != info.recording:
        detail["recording"] = info.recording
    if spikes is not None:
        detail["spike"] = {
            "layout": spikes.layout if isinstance(spikes, ShapedStream) else "array",
            "key": spikes.key,
            "extent": [spikes.extent.length, spikes.extent.height, spikes.extent.width],
        }
    if voxel is not None:
        extent = [voxel.height, voxel.width]
        detail["voxel"] = {"key": voxel.key, "bins": voxel.bins, "extent": extent, "upside_down": upside_down}
    if images:
        detail["images"] = {image: [form.height, form.width] for image, form in images.items()}
    if counted is not None:
        detail["counted"] = list(counted)
    memory = scanned.spikes.memory if isinstance(scanned.spikes, FrameSource) else 0
    memory += voxel.memory if voxel is not None else 0
    decoding = [2 * 3 * form.height * form.width + form.size for form in images.values()]
    files = tuple(scanned.frame.files[role] for role in roles)
    return Source(
        path=files[0],
        name=scanned.frame.name,
        files=files,
        rows=rows,
        split=info.split,
        reading=max([memory, *decoding]),
        detail=detail,
    )


def read_frame(source: Source, counted: Sequence[int], flip: bool, out: Mapping[str, NDArray[Any]]) -> None:
    """Read the row of ``frames`` of a source into its columns `out`, each (1, …), filled with zeros.

    Voxels of `counted` bins are counted from spikes, unless the source names others; another set is read from
    its file. `flip`: headerless streams hold their bottom row first.
    """
    frame, detail = _frame_of(source), source.detail
    counted = detail.get("counted", counted)
    if "spike" in out:
        length, height, width = detail["spike"]["extent"]
        packed = out["spike"][0, :length, :height, : row_bytes(width)]
        _spikes_of(frame, detail["spike"], flip).read(packed)
        for bins in counted:
            voxelize(packed, width, bins, out=out[f"voxel/{bins}"][0, :, :height, :width])
    existing = detail.get("voxel")
    if existing is not None and existing["bins"] not in counted:
        _read_existing(frame, existing, out[f"voxel/{existing['bins']}"][0])
    for image in IMAGES:
        if image in out:
            height, width = detail["images"][image]
            name = file_name(frame, image)
            _read_image(frame.files[image], name, out[image][0, :height, :width])


def _read_image(path: Path, name: str, out: NDArray[np.uint8]) -> None:
    with opening(path, name, LIBRARY):
        pixels = decode(read_file(path, name), name)
    if pixels.shape != out.shape:
        message = f"decodes to {pixels.shape[0]} x {pixels.shape[1]}, but its header says {out.shape[:2]}"
        raise InputError(Problem(name, message, "copy or export it again", "shape"))
    out[...] = pixels


def _frame_of(source: Source) -> Frame:
    return Frame(source.name, dict(zip(source.detail["roles"], source.files, strict=True)))


def _spikes_of(frame: Frame, form: Mapping[str, Any], flip: bool) -> FrameSource:
    """Open the spikes of a frame, and check that their extent has not changed since the scan."""
    name, extent = file_name(frame, "spike"), Extent(*form["extent"])
    opened = format_of(frame.files["spike"]).open(frame.files["spike"], name)
    if isinstance(opened, StreamSource):
        return ShapedStream.of(opened, extent, form["layout"], flip)
    if opened.extent != extent:
        message = f"is {opened.extent} now, and was {extent} when it was scanned"
        raise InputError(Problem(name, message, "it changed during the conversion: run again", "changed"))
    return opened


def _read_existing(frame: Frame, form: Mapping[str, Any], out: NDArray[Any]) -> None:
    height, width = form["extent"]
    values = open_voxels(frame.files["voxel"], file_name(frame, "voxel")).values()
    out[:, :height, :width] = values[:, ::-1] if form["upside_down"] else values


def read_file_bytes(source: Source, image: str, lo: int, hi: int, out: NDArray[np.uint8]) -> None:
    """Read bytes ``lo:hi`` of an image file, after a check of the whole file."""
    frame = _frame_of(source)
    data = read_file(frame.files[image], file_name(frame, image))
    out[...] = np.frombuffer(data, np.uint8)[lo:hi]
