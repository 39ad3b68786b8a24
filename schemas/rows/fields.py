"""What a store of plain arrays holds: ``rows/<name>`` (N, …), all with the same N. A sample is one row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unistore.schemas.tables import Field, own_axes

FAMILY_NAME = "rows"
TABLE = "rows"


def row_field(
    name: str, dtype: str, row_shape: tuple[int, ...], attributes: Mapping[str, Any] | None = None
) -> Field:
    """Field of one array.

    Parameters
    ----------
    name
        The array's own name; may hold slashes (HDF5 groups).
    dtype
        numpy dtype name.
    row_shape
        Shape after axis 0.
    attributes
        Further attributes: the source's dtype, where it is missing.
    """
    return Field(
        path=f"{TABLE}/{name}",
        dtype=dtype,
        row_shape=row_shape,
        axes=("row", *own_axes(name, "axis", len(row_shape))),
        description=f"array {name} of the sources, files concatenated in natural order",
        attributes=attributes or {},
    )
