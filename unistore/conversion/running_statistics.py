"""Moments of a column, in float64, merged over shards in row order."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from unistore.system.types import AnyArray, Float64s, Int64s, JsonObject

BLOCK = 1 << 20  # Values that are converted to float64 at a time


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments and range of the finite values of each component of a row."""

    count: Int64s
    mean: Float64s
    deviation: Float64s
    low: Float64s
    high: Float64s

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")
    def of(cls, rows: AnyArray) -> Moments:
        """Return moments of rows (axis 0). Overflow of float64 gives infinity."""
        step = max(1, BLOCK // max(1, prod(rows.shape[1:])))
        total = cls._of_block(rows[:step])
        for start in range(step, len(rows), step):
            total = total.merge(cls._of_block(rows[start : start + step]))
        return total

    @classmethod
    def _of_block(cls, rows: AnyArray) -> Moments:
        values = rows.astype(np.float64)
        finite = np.isfinite(values)
        not_finite = ~finite
        count = finite.sum(axis=0, dtype=np.int64)
        np.copyto(values, np.inf, where=not_finite)
        low = values.min(axis=0, initial=np.inf)
        np.copyto(values, -np.inf, where=not_finite)
        high = values.max(axis=0, initial=-np.inf)
        np.copyto(values, 0.0, where=not_finite)
        mean = values.sum(axis=0) / np.maximum(count, 1)
        np.subtract(values, mean, out=values)
        np.copyto(values, 0.0, where=not_finite)
        np.square(values, out=values)
        return cls(*map(np.asarray, (count, mean, values.sum(axis=0), low, high)))

    @np.errstate(over="ignore", invalid="ignore")
    def merge(self, other: Moments) -> Moments:
        """Return moments of both blocks together (Chan, Golub, LeVeque 1979, eq. 2.1)."""
        count = self.count + other.count
        shift = other.mean - self.mean
        share = other.count / np.maximum(count, 1)
        deviation = self.deviation + other.deviation + shift**2 * self.count * share
        low = np.minimum(self.low, other.low)
        return Moments(count, self.mean + shift * share, deviation, low, np.maximum(self.high, other.high))

    def summary(self) -> JsonObject:
        """Return count, mean, std (ddof 0), min and max as JSON, None for what has no finite value."""
        empty = self.count == 0
        std = np.sqrt(self.deviation / np.maximum(self.count, 1))

        def plain(values: AnyArray) -> Any:
            shown = np.asarray(values).astype(object)  # 0-d moments are numpy scalars
            shown[empty | ~np.isfinite(values)] = None
            return shown.tolist()

        return {
            "count": self.count.tolist(),
            "mean": plain(self.mean),
            "std": plain(std),
            "min": plain(self.low),
            "max": plain(self.high),
            "ddof": 0,
            "accumulator": "float64",
        }

    def to_json(self) -> list[Any]:
        """Return exact JSON for the journal."""
        return [values.tolist() for values in (self.count, self.mean, self.deviation, self.low, self.high)]

    @classmethod
    def from_json(cls, plain: list[Any]) -> Moments:
        """Return inverse of `to_json`."""
        return cls(*map(np.array, plain))
