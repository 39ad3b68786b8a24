"""What a store of a plugin's family gives back: its files, their comparison, pictures of samples."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import File, SourceRows, source_dtype, sources_of
from unistore.converters.common.originals import Compared, difference
from unistore.converters.plugin import Array, Facts, Family, Format, Restored, SourceFile
from unistore.converters.preview import Measure, Preview
from unistore.converters.protocol import Scan
from unistore.converters.seam.faults import calling
from unistore.converters.seam.formats import blocks, formats_of
from unistore.converters.seam.specs import FACTS, FORMAT
from unistore.errors import InputError, Location, Problem
from unistore.schemas.store_view import ArrayView, StoreView

_DRAWN_ROWS = 200_000
"""Most rows of a sample that a picture shows."""


@dataclass(frozen=True, eq=False)
class _StoredRows:
    """Rows ``lo:hi`` of a stored array, as the file had them."""

    array: ArrayView
    lo: int
    hi: int
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.hi - self.lo, *self.array.shape[1:])

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        lo, hi, step = rows.indices(self.hi - self.lo)
        values = self.array.read(self.lo + lo, self.lo + max(lo, hi))
        return values[::step].astype(self.dtype, copy=False)


def restored(family: Family, store: StoreView, source: SourceRows) -> Restored:
    """The arrays and facts of a source, from a store."""
    schema = family.schema
    facts: Facts = json.loads(store.text(FACTS)[source.number])
    columns = {}
    for name, column in schema.columns.items():
        array = store.array(f"{schema.table}/{name}")
        dtype = source_dtype(array.attributes, source.number, array.dtype)
        columns[name] = Array(_StoredRows(array, source.lo, source.hi, dtype), column.unit)
    with calling(family, source.name):
        return family.restore(columns, facts)


def exported_files(family: Family, store: StoreView) -> Iterator[File]:
    """Every source of a store, to be written by its format.

    Raises
    ------
    InputError
        If a format does not write files.
    """
    by_name = {one.name: one for one in formats_of(family.formats)}
    names = store.text(FORMAT)
    for source in sources_of(store):
        opening = by_name[names[source.number]]
        if type(opening).write is Format.write:
            message = f"was a {opening.name} file, a format that is not written"
            raise InputError(Problem(source.name, message, "read the store instead", "option"))
        found = restored(family, store, source)
        write = partial(opening.write, arrays=found.arrays, facts=found.facts)
        yield File(name=source.name, form="format", source=source.number, values={}, write=write)


class Comparison:
    """Compares each file, as its format opens it, with what the family restores from the store."""

    def __init__(self, family: Family, store: StoreView, scan: Scan) -> None:
        self._family, self._store, self._scan = family, store, scan
        self._sources = sources_of(store)
        self._left_out: dict[int, list[str]] = {}

    def compare(self, number: int) -> Iterator[Compared]:
        """Compare every array and fact of a file."""
        source = self._scan.sources[number]
        by_name = {one.name: one for one in formats_of(self._family.formats)}
        opening = by_name[source.detail["format"]]
        found = restored(self._family, self._store, self._sources[number])
        file = SourceFile(source.path, source.name, source.files)
        with calling(opening, source.name), opening.open(file) as opened:
            self._left_out[number] = [name for name in opened.arrays if name not in found.arrays]
            for name, array in opened.arrays.items():
                if name in found.arrays:
                    differing = _difference(found.arrays[name], array)
                    size = int(np.prod(array.shape))
                    yield Compared(Location(source.name, name), source.path, size, differing)
            yield from _facts_compared(source.name, source.path, found.facts, opened.facts)

    def left_out(self, number: int) -> list[str]:
        """Arrays of a file that the store does not hold; after `compare`."""
        return self._left_out[number]


def _facts_compared(name: str, path: Path, stored: Facts, read: Facts) -> Iterator[Compared]:
    for key in {**read, **stored}:
        here, there = (json.dumps(facts.get(key), sort_keys=True) for facts in (stored, read))
        yield Compared(Location(name, key), path, 1, None if here == there else f"{here} and {there}")


def _difference(stored: Array, read: Array) -> str | None:
    if stored.shape != read.shape:
        return f"shapes {stored.shape} and {read.shape}"
    for lo, rows in blocks(read):
        found = difference(np.asarray(stored[lo : lo + len(rows)]), rows, lo)
        if found is not None:
            return found
    return None


def sample_of(family: Family, store: StoreView, number: int) -> Mapping[str, NDArray[Any]]:
    """Columns of a sample, cut off after many rows."""
    schema = family.schema
    lo, hi = number, number + 1
    if schema.samples:
        lo, hi = store.array(f"{schema.samples}/offsets").read(number, number + 2).tolist()
    stop = min(hi, lo + _DRAWN_ROWS)
    return {name: store.array(f"{schema.table}/{name}").read(lo, stop) for name in schema.columns}


def preview_of(family: Family) -> Preview:
    """How samples of the family are shown."""

    def draw(store: StoreView, number: int, figure: Any) -> None:
        with calling(family, f"sample {number}"):
            family.draw(sample_of(family, store, number), figure.subplots())

    def measures(store: StoreView) -> Iterator[Measure]:
        if family.schema.samples:
            lengths = np.diff(store.array(f"{family.schema.samples}/offsets").read())
            yield Measure(name=family.schema.table, values=lengths)

    return Preview(draw=draw, measures=measures)
