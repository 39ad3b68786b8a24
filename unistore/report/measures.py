"""Numbers that tell samples apart: how they are spread, which samples stand out, what is remarkable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unistore.converters.preview import Measure
from unistore.pictures.draw import preview_of
from unistore.report.values import histogram
from unistore.store.reader import Store

__all__ = ["chosen_samples", "describe_measures", "measure_remarks", "measures_of", "noun"]

QUANTILES = {"min": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "max": 1.0}
_REMARKED = 0.05
"""Share of small samples from which on they are remarked on."""
_HALF = 0.02
_EXTREMES = 6


def noun(table: str) -> str:
    """What a row of the sample table is called: ``"segment"``."""
    return table.rpartition("/")[2].removesuffix("s") or "sample"


def measures_of(store: Store) -> list[Measure]:
    """What the family measures; nothing where it brings no preview."""
    found = list(preview_of(store).measures(store)) if store.sample_count else []
    return [measure for measure in found if len(measure.values)]


def describe_measures(measures: Sequence[Measure]) -> list[dict[str, Any]]:
    """Quantiles and spread of each measure, and its smallest and largest sample. JSON values."""
    described = []
    for measure in measures:
        values = measure.values.astype(np.float64)
        quantiles = np.quantile(values, list(QUANTILES.values()), method="nearest").tolist()
        described.append(
            {
                "name": measure.name,
                "samples": len(values),
                **dict(zip(QUANTILES, quantiles, strict=True)),
                "histogram": histogram(values),
                "smallest": _number(measure, int(np.argmin(values))),
                "largest": _number(measure, int(np.argmax(values))),
            }
        )
    return described


def _number(measure: Measure, place: int) -> int:
    return place if measure.samples is None else int(measure.samples[place])


def measure_remarks(store: Store, measures: Sequence[Measure]) -> list[str]:
    """``"half of the segments have fewer than 16 points"``, with a cure."""
    remarks, what = [], noun(store.sample_table)
    for measure in measures:
        beyond = [(measure.values < measure.few, f"fewer than {measure.few}")]
        beyond += [(measure.values > measure.most, f"more than {measure.most}")] if measure.most else []
        for wrong, bound in beyond:
            share = float(wrong.mean())
            if share >= _REMARKED:
                told = "all" if share == 1 else "half" if abs(share - 0.5) < _HALF else f"{100 * share:.2g} %"
                remarks.append(f"{told} of the {what}s have {bound} {measure.name} ({measure.cure})")
        empty = int((measure.values == 0).sum()) if measure.few or measure.most else 0
        if empty:
            remarks.append(f"{empty:,} {what}{'s have' if empty > 1 else ' has'} no {measure.name}")
    return remarks


def chosen_samples(
    count: int, described: Sequence[dict[str, Any]], asked: Sequence[int] = ()
) -> dict[int, str]:
    """Samples to show, and why: those asked for, the first, middle and last, and those that stand out."""
    reasons = [(number, "") for number in asked]
    reasons += [(0, "first"), (count // 2, "middle"), (count - 1, "last")] if count else []
    for each in described[:_EXTREMES]:
        if each["min"] < each["max"]:
            reasons += [
                (each[end], f"{each['name']}: {each[bound]:,.4g}, the {end}")
                for end, bound in (("largest", "max"), ("smallest", "min"))
            ]
    found: dict[int, str] = {}
    for number, reason in reasons:
        found[number] = ", ".join(filter(None, [found.get(number, ""), reason]))
    return found
