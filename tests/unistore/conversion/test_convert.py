"""``unistore.convert`` from Python: what it takes, and what it refuses before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from unistore.conversion.convert import make_converter


@pytest.fixture
def array(tmp_path: Path) -> Path:
    np.save(tmp_path / "a.npy", np.arange(20).reshape(10, 2))
    return tmp_path / "a.npy"


def test_options_that_cannot_be_leave_nothing_behind(array: Path) -> None:
    with pytest.raises(unistore.InputError) as refused:
        unistore.convert(array, array.with_name("out.zarr"), "rows", codec="lz", workers=-1)
    assert [problem.location for problem in refused.value.problems] == ["--codec", "--workers"]
    assert list(array.parent.iterdir()) == [array]


@pytest.mark.parametrize("sources", [[], "", ["a", ""]])
@pytest.mark.parametrize("family", [None, "rows"])
def test_no_source(sources: Any, family: str | None, tmp_path: Path) -> None:
    with pytest.raises(unistore.InputError, match="no source was named"):
        unistore.convert(sources, tmp_path / "out.zarr", family)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("family", "option", "value"),
    [("point_cloud", "voxel_size", 20.0), ("ct", "window", "lung"), ("spike", "voxel_bins", 5)],
)
def test_one_value_will_do_where_several_may_be_given(family: str, option: str, value: Any) -> None:
    assert make_converter(family, {option: value}) == make_converter(family, {option: [value]})


def test_options_that_a_family_has_not(tmp_path: Path) -> None:
    with pytest.raises(
        unistore.InputError, match="'bogus'; it has: map, columns, reverse_axes, exclude; every"
    ):
        make_converter("rows", {"bogus": 1})
    np.save(tmp_path / "a.npy", np.zeros(4))
    with pytest.raises(unistore.InputError, match=r"'codecs': did you mean codec\?; it has: ") as error:
        unistore.convert(tmp_path / "a.npy", tmp_path / "a.zarr", codecs="none")
    keywords = {"codec", "split", "overwrite", "restart", "work", "workers", "memory", "on_error"}
    assert keywords < set(str(error.value).partition("every conversion has: ")[2].split(", "))
