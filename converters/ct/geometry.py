"""What a store says of where the voxels of a volume lie."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unistore.schemas.ct.fields import VOLUMES
from unistore.schemas.indices import Column
from unistore.schemas.store_view import StoreView


class Geometry(NamedTuple):
    """Spacing and origin of depth, height and width (or None), and whether they are stated as x, y, z."""

    spacing: list[float] | None
    origin: list[float] | None
    reverse: bool


def geometry(store: StoreView, volume: int) -> Geometry:
    """Spacing and origin of a volume.

    Sources do not say whether numbers are of depth, height and width or the other way round. They are read in
    this order, unless their first two alone are the same: those are of the plane, as in x, y, z.
    """
    spacing, origin = (stated(store, name, volume) for name in ("spacing", "origin"))
    if spacing is not None and min(spacing) <= 0:
        spacing = None
    reverse = spacing is not None and spacing[0] == spacing[1] != spacing[2]
    step = -1 if reverse else 1
    return Geometry(spacing and spacing[::step], origin and origin[::step], reverse)


def stated(store: StoreView, name: str, volume: int) -> list[float] | None:
    """``spacing``, ``origin`` or ``direction`` of a volume as the store has it; None: unknown."""
    path = f"{VOLUMES}/{name}"
    if not store.has(path):
        return None
    values: list[float] = Column(store, path).take(np.array([volume]))[0].tolist()
    return values if np.isfinite(values).all() else None
