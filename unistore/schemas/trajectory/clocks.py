"""The stored form of streams of other rates: one table for each clock, and the times of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from unistore.schemas.indices import StoreView
from unistore.schemas.trajectory.fields import CLOCK_OFFSETS, CLOCKS, EPISODES, STEPS
from unistore.system.types import AnyArray, Int64s

NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}  # length of each unit of timestamps


def in_nanoseconds(timestamps: AnyArray, unit: str) -> Int64s:
    """Return timestamps of a unit as int64 nanoseconds. Floats are rounded to the nearest."""
    if timestamps.dtype.kind == "f":
        return np.rint(timestamps.astype(np.float64) * NANOSECONDS[unit]).astype(np.int64)
    return timestamps.astype(np.int64) * NANOSECONDS[unit]


def clocks_of(store: StoreView) -> Mapping[str, Mapping[str, Any]]:
    """Return the description of each clock with times, by name.

    A clock has ``timestamps`` (path of their array) and ``unit``, or ``rate`` in rows per second. The
    result is empty if all rows are steps.
    """
    recorded: Mapping[str, Mapping[str, Any]] = store.group(EPISODES).get("clocks", {})
    return recorded


def offsets_path(clock: str) -> str:
    """Return the path of the offsets (episodes + 1,) that say which rows of a clock's table are whose."""
    return f"{EPISODES}/offsets" if clock == STEPS else f"{CLOCK_OFFSETS}/{clock}/offsets"


def table_of(clock: str) -> str:
    """Name of a clock's table."""
    return STEPS if clock == STEPS else f"{CLOCKS}/{clock}"
