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
from unistore.system.packed import PackedObjects, view

ITEMS = st.lists(st.tuples(st.text(), st.dictionaries(st.text(max_size=3), st.integers())), max_size=40)


@given(items=ITEMS, block=st.integers(1, 7), size=st.integers(1, 300), data=st.data())
def test_like_a_list(items: list[Any], block: int, size: int, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "BLOCK", block)
        patch.setattr(packed, "BYTES", size)
        found = PackedObjects(items)
    assert (len(found), list(found)) == (len(items), items)
    assert [found[at] for at in range(len(items))] == items
    assert found[::-1] == items[::-1]
    assert view(found, str)[:3] == [str(item) for item in items[:3]]
    with pytest.raises(IndexError):
        found[len(items)]
    again = pickle.loads(pickle.dumps(found))
    assert list(again) == items
    numbers = data.draw(st.sets(st.integers(0, len(items) - 1))) if items else set()
    some = pickle.loads(pickle.dumps(found.only(numbers)))
    assert len(some) == len(items)
    assert [some[number] for number in numbers] == [items[number] for number in numbers]


@given(counts=st.lists(st.integers(0, 3), min_size=1, max_size=9), data=st.data())
def test_sources_as_columns_are_what_they_are_made_of(counts: list[int], data: st.DataObject) -> None:
    items = [
        Source(
            path=Path(f"{n}"),
            name=f"{n}\udc80",
            files=tuple(Path(f"{n}/{file}") for file in range(count)),
            rows={"rows": n} if count else {},
            split="train" if count > 1 else None,
            detail={"files": count},
            memory=n,
        )
        for n, count in enumerate(counts)
    ]
    sources = Sources(items)
    assert list(sources) == sources[:] == items
    assert [[Path(file) for file in files] for files in sources.files()] == [list(s.files) for s in items]
    assert sources.rows("rows") == [each.rows.get("rows", 0) for each in items]
    assert sources.numbers["memory"].tolist() == list(range(len(items)))
    numbers = data.draw(st.sets(st.integers(0, len(items) - 1)))
    some = pickle.loads(pickle.dumps(sources.only(numbers).only(numbers)))
    assert len(some) == len(items)
    assert [some[number] for number in numbers] == [items[number] for number in numbers]
