"""The stored form of streams of other rates: one table for each clock, and the times of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from unistore.schemas.indices import StoreView, contradiction
from unistore.schemas.trajectory.fields import CLOCK_OFFSETS, CLOCKS, EPISODES, STEPS
from unistore.system.types import AnyArray, Int64s

NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}  # length of each unit of timestamps


def in_nanoseconds(timestamps: AnyArray, unit: str) -> Int64s:
    """Return timestamps of a unit as int64 nanoseconds. Floats are rounded to the nearest."""
    if timestamps.dtype.kind == "f":
        return np.rint(timestamps.astype(np.float64) * NANOSECONDS[unit]).astype(np.int64)
    return timestamps.astype(np.int64) * NANOSECONDS[unit]


class RecordedClock(NamedTuple):
    """What tells the times of the rows of a clock: timestamps, or a rate.

    Attributes
    ----------
    timestamps : str or None
        Path of the array of timestamps. None: the clock has a rate.
    unit : str
        Unit of the timestamps.
    rate : float or None
        Rows per second. None: the clock has timestamps.
    """

    timestamps: str | None
    unit: str
    rate: float | None

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> RecordedClock:
        """Return the clock of its JSON object. `KeyError` if it has neither timestamps nor a rate."""
        if "timestamps" in recorded:
            return cls(recorded["timestamps"], recorded["unit"], None)
        return cls(None, "", recorded["rate"])

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        if self.timestamps is None:
            return {"rate": self.rate}
        return {"timestamps": self.timestamps, "unit": self.unit}


def clocks_of(store: StoreView) -> dict[str, RecordedClock]:
    """Return each clock with times, by name. Empty: all rows are steps.

    Raises
    ------
    StoreError
        If the group of episodes describes no clocks in the place of some.
    """
    recorded = store.group(EPISODES).get("clocks", {})
    try:
        return {name: RecordedClock.from_json(clock) for name, clock in recorded.items()}
    except (AttributeError, KeyError, TypeError) as error:
        message = f"has clocks without times: {recorded!r:.80}"
        raise contradiction(store, EPISODES, message) from error


def offsets_path(clock: str) -> str:
    """Return the path of the offsets (episodes + 1,) that say which rows of a clock's table are whose."""
    return f"{EPISODES}/offsets" if clock == STEPS else f"{CLOCK_OFFSETS}/{clock}/offsets"


def table_of(clock: str) -> str:
    """Name of a clock's table."""
    return STEPS if clock == STEPS else f"{CLOCKS}/{clock}"
