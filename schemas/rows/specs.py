"""What the arrays of a store of plain arrays must be: one row per sample."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from unistore.errors import Problem
from unistore.schemas.array_spec import SAMPLES, ArraySpec
from unistore.schemas.array_specs import ArraySpecs
from unistore.schemas.arrays import ArrayInfo
from unistore.schemas.rows.fields import TABLE


def _spec(path: str, _paths: Collection[str]) -> ArraySpec:
    return ArraySpec(rows=(SAMPLES, 0)) if path.startswith(f"{TABLE}/") else ArraySpec()


SPECS = ArraySpecs(others=_spec, main_rows=SAMPLES)


def validate(arrays: Mapping[str, ArrayInfo], _attributes: Mapping[str, Any]) -> list[Problem]:
    """A store has at least one array."""
    found = any(path.startswith(f"{TABLE}/") for path in arrays)
    return [] if found else [Problem(TABLE, "holds no array", kind="missing")]
