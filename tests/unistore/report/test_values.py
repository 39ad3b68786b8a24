"""Ranges, labels and remarks against numpy over the same values; text that fits a terminal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import unistore
from unistore.report.text import Block, aligned, to_text
from unistore.report.values import sparkline
from unistore.store.reader import Store


def values_of(path: Path) -> dict[str, Any]:
    return {array["path"]: array["values"] for array in unistore.inspect(path).details["arrays"]}


def test_ranges_means_histograms_and_labels_equal_numpy(make_store: Any) -> None:
    rng = np.random.default_rng(0)
    data, label = rng.normal(size=(500, 3)), rng.integers(-2, 4, 500)
    data[7] = [np.nan, np.inf, -np.inf]
    path = make_store("rows", {"rows/data": data, "rows/label": label, "rows/flag": label > 1}, count=500)
    found, finite = values_of(path), data[np.isfinite(data)]
    assert found["rows/data"]["nan"] == 3
    assert (found["rows/data"]["min"], found["rows/data"]["max"]) == (finite.min(), finite.max())
    assert found["rows/data"]["mean"] == pytest.approx(finite.mean())
    edges = np.linspace(finite.min(), finite.max(), len(found["rows/data"]["histogram"]) + 1)
    assert found["rows/data"]["histogram"] == np.histogram(finite, edges)[0].tolist()
    assert dict(map(tuple, found["rows/label"]["labels"])) == {
        n: int((label == n).sum()) for n in range(-2, 4)
    }
    assert found["rows/flag"]["labels"][0] == [0, int((label <= 1).sum())]
    assert "rows/data: 0.2 % are not finite" in unistore.inspect(path).details["remarks"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.full(20, np.nan), (None, None, None)),
        (np.array([2**63 - 1, -(2**63)] * 10), (-(2**63), 0.0, 2**63 - 1)),
        (np.array([1e308] * 20), (1e308, None, 1e308)),
        (
            np.array([1.5e-45] * 20, np.float32),
            (1.401298464324817e-45, 1.401298464324817e-45, 1.401298464324817e-45),
        ),
    ],
    ids=["nan", "int64", "overflow", "denormal"],
)
def test_statistics_of_extreme_values_are_exact_or_unknown(
    make_store: Any, values: Any, expected: Any
) -> None:
    path = make_store("rows", {"rows/x": values}, count=len(values))
    found = values_of(path)["rows/x"]
    assert (found["min"], found["mean"], found["max"]) == expected
    assert "rows/x" in str(unistore.inspect(path))


def test_small_segments_are_remarked_with_a_fix(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for axis in "xyz":
            file[f"data/{axis}"] = np.linspace(0, 10, 100)
        for segment, rows in enumerate((range(3), range(3, 10), range(10, 50), range(50, 100))):
            file[f"segments/segment_{segment:04d}/indices"] = np.array(rows)
    unistore.convert(tmp_path / "a.h5", tmp_path / "a.zarr", "point_cloud")
    found = unistore.inspect(tmp_path / "a.zarr").details
    assert any(
        remark.startswith("half of the segments have fewer than 16 points (--min-points")
        for remark in found["remarks"]
    )
    (measured,) = found["measures"]
    assert [measured[name] for name in ("min", "median", "max")] == [3, 40, 50]
    assert (measured["smallest"], measured["largest"], measured["samples"]) == (0, 3, 4)


def test_points_of_no_segment_are_not_measured(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for axis in "xyz":
            file[f"data/{axis}"] = np.linspace(0, 10, 100)
        file["segments/segment_0000/indices"] = np.arange(20)
    unistore.convert(tmp_path / "a.h5", tmp_path / "a.zarr", "point_cloud")
    assert len(Store(tmp_path / "a.zarr").array("segments/number")) == 2
    (measured,) = unistore.inspect(tmp_path / "a.zarr").details["measures"]
    assert (measured["samples"], measured["max"]) == (1, 20)


def test_large_arrays_are_listed_first_and_internal_ones_only_with_all(make_store: Any) -> None:
    path = make_store(
        "rows",
        {
            "rows/a": np.arange(9),
            "rows/z": np.ones((9, 50)),
            "sources/path": ["x.h5"],
            "sources/bytes": np.array([1]),
        },
        count=9,
    )
    text = str(unistore.inspect(path))
    assert text.index("rows/z") < text.index("rows/a")
    assert "sources/bytes" not in text
    assert "+ storage of all 5 arrays: --all" in text


def test_a_sparkline_draws_counts_and_nothing_of_few_bins() -> None:
    assert sparkline([0, 1, 8, 99]) == " ▁▁█"
    assert sparkline([1, 2]) == ""
    assert sparkline([]) == ""


BLOCKS = [
    Block(facts=[("path", "a.zarr"), ("options", ""), ("seal", "word " * 30)]),
    Block(
        "arrays",
        columns=("array", "shape", "codec", "why"),
        rows=[("rows/名前", "3 × 4", "blosc lz4 5 shuffle, crc32c", "reason " * 12)],
        optional_columns=("codec",),
        lines=["- " + "sentence " * 20],
    ),
    Block("go on", code="unistore convert rows a b"),
]


@pytest.mark.parametrize("width", [40, 80])
def test_a_terminal_shows_every_word_within_its_width(width: int) -> None:
    text = to_text(BLOCKS, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert [text.count(word) for word in ("word", "reason", "sentence", "rows/名前")] == [30, 12, 20, 1]
    assert re.search(r"hidden, as the terminal is narrow:\s+codec", text)
    assert "blosc" not in text
    assert "options" not in text


def test_colours_do_not_change_the_text() -> None:
    painted = to_text(BLOCKS, width=80, color=True)
    assert "\x1b[1;36marrays\x1b[0m" in painted
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == to_text(BLOCKS, width=80)


def test_letters_as_wide_as_two_are_aligned() -> None:
    assert aligned([("名前", "1"), ("name", "2")]) == ["名前  1", "name  2"]


def test_text_contains_neither_control_characters_nor_secrets() -> None:
    text = to_text([Block(facts=[("url", "s3://key:secret@bucket/a\x1b[2J")], lines=["a\u2028b"])])
    assert "secret" not in text
    assert "\x1b" not in text
    assert "\u2028" not in text
