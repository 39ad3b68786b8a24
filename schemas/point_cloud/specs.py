"""What the arrays of a point cloud store must be: points, segments, voxel grids."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from unistore.errors import Problem
from unistore.schemas.array_spec import ArraySpec
from unistore.schemas.array_specs import ArraySpecs
from unistore.schemas.arrays import ArrayInfo
from unistore.schemas.point_cloud.fields import NO_SEGMENT, POINTS, SEGMENTS

_XYZ = "points/xyz"
_SEGMENTS = ("segments/number", 0)
_BOUNDS = ("segments/number", 1)
_SOURCES = ("sources/path/offsets", -1)


def _spec(path: str, _paths: Collection[str]) -> ArraySpec:
    group, _, name = path.rpartition("/")
    if path.startswith(f"{POINTS}/"):
        return ArraySpec(rows=(_XYZ, 0))
    if group == SEGMENTS:
        return ArraySpec(rows=_SEGMENTS)
    if path.startswith("voxels/"):
        return _voxel_specs(group).get(name, ArraySpec())
    return ArraySpec()


def _voxel_specs(grid: str) -> dict[str, ArraySpec]:
    coords = f"{grid}/coords"
    return {
        "coords": ArraySpec(dtypes=("int32",), row_shape=(3,)),
        "counts": ArraySpec(dtypes=("uint32",), row_shape=(), rows=(coords, 0)),
        "offsets": ArraySpec(dtypes=("int64",), row_shape=(), rows=_BOUNDS, offsets_of=coords),
        "point_voxel": ArraySpec(dtypes=("int32",), row_shape=(), rows=(_XYZ, 0)),
    }


SPECS = ArraySpecs(
    arrays={
        _XYZ: ArraySpec(dtypes=("int32", "float64", "float32"), row_shape=(3,)),
        "points/source_row": ArraySpec(dtypes=("int64",), row_shape=(), rows=(_XYZ, 0)),
        "segments/offsets": ArraySpec(dtypes=("int64",), row_shape=(), rows=_BOUNDS, offsets_of=_XYZ),
        "segments/number": ArraySpec(dtypes=("int64",), row_shape=(), least=NO_SEGMENT),
        "segments/origin": ArraySpec(dtypes=("float64",), row_shape=(3,), rows=_SEGMENTS),
        "segments/bounds": ArraySpec(dtypes=("float64",), row_shape=(2, 3), rows=_SEGMENTS),
        "segments/source": ArraySpec(
            dtypes=("int32",), row_shape=(), rows=_SEGMENTS, indexes=_SOURCES, ascending=True
        ),
    },
    others=_spec,
    main_rows=_XYZ,
)


def validate(arrays: Mapping[str, ArrayInfo], _attributes: Mapping[str, Any]) -> list[Problem]:
    """Quantised coordinates have a scale and an offset, and voxel grids all of their arrays."""
    needed = ["sources/scale", "sources/offset"] if arrays[_XYZ].dtype == "int32" else []
    for grid in sorted({path.rpartition("/")[0] for path in arrays if path.startswith("voxels/")}):
        needed += [f"{grid}/{name}" for name in _voxel_specs(grid)]
    return [Problem(path, "is missing", kind="missing") for path in needed if path not in arrays]
