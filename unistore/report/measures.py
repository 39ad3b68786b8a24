"""Measures of samples, as the family takes them: quantiles, extremes, remarks, and samples worth showing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unistore.converters.preview import Measure, preview_of
from unistore.report.values import histogram, sample_noun
from unistore.store.reader import Store

QUANTILES = {"min": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "max": 1.0}
_MIN_SHARE = 0.05
"""Share of samples beyond a bound from which on a remark is made."""
_HALF_TOLERANCE = 0.02
"""Shares this close to 0.5 are called half."""
_MAX_MEASURES = 6
"""Measures whose smallest and largest samples are shown."""


def measures_of(store: Store) -> list[Measure]:
    """Measures that the family takes of the store's samples; empty ones are left out."""
    found = list(preview_of(store).measures(store)) if store.sample_count else []
    return [measure for measure in found if len(measure.values)]


def describe_measures(measures: Sequence[Measure]) -> list[dict[str, Any]]:
    """Quantiles and histogram of each measure, and its smallest and largest sample. JSON values."""
    described = []
    for measure in measures:
        values = measure.values.astype(np.float64)
        quantiles = np.quantile(values, list(QUANTILES.values()), method="nearest").tolist()
        numbers = np.arange(len(values)) if measure.samples is None else measure.samples
        described.append(
            {
                "name": measure.name,
                "samples": len(values),
                **dict(zip(QUANTILES, quantiles, strict=True)),
                "histogram": histogram(values),
                "smallest": int(numbers[np.argmin(values)]),
                "largest": int(numbers[np.argmax(values)]),
            }
        )
    return described


def measure_remarks(store: Store, measures: Sequence[Measure]) -> list[str]:
    """Remarks such as ``"half of the segments have fewer than 16 points"``, with a cure."""
    remarks, noun = [], sample_noun(store.sample_table)
    for measure in measures:
        bounds = [(measure.values < measure.few, f"fewer than {measure.few}")]
        bounds += [(measure.values > measure.most, f"more than {measure.most}")] if measure.most else []
        for beyond, bound in bounds:
            share = _share_text(float(beyond.mean()))
            if share:
                remarks.append(f"{share} of the {noun}s have {bound} {measure.name} ({measure.cure})")
        empty = int((measure.values == 0).sum()) if measure.few or measure.most else 0
        if empty:
            remarks.append(f"{empty:,} {noun}{'s have' if empty > 1 else ' has'} no {measure.name}")
    return remarks


def _share_text(share: float) -> str:
    """``"all"``, ``"half"``, ``"7 %"``; empty where the share is too small for a remark."""
    if share < _MIN_SHARE or share == 1:
        return "all" if share == 1 else ""
    return "half" if abs(share - 0.5) < _HALF_TOLERANCE else f"{100 * share:.2g} %"


def chosen_samples(
    count: int, described: Sequence[dict[str, Any]], asked: Sequence[int] = ()
) -> dict[int, str]:
    """Samples to show, and why: those asked for, the first, middle and last, and the extremes of measures."""
    reasons = [(number, "") for number in asked]
    reasons += [(0, "first"), (count // 2, "middle"), (count - 1, "last")] if count else []
    for each in described[:_MAX_MEASURES]:
        for end, bound in (("largest", "max"), ("smallest", "min")) if each["min"] < each["max"] else ():
            reasons.append((each[end], f"{each['name']}: {each[bound]:,.4g}, the {end}"))
    found: dict[int, str] = {}
    for number, reason in reasons:
        found[number] = ", ".join(filter(None, [found.get(number, ""), reason]))
    return found
