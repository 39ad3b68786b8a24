"""What inspect says of stores of several parts, against numpy over the sources of all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from unistore.report.grown import GrownReport
from unistore.report.values import histogram, rebinned


@pytest.fixture
def grown(tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    rng = np.random.default_rng(0)
    sources = []
    for number, count in enumerate((30, 50)):
        columns = {"x": rng.normal(number, 1, (count, 3)), "label": rng.integers(0, 3 + number, count)}
        folder = tmp_path / str(number)
        folder.mkdir()
        np.savez(folder / f"{number}.npz", **columns)
        sources.append(columns)
    store = tmp_path / "grown.zarr"
    unistore.convert(tmp_path / "0", store)
    unistore.append(tmp_path / "1", store)
    return store, sources


def report_of(store: Path, version: int | None = None) -> GrownReport:
    report = unistore.inspect(store, version=version).report
    assert isinstance(report, GrownReport)
    return report


def test_arrays_are_those_of_all_parts(grown: tuple[Path, list[dict[str, Any]]]) -> None:
    store, sources = grown
    arrays = {array.path: array for array in report_of(store).arrays}
    for name in ("x", "label"):
        values = np.concatenate([columns[name] for columns in sources])
        array = arrays[f"rows/{name}"]
        assert tuple(array.shape) == values.shape
        assert array.raw_bytes == values.nbytes
        assert array.stored_bytes == sum(
            file.stat().st_size for file in store.glob(f"parts/*/rows/{name}/c/**/*") if file.is_file()
        )
        assert array.values is not None
        assert (array.values.min, array.values.max) == (values.min(), values.max())
        assert array.values.mean == pytest.approx(values.mean())
        assert array.values.read == array.values.of == values.size
        if name == "label":
            expected = dict(zip(*np.unique(values, return_counts=True), strict=True))
            assert dict(array.values.labels or ()) == expected
        else:
            assert sum(array.values.histogram or ()) == values.size


@pytest.mark.parametrize("first", ["finite", "not"])
def test_a_part_without_finite_values_counts_among_those_that_are_not(tmp_path: Path, first: str) -> None:
    columns = [np.arange(6, dtype=np.float32), np.full(4, np.nan, np.float32)]
    for number, values in enumerate(columns if first == "finite" else columns[::-1]):
        folder = tmp_path / str(number)
        folder.mkdir()
        np.savez(folder / f"{number}.npz", x=values)
    store = tmp_path / "grown.zarr"
    unistore.convert(tmp_path / "0", store)
    unistore.append(tmp_path / "1", store)
    report = report_of(store)
    together = {array.path: array for array in report.arrays}["rows/x"].values
    assert together is not None
    assert (together.read, together.of, together.nan) == (10, 10, 4)
    assert (together.min, together.max, together.mean) == (0, 5, 2.5)
    assert report.remarks == ["rows/x: 40 % are not finite"]


def test_statistics_are_those_of_all_samples(grown: tuple[Path, list[dict[str, Any]]]) -> None:
    store, sources = grown
    assert report_of(store).samples_statistics == {}
    unistore.keep_statistics(store)
    values = np.concatenate([columns["x"] for columns in sources])
    shown = report_of(store).samples_statistics["x"]
    assert shown["axis"] == -1
    np.testing.assert_allclose(shown["mean"], values.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(shown["std"], values.std(axis=0), rtol=1e-12)
    assert shown["min"] == values.min(axis=0).tolist()
    unistore.remove(store, "1.npz")  # with its part
    assert report_of(store).samples_statistics["x"]["max"] == sources[0]["x"].max(axis=0).tolist()
    assert report_of(store, 2).samples_statistics["x"] == shown


@pytest.mark.parametrize("version", [None, 1])
def test_the_snippet_of_a_version_loads_its_batches(
    grown: tuple[Path, list[dict[str, Any]]], version: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    store, _ = grown
    snippet = report_of(store, version).snippet
    assert ("version=1" in snippet) == (version == 1)
    lines = re.sub(r"batch_size=\d+", "batch_size=100", snippet)
    exec(compile(lines, "snippet", "exec"), {"__name__": "__main__"})
    rows = 30 if version else 80
    assert f"x torch.Size([{rows}, 3])" in capsys.readouterr().out


def test_the_page_has_what_pages_of_single_stores_have(grown: tuple[Path, list[dict[str, Any]]]) -> None:
    store, _ = grown
    unistore.keep_statistics(store)
    titles = re.findall("<h2>(.*?)</h2>", unistore.inspect(store).to_html())
    assert {"samples", "arrays of all parts together", "statistics", "load it"} <= set(titles)
    text = str(unistore.inspect(store))
    assert "Loader(dataset" in text
    assert "rows/x" in text


def test_histograms_of_parts_are_counted_in_bins_of_all() -> None:
    values = [np.linspace(0, 10, 2_000), np.linspace(5, 40, 3_000)]
    parts = [(histogram(part), float(part.min()), float(part.max())) for part in values]
    together = rebinned(parts, (0.0, 40.0))
    expected = histogram(np.concatenate(values))
    assert sum(together) == 5_000
    shares = np.cumsum(together) / 5_000 - np.cumsum(expected) / 5_000
    assert np.abs(shares).max() < 0.05
    assert rebinned([([3], 1.0, 1.0), ([4], 1.0, 1.0)], (1.0, 1.0)) == [7]
