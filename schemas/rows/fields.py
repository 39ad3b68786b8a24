"""What a store of plain arrays holds: ``rows/<name>`` (N, …), all with the same N. A sample is one row."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from unistore.errors import Problem
from unistore.schemas.array_spec import SAMPLES, ArrayInfo, ArraySpec
from unistore.schemas.array_specs import ArraySpecs
from unistore.schemas.tables import Field, own_axes

FAMILY_NAME = "rows"
TABLE = "rows"


def row_field(
    name: str, dtype: str, row_shape: tuple[int, ...], attributes: Mapping[str, Any] | None = None
) -> Field:
    """Field of one array; its name may hold slashes (HDF5 groups)."""
    return Field(
        path=f"{TABLE}/{name}",
        dtype=dtype,
        row_shape=row_shape,
        axes=("row", *own_axes(name, "axis", len(row_shape))),
        description=f"array {name} of the sources, files concatenated in natural order",
        attributes=attributes or {},
    )


def _spec(path: str, _paths: Collection[str]) -> ArraySpec:
    return ArraySpec(rows=(SAMPLES, 0)) if path.startswith(f"{TABLE}/") else ArraySpec()


def _empty(arrays: Mapping[str, ArrayInfo]) -> Iterator[Problem]:
    if not any(path.startswith(f"{TABLE}/") for path in arrays):
        yield Problem(TABLE, "holds no array", kind="missing")


SPECS = ArraySpecs(others=_spec, check=_empty, main_rows=SAMPLES)
