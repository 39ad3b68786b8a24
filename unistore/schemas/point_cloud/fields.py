"""Declare what a point cloud store holds: points, the segments they are cut into, and voxel grids."""

#     points/xyz                     (N, 3) i4, f8 or f4; i4: q * scale + offset of the source, in float64,
#                                    or, for decimals, (q + offset) / scale
#     points/<column>                (N,) or (N, k), as in the source
#     points/source_row              (N,) row in the source
#     segments/offsets               (S + 1,) points of segment s are offsets[s]:offsets[s + 1]
#     segments/origin, bounds        (S, 3) minimum; (S, 2, 3) minimum and maximum
#     segments/source, number        (S,) index in sources/, number as in the source
#     segments/<column>              (S,) or (S, k) where sources describe whole segments (``label``)
#     sources/scale, sources/offset  (F, 3) where xyz is i4
#     voxels/<size>/coords, counts   (V, 3) cell of each voxel, (V,) points in it
#     voxels/<size>/offsets          (S + 1,) voxels of segment s
#     voxels/<size>/point_voxel      (N,) voxel of each point, counted inside its segment; -1 outside segments
#
# A sample is a segment whose number is not -1; samples are in storage order. A segment of number -1 stands at
# the end of a source's segments and keeps the points that belong to none; it has no voxels.

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.errors import Problem
from unistore.schemas.array_specs import SOURCE_BOUNDS, ArrayInfo, ArraySpec, spec_of
from unistore.schemas.declared_rules import ArraySpecs, text_columns
from unistore.schemas.indices import StoreView, contradiction, source_rows, whole
from unistore.schemas.tables import Field, IndexValues, bounds_field, lazy_text_arrays, own_axes
from unistore.system.types import Float64s, Shape

FAMILY_NAME = "point_cloud"
# Attribute of quantised coordinates that are decimals: their scale and offset, the same for all sources.
DECIMAL = "decimal"
POINTS = "points"
SEGMENTS = "segments"
NO_SEGMENT = -1  # number of the segment that keeps a source's points of no segment

_QUANTISED = "q * scale + offset"
_DECIMAL = "(q + offset) / scale"
_XYZ = ["x", "y", "z"]
_VOXEL_RULE = "floor((xyz - origin) / size) in float64, unique in a segment, lexicographic"


class Decimal(NamedTuple):
    """Coordinates ``(q + offset) / scale``: whole numbers of a power of ten."""

    scale: float
    offset: tuple[float, float, float]


def xyz_field(dtype: str, run: int, unit: str | None, decimal: Decimal | None = None) -> Field:
    """Return the field of coordinates (N, 3): quantised if int32, with the source's scale if not decimal."""
    attributes: dict[str, object] = {"components": _XYZ}
    if dtype == "int32":
        attributes["quantised"] = {
            "rule": _QUANTISED if decimal is None else _DECIMAL,
            "arithmetic": "float64",
            "scale": "sources/scale",
            "offset": "sources/offset",
            "row": f"{SEGMENTS}/source",
        }
    if decimal is not None:
        attributes[DECIMAL] = {"scale": decimal.scale, "offset": list(decimal.offset)}
    return Field(
        path=f"{POINTS}/xyz",
        dtype=dtype,
        row_shape=(3,),
        axes=("point", "coordinate"),
        unit=unit,
        description="x, y, z of each point, segments one after the other",
        run=run,
        attributes=attributes,
    )


def source_row_field(run: int) -> Field:
    """Row of each point in its source (N,) i8."""
    return Field(
        path=f"{POINTS}/source_row",
        dtype="int64",
        axes=("point",),
        description="row of the point in its source, so that the source's order can be restored",
        run=run,
    )


def column_field(
    table: str,
    name: str,
    dtype: str,
    row_shape: Shape,
    attributes: Mapping[str, Any] | None = None,
    run: int = 1,
) -> Field:
    """A column of `POINTS` (N, …) or `SEGMENTS` (S, …) under the source's own name, such as ``label``."""
    axis = table.removesuffix("s")
    return Field(
        path=f"{table}/{name}",
        dtype=dtype,
        row_shape=row_shape,
        axes=(axis, *own_axes(name, "component", len(row_shape))),
        description=f"{name} of each {axis}",
        run=run,
        attributes=attributes or {},
    )


