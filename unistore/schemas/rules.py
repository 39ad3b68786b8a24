"""Rules for the values of a store: the view that a rule reads, and the problems that it yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np

from unistore.errors import Problem, StoreError, UnsupportedError
from unistore.schemas.array_specs import SAMPLES, ArraySpec
from unistore.schemas.indices import BLOCK, ArrayView, StoreView, main_table, parts_between, rows_of_a_block
from unistore.schemas.table_rows import source_offsets
from unistore.system.types import AnyArray, Int64s, Shape

_FIX = "convert the sources again, and report a bug if the new store has the same problem"


class UnreadableError(Exception):
    """A rule needs an array that is damaged. The damage is already reported."""


class RuleView:
    """The arrays of a store, for rules.

    Parameters
    ----------
    store : StoreView
        The store.
    damaged : frozenset of str, default empty
        Paths of damaged arrays. Reading them raises `UnreadableError`.
    """

    def __init__(self, store: StoreView, damaged: frozenset[str] = frozenset()) -> None:
        self.store = store
        self._damaged = damaged

    def spec(self, path: str) -> ArraySpec:
        """Return the rule for dtype, shape and values of an array."""
        return self.store.specs.of(path)

    def under(self, prefix: str) -> list[str]:
        """Return the paths of all arrays that begin with `prefix`."""
        return [path for path in self.store.paths() if path.startswith(prefix)]

    def shape(self, path: str) -> Shape:
        """Return the shape of an array; for `SAMPLES`, (samples,)."""
        return (self.store.sample_count,) if path == SAMPLES else self.array(path).shape

    def whole(self, path: str) -> AnyArray:
        """Return all values of an array."""
        return self.array(path).read()

    def blocks(self, path: str) -> Iterator[tuple[int, AnyArray]]:
        """Iterate over the rows of an array in blocks: ``(number of the first row, rows)``."""
        array = self.array(path)
        step = rows_of_a_block(array)
        for lo in range(0, len(array), step):
            yield lo, array.read(lo, min(len(array), lo + step))

    def parts(self, path: str, bounds: Int64s) -> Iterator[AnyArray]:
        """Iterate over the rows between successive bounds, which ascend."""
        return parts_between(self.array(path), bounds)

    def array(self, path: str) -> ArrayView:
        """Return an array. `UnreadableError` if it is damaged."""
        if path in self._damaged:
            raise UnreadableError(path)
        try:
            return self.store.array(path)
        except (StoreError, UnsupportedError) as error:  # of an array that a spec refers to
            if self._damaged:
                raise UnreadableError(path) from error
            raise

    def planes(self, path: str, row: int) -> Iterator[tuple[int, AnyArray]]:
        """Iterate over one row of an array in blocks of axis 1: ``(number of the first plane, planes)``."""
        array = self.array(path)
        count, *further = array.shape[1:]
        layer = array.chunk_shape[1]
        layer_bytes = layer * prod(further) * array.dtype.itemsize
        step = layer * max(1, BLOCK // max(1, layer_bytes))
        for lo in range(0, count, step):
            low = [row, lo, *(0 for _ in further)]
            high = [row + 1, min(count, lo + step), *further]
            yield lo, array.read_box(low, high)[0]


# A rule yields a problem for every violation in a store
Rule = Callable[[RuleView], Iterator[Problem]]


def broken(location: str, message: str) -> Problem:
    """Return the problem of a violated rule, for a rule to yield.

    Parameters
    ----------
    location : str
        Path of the array.
    message : str
        The problem, in words that follow the path: ``"does not ascend"``.

    Examples
    --------
    >>> def frames_ascend(view):  # doctest: +SKIP
    ...     frames = view.whole("frames/number")
    ...     if (np.diff(frames) < 0).any():
    ...         yield broken("frames/number", "does not ascend")
    """
    return Problem(location, message, _FIX, "values")


def parts_hold_all(view: RuleView, parts: str, rows: str) -> Iterator[Problem]:
    """Yield a problem for the first source whose parts (segments, episodes) do not have all its rows.

    Parameters
    ----------
    view : RuleView
        The store.
    parts : str
        Table of the parts, with ``offsets`` and ``source``.
    rows : str
        Word for the rows in the message: ``"points"``.
    """
    lengths = np.diff(view.whole(f"{parts}/offsets"))
    expected = np.diff(view.whole(source_offsets(main_table(view.store))))
    sources = view.whole(f"{parts}/source")
    outside = (sources < 0) | (sources >= len(expected))
    if outside.any():  # also a rule of its own; `bincount` would count up to the largest
        part = first_row(outside)
        message = f"row {part:,} is {int(sources[part]):,}, but there are only {len(expected):,} sources"
        yield broken(f"{parts}/source", f"{message}, numbered from 0")
        return
    held = np.bincount(sources, lengths, len(expected))
    wrong = held.astype(np.int64) != expected
    if wrong.any():
        source = first_row(wrong)
        found = f"the {parts} of source {source:,} have {int(held[source]):,} {rows}"
        message = f"{found}, expected {expected[source]:,}"
        yield broken(f"{parts}/offsets", message)


def first_row(wrong: Any) -> int:
    """Return the number of the first row that is True, given one bool per row."""
    return int(np.flatnonzero(wrong)[0])
