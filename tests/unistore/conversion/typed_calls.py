"""What type checkers know of options of conversions. mypy checks this module; nothing runs it."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import unistore
from unistore.conversion.report import Report

assert_type(unistore.convert("clouds/", "clouds.zarr"), Report)
unistore.convert("clouds/", "clouds.zarr", voxel_size=0.5, workers=2)
unistore.convert([Path("cases")], Path("ct.zarr"), "ct", window=["lung", "bone"], split={"train": 1.0})
unistore.convert("pings/", "pings.zarr", "sonar", gain=2)  # a family of another package
unistore.convert("clouds/", "clouds.zarr", voxel_sise=0.5)  # type: ignore[call-overload]
unistore.convert("clouds/", "clouds.zarr", codec="fastest")  # type: ignore[call-overload]


def of_any_family(family: str | None) -> None:
    unistore.convert("data/", "data.zarr", family, overwrite=True)
