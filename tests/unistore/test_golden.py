"""Stores of format version 1 that were made once: read, verified and exported as they are."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from tests.support.golden_stores import GROWN, SOURCES, STORES, write_grown_sources
from tests.support.store_files import attributes_of

LARGEST, TOGETHER = 110_000, 1_300_000


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def samples_of(store: Path) -> list[dict[str, Any]]:
    """Every sample, as its family's stores are read."""
    dataset = unistore.Dataset(store)
    return [dataset[index] for index in range(len(dataset))]


def assert_same_samples(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected) > 0
    for one, two in zip(found, expected, strict=True):
        assert one.keys() == two.keys()
        for key in one:
            first, second = np.asarray(one[key]), np.asarray(two[key])
            assert (first.dtype, first.shape) == (second.dtype, second.shape), key
            assert first.tobytes() == second.tobytes(), key


@pytest.mark.parametrize("name", SOURCES)
def test_a_golden_store_is_sound_and_is_what_its_sources_are(name: str, tmp_path: Path) -> None:
    """A conversion of the sources today may store them in another form; the samples are the same."""
    store = STORES / f"{name}.zarr"
    about = attributes_of(store)
    assert about["format_version"] == 1
    verified = unistore.verify(store)
    assert verified.problems == ()
    assert verified.files + 2 == len(files_of(store))
    (tmp_path / "sources").mkdir()
    case = SOURCES[name](tmp_path / "sources")
    samples = samples_of(store)
    assert_same_samples(samples, samples_of(case.convert(tmp_path / "now.zarr")))
    unistore.export(store, tmp_path / "export")
    assert_same_samples(samples, samples_of(case.convert(tmp_path / "again.zarr", [tmp_path / "export"])))


def test_a_golden_store_of_versions_is_read_and_grows(tmp_path: Path) -> None:
    values = write_grown_sources(tmp_path)
    store = tmp_path / "grown.zarr"
    shutil.copytree(STORES / f"{GROWN}.zarr", store)
    counts = [(one.number, one.tags, one.sources, one.removed) for one in unistore.versions(store)]
    assert counts == [(1, (), 2, 0), (2, ("paper",), 3, 0), (3, (), 2, 1)]
    for version, names in ((1, "ab"), ("paper", "abc"), (None, "ac")):
        assert unistore.verify(store, version=version).problems == ()
        dataset = unistore.Dataset(store, fields=["x"], version=version)
        samples = [dataset[index]["x"] for index in range(len(dataset))]
        assert np.array_equal(samples, np.concatenate([values[name] for name in names]))
    assert unistore.verify(store, against=[tmp_path / f"{name}.npz" for name in "abc"]).receipt is not None
    np.savez(tmp_path / "d.npz", x=values["a"] + 7, label=np.arange(4))
    assert unistore.append(tmp_path / "d.npz", store).version == 4


def test_golden_stores_are_small_and_of_every_family() -> None:
    sizes = {store: sum(path.stat().st_size for path in files_of(store)) for store in STORES.iterdir()}
    assert {store.stem for store in sizes} == {*SOURCES, GROWN}
    assert max(sizes.values()) < LARGEST
    assert sum(sizes.values()) < TOGETHER
    families = {unistore.inspect(store).to_json()["family"] for store in sizes}
    assert families == {"rows", "point_cloud", "ct", "spike", "trajectory", "events"}


@pytest.mark.parametrize("name", SOURCES)
def test_a_golden_store_is_compared_with_its_sources_and_repaired(name: str, tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    sources = SOURCES[name](tmp_path / "sources").sources
    store = tmp_path / "store.zarr"
    shutil.copytree(STORES / f"{name}.zarr", store)
    assert unistore.verify(store, against=sources).ok
    made_with = attributes_of(store)["created_with"]["numcodecs"]
    if metadata.version("numcodecs") != made_with:
        pytest.skip(f"files are made again to the same bytes by numcodecs {made_with}, which wrote them")
    shards = [path for path in store.glob("**/c/**/*") if path.is_file()]
    whole = {path: path.read_bytes() for path in shards}
    for path in shards:
        path.unlink()
    assert unistore.repair(store, sources).ok
    assert {path: path.read_bytes() for path in whole} == whole
