"""Columns of several sources: promotion loses nothing, differences are one table."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unistore
from tests.support.family_converters import ct as ct_converter
from tests.support.family_converters import rows as rows_converter
from unistore.converters.common.columns import SourceColumn, is_lossless, promote, reconcile, storable
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError

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


def test_is_lossless_agrees_with_the_conversion_of_python_numbers() -> None:
    for source, target in product(DTYPES, DTYPES):
        with np.errstate(all="ignore"):
            there = extremes(source).astype(target)
        same = extremes(source).tolist() == there.tolist() and (source == "?" or target != "?")
        assert is_lossless(np.dtype(source), np.dtype(target)) == same, (source, target)


@given(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=4))
def test_the_promoted_dtype_represents_every_value_of_all_dtypes(dtypes: list[str]) -> None:
    target = promote([np.dtype(dtype) for dtype in dtypes])
    if target is None:
        assert {"u8", "i8"} & set(dtypes)
        return
    for dtype in dtypes:
        assert extremes(dtype).astype(target).tolist() == extremes(dtype).tolist()
    assert len(set(dtypes)) > 1 or target == np.dtype(dtypes[0])


def test_numbers_and_booleans_are_storable_and_other_dtypes_are_not() -> None:
    assert all(storable(np.dtype(dtype)) for dtype in [*DTYPES, ">f4"])
    assert not any(storable(np.dtype(dtype)) for dtype in ["S4", "U2", "O", "M8[s]", "c8", "V3", "f4,i4"])


def test_the_table_of_differing_columns_groups_equal_sources() -> None:
    found = [(f"{n}.h5", {"x": SourceColumn("<f4", (3,)), "y": SourceColumn("<i4")}) for n in range(3)]
    found += [("odd.h5", {"x": SourceColumn("<f4", (2,))})]
    merged, (problem,) = reconcile(found, "exact")
    assert "    x: float32 (3,) in 0.h5 (+2), float32 (2,) in odd.h5\n" in problem.message
    assert "    y: int32 in 0.h5 (+2), missing in odd.h5\n" in problem.message
    assert "--one-store-per-shape" in problem.advice
    assert list(merged) == ["y"]


def test_reconcile_unites_or_intersects_columns_and_offers_intersection_if_it_helps() -> None:
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
    texts_only = reconcile(with_others, "union", is_enough=lambda name: name != "z")
    assert "--columns" not in texts_only[1][0].advice
    assert reconcile([], "exact") == ({}, [])


def test_a_note_says_which_files_were_promoted_and_to_what(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    whole = np.arange(4, dtype="i4") + 2**30 + 1  # no float32 holds these
    for name, values in (("a", whole), ("b", np.arange(4, dtype="f4") / 8), ("c", np.ones(4, "f4"))):
        order = np.arange(4.0).astype(">f8" if name == "a" else "<f8")
        np.savez(folder / f"{name}.npz", value=values, order=order)
    scan = scan_sources(rows_converter(), [folder])
    notes = [note for note in scan.notes if "is stored as" in note]
    assert notes == [
        "value is stored as float64, which represents every value of int32 in a.npz, float32 in b.npz (+1)"
    ], "byte order is no other dtype"
    unistore.convert(folder, tmp_path / "store", "rows", workers=0)
    stored = np.array([row["value"] for row in unistore.Dataset(tmp_path / "store")])
    assert stored.dtype == np.float64
    np.testing.assert_array_equal(stored, [*whole, *np.arange(4) / 8, *np.ones(4)])


def test_dtypes_without_a_common_lossless_dtype_are_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    np.savez(folder / "a.npz", value=np.array([2**53 + 1]))
    np.savez(folder / "b.npz", value=np.array([0.5]))
    with pytest.raises(InputError, match=r"value: int64 in a\.npz, float64 in b\.npz"):
        unistore.convert(folder, tmp_path / "store", "rows", workers=0)


def test_a_note_names_the_common_dtype_of_volumes_of_several_dtypes(tmp_path: Path) -> None:
    hu = np.random.default_rng(0).integers(-1000, 2000, (16, 16, 16))
    for name, dtype in (("ct_1", "i2"), ("ct_2", "f4")):
        np.save(tmp_path / f"{name}.npy", hu.astype(dtype))
    notes = scan_sources(ct_converter(), [tmp_path]).notes
    assert (
        "image is stored as float32, which represents every value of int16 in ct_1.npy, float32 in ct_2.npy"
        in notes
    )
