"""Source files in place of a store: found in the cache, converted once, appended to, or converted anew."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import unistore
from tests.support.programs import printed
from tests.support.store_files import full_disk
from unistore.zarr3.storage import FailedReadError

OPEN = "import sys, unistore; print(len(unistore.Dataset(sys.argv[1])))"


@pytest.fixture
def folder(tmp_path: Path, cache: Path) -> Path:
    folder = tmp_path / "recordings"
    folder.mkdir()
    write(folder / "a.npz", 1)
    write(folder / "b.npz", 2)
    return folder


def write(path: Path, value: int, rows: int = 3) -> None:
    np.savez(path, x=np.full((rows, 2), value, np.float32))


def values(dataset: unistore.Dataset) -> list[float]:
    """First values of all samples, sorted."""
    return sorted(float(dataset[number]["x"][0]) for number in range(len(dataset)))


def stores(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.suffix == ".zarr")


def test_files_are_converted_once_and_then_found(
    folder: Path, cache: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert values(unistore.Dataset(folder)) == [1, 1, 1, 2, 2, 2]
    assert f"converted: {cache}" in capfd.readouterr().err
    (name,) = stores(cache)
    monkeypatch.setattr("unistore.growing.source_cache.convert_with", None)  # a conversion would fail
    dataset = unistore.Dataset(str(folder) + "/")
    assert values(dataset) == [1, 1, 1, 2, 2, 2]
    assert dataset.path == str(cache / name)
    assert capfd.readouterr().err == f"unistore: {folder}/: found: {cache / name}\n"


def test_a_loader_takes_a_folder(folder: Path) -> None:
    with unistore.Loader(folder, batch_size=4, num_workers=0) as loader:
        read = torch.cat([batch["x"][:, 0] for batch in loader])
    assert sorted(read.tolist()) == [1, 1, 1, 2, 2, 2]


def test_a_dataset_opens_a_file_a_list_and_a_pattern(folder: Path) -> None:
    assert values(unistore.Dataset(folder / "a.npz")) == [1] * 3
    assert values(unistore.Dataset([folder / "a.npz", folder / "b.npz"])) == [1] * 3 + [2] * 3
    assert values(unistore.Dataset(str(folder / "[b]*.npz"))) == [2] * 3


def test_other_options_are_another_store(folder: Path, cache: Path) -> None:
    unistore.Dataset(folder)
    dataset = unistore.Dataset(folder, convert={"exclude": ["a.npz"]})
    assert values(dataset) == [2, 2, 2]
    assert len(stores(cache)) == 2
    assert values(unistore.Dataset(folder)) == [1, 1, 1, 2, 2, 2]


def test_how_a_conversion_runs_is_no_other_store(folder: Path, cache: Path) -> None:
    unistore.Dataset(folder)
    unistore.Dataset(folder, convert={"workers": 1, "memory": "2GB"})
    assert len(stores(cache)) == 1


def test_a_source_that_was_removed_from_its_store_is_not_added_each_time(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dataset = unistore.Dataset(folder)
    unistore.remove(dataset.path, unistore.Store(dataset.path).text("sources/path")[0])
    capfd.readouterr()
    assert unistore.Dataset(folder).version == 2
    assert capfd.readouterr().err == f"unistore: {folder}: found: {dataset.path}\n"


def test_files_that_came_are_a_version(folder: Path, cache: Path) -> None:
    before = unistore.Dataset(folder)
    write(folder / "c.npz", 3)
    after = unistore.Dataset(folder)
    assert (len(before), after.version) == (6, 2)
    assert values(after) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert unistore.Dataset(folder).version == 2
    assert len(stores(cache)) == 1


@pytest.mark.parametrize("grown", [False, True])
def test_a_changed_or_missing_file_is_another_store(folder: Path, cache: Path, *, grown: bool) -> None:
    unistore.Dataset(folder)
    if grown:
        write(folder / "c.npz", 3)
        assert len(unistore.Dataset(folder)) == 9
        (folder / "c.npz").unlink()
    write(folder / "b.npz", 5)
    assert values(unistore.Dataset(folder)) == [1, 1, 1, 5, 5, 5]
    assert len(stores(cache)) == 2
    (folder / "b.npz").unlink()
    assert values(unistore.Dataset(folder)) == [1, 1, 1]


def test_two_processes_at_once_convert_once(folder: Path, cache: Path) -> None:
    command = [sys.executable, "-c", OPEN, str(folder)]
    pipe = subprocess.PIPE
    running = [subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
    done = [process.communicate(timeout=120) for process in running]
    assert [output for output, _ in done] == ["6\n", "6\n"], done
    assert sum(": converted: " in errors for _, errors in done) == 1
    assert len(stores(cache)) == 1


@pytest.mark.timeout(300)
def test_two_ranks_convert_once_and_share_the_samples(folder: Path, cache: Path) -> None:
    program = """
