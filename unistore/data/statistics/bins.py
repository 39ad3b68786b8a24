"""Histograms whose bins are whole numbers: exact for small integers, 0.4 % of the value for all else.

The code of a value is the sign, the exponent and the first seven bits behind the point of its float64. Counts
are whole numbers, so that their sums are the same in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unistore.system.hints import AnyArray, Float64s, Int64s

_DROPPED = 45
"""Bits of a float64 that its code leaves out: 52 of the fraction but seven."""
_CODES = 1 << 20
"""More than there are codes: 2 signs, 2,047 exponents, 128 parts of each."""
_MIDDLE = _CODES // 2
"""What is added to codes, so that none is negative."""
_MERGED = 1 << 22
"""Bins that wait to be added up."""


def codes_of(values: Float64s) -> NDArray[np.int32]:
    """Return codes of finite values, which are in the order of the values."""
    magnitude = (np.abs(values).view(np.int64) >> _DROPPED).astype(np.int32)
    return np.where(values < 0, -magnitude, magnitude)


def values_of(codes: Int64s, *, whole: bool) -> Float64s:
    """Return a value for each code that is at most 0.4 % from every value of the bin.

    With `whole`, the bins hold whole numbers, and the value is one of them.
    """
    magnitude = np.abs(codes)
    sign = np.where(codes < 0, -1.0, 1.0)
    if not whole:
        middle = ((magnitude << _DROPPED) + (1 << (_DROPPED - 1))).view(np.float64)
        return np.where(codes == 0, 0.0, sign * middle)
    first = np.ceil((magnitude << _DROPPED).view(np.float64))
    last = np.ceil(((magnitude + 1) << _DROPPED).view(np.float64)) - 1
    smallest = np.where(codes == 0, 0.0, first)
    largest = np.where(codes == 0, 0.0, last)
    return sign * np.floor(smallest + (largest - smallest) / 2)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of values by group and bin.

    Groups are numbered ``split * components + component``, or by component.
    """

    bins: Int64s  # (k,), ascending: group * 2**20 + 2**19 + code
    counts: NDArray[np.int64] | Float64s  # (k,): how many values; floats where stores have weights

    def by_component(self, splits: Sequence[int] | None, components: int) -> Histogram:
        """Return the counts of some splits together, by component; None: of all splits."""
        group = self.bins // _CODES
        is_wanted = np.ones(len(group), bool) if splits is None else np.isin(group // components, splits)
        bins = group % components * _CODES + self.bins % _CODES
        return added([Histogram(bins[is_wanted], self.counts[is_wanted])])

    def of_component(self, component: int) -> Histogram:
        """Return the counts of one component, as those of component 0."""
        lo, hi = np.searchsorted(self.bins, (component * _CODES, (component + 1) * _CODES))
        return Histogram(self.bins[lo:hi] % _CODES, self.counts[lo:hi])

    def quantiles(self, shares: Sequence[float], *, whole: bool) -> Float64s:
        """Return the values that `shares` of all counted values do not exceed, (shares,); NaN of no values.

        Each is within 0.4 % of an order statistic, that of ``numpy.quantile(…, method="inverted_cdf")``.
        """
        if not len(self.bins):
            return np.full(len(shares), np.nan)
        reached = np.cumsum(self.counts)
        places = np.searchsorted(reached, np.asarray(shares) * reached[-1])
        last = len(self.bins) - 1
        codes = self.bins[np.minimum(places, last)] % _CODES - _MIDDLE
        return values_of(codes, whole=whole)


def added(histograms: Sequence[Histogram]) -> Histogram:
    """Return the sum of histograms."""
    bins, place = np.unique(np.concatenate([part.bins for part in histograms]), return_inverse=True)
    counts = np.concatenate([part.counts for part in histograms])
    total = np.zeros(len(bins), counts.dtype)
    np.add.at(total, place, counts)
    return Histogram(bins, total)


class HistogramBuilder:
    """Counts values block by block."""

    def __init__(self) -> None:
        self._parts = [Histogram(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        self._waiting = 0

    def add(self, values: Float64s, first_group: int) -> None:
        """Count values (components, n), component by component; those that are not finite are left out."""
        finite = np.isfinite(values)
        codes = codes_of(np.where(finite, values, 0.0))
        if not finite.all():
            codes[~finite] = _MIDDLE
        codes.sort(axis=1)
        is_first = np.ones(codes.shape, bool)
        np.not_equal(codes[:, 1:], codes[:, :-1], out=is_first[:, 1:])
        component, start = np.nonzero(is_first)
        flat = component * codes.shape[1] + start
        counts = np.diff(np.append(flat, codes.size))
        self._append(first_group + component, codes[is_first].astype(np.int64), counts)

    def add_counted(self, values: Float64s, counts: Int64s, first_group: int) -> None:
        """Add how often (components, m) each of `values` (m,) occurs."""
        component, place = np.nonzero(counts)
        codes = codes_of(values)[place].astype(np.int64)
        self._append(first_group + component, codes, counts[component, place])

    def _append(self, group: AnyArray, codes: Int64s, counts: Int64s) -> None:
        is_finite = codes != _MIDDLE
        bins = group[is_finite] * _CODES + _MIDDLE + codes[is_finite]
        self._parts.append(Histogram(bins, counts[is_finite]))
        self._waiting += len(bins)
        if self._waiting > _MERGED:
            self._parts = [added(self._parts)]
            self._waiting = 0

    def histogram(self) -> Histogram:
        """Return everything that was counted."""
        return added(self._parts)
