"""Spacing, origin and direction of the volumes in a store."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unistore.schemas.ct.fields import VOLUMES
from unistore.schemas.indices import Column
from unistore.schemas.store_view import StoreView


class Geometry(NamedTuple):
    """Spacing and origin of a volume, (depth, height, width), in the unit of the store.

    None where they are unknown. `reversed` tells that the source has them as x, y, z.
    """

    spacing: list[float] | None
    origin: list[float] | None
    reversed: bool


def read_geometry(store: StoreView, volume: int) -> Geometry:
    """Spacing and origin of a volume.

    Sources do not say whether numbers are in the order z, y, x or x, y, z. They are read as z, y, x, unless
    only the first two spacings are equal: a plane usually has square pixels, so the order is x, y, z.
    """
    spacing, origin = (stated_geometry(store, name, volume) for name in ("spacing", "origin"))
    if spacing is not None and min(spacing) <= 0:
        spacing = None
    reversed_ = spacing is not None and spacing[0] == spacing[1] != spacing[2]
    step = -1 if reversed_ else 1
    return Geometry(spacing and spacing[::step], origin and origin[::step], reversed_)


def stated_geometry(store: StoreView, name: str, volume: int) -> list[float] | None:
    """``spacing``, ``origin`` or ``direction`` of a volume in the order of the source; None if unknown."""
    path = f"{VOLUMES}/{name}"
    if not store.has(path):
        return None
    values: list[float] = Column(store, path).take(np.array([volume]))[0].tolist()
    return values if np.isfinite(values).all() else None
