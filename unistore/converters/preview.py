"""How a family shows samples of a store: a view of a sample, and measures of all samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

import numpy as np

from unistore.converters.views import View, ViewLimits, rows_view
from unistore.schemas.indices import IndexColumn, StoreView, main_table, table_columns
from unistore.schemas.table_rows import source_offsets
from unistore.system.types import AnyArray, Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One number for each sample that is cheap to read: the points of each segment."""

    name: str  # name of the quantity: "points"
    values: AnyArray  # values of all samples, (samples,), or of `samples`, (k,)
    samples: Int64s | None = None  # numbers of the measured samples, (k,); None: all
    # `few` and `most`: samples with values below and above get a remark; 0: no bound.
    few: int = 0
    most: float = 0
    fix: str = ""  # what to do about these samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """How a family shows samples. Samples are numbered as the rows of the store's sample table."""

    # `view(store, sample, detail)` returns what a page shows of one sample.
    view: Callable[[StoreView, int, ViewLimits], View]
    # `measures(store)` returns measures. The samples with the largest and the smallest values are among those
    # shown.
    measures: Callable[[StoreView], Iterable[Measure]] = lambda _: ()


def _columns_of_sample(store: StoreView, sample: int, detail: ViewLimits) -> View:
    """Show a row of the sample table, and the rows of the main table that its offsets give the sample."""
    sample_table = store.attributes["samples"]["table"]
    ranges = {sample_table: (sample, sample + 1)}
    main = main_table(store)
    if main != sample_table:
        rules = store.specs.rules()
        rows_of_main = rules[source_offsets(main)].offsets_of
        for path, rule in rules.items():
            if rule.offsets_of == rows_of_main and path.startswith(f"{sample_table}/"):
                (lo,), (hi,) = IndexColumn(store, path).ranges(np.array([sample]))
                ranges[main] = int(lo), int(hi)
    paths = {path: rows for table, rows in ranges.items() for path in table_columns(store, table)}
    share = detail.read // max(1, len(paths))
    columns = {}
    for path, (lo, hi) in paths.items():
        array = store.array(path)
        row_bytes = max(1, prod(array.shape[1:]) * array.dtype.itemsize)
        if row_bytes <= share:
            columns[path] = array.read(lo, min(hi, lo + share // row_bytes))
    return rows_view(columns, detail)


# Of stores whose family is not installed
COLUMNS = Preview(view=_columns_of_sample)


def evenly(lo: int, hi: int, most: int) -> Int64s:
    """At most `most` evenly spaced numbers of ``lo:hi``, with the first and the last."""
    count = max(0, min(most, hi - lo))
    return np.unique(np.linspace(lo, hi - 1, count).astype(np.int64))


def parts_of(lo: int, hi: int, most: int, parts: int = 64) -> tuple[Int64s, Int64s]:
    """Ranges (starts, stops) in ``lo:hi`` of at most `most` rows: all, or `parts` evenly spaced ones."""
    if hi - lo <= most:
        return np.array([lo]), np.array([hi])
    first = evenly(lo, hi - most // parts + 1, parts)
    return first, first + most // parts
