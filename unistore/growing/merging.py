"""Arrays of several stores of one family, joined source by source: rows, offsets, numbers of sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from unistore.converters.families import specs_of
from unistore.converters.files.paths import natural_key
from unistore.converters.registry import family_of
from unistore.errors import InputError, Problem
from unistore.schemas.array_specs import SAMPLES, SOURCE_BOUNDS, ArraySpec, ArraySpecs
from unistore.schemas.indices import RowsOfSources
from unistore.schemas.tables import Field, offsets_of
from unistore.store.reader import Store
from unistore.system.types import AnyArray, Int64s, UInt8s

FIX = "convert all sources together"


class KeptSource(NamedTuple):
    """A source of a version."""

    name: str
    part: int  # number of its part
    number: int  # its number there


def kept_sources(
    stores: Sequence[Store], removed: Sequence[Sequence[int]], *, by_name: bool
) -> list[KeptSource]:
    """Return the sources that are left, part after part, or in the order of one conversion."""
    kept = []
    for part, store in enumerate(stores):
        names = store.text("sources/path")
        left = sorted({*range(len(names))}.difference(removed[part]))
        kept += [KeptSource(names[number], part, number) for number in left]
    return sorted(kept, key=lambda source: natural_key(source.name)) if by_name else kept


class Merging:
    """The arrays of several stores as those of one, whose sources are `sources`."""

    def __init__(
        self,
        stores: Sequence[Store],  # with the same arrays
        sources: Sequence[KeptSource],
        fields: Mapping[str, Field],  # of all arrays, by path
    ) -> None:
        self.stores = stores
        self.sources = sources
        self.fields = fields
        self._rows_of: dict[int, RowsOfSources] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Merging, (self.stores, self.sources, self.fields)

    def spec(self, path: str) -> ArraySpec:
        return self.stores[0].specs.of(path)

    def counts(self, part: int, path: str) -> Int64s:
        """Return rows of each source of a part, ranges where the array has offsets, (sources,)."""
        if part not in self._rows_of:
            self._rows_of[part] = RowsOfSources(self.stores[part])
        return self._rows_of[part].of(path)

    def rows(self, path: str) -> tuple[Int64s, Int64s]:
        """Return the first row of each source in its part, and the number of its rows, (sources,) each."""
        first = np.empty(len(self.sources), np.int64)
        count = np.empty(len(self.sources), np.int64)
        ends = {part: np.cumsum(self.counts(part, path)) for part in {one.part for one in self.sources}}
        for place, (_, part, number) in enumerate(self.sources):
            count[place] = self.counts(part, path)[number]
            first[place] = ends[part][number] - count[place]
        return first, count

    def _runs(self, path: str) -> Iterator[tuple[int, int, int]]:
        """Yield (part, start, stop) of rows that follow one another in a part."""
        first, count = self.rows(path)
        part = np.array([source.part for source in self.sources])
        end = first + count
        is_joined = (part[1:] == part[:-1]) & (first[1:] == end[:-1])
        starts = np.flatnonzero(np.concatenate([[True], ~is_joined]))
        last = np.append(starts[1:], len(part)) - 1
        yield from zip(part[starts].tolist(), first[starts].tolist(), end[last].tolist(), strict=True)

    def values(self, path: str) -> AnyArray:
        """Return the values of an index array."""
        spec = self.spec(path)
        if spec.is_offsets:
            return offsets_of(self._gathered(path, lambda part: np.diff(self._whole(part, path))))
        values = self._gathered(path, lambda part: self.padded(path, self._whole(part, path)))
        if spec.indexes is not None:
            _, count = self.rows(path)
            old = np.array([source.number for source in self.sources])
            values = values + np.repeat(np.arange(len(old)) - old, count)
        return values.astype(self.fields[path].dtype, copy=False)

    def splits(self) -> tuple[UInt8s, tuple[str, ...]]:
        """Return the split code of every sample, and the names by code."""
        names: dict[str, int] = {}
        codes = []
        for store in self.stores:
            own, own_names = store.splits()
            new = [names.setdefault(name, len(names)) for name in own_names]
            if bool(new) != bool(names):
                message = "has no splits, and other parts have"
                raise InputError(Problem(store.path, message, FIX, "compact"))
            codes.append(np.array(new or [0], np.uint8)[own])
        return self._gathered("splits/code", codes.__getitem__), tuple(names)

    def _gathered(self, path: str, read: Callable[[int], AnyArray]) -> AnyArray:
        whole = cache(read)
        return np.concatenate([whole(part)[lo:hi] for part, lo, hi in self._runs(path)])

    def _whole(self, part: int, path: str) -> AnyArray:
        return self.stores[part].array(path).read()

    def padded(self, path: str, values: AnyArray) -> AnyArray:
        # with fill, where other parts have larger rows
        field = self.fields[path]
        if values.shape[1:] == field.row_shape:
            return values
        out = np.full((len(values), *field.row_shape), field.fill, values.dtype)
        out[(slice(None), *map(slice, values.shape[1:]))] = values
        return out

    def ranges_of_samples(self, path: str) -> tuple[Int64s, list[str]]:
        """Return offsets of named ranges of samples that hold several sources, and their names."""
        table = path.rpartition("/")[0]
        samples = self.spec(path).offsets_of
        assert isinstance(samples, str)
        names: list[str] = []
        starts = []
        place = 0
        for part, lo, hi in self._runs(samples):
            bounds = self.stores[part].array(path).read()
            texts = self.stores[part].text(f"{table}/name")
            for row in range(lo, hi):
                name = texts[int(np.searchsorted(bounds, row, side="right")) - 1]
                if not names or name != names[-1]:
                    names.append(name)
                    starts.append(place)
                place += 1
        return np.array([*starts, place], np.int64), names

    def says_nothing(self, path: str) -> bool:
        """Return whether the sources have no other values than a store without the array stands for."""
        specs: ArraySpecs = specs_of(family_of(self.stores[0].attributes))
        absent = specs.absent_value(path)
        if absent is None:
            return False
        if not isinstance(absent, str):
            return bool((self.values(path) == absent).all())
        group = path.rpartition("/")[0]
        rows = int(self.rows(f"{group}/offsets")[1].sum())
        return int(self.rows(f"{group}/data")[1].sum()) == rows * len(absent.encode())

    def spans_sources(self, path: str) -> bool:
        """Return whether offsets divide the samples into ranges that may hold several sources."""
        spec = self.spec(path)
        is_free = spec.rows is None and path != SOURCE_BOUNDS
        return (
            is_free and isinstance(spec.offsets_of, str) and self.spec(spec.offsets_of).rows == (SAMPLES, 0)
        )
