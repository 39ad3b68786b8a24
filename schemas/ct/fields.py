"""What a CT store holds: volumes, the voxels inside intensity windows, masks, and sparse distance fields.

::

    volumes/image                    (V, D, H, W), padded to the largest extent
    volumes/extent                   (V, 3): true D, H, W; what lies beyond is padding
    volumes/{name, source_dtype, info, metadata}    text
    volumes/{spacing, origin, direction, nan}       where known
    windows/<name>/offsets           (V + 1): points of volume v are offsets[v]:offsets[v + 1]
    windows/<name>/{coords, values}  points in C order of their volume, as np.argwhere gives them
    windows/<name>/mask              the same points as bits, instead of coords and values
    masks/<id>/mask                  masks that came with the volumes, as bits
    masks/<id>/label                 those that hold more than 0 and 1, (V, D, H, W)
    labels/<name>/mask               label volumes of 0 and 1 that are paired with images by name, as bits
    labels/<name>/label              label volumes of several classes, (V, D, H, W)
    sdf/<name>/{coords, values, offsets}            distance fields at sparse voxels, in the source's order

A window, mask, label or field that some volumes lack has ``present`` (V,) bool; such a volume has no points
of it.
A mask (V, D, H, ⌈W/8⌉) u1 holds 8 voxels of the last axis a byte, lowest bit first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unistore.errors import Problem
from unistore.schemas.arrays import ArrayInfo, count_problems
from unistore.schemas.tables import Field

__all__ = [
    "FAMILY_NAME",
    "LABELS",
    "MASKS",
    "SDF",
    "VOLUMES",
    "WINDOWS",
    "coords_field",
    "extent_field",
    "image_field",
    "label_field",
    "mask_field",
    "offsets_field",
    "validate",
    "values_field",
]

FAMILY_NAME = "ct"
VOLUMES = "volumes"
WINDOWS = "windows"
MASKS = "masks"
LABELS = "labels"
SDF = "sdf"

_DHW = ["depth", "height", "width"]


def image_field(dtype: str, row_shape: tuple[int, ...], tile: tuple[int, int, int]) -> Field:
    """Field of ``volumes/image``, (V, D, H, W)."""
    return Field(
        path=f"{VOLUMES}/image",
        dtype=dtype,
        row_shape=row_shape,
        axes=("volume", "depth", "height", "width"),
        unit=None if dtype in ("uint8", "bool") else "HU",
        description="voxels as in the source; beyond volumes/extent lies padding",
        tile=tile,
    )


def extent_field() -> Field:
    """Field of ``volumes/extent``, (V, 3) i4."""
    return Field(
        path=f"{VOLUMES}/extent",
        dtype="int32",
        row_shape=(3,),
        axes=("volume", "axis"),
        unit="voxel",
        description="true depth, height and width of each volume",
        attributes={"components": _DHW},
    )


def label_field(
    group: str,
    dtype: str,
    row_shape: tuple[int, ...],
    tile: tuple[int, int, int],
    attributes: Mapping[str, Any] | None = None,
) -> Field:
    """Field of ``<group>/label``, (V, D, H, W), for ``labels/<name>`` or ``masks/<id>``."""
    family, _, name = group.partition("/")
    what = f"{family[:-1]} {name!r}"
    return Field(
        path=f"{group}/label",
        dtype=dtype,
        row_shape=row_shape,
        axes=("volume", "depth", "height", "width"),
        description=f"{what} of each voxel, as in the source; beyond volumes/extent lies padding",
        tile=tile,
        attributes=attributes or {},
    )


def mask_field(group: str, row_shape: tuple[int, ...], tile: tuple[int, int, int], description: str) -> Field:
    """Field of ``<group>/mask``, (V, D, H, ⌈W/8⌉) u1, for volumes of shape `row_shape` = (D, H, W).

    A bit mask's tile spans twice the image's tile on each axis, so that its chunks are not tiny.
    """
    depth, height, width = row_shape
    return Field(
        path=f"{group}/mask",
        dtype="uint8",
        row_shape=(depth, height, -(-width // 8)),
        axes=("volume", "depth", "height", "width_byte"),
        description=description,
        tile=(2 * tile[0], 2 * tile[1], max(1, 2 * tile[2] // 8)),
        attributes={"packed_axis": "width", "bit_order": "little"},
    )


def coords_field(group: str, longest: int, run: int) -> Field:
    """Field of ``<group>/coords``, (M, 3): u2 where indices of axes of `longest` voxels fit it, else i4."""
    return Field(
        path=f"{group}/coords",
        dtype="uint16" if longest <= 1 << 16 else "int32",
        row_shape=(3,),
        axes=("point", "axis"),
        unit="voxel",
        description="depth, height and width index of each point inside its volume",
        run=run,
        attributes={"components": _DHW},
    )


def values_field(group: str, dtype: str, run: int, description: str) -> Field:
    """Field of ``<group>/values``, (M,)."""
    return Field(path=f"{group}/values", dtype=dtype, axes=("point",), description=description, run=run)


def offsets_field(group: str) -> Field:
    """Field of ``<group>/offsets``, (V + 1,) i8."""
    return Field(
        path=f"{group}/offsets",
        dtype="int64",
        axes=("volume_bound",),
        description="points of volume v are numbers offsets[v] to offsets[v + 1] - 1",
    )


def validate(arrays: Mapping[str, ArrayInfo], attributes: Mapping[str, Any]) -> list[Problem]:
    """Every way in which a set of arrays is no CT store.

    Checked: extents; the image's axes; rows, dtypes and shapes of every window, mask and distance field;
    that each window is there as points or as a mask; the sample count. Not checked: values.

    Parameters
    ----------
    arrays
        Shape and dtype of every array of the store, by path.
    attributes
        The root's ``unistore`` attributes.
    """
    extent = arrays.get(f"{VOLUMES}/extent")
    if extent is None:
        return [Problem(f"{VOLUMES}/extent", "is missing", kind="missing")]
    if len(extent.shape) != 2 or extent.shape[1] != 3 or extent.dtype != "int32":
        message = f"is {extent.dtype} {extent.shape}, expected int32 (volumes, 3)"
        return [Problem(f"{VOLUMES}/extent", message, kind="shape")]
    volumes = extent.shape[0]
    image = arrays.get(f"{VOLUMES}/image")
    problems = _check_volumes(arrays, volumes) + count_problems(attributes, volumes, "volumes")
    groups = dict.fromkeys(
        path.rpartition("/")[0] for path in arrays if path.split("/", 1)[0] in (WINDOWS, MASKS, LABELS, SDF)
    )
    for group in groups:
        problems += _check_group(arrays, group, volumes, image)
    return problems


def _check_volumes(arrays: Mapping[str, ArrayInfo], volumes: int) -> list[Problem]:
    problems = []
    for name in ("image", "spacing", "origin", "direction", "nan"):
        info = arrays.get(f"{VOLUMES}/{name}")
        if info is not None and info.shape[:1] != (volumes,):
            message = f"has shape {info.shape}, expected {volumes} rows"
            problems.append(Problem(f"{VOLUMES}/{name}", message, kind="shape"))
    image = arrays.get(f"{VOLUMES}/image")
    if image is not None and (len(image.shape) != 4 or image.kind not in "biuf"):
        message = f"is {image.dtype} {image.shape}, expected numbers (volumes, D, H, W)"
        problems.append(Problem(f"{VOLUMES}/image", message, kind="shape"))
    names = arrays.get(f"{VOLUMES}/name/offsets")
    if names is None or names.shape != (volumes + 1,):
        found = "is missing" if names is None else f"has shape {names.shape}, expected ({volumes + 1},)"
        kind = "missing" if names is None else "shape"
        problems.append(Problem(f"{VOLUMES}/name/offsets", found, kind=kind))
    return problems


def _check_group(
    arrays: Mapping[str, ArrayInfo], group: str, volumes: int, image: ArrayInfo | None
) -> list[Problem]:
    coords, mask = arrays.get(f"{group}/coords"), arrays.get(f"{group}/mask")
    family = group.split("/", 1)[0]
    problems = []
    if family == WINDOWS and (coords is None) == (mask is None):
        found = "neither coords nor mask" if coords is None else "both coords and mask"
        problems.append(Problem(group, f"holds {found}, expected one of them", kind="missing"))
    label = arrays.get(f"{group}/label") if family in (LABELS, MASKS) else None
    if family in (LABELS, MASKS) and (label is None) == (mask is None):
        found = "neither label nor mask" if label is None else "both label and mask"
        problems.append(Problem(group, f"holds {found}, expected one of them", kind="missing"))
    wanted = {MASKS: (), LABELS: (), SDF: ("coords", "values", "offsets"), WINDOWS: ("offsets",)}[family]
    problems += [
        Problem(f"{group}/{name}", "is missing", kind="missing")
        for name in wanted
        if f"{group}/{name}" not in arrays
    ]
    expected: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
        "offsets": ((volumes + 1,), ("int64",)),
        "present": ((volumes,), ("bool",)),
    }
    if coords is not None:
        points = coords.shape[0] if coords.shape else 0
        expected["coords"] = ((points, 3), ("uint16", "int32"))
        values = arrays.get(f"{group}/values")
        expected["values"] = ((points,), (values.dtype,) if values is not None else ())
        if values is None and family == WINDOWS:
            problems.append(Problem(f"{group}/values", "is missing", kind="missing"))
    if mask is not None:
        inner = mask.shape[1:]
        if image is not None and len(image.shape) == 4:
            inner = (*image.shape[1:3], -(-image.shape[3] // 8))
        expected["mask"] = ((volumes, *inner), ("uint8",))
    if label is not None:
        inner = label.shape[1:] if image is None else image.shape[1:]
        expected["label"] = ((volumes, *inner), (label.dtype,))
    for name, (shape, dtypes) in expected.items():
        info = arrays.get(f"{group}/{name}")
        if info is not None and (info.shape != shape or info.dtype not in dtypes):
            message = f"is {info.dtype} {info.shape}, expected {' or '.join(dtypes)} {shape}"
            problems.append(Problem(f"{group}/{name}", message, kind="shape"))
    for name, info in (("mask", mask), ("label", label)):
        if info is not None and len(info.shape) != 4:
            problems.append(
                Problem(f"{group}/{name}", f"has {len(info.shape)} axes, expected 4", kind="shape")
            )
    return problems
