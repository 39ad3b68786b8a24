"""Store coordinates as int32 without loss, or as they are.

Scale and offset of quantised coordinates are those of the source, or coordinates are decimals: integers
divided by a power of ten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud.names import FileLayout
from unistore.plugin import Field, OwnForm, little_endian
from unistore.schemas.point_cloud.fields import DECIMAL, MAX_PLACES, POINTS, Decimal, Quantum
from unistore.system.types import AnyArray, Float64s

_INT32 = np.iinfo(np.int32)
# Below it, ``rint(value * scale)`` is the integer of every decimal, despite rounding errors
_MAX_INTEGER = 2.0**50
# Rows that are processed at a time, so that they stay in the CPU cache
_STEP = 1 << 14
_XYZ = "xyz"


def quantise(xyz: AnyArray, scale: Sequence[float], offset: Sequence[float]) -> NDArray[np.int32] | None:
    """Return integers q with ``float64(q) * scale + offset`` equal to each coordinate, or None.

    Only float64 can be quantised. Bits are compared, so the sign of a zero counts, and NaN is never
    equal. Coordinates are rounded as LAS readers round them.
    """
    # ASPRS LAS 1.4 R15, 2.4: "coordinate = record × scale + offset".
    if xyz.dtype != np.float64 or 0 in scale or not np.isfinite((*scale, *offset)).all():
        return None
    out = np.empty(xyz.shape, np.int32)
    with np.errstate(all="ignore"):
        for lo in range(0, len(xyz), _STEP):
            for axis in range(3):
                values = np.ascontiguousarray(xyz[lo : lo + _STEP, axis])
                steps = values - offset[axis]
                steps /= scale[axis]
                np.rint(steps, out=steps)
                if not (steps.min() >= _INT32.min and steps.max() <= _INT32.max):
                    return None
                integers = steps.astype(np.int32)
                restored = dequantise(integers, scale[axis], offset[axis])
                if not np.array_equal(restored.view(np.int64), values.view(np.int64)):
                    return None
                out[lo : lo + _STEP, axis] = integers
    return out


class DecimalPlaces:
    """Finds the fewest decimal places that represent every coordinate."""

    # A float64 that is nearest to a decimal with k places is also nearest to that with more places, below
    # `_MAX_INTEGER`. So the result is the maximum over all coordinates, and does not depend on the blocks.

    def __init__(self) -> None:
        self.places = 0  # decimal places so far; -1 if a coordinate is not a decimal

    def update(self, xyz: AnyArray) -> None:
        """Add coordinates, (n, 3)."""
        if xyz.dtype != np.float64:
            self.places = -1
        for lo in range(0, len(xyz), _STEP):
            part = np.ascontiguousarray(xyz[lo : lo + _STEP])
            while self.places >= 0 and not _is_decimal(part, 10.0**self.places):
                self.places = self.places + 1 if self.places < MAX_PLACES else -1


def _is_decimal(values: Float64s, scale: float) -> bool:
    with np.errstate(all="ignore"):
        whole = np.rint(values * scale)
    if not (np.abs(whole) < _MAX_INTEGER).all():
        return False
    restored = whole.astype(np.int64) / scale
    return np.array_equal(restored.view(np.int64), values.view(np.int64))


def decimal_of(places: Sequence[int], least: Float64s, most: Float64s) -> Decimal | None:
    """Return scale and offset for decimals, or None if a source has none (-1) or int32 cannot hold them."""
    scale = 10.0 ** max(places)
    low = np.rint(least * scale)
    high = np.rint(most * scale)
    if min(places) < 0 or max(abs(low).max(), abs(high).max()) >= _MAX_INTEGER:
        return None
    near = (low >= _INT32.min) & (high <= _INT32.max)
    offset = np.where(near, 0.0, np.floor((low + high) / 2))
    if ((low - offset < _INT32.min) | (high - offset > _INT32.max)).any():
        return None
    x, y, z = offset.tolist()
    return Decimal(scale, (x, y, z))


def quantise_decimals(xyz: Float64s, decimal: Mapping[str, Any], out: NDArray[np.int32]) -> None:
    """Write ``rint(xyz * scale) - offset`` to ``out``, (n, 3) as ``xyz``."""
    for lo in range(0, len(xyz), _STEP):
        whole = np.rint(xyz[lo : lo + _STEP] * decimal["scale"])
        out[lo : lo + _STEP] = whole - np.array(decimal["offset"])


def dequantise(integers: NDArray[np.int32], scale: float | Float64s, offset: float | Float64s) -> Float64s:
    """``float64(q) * scale + offset``, rounded after each operation."""
    product = integers.astype(np.float64)
    product *= scale
    product += offset
    return product


def pack_rows(layout: FileLayout, field: Field, column: str, rows: AnyArray, out: AnyArray) -> None:
    """Copy rows of a source into `out`. Coordinates become floats or decimals if these are stored."""
    decimal = field.attributes.get(DECIMAL) if column == _XYZ else None
    if column == _XYZ and rows.dtype.kind == "i" and (decimal is not None or out.dtype.kind == "f"):
        assert layout.quantum is not None  # by which `DerivedCloud` made integers of them
        scale, offset = layout.quantum
        rows = dequantise(rows, np.array(scale), np.array(offset))
    if isinstance(decimal, Mapping):
        quantise_decimals(rows, decimal, out)
    else:
        np.copyto(out, rows, casting="same_kind")


def own_forms(layout: FileLayout, table: str, source: int, fields: Mapping[str, Field]) -> dict[str, OwnForm]:
    """Return the form that a source has of each column of the points, without voxels."""
    forms: dict[str, OwnForm] = {}
    if table != POINTS:
        return forms
    for column, field in fields.items():
        form = field.own_form(source)
        if form is not None and not column.startswith("voxels/"):
            forms[column] = form
    # Coordinates are floats, however the store has them.
    restore = None
    if fields[_XYZ].dtype == "int32":
        restore = partial(_quantum_of(layout, fields[_XYZ]).restored, source=0)
    forms[_XYZ] = OwnForm(little_endian(layout.xyz_dtype), (3,), restore)
    return forms


def _quantum_of(layout: FileLayout, xyz: Field) -> Quantum:
    """Return scale and offset of the quantised coordinates of one source."""
    decimal: Any = xyz.attributes.get(DECIMAL)
    if decimal is not None:
        return Quantum(np.full((1, 3), decimal["scale"]), np.array([decimal["offset"]]), decimal=True)
    assert layout.quantum is not None  # or the store had floats
    scale, offset = layout.quantum
    return Quantum(np.array([scale]), np.array([offset]), decimal=False)
