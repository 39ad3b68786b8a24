"""Read spike recordings: the headers of a frame's files, and its rows, padded with zeros."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from unistore.converters.spike.frames import (
    RAW_ARRAY,
    Extent,
    FrameArray,
    FrameOrigin,
    FrameValues,
    ScannedFrame,
    Spikes,
    values_in,
)
from unistore.converters.spike.options import IMAGE_ROLES, SpikeOptions
from unistore.errors import AddOptions, with_source
from unistore.plugin import (
    Field,
    Group,
    InputError,
    Openable,
    OwnForm,
    Problem,
    ProblemCollector,
    Scan,
    little_endian,
)
from unistore.schemas.spike.fields import FRAMES, SPIKES, row_bytes
from unistore.system.types import AnyArray


def scan_frame(options: SpikeOptions, group: Group, files: Sequence[Openable]) -> ScannedFrame:
    """Read the headers of the files of one frame, and check arrays.

    Raises
    ------
    InputError
        If no file can be read. Other problems are in the result.
    """
    # Asking about files of other families loads none of it.
    from unistore.converters.spike.streams import config_of

    values: dict[str, FrameValues] = {}
    images = {}
    left_out: list[str] = []
    collected = ProblemCollector()
    config = None
    for role, one in zip(group.roles, files, strict=True):
        file = one.file
        with collected.attempt(file.name), one.open() as opened:
            if role in IMAGE_ROLES:
                images[role] = opened.arrays["image"].values.header
                continue
            array = values_in(opened, FrameArray(one), role)
            left_out += [f"{file.name}: {name}" for name in opened.arrays if name != array.array.key]
            if array.is_stream and None in (options.height, options.width):
                config = config_of(file)
            values[role] = array
    frame = ScannedFrame(
        group=group,
        formats=tuple([one.format.name for one in files]),
        values=values,
        images=images,
        config=config,
        others=tuple(left_out),
    )
    problems = with_source(group.name, [*collected.problems, *_image_problems(options, frame)])
    if not (values or images):
        raise InputError(problems)
    return replace(frame, problems=problems)


def _image_problems(options: SpikeOptions, frame: ScannedFrame) -> list[Problem]:
    """Images that are not 8-bit RGB, and a pair of different sizes."""
    problems = []
    for role, header in frame.images.items():
        if not header.plain and not options.convert_images:
            form = header.colour if header.colour != "rgb" else f"{header.bits}-bit rgb"
            message = f"is {form}, but 8-bit rgb is expected"
            fix = AddOptions(("--convert-images",), "to repeat gray, drop alpha and cut to 8 bits")
            problems.append(Problem(frame.called(role), message, fix, "colour"))
    sizes = [f"{header.height} x {header.width}" for header in frame.images.values()]
    if len(set(sizes)) > 1:
        blur_size, size = sizes
        message = f"has {size} pixels, but its blurred frame has {blur_size}"
        problems.append(Problem(frame.called("sharp"), message, "resize one of them", "shape"))
    return problems


def read_rows(
    options: SpikeOptions,
    scan: Scan,
    source: int,
    files: Sequence[Openable],
    table: str,
    lo: int,
    hi: int,
    out: Mapping[str, AnyArray],
) -> None:
    """Read time steps, the voxels and images of a frame, or bytes ``lo:hi`` of one of its kept images."""
    if lo == hi:
        return
    origin: FrameOrigin = scan.sources.details[source]
    named = zip(origin.roles, files, origin.arrays, strict=True)
    arrays = {role: FrameArray(file, key) for role, file, key in named}
    if table == FRAMES:
        _read_voxels(options, scan, origin, arrays, out)
        for role in IMAGE_ROLES:
            if role in out:
                height, width = origin.shapes[role]
                with arrays[role].open() as image:
                    out[role][0, :height, :width] = image.values.rgb()
    elif table == SPIKES:
        height, width = origin.pixels
        spikes = _spikes(options, scan, origin, arrays)
        spikes.read(out["bits"][:, :height, : row_bytes(width)], lo)
    else:
        role = table.removeprefix(f"{FRAMES}/").removesuffix("_file")
        with arrays[role].open() as image:
            # The whole file is checked before a part of it is taken.
            out["data"][...] = np.frombuffer(image.values.content(), np.uint8)[lo:hi]


def _spikes(
    options: SpikeOptions, scan: Scan, origin: FrameOrigin, arrays: Mapping[str, FrameArray]
) -> Spikes:
    """Return the spikes of a frame, to be read."""
    is_stream = arrays["spike"].key == RAW_ARRAY
    layout = scan.options["found"]["layout"] if is_stream else origin.layout
    extent = Extent(*origin.shapes["spike"])
    return Spikes(arrays["spike"], extent, layout, flip=is_stream and options.flip)


def _read_voxels(
    options: SpikeOptions,
    scan: Scan,
    origin: FrameOrigin,
    arrays: Mapping[str, FrameArray],
    out: Mapping[str, AnyArray],
) -> None:
    """Count the voxels of a frame, and read those that exist, into columns of one row of zeros."""
    counted = scan.shared["counted"]
    if counted:
        height, width = origin.pixels
        grids = {bins: out[f"voxel/{bins}"][0, :, :height, :width] for bins in counted}
        _spikes(options, scan, origin, arrays).add_counts(grids)
    if "voxel" not in arrays:
        return
    bins, height, width = origin.shapes["voxel"]
    if bins not in counted:
        with arrays["voxel"].open() as voxels:
            values = voxels[:]
        rows = values[:, ::-1] if scan.shared["upside_down"] else values
        out[f"voxel/{bins}"][0, :, :height, :width] = rows


def own_forms(scan: Scan, table: str, source: int, fields: Mapping[str, Field]) -> dict[str, OwnForm]:
    """Return how files have rows of a table, without voxels that are counted."""
    origin: FrameOrigin = scan.sources.details[source]
    forms = {}
    for column, field in fields.items():
        if column in IMAGE_ROLES:
            if column in origin.shapes:
                forms[column] = OwnForm("|u1", (*origin.shapes[column], 3))
        elif table == SPIKES:
            height, width = origin.pixels
            forms[column] = OwnForm("|u1", (height, row_bytes(width)))
        elif table != FRAMES:
            forms[column] = OwnForm(little_endian(field.dtype), field.row_shape)
        elif "voxel" in origin.shapes and origin.shapes["voxel"][0] not in scan.shared["counted"]:
            shape = origin.shapes["voxel"]
            restore = partial(_upside_down, height=shape[1]) if scan.shared["upside_down"] else None
            forms[column] = OwnForm("<f8", shape, restore)
    return forms


def _upside_down(voxels: AnyArray, height: int) -> AnyArray:
    return voxels[:, :, :height][:, :, ::-1]