def segment_fields(unit: str | None) -> dict[str, Field]:
    """Index arrays of the segments, by name: offsets, origin, bounds, source, number."""
    origin = Field(
        path=f"{SEGMENTS}/origin",
        dtype="float64",
        row_shape=(3,),
        axes=("segment", "coordinate"),
        unit=unit,
        description="minimum of the segment's coordinates; 0 if it has no points",
        attributes={"components": _XYZ},
    )
    fields = [
        bounds_field(f"{SEGMENTS}/offsets", "segment", "points of segment s are offsets[s]:offsets[s + 1]"),
        origin,
        replace(
            origin,
            path=f"{SEGMENTS}/bounds",
            row_shape=(2, 3),
            axes=("segment", "minimum_maximum", "coordinate"),
            description="minimum and maximum of the segment's coordinates; 0 if it has no points",
        ),
        Field(
            path=f"{SEGMENTS}/source",
            dtype="int32",
            axes=("segment",),
            description="index of the segment's source in sources/",
        ),
        Field(
            path=f"{SEGMENTS}/number",
            dtype="int64",
            axes=("segment",),
            description=f"number of the segment in its source; {NO_SEGMENT}: points of no segment, no sample",
            attributes={"no_sample": NO_SEGMENT},
        ),
    ]
    return {field.name: field for field in fields}


def scale_fields() -> tuple[Field, Field]:
    """``sources/scale`` and ``sources/offset`` (F, 3) f8, present where xyz is quantised."""
    scale = Field(
        path=_SCALE,
        dtype="float64",
        row_shape=(3,),
        axes=("source", "coordinate"),
        description="scale of quantised coordinates",
    )
    return scale, replace(scale, path=_OFFSET, description="offset of quantised coordinates")


def layout_arrays(texts: Sequence[str]) -> list[tuple[Field, IndexValues]]:
    """``sources/layout``: the layout of each file, JSON. Texts are made when asked for."""
    return lazy_text_arrays("sources/layout", texts, axis="source", description="layout of the file, JSON")


def header_arrays(texts: Sequence[str]) -> list[tuple[Field, IndexValues]]:
    """``sources/header``: the header of each file, JSON. Texts are made when asked for."""
    return lazy_text_arrays("sources/header", texts, axis="source", description="header of the file, JSON")


def voxel_group(size: float) -> str:
    """Return the path of the voxel grid of an edge length: ``"voxels/0.5"``, ``"voxels/1"``."""
    return f"voxels/{np.format_float_positional(size, trim='-')}"


def voxel_fields(size: float, run: int, point_run: int, unit: str | None) -> tuple[Field, Field, Field]:
    """Return the fields of a voxel grid.

    Parameters
    ----------
    size : float
        Edge of a voxel, in the unit of the coordinates.
    run, point_run : int
        Number of voxels, and of points, of a typical segment.
    unit : str or None
        Unit of the coordinates. None: unknown.

    Returns
    -------
    tuple of Field
        ``coords`` and ``counts`` of ``voxels/<size>``, and ``point_voxel``, a column of ``points``.
    """
    group = voxel_group(size)
    rule = {"size": size, "rule": _VOXEL_RULE, "origin": f"{SEGMENTS}/origin", "unit": unit}
    coords = Field(
        path=f"{group}/coords",
        dtype="int32",
        row_shape=(3,),
        axes=("voxel", "coordinate"),
        description="cell of each occupied voxel, counted from its segment's origin",
        run=run,
        attributes={"components": _XYZ, **rule},
    )
    counts = Field(
        path=f"{group}/counts",
        dtype="uint32",
        axes=("voxel",),
        description="points in each voxel",
        run=run,
    )
    point_voxel = Field(
        path=f"{group}/point_voxel",
        dtype="int32",
        axes=("point",),
        description="voxel of each point, counted inside its segment; -1 for points of no segment",
        run=point_run,
        attributes=rule,
    )
    return coords, counts, point_voxel


def voxel_offsets_field(size: float) -> Field:
    """``voxels/<size>/offsets`` (S + 1,) i8."""
    description = "voxels of segment s are offsets[s]:offsets[s + 1]"
    return bounds_field(f"{voxel_group(size)}/offsets", "segment", description)


# Scale and offset of quantised coordinates, ``points/xyz`` i4.

MAX_PLACES = 9  # largest number of decimal places
_XYZ_PATH = f"{POINTS}/xyz"
_SCALE = "sources/scale"
_OFFSET = "sources/offset"
_LARGEST = 2.0**31


class Quantum(NamedTuple):
    """Scale and offset of every source, (F, 3) f8, and whether coordinates are decimals."""

    scale: Float64s
    offset: Float64s
    decimal: bool

    def restored(
        self, quantised: NDArray[np.int32], source: int, axis: int | slice = slice(None)
    ) -> Float64s:
        """Return coordinates of one source, (n, 3), or one of their axes, (n,)."""
        scale = self.scale[source, axis]
        offset = self.offset[source, axis]
        exact = quantised.astype(np.float64)
        return (exact + offset) / scale if self.decimal else exact * scale + offset


