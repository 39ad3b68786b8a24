"""`Statistics`: what is known of the values of one key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from unistore.data.statistics.bins import Histogram, added
from unistore.data.statistics.moments import Moments, joined
from unistore.data.statistics.summary import Form
from unistore.errors import InputError, Problem
from unistore.system.hints import AnyArray, Float64s, Int64s, JsonObject

SHARES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
"""Share of the values that each quantile is not below."""


@dataclass(frozen=True, eq=False)
class Statistics:
    """Statistics of the finite values of one key, by component: float64, in the units of the samples.

    Components are those of the last axis of the values, ``(A,)`` for an action of A numbers; of images the
    channels; a single number, ``()``, for scalars, images without channels, and boxes of any size, as of
    volumes and of `Clips`.

    Attributes
    ----------
    key
        The key.
    axis
        Axis of the components in a sample, counted from its end; None: a single component.
    count, nan, infinite
        int64: finite values, on which all else depends; those that are not a number; those that are infinite.
    mean, std, min, max
        Mean and standard deviation (ddof 0), smallest and largest value. NaN where there is no finite value.
    """

    key: str
    axis: int | None
    count: Int64s
    nan: Int64s
    infinite: Int64s
    mean: Float64s
    std: Float64s
    min: Float64s
    max: Float64s
    _compute_quantiles: Callable[[], Float64s]

    @cached_property
    def _quantiles(self) -> Float64s:
        return np.clip(self._compute_quantiles(), self.min, self.max)

    def _quantile(self, name: str) -> Float64s:
        return np.asarray(self._quantiles[list(SHARES).index(name)])

    @property
    def q01(self) -> Float64s:
        """1 % of the values are not above it; within 0.4 % of a value that is there, as all quantiles."""
        return self._quantile("q01")

    @property
    def q10(self) -> Float64s:
        """10 % of the values are not above it."""
        return self._quantile("q10")

    @property
    def q50(self) -> Float64s:
        """Half of the values are not above it: the median."""
        return self._quantile("q50")

    @property
    def q90(self) -> Float64s:
        """90 % of the values are not above it."""
        return self._quantile("q90")

    @property
    def q99(self) -> Float64s:
        """99 % of the values are not above it."""
        return self._quantile("q99")

    def __reduce__(self) -> tuple[Any, ...]:
        values = [getattr(self, field.name) for field in fields(self)[:-1]]
        return Statistics, (*values, _Known(self._quantiles))

    def to_json(self) -> JsonObject:
        """Return plain JSON values by name; null for what is not finite."""
        names = ("count", "nan", "infinite", "mean", "std", "min", "max", *SHARES)
        return {name: _plain(getattr(self, name)) for name in names}


@dataclass(frozen=True, eq=False)
class _Known:
    """Quantiles that were computed before."""

    values: Float64s

    def __call__(self) -> Float64s:
        return self.values


def _plain(values: AnyArray) -> Any:
    shown = np.asarray(values).astype(object)
    shown[~np.isfinite(np.asarray(values, np.float64))] = None
    return shown.tolist()


@dataclass(frozen=True, eq=False)
class Share:
    """What one store has of a key."""

    store: str
    form: Form
    moments: Moments
    histogram: Callable[[], Histogram]  # counts of the values, by component


def statistics_from(key: str, shares: Sequence[Share], weights: Sequence[float] | None) -> Statistics:
    """Return statistics of the values of all stores together.

    With weights, they are those of values that are drawn from the stores in proportion to the weights, and
    from all values of a store alike.

    Raises
    ------
    InputError
        If the values of the stores differ in their number of components.
    """
    form = shares[0].form
    for share in shares:
        if (share.form.components, share.form.axis) != (form.components, form.axis):
            message = (
                f"{key} has {share.form.components} components, and {form.components} in the first store"
            )
            raise InputError(Problem(share.store, message, "ask for the statistics of each store", "option"))
    parts = [share.moments.total() for share in shares]
    total = joined(parts).total()
    mean, variance = _pooled(parts) if weights is None else _mixed(parts, weights)
    is_constant = total.low == total.high
    mean = np.where(is_constant, total.low, mean)
    std = np.where(is_constant, 0.0, np.sqrt(variance))
    is_whole = all(share.form.is_whole for share in shares)

    def quantiles() -> Float64s:
        histograms = [share.histogram() for share in shares]
        columns = [
            _weighted(histograms, component, weights).quantiles(list(SHARES.values()), whole=is_whole)
            for component in range(form.components)
        ]
        return _shaped(np.stack(columns, axis=1), form)

    def measured(values: Float64s) -> Float64s:
        return _shaped(np.where(total.count == 0, np.nan, values)[0], form)

    return Statistics(
        key,
        form.axis,
        count=_shaped(total.count[0], form),
        nan=_shaped(total.nan[0], form),
        infinite=_shaped(total.infinite[0], form),
        mean=measured(mean),
        std=measured(std),
        min=measured(total.low),
        max=measured(total.high),
        _compute_quantiles=quantiles,
    )


def _shaped(values: AnyArray, form: Form) -> AnyArray:
    """Return values (…, components) without the axis of components where values are one component."""
    return values[..., 0] if form.axis is None else values


def _pooled(parts: Sequence[Moments]) -> tuple[Float64s, Float64s]:
    total = joined(parts).total()
    return total.mean, total.deviation / np.maximum(total.count, 1)


def _mixed(parts: Sequence[Moments], weights: Sequence[float]) -> tuple[Float64s, Float64s]:
    """Return mean and variance of values of which each store has a share by weight."""
    moments = joined(parts)
    share = np.where(moments.count > 0, np.asarray(weights, np.float64)[:, None], 0.0)
    share /= np.maximum(share.sum(axis=0), np.finfo(np.float64).tiny)
    mean = (share * moments.mean).sum(axis=0)
    variance = moments.deviation / np.maximum(moments.count, 1) + (moments.mean - mean) ** 2
    return mean[None], (share * variance).sum(axis=0)[None]


def _weighted(histograms: Sequence[Histogram], component: int, weights: Sequence[float] | None) -> Histogram:
    parts = [histogram.of_component(component) for histogram in histograms]
    if weights is not None:
        parts = [
            Histogram(part.bins, part.counts * (weight / max(1, part.counts.sum())))
            for part, weight in zip(parts, weights, strict=True)
        ]
    return added(parts)
