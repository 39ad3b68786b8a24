"""``cache="disk"``: samples of a dataset in a file that outlives the loader and is shared."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from tests.support.needs_torch import needs_torch
from unistore.errors import InputError
from unistore.loader import cache as loader_cache

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
KINDS: dict[str, tuple[str, Any, Any]] = {
    "segments": ("point_cloud_scaled.zarr", None, None),
    "points": ("ct.zarr", unistore.SparsePoints(), ["coords", "values", "source"]),
    "volumes": ("ct.zarr", None, None),
    "episodes": ("trajectory_ragged.zarr", unistore.Episodes(), None),
}

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def make_dataset(tmp_path: Path) -> Callable[..., unistore.Dataset]:
    def make(case: str = "segments", **options: Any) -> unistore.Dataset:
        name, kind, fields = KINDS[case]
        path = tmp_path / name
        if not path.exists():
            shutil.copytree(GOLDEN / name, path)
        arguments = {"samples": kind, "fields": fields, "cache_dir": tmp_path / "cache", **options}
        return unistore.Dataset(path, **arguments)

    return make


def as_arrays(batch: dict[str, Any]) -> dict[str, Any]:
    return {key: np.asarray(values) for key, values in batch.items()}


def batches(dataset: unistore.Dataset, workers: int = 0, **options: Any) -> list[dict[str, Any]]:
    with unistore.Loader(dataset, 2, num_workers=workers, **options) as loader:
        read = []
        for batch in loader:
            read.append({key: np.array(values) for key, values in as_arrays(batch).items()})
        if options.get("cache") == "disk":
            assert loader.stats()["cache_misses"] == 0
    return read


def check_equal(read: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(read) == len(expected) > 0
    for batch, other in zip(read, expected, strict=True):
        assert batch.keys() == other.keys()
        for key, values in batch.items():
            np.testing.assert_array_equal(values, other[key])


def files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "cache").glob("samples-*") if path.suffix != ".lock")


@pytest.mark.parametrize("case", KINDS)
def test_a_second_start_reads_no_values_of_the_store(
    case: str, make_dataset: Callable[..., unistore.Dataset], tmp_path: Path
) -> None:
    expected = batches(make_dataset(case))
    check_equal(batches(make_dataset(case), cache="disk"), expected)
    (file,) = files(tmp_path)
    state = file.stat()
    path = Path(make_dataset(case).store.path)
    for table in ("points", "windows/lung/mask", "volumes/image", "steps/action"):
        shutil.rmtree(path / table / "c", ignore_errors=True)
        for column in path.glob(f"{table}/*/c"):
            shutil.rmtree(column)
    for copy in (tmp_path / "cache").glob("[0-9a-f]*"):
        copy.unlink()
    for workers in (0, 2):
        check_equal(batches(make_dataset(case), workers, cache="disk"), expected)
    assert (file.stat().st_ino, file.stat().st_size) == (state.st_ino, state.st_size)


def train(path: Path, cache: Path, log: Path) -> None:
    made = loader_cache._make

    def logged(*arguments: Any) -> None:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        made(*arguments)

    loader_cache._make = logged
    expected = batches(unistore.Dataset(path))
    check_equal(batches(unistore.Dataset(path, cache_dir=cache), cache="disk"), expected)


@needs_torch
def test_processes_share_one_file(make_dataset: Callable[..., unistore.Dataset], tmp_path: Path) -> None:
    path = Path(make_dataset().store.path)
    fork = multiprocessing.get_context("fork")
    log = tmp_path / "log"
    processes = [fork.Process(target=train, args=(path, tmp_path / "cache", log)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(log.read_text().splitlines()) == 1
    assert len(files(tmp_path)) == 1


def dies(dataset: unistore.Dataset) -> None:
    loader_cache.dump_sample = lambda *_: os._exit(9)  # type: ignore[assignment]
    batches(dataset, cache="disk")


@pytest.mark.parametrize("damage", ["byte", "short", "empty", "killed"])
def test_a_damaged_file_is_noticed_and_made_anew(
    damage: str, make_dataset: Callable[..., unistore.Dataset], tmp_path: Path
) -> None:
    expected = batches(make_dataset())
    if damage == "killed":
        process = multiprocessing.get_context("fork").Process(target=dies, args=(make_dataset(),))
        process.start()
        process.join()
        assert process.exitcode == 9
        assert [file.suffix for file in files(tmp_path)] == [".part"]
        check_equal(batches(make_dataset(), cache="disk"), expected)
    else:
        batches(make_dataset(), cache="disk")
        (file,) = files(tmp_path)
        content = bytearray(file.read_bytes())
        content[-200] ^= 1
        file.write_bytes({"byte": content, "short": content[:-5000], "empty": b""}[damage])
        with pytest.warns(UserWarning, match="is damaged and is written again"):
            check_equal(batches(make_dataset(), cache="disk"), expected)
    (file,) = files(tmp_path)
    check_equal(batches(make_dataset(), cache="disk"), expected)


def test_datasets_that_differ_have_their_own_cache_files(
    make_dataset: Callable[..., unistore.Dataset], tmp_path: Path
) -> None:
    batches(make_dataset(), cache="disk")
    batches(make_dataset(fields=["xyz"]), cache="disk")
    batches(make_dataset(samples=unistore.Segments(min_points=1, voxel=3)), cache="disk")
    points = len(make_dataset().store.array("points/xyz"))
    for value in (1, 2):
        unistore.attach(make_dataset().store.path, "extra", np.full(points, value), overwrite=True)
        read = batches(make_dataset(fields=["extra"]), cache="disk")
        assert (read[0]["extra"] == value).all()
    assert len(files(tmp_path)) == 5


def test_cache_files_beyond_the_limit_are_removed(
    make_dataset: Callable[..., unistore.Dataset], tmp_path: Path
) -> None:
    batches(make_dataset(), cache="disk")
    (old,) = files(tmp_path)
    batches(make_dataset(fields=["xyz"], cache_limit=old.stat().st_size), cache="disk")
    (new,) = files(tmp_path)
    assert new != old
    with pytest.raises(InputError, match=r"of 3 samples fit into cache_limit, .*larger cache_limit"):
        batches(make_dataset(cache_limit=5000), cache="disk")
    assert files(tmp_path) == [new]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no folder": ({"cache_dir": None}, "the Dataset has no cache_dir"),
    "random": ({"samples": unistore.Segments(max_points=5)}, "differ in each epoch"),
    "transform": ({"transform": dict}, "without a transform"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_dataset_that_a_disk_cache_cannot_serve_is_an_error(
    case: str, make_dataset: Callable[..., unistore.Dataset]
) -> None:
    changed, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        unistore.Loader(make_dataset(**changed), cache="disk")


def test_a_cache_folder_that_others_can_write_to_is_an_error(
    make_dataset: Callable[..., unistore.Dataset], tmp_path: Path
) -> None:
    dataset = make_dataset()
    (tmp_path / "cache").mkdir(exist_ok=True)
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(InputError, match="accessed by other users"):
        unistore.loader.cache.disk_cache_file(dataset, unistore.loader.fetch.BatchFetch(dataset))


def test_new_names_in_another_order_share_one_file(
    make_dataset: Callable[..., unistore.Dataset], tmp_path: Path
) -> None:
    names = {"xyz": "place", "origin": "corner"}
    first, second = make_dataset(fields=["xyz", "origin"], names=names), dict(reversed(names.items()))
    batches(first, cache="disk")
    batches(make_dataset(fields=["xyz", "origin"], names=second), cache="disk")
    assert len(files(tmp_path)) == 1
