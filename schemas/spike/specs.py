"""What the arrays of a spike store must be: frames, their extents, sequences."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from unistore.errors import Problem
from unistore.schemas.array_spec import SAMPLES, ArrayInfo, ArraySpec, Limit
from unistore.schemas.array_specs import BYTES, ArraySpecs
from unistore.schemas.spike.bits import row_bytes
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
        return ArraySpec(row_shape=(bins, None, None), rows=_ROWS)
    if path == SPIKE:
        return ArraySpec(dtypes=("uint8",), row_shape=(None, None, None), rows=_ROWS)
    if path == SPIKE_LENGTH:
        steps = (Limit(SPIKE, (1,)),) if SPIKE in paths else ()
        return ArraySpec(dtypes=("int32",), row_shape=(), rows=_ROWS, least=1, limits=steps)
    if path == SPIKE_EXTENT:
        limits = [Limit(each, (2, 3)) for each in sorted(paths) if voxel_bins(each) is not None]
        if SPIKE in paths:
            limits.insert(0, Limit(SPIKE, (2, 3), 8))
        return ArraySpec(dtypes=("int32",), row_shape=(2,), rows=_ROWS, least=1, limits=tuple(limits))
    if path == IMAGE_EXTENT:
        images = [f"{FRAMES}/{image}" for image in IMAGES]
        inside = tuple(Limit(each, (1, 2)) for each in images if each in paths)
        return ArraySpec(dtypes=("int32",), row_shape=(2,), rows=_ROWS, least=1, limits=inside)
    if path == SEQUENCE_OFFSETS:
        return ArraySpec(dtypes=("int64",), row_shape=(), offsets_of=SPIKE_EXTENT)
    if group in map(file_table_name, IMAGES):
        offsets = ArraySpec(dtypes=("int64",), row_shape=(), rows=(SAMPLES, 1), offsets_of=f"{group}/data")
        return offsets if name == "offsets" else BYTES
    if group == FRAMES and name in IMAGES:
        return ArraySpec(dtypes=("uint8",), row_shape=(None, None, 3), rows=_ROWS)
    return ArraySpec(rows=_ROWS) if group == FRAMES else ArraySpec()


SPECS = ArraySpecs(
    required=(SPIKE_EXTENT, SEQUENCE_OFFSETS, f"{SEQUENCE_NAME}/data", f"{SEQUENCE_NAME}/offsets"),
    others=_spec,
    main_rows=SAMPLES,
    text={"sequences": (SEQUENCE_OFFSETS, 0)},
)


def validate(arrays: Mapping[str, ArrayInfo], _attributes: Mapping[str, Any]) -> list[Problem]:
    """Spikes or voxels are there, with the arrays that belong to them and to images, and of one size."""
    voxels = [path for path in arrays if voxel_bins(path) is not None]
    if SPIKE not in arrays and not voxels:
        return [Problem(FRAMES, f"has neither {SPIKE} nor {FRAMES}/voxel/<bins>", kind="missing")]
    belongs = {SPIKE: [SPIKE_LENGTH]}
    for image in IMAGES:
        files = file_table_name(image)
        belongs |= {f"{FRAMES}/{image}": [IMAGE_EXTENT], f"{files}/data": [f"{files}/offsets", IMAGE_EXTENT]}
    needed = dict.fromkeys(path for each, paths in belongs.items() if each in arrays for path in paths)
    problems = [Problem(path, "is missing", kind="missing") for path in needed if path not in arrays]
    for path in voxels:
        if arrays[path].kind not in "uif":
            problems.append(Problem(path, f"has dtype {arrays[path].dtype}, expected counts", kind="dtype"))
        if SPIKE in arrays:
            height, stored = arrays[SPIKE].shape[2:]
            rows, columns = arrays[path].shape[2:]
            if (rows, row_bytes(columns)) != (height, stored):
                message = f"is {rows} x {columns}, but the spikes are {height} rows of {stored} bytes"
                problems.append(Problem(path, message, kind="shape"))
    return problems
