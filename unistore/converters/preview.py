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
    """One number per sample that is cheap to read, such as the number of points of each segment.

    Attributes
    ----------
    name : str
        Name of the quantity: ``"points"``.
    values : array of shape (samples,), or (k,) with `samples`
        The numbers.
    samples : int64 array of shape (k,), optional
        Numbers of the measured samples. None: all samples.
    few : int, default 0
        Samples with a smaller value get a note. 0: no limit.
    most : float, default 0
        Samples with a larger value get a note. 0: no limit.
    fix : str, default ""
        What to do about these samples.
    """

    name: str
    values: AnyArray
    samples: Int64s | None = None
    few: int = 0
    most: float = 0
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """How a family shows samples. Samples are numbered as rows of the store's sample table.

    Attributes
    ----------
    view : callable
        ``view(store, sample, detail)`` returns the `View` of a sample.
    measures : callable
        ``measures(store)`` returns measures. The samples with the largest and smallest values are among those
        that a page shows. The default has none.
    """

    view: Callable[[StoreView, int, ViewLimits], View]
    measures: Callable[[StoreView], Iterable[Measure]] = lambda _: ()


def _columns_of_sample(store: StoreView, sample: int, detail: ViewLimits) -> View:
    """Show a row of the sample table, and the rows of the main table that its offsets give the sample."""
    sample_table = store.root.sample_table
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
    """Return at most `most` evenly spaced integers from ``lo`` to ``hi - 1``, with the first and the last."""
    count = max(0, min(most, hi - lo))
    return np.unique(np.linspace(lo, hi - 1, count).astype(np.int64))


def parts_of(lo: int, hi: int, most: int, parts: int = 64) -> tuple[Int64s, Int64s]:
    """Return evenly spaced ranges inside ``lo:hi`` with at most `most` rows together.

    Parameters
    ----------
    lo, hi : int
        First row, and the row after the last.
    most : int
        Limit for the number of rows.
    parts : int, default 64
        Number of ranges, if the rows exceed the limit.

    Returns
    -------
    starts, stops : int64 arrays of shape (ranges,)
        A single range if all rows are within the limit.
    """
    if hi - lo <= most:
        return np.array([lo]), np.array([hi])
    first = evenly(lo, hi - most // parts + 1, parts)
    return first, first + most // parts
