"""What the rows of the sources count, in a store of a family that no table of unistore names."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from unistore.converters.common.exported import sources_of
from unistore.errors import StoreError
from unistore.store.reader import Store


def soundings(make_store: Any, rows: list[int], main: str | None = "echoes") -> Store:
    """Two segments of seven echoes in all."""
    path = make_store(
        "soundings",
        {
            "echoes/offsets": np.array([0, 3, 7]),
            "echoes/depth": np.arange(7.0),
            "sources/path": ["a", "b"],
            "sources/first_row": np.cumsum([0, *rows])[:-1],
            "sources/rows": np.array(rows),
        },
        count=2,
        table="segments",
        axes={"echoes/offsets": ["segment_bound"], "echoes/depth": ["echo"]},
    )
    document = json.loads((path / "zarr.json").read_text())
    if main is not None:
        document["attributes"]["unistore"]["main_table"] = main
    (path / "zarr.json").write_text(json.dumps(document))
    return Store(path)


def test_sources_count_the_rows_of_the_main_table(make_store: Any) -> None:
    found = sources_of(soundings(make_store, [5, 2]))
    assert [(source.name, source.lo, source.hi) for source in found] == [("a", 0, 5), ("b", 5, 7)]


def test_another_sum_is_refused(make_store: Any) -> None:
    with pytest.raises(StoreError, match="sources/rows: sums up to 6, expected all 7 rows"):
        sources_of(soundings(make_store, [5, 1]))


def test_without_a_main_table_the_rows_are_samples(make_store: Any) -> None:
    assert len(sources_of(soundings(make_store, [1, 1], main=None))) == 2
    with pytest.raises(StoreError, match="2 at most"):
        sources_of(soundings(make_store, [5, 2], main=None))
