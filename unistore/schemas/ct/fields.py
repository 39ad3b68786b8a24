"""Declare what a CT store holds: volumes, voxels inside intensity windows, masks, distance fields."""

#     volumes/image                    (V, D, H, W), padded to the largest extent
#     volumes/extent                   (V, 3): true D, H, W; what lies beyond is padding
#     volumes/{name, source_dtype, info, metadata, header}    text
#     volumes/{spacing, origin, direction}            where known: see `unistore.schemas.ct.geometry`
#     volumes/nan                                     voxels that are not a number, of float images
#     windows/<name>/offsets           (V + 1): points of volume v are offsets[v]:offsets[v + 1]
#     windows/<name>/{coords, values}  points in C order of their volume, as np.argwhere gives them
#     windows/<name>/mask              the same points as bits, instead of coords and values
#     masks/<id>/mask                  masks that came with the volumes, as bits
#     masks/<id>/label                 those that hold more than 0 and 1, (V, D, H, W)
#     labels/<name>/mask               label volumes of 0 and 1 that are paired with images by name, as bits
#     labels/<name>/label              label volumes of several classes, (V, D, H, W)
#     foreground/<group>/{coords, offsets}            voxels of each class of a window, mask or label
#     sdf/<name>/{coords, values, offsets}            distance fields at sparse voxels, in the source's order
#
# A window, mask, label or field that some volumes lack has ``present`` (V,) bool; such a volume has no points
# of it.
# A mask (V, D, H, ⌈W/8⌉) u1 holds 8 voxels of the last axis a byte, lowest bit first.

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from unistore.errors import Problem
from unistore.schemas import tables
from unistore.schemas.array_specs import SAMPLES, ArrayInfo, ArraySpec, Limit, spec_of
from unistore.schemas.declared_rules import ArraySpecs, Declared, text_columns
from unistore.schemas.tables import Field, Table, bounds_field
from unistore.system.types import Shape

FAMILY_NAME = "ct"
VOLUMES = "volumes"
WINDOWS = "windows"
MASKS = "masks"
LABELS = "labels"
SDF = "sdf"
FOREGROUND = "foreground"

IMAGE = f"{VOLUMES}/image"
INFO = f"{VOLUMES}/info"
HEADER = f"{VOLUMES}/header"
SOURCE_FILES = tables.SOURCE_FILES  # of each source, the name of its file of each group, as JSON

# Texts of volumes, and what they are.
TEXTS = {
    "info": "info.json of each volume",
    "header": "header of the file of each volume, as JSON",
    "patient": "digest of the patient of each DICOM series",
    "series": "digest of the UID of each DICOM series",
    "metadata": "row of metadata.csv, as JSON, of each volume",
}

# Geometry of a volume, and how many numbers each of them has
LENGTHS: Mapping[str, int] = {"spacing": 3, "origin": 3, "direction": 9}

_DHW = ["depth", "height", "width"]


NAN_FIELD = Field(
    path=f"{VOLUMES}/nan", dtype="int64", axes=("volume",), description="voxels that are not a number"
)


def image_field(dtype: str, row_shape: Shape, tile: tuple[int, int, int]) -> Field:
    """Return the field of ``volumes/image``, (V, D, H, W)."""
    return Field(
        path=IMAGE,
        dtype=dtype,
        row_shape=row_shape,
        axes=("volume", "depth", "height", "width"),
        unit=None if dtype in ("uint8", "bool") else "HU",
        description="voxels as in the source; beyond volumes/extent lies padding",
        tile=tile,
    )


EXTENT = Field(
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
    row_shape: Shape,
    tile: tuple[int, int, int],
    attributes: Mapping[str, Any] | None = None,
) -> Field:
    """Return the field of ``<group>/label``, (V, D, H, W), for ``labels/<name>`` or ``masks/<id>``."""
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


_MASKS = {
    WINDOWS: "voxels inside window {!r}, as bits",
    MASKS: "mask {!r} of the sources, as bits",
    LABELS: "label {!r} of the sources, 0 and 1, as bits",
}