import sys, unistore
if __name__ == "__main__":
    options = {"num_workers": 1, "multiprocessing_context": "spawn", "shuffle": True}
    with unistore.Loader(sys.argv[1], 1, **options) as loader:
        print(*sorted(int(batch["index"]) for batch in loader))
"""
    (cache.parent.parent / "rank.py").write_text(program)
    pipe = subprocess.PIPE
    running = []
    for rank in range(2):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        command = [sys.executable, str(cache.parent.parent / "rank.py"), str(folder)]
        running.append(subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True))
    done = [process.communicate(timeout=240) for process in running]
    read = [output.split() for output, _ in done]
    assert [len(indices) for indices in read] == [3, 3], done
    assert sorted(map(int, [*read[0], *read[1]])) == [0, 1, 2, 3, 4, 5]
    assert sum(": converted: " in errors for _, errors in done) == 1
    assert sum(": found: " in errors for _, errors in done) == 1


def test_a_killed_conversion_is_continued_by_the_next_dataset(folder: Path, cache: Path) -> None:
    for number in range(40):
        write(folder / f"s{number}.npz", 10 + number, 20_000)
    process = subprocess.Popen([sys.executable, "-c", OPEN, str(folder)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not any(cache.glob("*.unistore-build/journal*")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert stores(cache) == []
    assert len(unistore.Dataset(folder)) == 6 + 40 * 20_000
    assert len(stores(cache)) == 1
    assert not any(cache.glob("*.unistore-build"))


def test_workers_started_by_spawn_open_the_store(folder: Path) -> None:
    dataset = unistore.Dataset(folder)
    shutil.rmtree(folder)
    assert values(pickle.loads(pickle.dumps(dataset))) == [1, 1, 1, 2, 2, 2]
    loader = DataLoader(dataset, 3, num_workers=1, multiprocessing_context="spawn")
    assert sorted(torch.cat([batch["x"][:, 0] for batch in loader]).tolist()) == [1, 1, 1, 2, 2, 2]


def test_a_relative_path_is_the_same_store_from_another_folder(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    dataset = unistore.Dataset("recordings")
    monkeypatch.chdir(folder)
    assert values(dataset) == [1, 1, 1, 2, 2, 2]
    assert unistore.Dataset(".").path == dataset.path
    assert len(stores(cache)) == 1


@pytest.mark.parametrize("name", ["with space", "[ab]*?", "line\nfeed", "über", "-x"])
def test_a_folder_of_any_name_is_cached_inside_the_cache(tmp_path: Path, cache: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    write(tmp_path / name / "a.npz", 4)
    assert values(unistore.Dataset(tmp_path / name)) == [4] * 3
    assert [path.parent for path in cache.glob("*.zarr")] == [cache]


def test_sources_in_a_read_only_folder_are_converted_and_not_touched(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (folder, *folder.iterdir())}
    folder.chmod(0o555)
    try:
        assert len(unistore.Dataset(folder)) == 6
    finally:
        folder.chmod(0o755)
    assert {path: path.stat().st_mtime_ns for path in (folder, *folder.iterdir())} == before


def test_a_path_that_is_neither_store_nor_source_is_an_error(
    folder: Path, tmp_path: Path, cache: Path
) -> None:
    with pytest.raises(unistore.NoStoreError, match="no such store"):
        unistore.Dataset(tmp_path / "missing")
    with pytest.raises(unistore.InputError, match="no file or folder matches"):
        unistore.Dataset(tmp_path / "*.h5")
    (tmp_path / "empty").mkdir()
    with pytest.raises(unistore.InputError):
        unistore.Dataset(tmp_path / "empty")
    with pytest.raises(
        unistore.InputError, match=r"missing: is a store or does not exist.*Fix: give only stores"
    ):
        unistore.Dataset([folder, tmp_path / "missing"])
    assert not cache.exists() or stores(cache) == []


def test_unknown_or_forbidden_options_of_the_conversion_are_an_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(unistore.InputError, match="voxel_sise"):
        unistore.Dataset(folder, convert={"voxel_sise": 0.2})
    with pytest.raises(unistore.InputError, match="convert: overwrite cannot be used"):
        unistore.Dataset(folder, convert={"overwrite": True})
    unistore.convert(folder, tmp_path / "rows.zarr")
    with pytest.raises(unistore.InputError, match="the path is a store"):
        unistore.Dataset(tmp_path / "rows.zarr", convert={"codec": "fast"})


def test_a_damaged_file_is_refused_as_by_convert(folder: Path, tmp_path: Path, cache: Path) -> None:
    (folder / "b.npz").write_bytes((folder / "b.npz").read_bytes()[:100])
    with pytest.raises(unistore.InputError) as converting:
        unistore.convert(folder, tmp_path / "rows.zarr")
    with pytest.raises(unistore.InputError) as opening:
        unistore.Dataset(folder)
    assert str(opening.value) == str(converting.value)
    assert stores(cache) == []


@pytest.mark.parametrize("place", ["a file", "/proc/unistore"])
def test_a_cache_that_cannot_be_written_is_an_error_that_names_the_variable(
    folder: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = str(folder / "a.npz") if place == "a file" else place
    monkeypatch.setenv("UNISTORE_CACHE", cache)
    with pytest.raises(unistore.ConversionError) as refused:
        unistore.Dataset(folder)
    first, _, fix = str(refused.value).partition(". Fix: ")
    assert first.startswith(cache)
    assert fix.startswith("set UNISTORE_CACHE to a folder with space that you may write to, then start again")


def test_a_full_disk_names_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unistore.conversion.lock.os.write", full_disk)
    with pytest.raises(unistore.ConversionError, match="free space there, or set UNISTORE_CACHE"):
        unistore.Dataset(folder)


def test_a_user_without_a_home_folder_is_told_to_set_the_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("UNISTORE_CACHE")
    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(unistore.InputError, match=r"no home folder.*set UNISTORE_CACHE to a folder"):
        unistore.Dataset(folder)


def test_a_store_is_opened_without_the_converter(folder: Path, tmp_path: Path) -> None:
    unistore.convert(folder, tmp_path / "rows.zarr")
    program = f"{OPEN}; print([name for name in sys.modules if name.startswith('unistore.conversion')])"
    assert printed("-c", program, tmp_path / "rows.zarr", env=os.environ) == "6\n[]\n"


def test_a_pattern_of_stores_opens_them(folder: Path, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "stores").mkdir()
    for name in ("a", "b"):
        unistore.convert(folder / f"{name}.npz", tmp_path / f"stores/{name}.zarr")
    assert values(unistore.Dataset(tmp_path / "stores/*.zarr")) == [1] * 3 + [2] * 3
    assert not cache.exists()


def test_a_list_of_splits_with_other_content_is_another_store(folder: Path, cache: Path) -> None:
    split = folder.parent / "split.csv"
    split.write_text("a.npz,train\nb.npz,val\n")
    convert = {"split_from": str(split)}
    assert values(unistore.Dataset(folder, convert=convert, split="train")) == [1] * 3
    assert values(unistore.Dataset(folder, convert=convert, split="val")) == [2] * 3
    assert len(stores(cache)) == 1
    split.write_text("a.npz,val\nb.npz,train\n")
    assert values(unistore.Dataset(folder, convert=convert, split="train")) == [2] * 3
    assert len(stores(cache)) == 2


@pytest.mark.parametrize("grown", [False, True])
def test_a_label_map_with_other_content_is_another_store(tmp_path: Path, cache: Path, *, grown: bool) -> None:

    folder = tmp_path / "clouds"
    folder.mkdir()

    def cloud(name: str) -> None:
        with h5py.File(folder / name, "w") as file:
            for axis in "xyz":
                file[axis] = np.arange(4.0)
            file["classification"] = np.zeros(4, "u1")

    labels = tmp_path / "map.json"
    labels.write_text('{"0": 3}')
    convert = {"label_map": str(labels)}
    cloud("a.h5")
    unistore.Dataset(folder, convert=convert)
    if grown:
        cloud("b.h5")
        assert unistore.Dataset(folder, convert=convert).version == 2
    assert set(unistore.Dataset(folder, convert=convert)[0]["classification"].tolist()) == {3}
    labels.write_text('{"0": 9}')
    assert set(unistore.Dataset(folder, convert=convert)[0]["classification"].tolist()) == {9}


def test_files_that_cannot_be_added_are_converted_with_all(
    folder: Path, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    unistore.Dataset(folder)
    np.savez(folder / "c.npz", x=np.full((3, 2), 3, np.float64))  # wider than the others
    assert values(unistore.Dataset(folder)) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert "converting all sources, because some cannot be appended" in capfd.readouterr().err
    assert len(stores(cache)) == 2
    assert not list(cache.glob("*growing*"))
    assert values(unistore.Dataset(folder)) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert len(stores(cache)) == 2


@pytest.mark.parametrize("damage", ["missing", "empty"])
def test_a_damaged_store_stays_and_another_is_made(
    folder: Path, cache: Path, capfd: pytest.CaptureFixture[str], damage: str
) -> None:
    root = Path(str(unistore.Dataset(folder).path)) / "zarr.json"
    if damage == "missing":
        root.unlink()
    else:
        root.write_bytes(b"")
    assert values(unistore.Dataset(folder)) == [1, 1, 1, 2, 2, 2]
    assert "unistore cache remove" in capfd.readouterr().err
    assert len(stores(cache)) == 2


def test_a_root_that_cannot_be_read_is_no_reason_to_convert_again(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Path(str(unistore.Dataset(folder).path))

    def fails(*_: object, **__: object) -> None:
        raise FailedReadError(f"{store}/zarr.json: cannot be read (Input/output error)")

    monkeypatch.setattr("unistore.growing.source_cache.open_stores", fails)
    with pytest.raises(unistore.StoreError, match="Input/output error"):
        unistore.Dataset(folder)
    assert len(stores(cache)) == 1


def test_a_new_file_without_rows_is_not_skipped(folder: Path, tmp_path: Path, cache: Path) -> None:
    unistore.Dataset(folder)
    write(folder / "c.npz", 3, rows=0)
    with pytest.raises(unistore.InputError) as converting:
        unistore.convert([folder / "c.npz"], tmp_path / "c.zarr")
    report = unistore.convert(folder, tmp_path / "all.zarr")
    assert "no rows" in str(converting.value)
    after = unistore.Dataset(folder)
    assert len(after) == report.samples
    assert unistore.Store(after.path).text("sources/path") == unistore.Store(report.destination).text(
        "sources/path"
    )


def test_options_by_keyword_and_in_convert_open_the_same_store(folder: Path, cache: Path) -> None:
    by_keyword = unistore.Dataset(folder, exclude=["a.npz"], codec="fast")
    assert values(by_keyword) == [2, 2, 2]
    assert unistore.Dataset(folder, convert={"codec": "fast", "exclude": ["a.npz"]}).path == by_keyword.path
    assert unistore.Dataset(folder, codec="fast", convert={"exclude": ["a.npz"]}).path == by_keyword.path
    with unistore.Loader(folder, 4, num_workers=0, exclude=["a.npz"], convert={"codec": "fast"}) as loader:
        assert loader.dataset.path == by_keyword.path
    assert len(stores(cache)) == 1
    assert unistore.Dataset(folder, family="rows").samples == unistore.Rows()


def test_split_selects_samples_and_convert_split_divides_them(folder: Path) -> None:
    shares = {"split": "exact:train=0.5,val=0.5"}
    train = unistore.Dataset(folder, split="train", convert=shares)
    val = unistore.Dataset(folder, split="val", convert=shares)
    assert train.splits == ("train",)
    assert sorted([*values(train), *values(val)]) == [1, 1, 1, 2, 2, 2]
    with pytest.raises(unistore.InputError, match="no split 'train'"):
        unistore.Dataset(folder, split="train")
    with pytest.raises(TypeError, match=r"Loader\(\) has no argument 'split'.*Dataset\(path, split="):
        unistore.Loader(folder, split="train")


def test_unknown_keywords_convert_nothing(folder: Path, tmp_path: Path, cache: Path) -> None:
    unistore.convert(folder, tmp_path / "rows.zarr")
    dataset = unistore.Dataset(tmp_path / "rows.zarr")
    for path in (folder, tmp_path / "rows.zarr", tmp_path / "missing"):
        with pytest.raises(TypeError, match=r"Dataset\(\).* 'feilds'. Did you mean 'fields'"):
            unistore.Dataset(path, feilds=["x"])
        with pytest.raises(TypeError, match=r"'voxle_size'\. Did you mean 'voxel_size'"):
            unistore.Dataset(path, voxle_size=0.2)
        with pytest.raises(TypeError, match=r"Loader\(\).* 'bach_size'. Did you mean 'batch_size'"):
            unistore.Loader(path, bach_size=2)
    with pytest.raises(TypeError, match=r"Loader\(\).* 'shufle'. Did you mean 'shuffle'"):
        unistore.Loader(dataset, shufle=True)
    with pytest.raises(unistore.InputError, match="voxel_size: rows has no such option"):
        unistore.Dataset(folder / "a.npz", voxel_size=0.2, family="rows")
    assert not cache.exists() or stores(cache) == []


def test_options_of_a_conversion_need_source_files(folder: Path, tmp_path: Path) -> None:
    unistore.convert(folder, tmp_path / "rows.zarr")
    for path in (tmp_path / "rows.zarr", tmp_path / "missing"):
        with pytest.raises(unistore.InputError, match=r"voxel_size: is an option .* the path is a store"):
            unistore.Dataset(path, voxel_size=0.2)
        with pytest.raises(unistore.InputError, match=r"codec, exclude: is an option .* the path is a store"):
            unistore.Loader(path, convert={"codec": "fast"}, exclude=["a"])
    with pytest.raises(unistore.InputError, match=r"codec: is an option .*the dataset is not a path"):
        unistore.Loader(unistore.Dataset(tmp_path / "rows.zarr"), codec="fast")
    with pytest.raises(unistore.InputError, match=r"convert: .*not a path"):
        unistore.Loader([1, 2, 3], convert={})


def test_an_option_that_is_given_twice_is_an_error(folder: Path, cache: Path) -> None:
    with pytest.raises(unistore.InputError, match="codec: is given twice"):
        unistore.Dataset(folder, codec="fast", convert={"codec": "fast"})
    with pytest.raises(unistore.InputError, match="convert: must be a mapping"):
        unistore.Dataset(folder, convert=["codec"])  # type: ignore[arg-type]
    assert not cache.exists()
