"""What the arrays of a spike store must be: frames, their extents, sequences."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from unistore.errors import Problem
from unistore.schemas.array_specs import BYTES, SAMPLES, ArrayInfo, ArraySpec, ArraySpecs, Limit, spec_of
from unistore.schemas.spike.fields import (
    BITS,
    FRAME_OFFSETS,
    FRAME_SOURCE,
    FRAMES,
    IMAGE_EXTENT,
    IMAGES,
    SEQUENCE_NAME,
    SEQUENCE_OFFSETS,
    SPIKE_EXTENT,
    file_table_name,
    voxel_bins,
)

_ROWS = (SAMPLES, 0)
_OFFSETS = spec_of("int64")
_EXTENT = spec_of("int32", 2, rows=_ROWS, least=1)


def _spec(path: str, paths: Collection[str]) -> ArraySpec:
    group, _, name = path.rpartition("/")
    bins = voxel_bins(path)
    if bins is not None:
        return ArraySpec(kinds="uif", row_shape=(bins, None, None), rows=_ROWS)
    if group in map(file_table_name, IMAGES):
        offsets = replace(_OFFSETS, rows=(SAMPLES, 1), offsets_of=f"{group}/data")
        return offsets if name == "offsets" else replace(BYTES, beside=(f"{group}/offsets", IMAGE_EXTENT))
    voxels = [voxel_path for voxel_path in sorted(paths) if voxel_bins(voxel_path) is not None]
    pixels = [Limit(voxel_path, (2, 3)) for voxel_path in voxels]
    if BITS in paths:
        pixels.insert(0, Limit(BITS, (1, 2), 8))
    images = [f"{FRAMES}/{image}" for image in IMAGES]
    inside = [Limit(image, (1, 2)) for image in images if image in paths]
    image_spec = spec_of("uint8", None, None, 3, rows=_ROWS, beside=(IMAGE_EXTENT,))
    specs = {
        BITS: spec_of(
            "uint8",
            None,
            None,
            beside=(FRAME_OFFSETS,),
            like=tuple([Limit(voxel_path, (2, 3), 8) for voxel_path in voxels]),
        ),
        FRAME_OFFSETS: replace(_OFFSETS, rows=(SAMPLES, 1), offsets_of=BITS),
        FRAME_SOURCE: spec_of(
            "int32",
            rows=_ROWS,
            indexes=("sources/path/offsets", -1),
            ascending=True,
        ),
        SPIKE_EXTENT: replace(_EXTENT, limits=tuple(pixels)),
        IMAGE_EXTENT: replace(_EXTENT, limits=tuple(inside)),
        SEQUENCE_OFFSETS: replace(_OFFSETS, offsets_of=SPIKE_EXTENT),
        **dict.fromkeys(images, image_spec),
    }
    return specs.get(path) or ArraySpec(rows=_ROWS if group == FRAMES else None)


def _no_frames(arrays: Mapping[str, ArrayInfo]) -> Iterator[Problem]:
    if BITS not in arrays and all(voxel_bins(path) is None for path in arrays):
        yield Problem(FRAMES, f"has neither {BITS} nor {FRAMES}/voxel/<bins>", kind="missing")


SPECS = ArraySpecs(
    required=(SPIKE_EXTENT, SEQUENCE_OFFSETS, f"{SEQUENCE_NAME}/data", f"{SEQUENCE_NAME}/offsets"),
    others=_spec,
    check=_no_frames,
    text={"sequences": (SEQUENCE_OFFSETS, 0)},
)
