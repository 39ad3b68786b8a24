"""Scale and offset of quantised coordinates, ``points/xyz`` i4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.schemas.indices import contradiction, whole
from unistore.schemas.point_cloud.fields import DECIMAL, POINTS
from unistore.schemas.store_view import StoreView

MAX_PLACES = 9
"""Largest number of decimal places."""
_XYZ, _SCALE, _OFFSET = f"{POINTS}/xyz", "sources/scale", "sources/offset"
_LARGEST = 2.0**31
_MAX_INTEGER = 2.0**53


class Quantum(NamedTuple):
    """Scale and offset of every source, (F, 3) f8, and whether coordinates are decimals."""

    scale: NDArray[np.float64]
    offset: NDArray[np.float64]
    decimal: bool

    def restored(
        self, quantised: NDArray[np.int32], source: int, axis: int | slice = slice(None)
    ) -> NDArray[np.float64]:
        """Coordinates of one source, (n, 3), or one of their axes, (n,)."""
        scale, offset = self.scale[source, axis], self.offset[source, axis]
        exact = quantised.astype(np.float64)
        return (exact + offset) / scale if self.decimal else exact * scale + offset


def quantum(store: StoreView) -> Quantum | None:
    """Scale and offset of a store's coordinates; None if they are floats.

    Raises
    ------
    StoreError
        If they do not restore finite coordinates.
    """
    xyz = store.array(_XYZ)
    if xyz.dtype.kind != "i":
        return None
    scale, offset = whole(store, _SCALE), whole(store, _OFFSET)
    filled = whole(store, "sources/rows") > 0
    for path, message in quantum_errors(scale[filled], offset[filled], xyz.attributes.get(DECIMAL)):
        raise contradiction(store, path, message)
    return Quantum(scale, offset, DECIMAL in xyz.attributes)


def quantum_errors(
    scale: NDArray[np.float64], offset: NDArray[np.float64], decimal: object
) -> Iterator[tuple[str, str]]:
    """Path and message of each error.

    Parameters
    ----------
    scale, offset
        (F, 3) of the sources that have points.
    decimal
        Attribute `DECIMAL` of ``points/xyz``, or None.
    """
    if decimal is not None:
        yield from _decimal_errors(scale, offset, decimal)
    with np.errstate(all="ignore"):
        most = np.abs(scale) * _LARGEST + np.abs(offset)
    if not np.isfinite(most).all() or not scale.all():
        yield _SCALE, "holds a scale or offset that restores no finite coordinates"


def _decimal_errors(
    scale: NDArray[np.float64], offset: NDArray[np.float64], decimal: object
) -> Iterator[tuple[str, str]]:
    stated: Mapping[str, Any] = decimal if isinstance(decimal, Mapping) else {}
    power, integers = stated.get("scale"), stated.get("offset")
    if type(power) not in (int, float) or power not in [10**places for places in range(MAX_PLACES + 1)]:
        message = f"scale of {DECIMAL} is {power!r}, expected a power of ten from 1 to 1e{MAX_PLACES}"
        yield _XYZ, message
    elif (scale != power).any():
        yield _SCALE, f"is not {power:g} everywhere, as attribute {DECIMAL} of {_XYZ} says"
    if not (
        isinstance(integers, list)
        and len(integers) == 3
        and all(type(each) in (int, float) and abs(each) < _MAX_INTEGER for each in integers)
        and all(float(each).is_integer() for each in integers)
    ):
        yield _XYZ, f"offset of {DECIMAL} is not three whole numbers"
    elif (offset != integers).any():
        yield _OFFSET, f"is not {integers} everywhere, as attribute {DECIMAL} of {_XYZ} says"
