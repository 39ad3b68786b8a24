"""Packed sequences are what they are made of."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unistore.converters.scan import Source, Sources
from unistore.system import packed
from unistore.system.packed import Packed, view

ITEMS = st.lists(st.tuples(st.text(), st.dictionaries(st.text(max_size=3), st.integers())), max_size=40)


@given(items=ITEMS, block=st.integers(1, 7), size=st.integers(1, 300), data=st.data())
def test_like_a_list(items: list[Any], block: int, size: int, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "BLOCK", block)
        patch.setattr(packed, "BYTES", size)
        patch.setattr(packed, "FEW", data.draw(st.sampled_from((0, 3, 100))))
        found = Packed(items)
    assert (len(found), list(found)) == (len(items), items)
    assert [found[at] for at in range(len(items))] == items
    assert found[::-1] == items[::-1]
    assert found == Packed(items)
    assert found != Packed([*items, ("", {})])
    assert view(found, str)[:3] == [str(item) for item in items[:3]]
    with pytest.raises(IndexError):
        found[len(items)]
    again = pickle.loads(pickle.dumps(found))
    assert list(again) == items
    numbers = data.draw(st.sets(st.integers(0, len(items) - 1))) if items else set()
    some = pickle.loads(pickle.dumps(found.only(numbers)))
    assert len(some) == len(items)
    assert [some[number] for number in numbers] == [items[number] for number in numbers]


def test_many_alike_take_little() -> None:
    """What millions of sources cost: their differences."""
    items = [
        {"name": f"lot/episode_{number}.hdf5", "columns": ["action", "qpos"] * 20} for number in range(5000)
    ]
    whole = len(pickle.dumps(Packed(items)))
    assert whole < 60 * len(items)
    assert len(pickle.dumps(Packed(items).only([17]))) < whole / 10
    assert len(pickle.dumps(Packed(items).only([]))) < 200


def test_columns_of_many_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "FEW", 3)
    sources = Sources(
        Source(path=Path(f"{n}"), name=f"{n}", files=(), rows={"rows": n}, memory=n) for n in range(10)
    )
    assert sources.names == [source.name for source in sources] == [f"{n}" for n in range(10)]
    assert sources.splits == [None] * 10
    assert sources.rows("rows") == sources.numbers["memory"].tolist() == list(range(10))
