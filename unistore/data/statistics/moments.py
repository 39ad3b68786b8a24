"""Moments of values by segment, in float64, and their merging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from unistore.system.hints import AnyArray, Float64s, Int64s

LONGEST = 1 << 16
"""Values of a component that are added up before they are merged."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of the finite values of each segment and component, (segments, components) each."""

    count: Int64s  # finite values
    nan: Int64s
    infinite: Int64s
    mean: Float64s
    deviation: Float64s  # sum of squared differences from the mean
    low: Float64s  # inf where there is no value
    high: Float64s  # -inf where there is no value

    def __len__(self) -> int:
        return len(self.count)

    def take(self, segments: Int64s) -> Moments:
        """Return moments of some segments."""
        return Moments(*(getattr(self, part.name)[segments] for part in fields(self)))

    def merged(self, offsets: Int64s) -> Moments:
        """Return moments of neighbouring segments together: those of ``offsets[i]:offsets[i + 1]``.

        Chan, Golub and LeVeque (1979), equation 2.1, for any number of parts.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            count = _reduced(np.add, self.count, offsets)
            total = _reduced(np.add, self.count * self.mean, offsets)
            mean = total / np.maximum(count, 1)
            shift = self.mean - np.repeat(mean, np.diff(offsets), axis=0)
            spread = self.deviation + self.count * shift**2
            return Moments(
                count,
                _reduced(np.add, self.nan, offsets),
                _reduced(np.add, self.infinite, offsets),
                mean,
                _reduced(np.add, spread, offsets),
                _reduced(np.minimum, self.low, offsets, np.inf),
                _reduced(np.maximum, self.high, offsets, -np.inf),
            )

    def total(self) -> Moments:
        """Return moments of all segments together, (1, components)."""
        return self.merged(np.array([0, len(self)]))


def joined(parts: Sequence[Moments]) -> Moments:
    """Return the segments of all parts, one after the other."""
    return Moments(
        *(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(Moments))
    )


def moments_of(values: Float64s, offsets: Int64s) -> Moments:
    """Return moments of values (components, n) by segment ``offsets[i]:offsets[i + 1]``, (segments + 1,)."""
    cuts = np.unique(np.concatenate([offsets, np.arange(0, values.shape[1], LONGEST)]))
    with np.errstate(over="ignore", invalid="ignore"):
        pieces = _moments_of_pieces(values, cuts)
    return pieces.merged(np.searchsorted(cuts, offsets))


def _moments_of_pieces(values: Float64s, cuts: Int64s) -> Moments:
    finite = np.isfinite(values)
    is_finite = bool(finite.all())
    numbers = values if is_finite else np.where(finite, values, 0.0)

    def summed(terms: AnyArray) -> AnyArray:
        return _reduced(np.add, terms.T, cuts)

    lengths = np.diff(cuts)
    count = np.broadcast_to(lengths[:, None], (len(lengths), len(values))).astype(np.int64)
    nan = np.zeros_like(count)
    infinite = np.zeros_like(count)
    low = high = numbers
    if not is_finite:
        count = summed(finite.astype(np.int64))
        infinite = summed(np.isinf(values).astype(np.int64))
        nan = lengths[:, None] - count - infinite
        low = np.where(finite, values, np.inf)
        high = np.where(finite, values, -np.inf)
    divisor = np.maximum(count, 1)
    mean = summed(numbers) / divisor
    difference = numbers - np.repeat(mean, lengths, axis=0).T
    if not is_finite:
        difference[~finite] = 0.0
    # What the mean lacks by rounding is added, and taken from the squares.
    rest = summed(difference)
    np.square(difference, out=difference)
    return Moments(
        count,
        nan,
        infinite,
        mean + rest / divisor,
        np.maximum(summed(difference) - rest**2 / divisor, 0.0),
        _reduced(np.minimum, low.T, cuts, np.inf),
        _reduced(np.maximum, high.T, cuts, -np.inf),
    )


def moments_of_counts(values: Float64s, counts: Int64s) -> Moments:
    """Return moments where each of `values` (m,) occurs `counts` (segments, components, m) times."""
    count = counts.sum(axis=2)
    divisor = np.maximum(count, 1)
    mean = (counts @ values) / divisor
    spread = np.square(values - mean[..., None])
    occurs = counts > 0
    none = np.zeros_like(count)
    return Moments(
        count,
        none,
        none,
        mean,
        (counts * spread).sum(axis=2),
        np.where(occurs, values, np.inf).min(axis=2),
        np.where(occurs, values, -np.inf).max(axis=2),
    )


def _reduced(operation: np.ufunc, terms: AnyArray, offsets: Int64s, empty: float = 0) -> AnyArray:
    """Return results (segments, components) of terms (n, components) by segment; `empty` of empty ones."""
    lengths = np.diff(offsets)
    out = np.full((len(lengths), terms.shape[1]), empty, terms.dtype)
    filled = lengths > 0
    if filled.any():
        # Contiguous terms are added pairwise, which keeps the error of long sums small.
        across = np.ascontiguousarray(terms.T)
        out[filled] = operation.reduceat(across, offsets[:-1][filled], axis=1).T
    return out