def quantum(store: StoreView) -> Quantum | None:
    """Return scale and offset of a store's coordinates, or None if they are floats."""
    xyz = store.array(_XYZ_PATH)
    if xyz.dtype.kind != "i":
        return None
    scale = whole(store, _SCALE)
    offset = whole(store, _OFFSET)
    filled = source_rows(store, POINTS) > 0
    for path, message in quantum_errors(scale[filled], offset[filled], xyz.attributes.get(DECIMAL)):
        raise contradiction(store, path, message)
    return Quantum(scale, offset, DECIMAL in xyz.attributes)


def quantum_errors(scale: Float64s, offset: Float64s, decimal: object) -> Iterator[tuple[str, str]]:
    """Yield path and message of each error of scale and offset, (F, 3) of the sources that have points."""
    powers = [10**places for places in range(MAX_PLACES + 1)]
    stated = decimal if isinstance(decimal, Mapping) else {}
    if decimal is not None and stated.get("scale") not in powers:
        found = f"the scale of its attribute '{DECIMAL}' is {stated.get('scale')!r}"
        yield _XYZ_PATH, f"{found}, expected a power of ten up to 1e{MAX_PLACES}"
    elif decimal is not None:
        by_attribute = f"in the attribute '{DECIMAL}' of {_XYZ_PATH}"
        if (scale != stated["scale"]).any():
            yield _SCALE, f"differs from {stated['scale']}, the scale {by_attribute}"
        if any(row != stated.get("offset") for row in offset.tolist()):
            yield _OFFSET, f"differs from {stated.get('offset')}, the offset {by_attribute}"
        if not (offset == np.rint(offset)).all():
            yield _OFFSET, "has values that are not whole numbers, which decimal coordinates need"
    with np.errstate(all="ignore"):
        most = np.abs(scale) * _LARGEST + np.abs(offset)
    if not np.isfinite(most).all() or not scale.all():
        yield _SCALE, "a scale is 0, or a scale and its offset give coordinates that are not finite"


# What the arrays must be

_OF_POINTS = (_XYZ_PATH, 0)
_OF_SEGMENTS = (f"{SEGMENTS}/number", 0)
_BOUNDS = (f"{SEGMENTS}/number", 1)
_GRID = "voxels/<size>"
_COORDS = f"{_GRID}/coords"
_BESIDE = tuple(f"{_GRID}/{name}" for name in ("coords", "counts", "offsets", "point_voxel"))


def _unscaled(arrays: Mapping[str, ArrayInfo]) -> Iterator[Problem]:
    """Quantised coordinates without a scale or an offset."""
    for path in (_SCALE, _OFFSET):
        if arrays[_XYZ_PATH].dtype == "int32" and path not in arrays:
            yield Problem(path, f"is missing, but {_XYZ_PATH} of dtype int32 needs it", kind="missing")


SPECS = ArraySpecs(
    arrays={
        _XYZ_PATH: ArraySpec(dtypes=("int32", "float64", "float32"), row_shape=(3,)),
        f"{POINTS}/source_row": spec_of("int64", rows=_OF_POINTS),
        f"{SEGMENTS}/offsets": spec_of("int64", rows=_BOUNDS, offsets_of=_XYZ_PATH),
        f"{SEGMENTS}/number": spec_of("int64", least=NO_SEGMENT),
        f"{SEGMENTS}/origin": spec_of("float64", 3, rows=_OF_SEGMENTS),
        f"{SEGMENTS}/bounds": spec_of("float64", 2, 3, rows=_OF_SEGMENTS),
        f"{SEGMENTS}/source": spec_of(
            "int32", rows=_OF_SEGMENTS, indexes=(SOURCE_BOUNDS, -1), ascending=True
        ),
    },
    optional={
        f"{POINTS}/<column>": ArraySpec(rows=_OF_POINTS),
        **text_columns(f"{SEGMENTS}/name", _BOUNDS, absent=""),
        **text_columns(f"{SEGMENTS}/<column>", _BOUNDS),
        f"{SEGMENTS}/<column>": ArraySpec(rows=_OF_SEGMENTS),
        _COORDS: spec_of("int32", 3, beside=_BESIDE),
        f"{_GRID}/counts": spec_of("uint32", rows=(_COORDS, 0), beside=_BESIDE),
        f"{_GRID}/offsets": spec_of("int64", rows=_BOUNDS, offsets_of=_COORDS, beside=_BESIDE),
        f"{_GRID}/point_voxel": spec_of("int32", rows=_OF_POINTS, beside=_BESIDE),
        **text_columns("sources/header", (SOURCE_BOUNDS, 0), absent="{}"),
    },
    check=_unscaled,
)
