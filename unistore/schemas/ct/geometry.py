"""Describe where the voxels of a volume lie: its spacing, origin and direction, if they are known."""

# They are in the order of the array's axes. Voxel `index` (depth, height, width) lies at `origin + direction
# @ (spacing * index)` in mm, with `direction` (3, 3) row by row. Points of the world are (z, y, x): toward
# the patient's head, back and left. This is the frame of DICOM and ITK, LPS, in reverse order: what ITK has
# as x, y, z is stored reversed, all nine numbers of a direction included.

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from unistore.schemas.ct.fields import LENGTHS, VOLUMES
from unistore.schemas.indices import IndexColumn, StoreView
from unistore.schemas.tables import Field, own_axes
from unistore.system.types import Float64s, JsonObject

# Attribute `frame` of these arrays. Older stores lack it: there the order of the numbers is unknown.
FRAME = "LPS"


# Direction of a volume whose axes are those of the world.
IDENTITY = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]

_DESCRIPTIONS = {
    "spacing": "distance of neighbouring voxels along depth, height and width",
    "origin": "position of the first voxel: toward head, back and left of the patient",
    "direction": "direction cosines, row by row: head, back, left of the steps along depth, height, width",
}
_COMPONENTS = {"spacing": ["depth", "height", "width"], "origin": ["z", "y", "x"]}

# Planes across the axes of the world
_PLANES = ("axial", "coronal", "sagittal")
# Cosine from which on an axis is called by the axis of the world that it is closest to (26 degrees)
_ALIGNED = 0.9


def geometry_field(name: str, stated_by: Sequence[str]) -> Field:
    """Return the field of ``volumes/<name>``, (V, 3) or (V, 9) f8."""
    attributes: dict[str, object] = {"frame": FRAME}
    if name in _COMPONENTS:
        attributes["components"] = _COMPONENTS[name]
    return Field(
        path=f"{VOLUMES}/{name}",
        dtype="float64",
        row_shape=(LENGTHS[name],),
        axes=("volume", *own_axes(name, "component", 1)),
        unit=None if name == "direction" else "mm",
        description=f"{_DESCRIPTIONS[name]}, as {' or '.join(stated_by)} states it; NaN where unknown",
        attributes=attributes,
    )


def geometry_attribute(names: Collection[str]) -> JsonObject:
    """Return the attribute ``geometry`` of the group ``volumes``: where the numbers of these names are.

    ``unknown`` lists what no source states, with ``affine`` if one of the three is among that.
    """
    attribute: JsonObject = {"frame": FRAME} if names else {}
    attribute |= {name: f"{VOLUMES}/{name}" for name in names}
    unknown = [name for name in LENGTHS if name not in names]
    return {**attribute, "unknown": [*unknown, "affine"]} if unknown else attribute


class Geometry(NamedTuple):
    """Spacing (3,), origin (3,) and direction (9,) of a volume, or None where unknown."""

    spacing: list[float] | None
    origin: list[float] | None
    direction: list[float] | None

    def plane(self, axis: int) -> str | None:
        """Return the name of the planes across an axis of the array, if a direction tells it."""
        if self.direction is None:
            return None
        for name, cosine in zip(_PLANES, self.direction[axis::3], strict=True):
            if abs(cosine) > _ALIGNED:
                return name
        return None


def affines(
    spacing: Float64s,  # (B, 3) of the voxels of samples
    origin: Float64s,  # (B, 3) of volumes
    direction: Float64s,  # (B, 9)
    first: Float64s,  # (B, 3) index of the first voxel of samples
) -> Float64s:
    """Return matrices (B, 4, 4) from (depth, height, width, 1) to (z, y, x, 1), NaN where unknown."""
    matrices = np.zeros((len(spacing), 4, 4))
    matrices[:, :3, :3] = direction.reshape(-1, 3, 3) * spacing[:, None]
    matrices[:, :3, 3] = origin + np.einsum("nij,nj->ni", matrices[:, :3, :3], first)
    matrices[:, 3, 3] = 1
    return matrices


def has_geometry(store: StoreView) -> bool:
    """Return whether spacing, origin and direction are stored in the frame that is known."""
    return all(_is_framed(store, f"{VOLUMES}/{name}") for name in LENGTHS)


def _is_framed(store: StoreView, path: str) -> bool:
    """Return whether an array is there and its numbers are in the known frame: without one, in any order."""
    return store.has(path) and store.array(path).attributes.get("frame") == FRAME


def read_geometry(store: StoreView, volume: int) -> Geometry:
    """Read what is known of where a volume's voxels lie. A spacing that is not positive is not known."""
    numbers: dict[str, list[float] | None] = dict.fromkeys(LENGTHS)
    for name in LENGTHS:
        path = f"{VOLUMES}/{name}"
        if _is_framed(store, path):
            row = IndexColumn(store, path).take(np.array([volume]))[0]
            is_known = np.isfinite(row).all() and (name != "spacing" or row.min() > 0)
            numbers[name] = row.tolist() if is_known else None
    return Geometry(**numbers)