def mask_field(group: str, row_shape: Shape, tile: tuple[int, int, int]) -> Field:
    """Return the field of ``<group>/mask``, (V, D, H, ⌈W/8⌉) u1, for volumes of shape (D, H, W).

    A tile of a bit mask spans twice the tile of the image on each axis.
    """
    # Its chunks would be tiny otherwise.
    depth, height, width = row_shape
    family, _, name = group.partition("/")
    return Field(
        path=f"{group}/mask",
        dtype="uint8",
        row_shape=(depth, height, -(-width // 8)),
        axes=("volume", "depth", "height", "width_byte"),
        description=_MASKS[family].format(name),
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
    """Return the field of ``<group>/values``, (M,)."""
    return Field(path=f"{group}/values", dtype=dtype, axes=("point",), description=description, run=run)


def points_table(group: str, edge: int, dtype: str, run: int, description: str) -> Table:
    """Return the table of points with values, in a box of at most `edge` voxels per axis."""
    return Table(
        name=group, fields=(coords_field(group, edge, run), values_field(group, dtype, run, description))
    )


def location_table(group: str, edge: int) -> Table:
    """Return the table of the locations of a label, mask or window."""
    name = f"{FOREGROUND}/{group}"
    return Table(name=name, fields=(coords_field(name, edge, 1),), spilled=True)


def location_offsets_field(group: str, classes: Sequence[int]) -> Field:
    """Return the field of ``foreground/<group>/offsets``, (V · K + 1,) i8."""
    path = f"{FOREGROUND}/{group}/offsets"
    description = (
        "voxels of class class_numbers[k] of volume v are numbers offsets[v * K + k] to the next - 1"
    )
    return replace(bounds_field(path, "class", description), attributes={"class_numbers": list(classes)})


def offsets_field(group: str) -> Field:
    """Return the field of ``<group>/offsets``, (V + 1,) i8."""
    description = "points of volume v are numbers offsets[v] to offsets[v + 1] - 1"
    return bounds_field(f"{group}/offsets", "volume", description)


def resolution_field(group: str) -> Field:
    """Return the field of ``sdf/<name>/resolution``, (V,) i4."""
    return Field(
        path=f"{group}/resolution",
        dtype="int32",
        axes=("volume",),
        unit="voxel",
        description="edge of the cube that the points lie in, as the source states it; 0: unsaid",
    )


def present_field(group: str) -> Field:
    """Return the field of ``<group>/present``, (V,) bool."""
    return Field(
        path=f"{group}/present",
        dtype="bool",
        axes=("volume",),
        description="whether the volume has it; where not, it has no points and its mask is zero",
        fill=False,
    )


# What the arrays must be

_ROWS = (SAMPLES, 0)
_PLANES = (None, None, None)
_EXTENTS = (1, 2, 3)
_COORDS = ArraySpec(dtypes=("uint16", "int32"), row_shape=(3,))
_POINTS = frozenset(("coords", "values", "offsets"))
# Arrays that a group has beside `present` and `resolution`: one of these sets
_CONTENTS: Mapping[str, Sequence[frozenset[str]]] = {
    WINDOWS: [_POINTS, frozenset(("mask", "offsets"))],
    MASKS: [frozenset(("mask",)), frozenset(("label",))],
    LABELS: [frozenset(("mask",)), frozenset(("label",))],
    SDF: [_POINTS],
}
# Voxels that a value of a voxel array has
_VOXELS = {"mask": 8, "label": 1}


def _group_arrays(family: str) -> dict[str, Declared]:
    """Declare the arrays of ``windows/<name>``, ``masks/<name>``, ``labels/<name>`` or ``sdf/<name>``."""
    group = f"{family}/<name>"
    coords, mask, label = (f"{group}/{name}" for name in ("coords", "mask", "label"))
    bounds = spec_of("int64", rows=(SAMPLES, 1))
    bits = Limit(mask, _EXTENTS, 8)
    voxels = ArraySpec(row_shape=_PLANES, rows=_ROWS)
    return {
        coords: _COORDS,
        f"{group}/values": ArraySpec(row_shape=(), rows=(coords, 0)),
        f"{group}/offsets": (replace(bounds, offsets_of=coords), replace(bounds, offsets_of=bits)),
        mask: replace(voxels, dtypes=("uint8",), like=(Limit(IMAGE, _EXTENTS, 8),)),
        label: replace(voxels, like=(Limit(IMAGE, _EXTENTS),)),
        f"{group}/resolution": spec_of("int32", rows=_ROWS),
        f"{group}/present": spec_of("bool", rows=_ROWS),
    }


def _incomplete_groups(arrays: Mapping[str, ArrayInfo]) -> Iterator[Problem]:
    for group in dict.fromkeys(path.rpartition("/")[0] for path in arrays):
        contents = _CONTENTS.get(group.partition("/")[0])
        present = {name for name in (*_POINTS, *_VOXELS) if f"{group}/{name}" in arrays}
        if contents is not None and present not in contents:
            either = "either " if len(contents) > 1 else ""
            separator = ", or " if any(len(content) > 1 for content in contents) else " or "
            expected = either + separator.join([_listed(content) for content in contents])
            found = _listed(present) if present else "no voxels and no points"
            yield Problem(group, f"has {found}, expected {expected}", kind="missing")


def _listed(names: Collection[str]) -> str:
    *first, last = sorted(names)
    return f"{', '.join(first)} and {last}" if first else last


SPECS = ArraySpecs(
    arrays={
        EXTENT.path: spec_of(
            *("int32", 3),
            rows=_ROWS,
            least=0,
            limits=(
                Limit(IMAGE, _EXTENTS),
                *(
                    Limit(f"{family}/<name>/{name}", _EXTENTS, count)
                    for family, contents in _CONTENTS.items()
                    for name, count in _VOXELS.items()
                    if any(name in content for content in contents)
                ),
            ),
        ),
        **text_columns(f"{VOLUMES}/name", (SAMPLES, 1)),
    },
    optional={
        IMAGE: ArraySpec(kinds="biuf", row_shape=_PLANES, rows=_ROWS),
        **{f"{VOLUMES}/{name}": spec_of("float64", length, rows=_ROWS) for name, length in LENGTHS.items()},
        NAN_FIELD.path: spec_of("int64", rows=_ROWS),
        **text_columns(f"{VOLUMES}/<column>", (SAMPLES, 1)),
        f"{VOLUMES}/<column>": ArraySpec(rows=_ROWS),
        f"{FOREGROUND}/<group>/coords": _COORDS,
        # of each class in each volume
        f"{FOREGROUND}/<group>/offsets": spec_of(
            "int64", rows=(SAMPLES, 1), repeated=True, offsets_of=f"{FOREGROUND}/<group>/coords"
        ),
        **_group_arrays(WINDOWS),
        **_group_arrays(MASKS),
        **_group_arrays(LABELS),
        **_group_arrays(SDF),
    },
    check=_incomplete_groups,
)
