"""Moments of a column, in float64, merged over shards in row order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 20
"""Values that are converted to float64 at a time."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Count of finite values, mean, sum of squared deviations, minimum and maximum of each row component.

    All arrays have the column's row shape. Values that are not finite are ignored.
    """

    count: NDArray[np.int64]
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def of(cls, rows: NDArray[Any]) -> Moments:
        """Return moments of rows (axis 0); overflow of float64 gives infinity."""
        with np.errstate(over="ignore", invalid="ignore"):
            return cls._of_rows(rows)

    @classmethod
    def _of_rows(cls, rows: NDArray[Any]) -> Moments:
        step = max(1, BLOCK // max(1, int(np.prod(rows.shape[1:], dtype=np.int64))))
        total = cls._of_block(rows[:step])
        for start in range(step, len(rows), step):
            total = total.merge(cls._of_block(rows[start : start + step]))
        return total

    @classmethod
    def _of_block(cls, rows: NDArray[Any]) -> Moments:
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
        return cls(
            count=np.asarray(count),
            mean=np.asarray(mean),
            deviation=np.asarray(values.sum(axis=0)),
            low=np.asarray(low),
            high=np.asarray(high),
        )

    def merge(self, other: Moments) -> Moments:
        """Return moments of both blocks together (Chan, Golub, LeVeque 1979, eq. 2.1)."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self._merged(other)

    def _merged(self, other: Moments) -> Moments:
        count = self.count + other.count
        shift = other.mean - self.mean
        share = other.count / np.maximum(count, 1)
        return Moments(
            count=count,
            mean=self.mean + shift * share,
            deviation=self.deviation + other.deviation + shift**2 * self.count * share,
            low=np.minimum(self.low, other.low),
            high=np.maximum(self.high, other.high),
        )

    def summary(self) -> dict[str, Any]:
        """Return plain JSON: count, mean, std (ddof 0), min, max.

        None where no value was finite, or a moment overflows float64.
        """
        empty = self.count == 0
        std = np.sqrt(self.deviation / np.maximum(self.count, 1))

        def plain(values: NDArray[Any]) -> Any:
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
        """Return exact JSON for the journal (float64 as hexadecimal text, shape first)."""
        return [
            list(self.mean.shape),
            np.ravel(self.count).tolist(),
            *(
                [v.hex() for v in np.ravel(a).tolist()]
                for a in (self.mean, self.deviation, self.low, self.high)
            ),
        ]

    @classmethod
    def from_json(cls, plain: list[Any]) -> Moments:
        """Return inverse of `to_json`."""
        shape, count, *floats = plain
        mean, deviation, low, high = (
            np.array([float.fromhex(v) for v in values]).reshape(shape) for values in floats
        )
        return cls(np.array(count, dtype=np.int64).reshape(shape), mean, deviation, low, high)
