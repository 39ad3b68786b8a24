"""Statistics of a key over stores, splits and subsets: from what is kept, or by one counted pass."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from unistore.data.kinds.protocol import SampleKind, SampleReader
from unistore.data.kinds.reach import check_reach
from unistore.data.parts import DatasetPart
from unistore.data.statistics.kept import Kept, read_kept, splits_of
from unistore.data.statistics.record import Share, Statistics, statistics_from
from unistore.data.statistics.summary import Summary, summarise
from unistore.data.statistics.whole import has_same_values, whole_kind
from unistore.errors import InputError, Problem
from unistore.system.hints import Int64s

_LONG = 2.0
"""Seconds after which it is told that a pass can be spared."""


class Subset(NamedTuple):
    """Samples of a dataset that statistics are of."""

    samples: Int64s
    store_offsets: Int64s  # (stores + 1,)


@dataclass(frozen=True, slots=True)
class Query:
    """Asks for statistics of one key; `summaries` keeps what was read."""

    key: str
    epoch: int
    seed: int
    summaries: dict[tuple[str, str, str], Summary] = field(default_factory=dict)
    kept: dict[str, Kept | None] = field(default_factory=dict)

    def statistics(
        self, parts: Sequence[DatasetPart], weights: Sequence[float] | None, subset: Subset | None
    ) -> Statistics:
        """Return the statistics of the samples of all parts, or of a subset of them."""
        shares: list[Share] = []
        shares_of_weights: list[float] = []
        for number, part in enumerate(parts):
            weight = 1.0 if weights is None else weights[number]
            if weight > 0:
                shares.append(self._share(part, _inside(subset, number)))
                shares_of_weights.append(weight)
        return statistics_from(self.key, shares, None if weights is None else shares_of_weights)

    def _share(self, part: DatasetPart, subset: Int64s | None) -> Share:
        whole = whole_kind(part.kind)
        has_key = whole is not None and has_same_values(part.kind, self.key)
        if whole is None or not has_key or not _is_one_per_unit(whole, part, self.key):
            return self._of_own_samples(part, subset)
        if subset is not None and whole != part.kind:
            return self._of_own_samples(part, subset)
        summary = self._whole_summary(part, whole)
        form = summary.form
        units = part.units()
        if subset is None and (units is None or part.where is None):
            splits = None if units is None else part.split_codes()
            moments = summary.moments
            if splits is not None:
                moments = moments.take(np.flatnonzero(np.isin(summary.split, splits)))
            return Share(
                part.store.path,
                form,
                moments,
                lambda: summary.histogram.by_component(splits, form.components),
            )
        chosen = units if subset is None else subset if units is None else units[subset]
        assert chosen is not None

        def read() -> Summary:
            return self._summarise(whole.bind(part.store, (self.key,), chosen), part)

        if not form.by_sample:
            return _share_of(part, read())
        return Share(part.store.path, form, summary.moments.take(chosen), lambda: read().histogram)

    def _of_own_samples(self, part: DatasetPart, subset: Int64s | None) -> Share:
        """Return statistics of samples as the dataset has them, in this epoch."""
        if not part.kind.select(part.store, (self.key,)):
            raise InputError(Problem("key", f"{self.key} is no value of a sample", kind="option"))
        reader = part.bind((self.key,))
        check_reach([reader], [part.store.path])
        return _share_of(part, self._summarise(reader, part, subset))

    def _whole_summary(self, part: DatasetPart, whole: SampleKind) -> Summary:
        store = part.store
        name = (store.path, repr(whole), self.key)
        if name in self.summaries:
            return self.summaries[name]
        if store.path not in self.kept:
            self.kept[store.path] = read_kept(store)
        kept = self.kept[store.path]
        if kept is not None and kept.kind == repr(whole) and self.key in kept.summaries:
            return kept.summaries[self.key]
        begin = time.monotonic()
        self.summaries[name] = self._summarise(whole.bind(store, (self.key,), None), part, by_split=True)
        if time.monotonic() - begin > _LONG:
            keep = f"keep them with it: unistore statistics {store.path}"
            warnings.warn(f"{store.path}: all its {self.key} were read for statistics; {keep}", stacklevel=2)
        return self.summaries[name]

    def _summarise(
        self,
        reader: SampleReader,
        part: DatasetPart,
        index: Int64s | None = None,
        *,
        by_split: bool = False,
    ) -> Summary:
        chosen = np.arange(len(reader)) if index is None else index
        splits = splits_of(part.store) if by_split else np.zeros(len(chosen), np.uint8)
        summaries = summarise(reader, (self.key,), chosen, splits, self.epoch, self.seed)
        if self.key not in summaries:
            message = f"{self.key} is text in {part.store.path}, and statistics are of numbers"
            raise InputError(Problem("key", message, kind="option"))
        return summaries[self.key]


def _share_of(part: DatasetPart, summary: Summary) -> Share:
    return Share(part.store.path, summary.form, summary.moments, lambda: summary.histogram)


def _inside(subset: Subset | None, number: int) -> Int64s | None:
    """Return the samples of a subset that are of store `number`, as their numbers there."""
    if subset is None:
        return None
    first, stop = subset.store_offsets[number : number + 2].tolist()
    inside = (subset.samples >= first) & (subset.samples < stop)
    own: Int64s = subset.samples[inside] - first
    return own


def _is_one_per_unit(whole: SampleKind, part: DatasetPart, key: str) -> bool:
    """Return whether a kind has a key, and one sample for each row of the sample table."""
    try:
        has_key = key in whole.select(part.store, (key,))
    except InputError:
        return False
    return has_key and len(whole.bind(part.store, (key,), None)) == part.store.sample_count
