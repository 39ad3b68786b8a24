"""Reading a store for export: its sources, rows in blocks, dtypes of the sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import Values
from unistore.schemas.indices import source_rows
from unistore.schemas.store_view import ArrayView, StoreView

BLOCK = 32 << 20
"""Bytes read at a time."""


class SourceRows(NamedTuple):
    """Number and name of a source, and its rows ``lo:hi`` of the main table."""

    number: int
    name: str
    lo: int
    hi: int


def sources_of(store: StoreView) -> list[SourceRows]:
    """Every source of a store, in order."""
    first, rows = (values.tolist() for values in source_rows(store))
    return [
        SourceRows(number, name, lo, lo + count)
        for number, (name, lo, count) in enumerate(zip(store.text("sources/path"), first, rows, strict=True))
    ]


def row_blocks(array: ArrayView, lo: int, hi: int) -> Iterator[NDArray[Any]]:
    """Rows ``lo:hi`` in blocks of about `BLOCK` bytes, aligned with chunks."""
    row_bytes = max(1, prod(array.shape[1:]) * array.dtype.itemsize)
    chunk = array.chunk_shape[0]
    step = max(1, BLOCK // row_bytes)
    step = step // chunk * chunk or step
    while lo < hi:
        stop = min(hi, lo - lo % step + step)
        yield array.read_ranges([lo], [stop])
        lo = stop


def row_values(array: ArrayView, lo: int, hi: int) -> Values:
    """Rows ``lo:hi`` of an array as `Values`."""
    return Values((hi - lo, *array.shape[1:]), array.dtype, lambda: row_blocks(array, lo, hi))


def source_dtype(attributes: Mapping[str, Any], source: int, otherwise: np.dtype[Any]) -> np.dtype[Any]:
    """Dtype that a column had in a source, from the array's attribute ``source_dtype``.

    The attribute is the dtype in all sources or, where they differ, the indices of the sources by dtype.
    """
    dtype = attributes.get("source_dtype")
    if isinstance(dtype, Mapping):
        dtype = next((each for each, sources in dtype.items() if source in sources), None)
    return np.dtype(dtype) if isinstance(dtype, str) else otherwise
