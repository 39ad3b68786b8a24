"""Moments accumulated block by block against numpy's float64 of the whole."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from unistore.conversion import running_statistics
from unistore.conversion.running_statistics import Moments

FLOATS = st.floats(-1e6, 1e6, width=32)


@given(
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=1, max_dims=3, max_side=20), elements=FLOATS),
    st.lists(st.integers(0, 20), max_size=4),
)
def test_blocks_merge_to_the_moments_of_the_whole(rows: np.ndarray, cuts: list[int]) -> None:
    parts = [Moments.of(part) for part in np.split(rows, sorted(min(cut, len(rows)) for cut in cuts))]
    total = parts[0]
    for part in parts[1:]:
        total = total.merge(Moments.from_json(json.loads(json.dumps(part.to_json()))))
    found = total.summary()
    wide = rows.astype(np.float64)
    scale = np.abs(wide).max(initial=1.0)
    np.testing.assert_array_equal(found["count"], np.full(rows.shape[1:], len(rows)))
    np.testing.assert_allclose(found["mean"], wide.mean(axis=0), rtol=1e-12, atol=1e-12 * scale)
    np.testing.assert_allclose(found["std"], wide.std(axis=0), rtol=1e-9, atol=1e-9 * scale)
    np.testing.assert_array_equal(found["min"], wide.min(axis=0))
    np.testing.assert_array_equal(found["max"], wide.max(axis=0))


def test_a_large_offset_does_not_swallow_the_spread() -> None:
    """A million values around 1e8: summing squares in float64 would lose the spread, float32 everything."""
    rng = np.random.default_rng(0)
    rows = 1e8 + rng.normal(0, 1, 1_000_000)
    total = Moments.of(rows[:1000])
    for start in range(1000, len(rows), 99_900):
        total = total.merge(Moments.of(rows[start : start + 99_900]))
    exact_mean = math.fsum(rows) / len(rows)
    exact_std = math.sqrt(math.fsum((row - exact_mean) ** 2 for row in rows.tolist()) / len(rows))
    found = total.summary()
    assert found["mean"] == pytest.approx(exact_mean, rel=1e-15)
    assert found["std"] == pytest.approx(exact_std, rel=1e-9)


def test_moments_do_not_depend_on_the_size_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).normal(5, 2, (1000, 7)).astype(np.float32)
    whole = Moments.of(rows).summary()
    monkeypatch.setattr(running_statistics, "BLOCK", 70)
    parts = Moments.of(rows).summary()
    for name in ("count", "min", "max"):
        assert parts[name] == whole[name]
    np.testing.assert_allclose(parts["mean"], whole["mean"], rtol=1e-14)
    np.testing.assert_allclose(parts["std"], whole["std"], rtol=1e-12)


def test_values_that_are_not_finite_are_left_out() -> None:
    rows = np.array([[1.0, np.nan, np.inf], [3.0, np.nan, 2.0], [5.0, np.nan, -np.inf]])
    found = Moments.of(rows).summary()
    assert found["count"] == [3, 0, 1]
    assert found["mean"] == [3.0, None, 2.0]
    assert found["min"] == [1.0, None, 2.0]
    assert found["max"] == [5.0, None, 2.0]
    assert found["std"][1:] == [None, 0.0]
    json.dumps(found, allow_nan=False)


def test_moments_beyond_float64_are_told_as_unknown() -> None:
    rows = np.array([1.7e308, 1.7e308, -1.7e308])
    found = Moments.of(rows).merge(Moments.of(rows)).summary()
    assert found["std"] is None
    assert (found["min"], found["max"]) == (-1.7e308, 1.7e308)
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "uint64", "float16", ">f8"])
def test_moments_of_every_dtype_equal_numpy(dtype: str) -> None:
    rows = np.random.default_rng(0).integers(0, 2, (50, 2)).astype(dtype)
    found = Moments.of(rows).summary()
    np.testing.assert_allclose(found["mean"], rows.astype(np.float64).mean(axis=0), rtol=1e-15)
    np.testing.assert_allclose(found["std"], rows.astype(np.float64).std(axis=0), rtol=1e-14)


def test_moments_of_no_rows_are_unknown() -> None:
    found = Moments.of(np.zeros((0, 2))).summary()
    assert (found["count"], found["mean"], found["max"]) == ([0, 0], [None, None], [None, None])
