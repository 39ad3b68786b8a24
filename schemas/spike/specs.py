"""What the arrays of a spike store must be: frames, their extents, sequences."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from unistore.errors import Problem
from unistore.schemas.array_specs import BYTES, SAMPLES, ArrayInfo, ArraySpec, ArraySpecs, Limit
from unistore.schemas.spike.fields import (
    FRAMES,
    IMAGE_EXTENT,
    IMAGES,
    SEQUENCE_NAME,
    SEQUENCE_OFFSETS,
    SPIKE,
    SPIKE_EXTENT,
    SPIKE_LENGTH,
    file_table_name,
    voxel_bins,
)

_ROWS = (SAMPLES, 0)


def _spec(path: str, paths: Collection[str]) -> ArraySpec:
    group, _, name = path.rpartition("/")
    bins = voxel_bins(path)
    if bins is not None:
        return ArraySpec(kinds="uif", row_shape=(bins, None, None), rows=_ROWS)
    voxels = [each for each in sorted(paths) if voxel_bins(each) is not None]
    if path == SPIKE:
        like = tuple(Limit(each, (2, 3), 8) for each in voxels)
        dtypes, beside = ("uint8",), (SPIKE_LENGTH,)
        return ArraySpec(dtypes=dtypes, row_shape=(None, None, None), rows=_ROWS, beside=beside, like=like)
    if path == SPIKE_LENGTH:
        steps = (Limit(SPIKE, (1,)),) if SPIKE in paths else ()
        return ArraySpec(dtypes=("int32",), row_shape=(), rows=_ROWS, least=1, limits=steps)
    if path == SPIKE_EXTENT:
        limits = [Limit(SPIKE, (2, 3), 8)] if SPIKE in paths else []
        limits += [Limit(each, (2, 3)) for each in voxels]
        return ArraySpec(dtypes=("int32",), row_shape=(2,), rows=_ROWS, least=1, limits=tuple(limits))
    if path == IMAGE_EXTENT:
        images = [f"{FRAMES}/{image}" for image in IMAGES]
        inside = tuple(Limit(each, (1, 2)) for each in images if each in paths)
        return ArraySpec(dtypes=("int32",), row_shape=(2,), rows=_ROWS, least=1, limits=inside)
    if path == SEQUENCE_OFFSETS:
        return ArraySpec(dtypes=("int64",), row_shape=(), offsets_of=SPIKE_EXTENT)
    if group in map(file_table_name, IMAGES):
        offsets = ArraySpec(dtypes=("int64",), row_shape=(), rows=(SAMPLES, 1), offsets_of=f"{group}/data")
        return offsets if name == "offsets" else replace(BYTES, beside=(f"{group}/offsets", IMAGE_EXTENT))
    if group == FRAMES and name in IMAGES:
        return ArraySpec(dtypes=("uint8",), row_shape=(None, None, 3), rows=_ROWS, beside=(IMAGE_EXTENT,))
    return ArraySpec(rows=_ROWS) if group == FRAMES else ArraySpec()


def _no_frames(arrays: Mapping[str, ArrayInfo]) -> Iterator[Problem]:
    if SPIKE not in arrays and all(voxel_bins(path) is None for path in arrays):
        yield Problem(FRAMES, f"has neither {SPIKE} nor {FRAMES}/voxel/<bins>", kind="missing")


SPECS = ArraySpecs(
    required=(SPIKE_EXTENT, SEQUENCE_OFFSETS, f"{SEQUENCE_NAME}/data", f"{SEQUENCE_NAME}/offsets"),
    others=_spec,
    check=_no_frames,
    main_rows=SAMPLES,
    text={"sequences": (SEQUENCE_OFFSETS, 0)},
)
