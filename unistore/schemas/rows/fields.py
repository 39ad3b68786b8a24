"""What a store of plain arrays holds: ``rows/<name>`` (N, …), all with the same N. A sample is one row."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from unistore.errors import Problem
from unistore.schemas.array_specs import SAMPLES, ArrayInfo, ArraySpec, ArraySpecs
from unistore.schemas.ragged import RAGGED_SUFFIX, TEXT_SUFFIX, ragged_spec

FAMILY_NAME = "rows"
TABLE = "rows"


def _spec(path: str, paths: Collection[str]) -> ArraySpec:
    group, _, name = path.rpartition("/")
    is_ragged = group.endswith((RAGGED_SUFFIX, TEXT_SUFFIX)) and name in ("data", "offsets")
    if is_ragged and f"{group}/offsets" in paths:
        return ragged_spec(path, (SAMPLES, 1))
    return ArraySpec(rows=(SAMPLES, 0)) if path.startswith(f"{TABLE}/") else ArraySpec()


def _empty(arrays: Mapping[str, ArrayInfo]) -> Iterator[Problem]:
    if not any(path.startswith(f"{TABLE}/") for path in arrays):
        yield Problem(TABLE, "holds no array", kind="missing")


SPECS = ArraySpecs(others=_spec, check=_empty, absent={"sources/facts": "{}"})
