"""What a store of plain arrays holds: ``rows/<name>`` (N, …), all with the same N. A sample is one row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unistore.errors import Problem
from unistore.schemas.arrays import ArrayInfo, count_problems
from unistore.schemas.tables import Field, own_axes

__all__ = ["FAMILY_NAME", "TABLE", "row_field", "validate"]

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


def validate(arrays: Mapping[str, ArrayInfo], attributes: Mapping[str, Any]) -> list[Problem]:
    """Every way in which a set of arrays is no store of plain arrays.

    Checked: at least one array, one row count for all, the sample count. Not checked: values.

    Parameters
    ----------
    arrays
        Shape and dtype of every array of the store, by path.
    attributes
        The root's ``unistore`` attributes.
    """
    rows = {path: info for path, info in arrays.items() if path.startswith(f"{TABLE}/")}
    if not rows:
        return [Problem(TABLE, "holds no array", kind="missing")]
    scalars = [path for path, info in rows.items() if not info.shape]
    problems = [Problem(path, "has no axis 0: expected (row, …)", kind="shape") for path in scalars]
    lengths = {path: info.shape[0] for path, info in rows.items() if info.shape}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{path} {length}" for path, length in lengths.items())
        problems.append(Problem(TABLE, f"arrays differ in length: {listed}", kind="shape"))
    if lengths:
        problems += count_problems(attributes, next(iter(lengths.values())), "rows")
    return problems
