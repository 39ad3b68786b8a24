"""Columns of several sources: promotion loses nothing, differences are one table."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unistore.converters.common.columns import SourceColumn, is_lossless, promote, reconcile, storable

DTYPES = ["?", "u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8"]


def extremes(dtype: str) -> np.ndarray:
    """Values of a dtype that are the first to be lost."""
    if dtype == "?":
        return np.array([False, True])
    if dtype[0] == "f":
        info = np.finfo(dtype)
        return np.array([info.max, info.tiny, 1 + info.eps, -0.5], dtype)
    info = np.iinfo(dtype)
    return np.array([info.min, info.max, info.max - 1, info.max // 2 + 2], dtype)


def test_lossless_is_what_python_integers_and_floats_say() -> None:
    for source, target in product(DTYPES, DTYPES):
        with np.errstate(all="ignore"):
            there = extremes(source).astype(target)
        same = extremes(source).tolist() == there.tolist() and (source == "?" or target != "?")
        assert is_lossless(np.dtype(source), np.dtype(target)) == same, (source, target)


@given(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=4))
def test_promotion_holds_every_value(dtypes: list[str]) -> None:
    target = promote([np.dtype(dtype) for dtype in dtypes])
    if target is None:
        assert {"u8", "i8"} & set(dtypes)
        return
    for dtype in dtypes:
        assert extremes(dtype).astype(target).tolist() == extremes(dtype).tolist()
    assert len(set(dtypes)) > 1 or target == np.dtype(dtypes[0])


def test_what_can_be_stored() -> None:
    assert all(storable(np.dtype(dtype)) for dtype in [*DTYPES, ">f4"])
    assert not any(storable(np.dtype(dtype)) for dtype in ["S4", "U2", "O", "M8[s]", "c8", "V3", "f4,i4"])


def test_the_table_groups_sources_that_look_alike() -> None:
    found = [(f"{n}.h5", {"x": SourceColumn("<f4", (3,)), "y": SourceColumn("<i4")}) for n in range(3)]
    found += [("odd.h5", {"x": SourceColumn("<f4", (2,))})]
    merged, (problem,) = reconcile(found, "exact")
    assert "    x: float32 (3,) in 0.h5 (+2), float32 (2,) in odd.h5\n" in problem.message
    assert "    y: int32 in 0.h5 (+2), missing in odd.h5\n" in problem.message
    assert "--one-store-per-shape" in problem.advice
    assert list(merged) == ["y"]


def test_modes() -> None:
    found = [("a", {"x": SourceColumn("<f4"), "y": SourceColumn(">i2")}), ("b", {"x": SourceColumn("<f8")})]
    union, problems = reconcile(found, "union")
    assert not problems
    assert union["x"].dtype == "float64"
    assert union["x"].attributes == {"source_dtype": {"<f4": [0], "<f8": [1]}}
    assert union["y"].attributes == {"source_dtype": ">i2", "missing_in": [1]}
    assert list(reconcile(found, "intersection")[0]) == ["x"]
    found += [("c", {"x": SourceColumn("<f8", (3,))})]
    assert reconcile(found, "intersection") == ({}, [])
    assert "--columns" not in reconcile(found, "union")[1][0].advice
    with_others = [(name, {**columns, "z": SourceColumn("<i4")}) for name, columns in found]
    assert "--columns intersection" in reconcile(with_others, "union")[1][0].advice
    assert list(reconcile(with_others, "intersection")[0]) == ["z"]
    assert reconcile([], "exact") == ({}, [])
