"""A Dataset of source files of which some are damaged: ``on_error="skip"``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401 - registers its filters
import numpy as np
import pytest

import unistore

CAPTURE = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, cache: Path) -> Path:
    """Two sound files, and one that is cut off."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    write(folder / "a.npz", 1)
    write(folder / "b.npz", 2)
    cut(folder / "c.npz", 3)
    return folder


def write(path: Path, value: int) -> None:
    np.savez(path, x=np.full((2, 2), value, np.float32))


def cut(path: Path, value: int) -> None:
    write(path, value)
    os.truncate(path, 100)


def values(dataset: unistore.Dataset) -> list[float]:
    return sorted(float(dataset[number]["x"][0]) for number in range(len(dataset)))


def stores(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.suffix == ".zarr")


def test_damaged_files_are_left_out_and_named_each_time(folder: Path, cache: Path, capfd: CAPTURE) -> None:
    with pytest.raises(unistore.InputError, match=r"c\.npz"):
        unistore.Dataset(folder)
    capfd.readouterr()
    assert values(unistore.Dataset(folder, on_error="skip")) == [1, 1, 2, 2]
    (name,) = stores(cache)
    expected = f"without c.npz, skipped because of errors: {cache / name}"
    assert f"converted {expected}" in capfd.readouterr().err
    assert values(unistore.Dataset(folder, convert={"on_error": "skip"})) == [1, 1, 2, 2]
    assert capfd.readouterr().err == f"unistore: {folder}: found {expected}\n"
    with pytest.raises(unistore.InputError, match=r"c\.npz"):  # another identity
        unistore.Dataset(folder)
    assert stores(cache) == [name]


@pytest.mark.usefixtures("in_this_process")
def test_a_file_whose_library_is_installed_later_is_converted(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "c.npz").unlink()
    with h5py.File(folder / "d.h5", "w") as file:
        filters = {"compression": 32008, "compression_opts": (0, 2)}  # bitshuffle and LZ4, of hdf5plugin
        file.create_dataset("x", data=np.full((2, 2), 4, np.float32), chunks=(2, 2), **filters)
    with monkeypatch.context() as without:
        without.setattr("unistore.converters.files.hdf5.filters.h5py.h5z.filter_avail", lambda _: False)
        without.setitem(sys.modules, "hdf5plugin", None)
        assert values(unistore.Dataset(folder, on_error="skip")) == [1, 1, 2, 2]
        assert values(unistore.Dataset(folder, on_error="skip")) == [1, 1, 2, 2]
    assert values(unistore.Dataset(folder, on_error="skip")) == [1, 1, 2, 2, 4, 4]
    assert len(stores(cache)) == 2


def test_a_damaged_file_that_was_mended_is_converted(folder: Path, cache: Path, capfd: CAPTURE) -> None:
    before = unistore.Dataset(folder, on_error="skip")
    write(folder / "c.npz", 3)
    after = unistore.Dataset(folder, on_error="skip")
    assert (values(after), after.version) == ([1, 1, 2, 2, 3, 3], 2)
    assert values(before) == [1, 1, 2, 2]
    capfd.readouterr()
    assert unistore.Dataset(folder, on_error="skip").version == 2
    (name,) = stores(cache)  # the other files are not converted again
    assert capfd.readouterr().err == f"unistore: {folder}: found: {cache / name}\n"
    write(folder / "c.npz", 4)
    assert values(unistore.Dataset(folder, on_error="skip")) == [1, 1, 2, 2, 4, 4]


def test_a_damaged_file_that_changed_but_is_still_damaged_is_skipped(folder: Path, cache: Path) -> None:
    unistore.Dataset(folder, on_error="skip")
    cut(folder / "c.npz", 4)
    again = unistore.Dataset(folder, on_error="skip")
    assert values(again) == [1, 1, 2, 2]
    assert unistore.Dataset(folder, on_error="skip").path == again.path
    assert len(stores(cache)) == 1


def test_new_files_are_added_and_damaged_ones_left_out(folder: Path, cache: Path, capfd: CAPTURE) -> None:
    unistore.Dataset(folder, on_error="skip")
    write(folder / "d.npz", 4)
    cut(folder / "e.npz", 5)
    after = unistore.Dataset(folder, on_error="skip")
    assert (values(after), after.version) == ([1, 1, 2, 2, 4, 4], 2)
    capfd.readouterr()
    assert unistore.Dataset(folder, on_error="skip").version == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"unistore: {folder}: found without c.npz, e.npz, skipped because of errors: ")
    write(folder / "c.npz", 3)
    assert values(unistore.Dataset(folder, on_error="skip")) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert len(stores(cache)) == 1


def test_a_new_damaged_file_makes_no_version_until_it_is_mended(folder: Path, cache: Path) -> None:
    (folder / "c.npz").unlink()
    unistore.Dataset(folder, on_error="skip")
    cut(folder / "c.npz", 3)
    for _ in range(2):
        assert values(unistore.Dataset(folder, on_error="skip")) == [1, 1, 2, 2]
    write(folder / "c.npz", 3)
    after = unistore.Dataset(folder, on_error="skip")
    assert (values(after), after.version) == ([1, 1, 2, 2, 3, 3], 2)
    assert len(stores(cache)) == 1


def test_a_damaged_file_that_is_removed_changes_nothing(folder: Path, cache: Path) -> None:
    before = unistore.Dataset(folder, on_error="skip")
    (folder / "c.npz").unlink()
    assert unistore.Dataset(folder, on_error="skip").path == before.path
    assert len(stores(cache)) == 1


def test_on_error_fail_is_the_default_and_opens_the_same_store(folder: Path, cache: Path) -> None:
    (folder / "c.npz").unlink()
    before = unistore.Dataset(folder)
    assert unistore.Dataset(folder, on_error="fail").path == before.path
    with pytest.raises(unistore.InputError, match="--on-error"):
        unistore.Dataset(folder, on_error="ignore")


def test_episodes_that_are_skipped_are_no_changed_file(tmp_path: Path, cache: Path) -> None:
    with h5py.File(tmp_path / "demos.hdf5", "w") as file:
        file.create_group("data").attrs["env_args"] = "{}"
        for number, rows in enumerate((4, 4, 4)):
            file[f"data/demo_{number}/actions"] = np.full((rows, 2), number, np.float32)
            file[f"data/demo_{number}/obs/state"] = np.zeros((rows - (number == 1) * 2, 3), np.float32)
    with pytest.raises(unistore.InputError, match="demo_1"):
        unistore.Dataset(tmp_path / "demos.hdf5")
    before = unistore.Dataset(tmp_path / "demos.hdf5", on_error="skip")
    assert len(before) == 8
    assert unistore.Dataset(tmp_path / "demos.hdf5", on_error="skip").path == before.path
    assert len(stores(cache)) == 1
    with h5py.File(tmp_path / "demos.hdf5", "a") as file:
        del file["data/demo_1/obs/state"]
        file["data/demo_1/obs/state"] = np.zeros((4, 3), np.float32)
    assert len(unistore.Dataset(tmp_path / "demos.hdf5", on_error="skip")) == 12


def test_append_adds_a_skipped_file_once_it_is_mended(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "s.zarr"
    unistore.convert(folder, store, "rows", on_error="skip")
    assert unistore.append(folder, store).version == 1  # the damaged file has not changed
    write(folder / "c.npz", 3)
    assert unistore.append([folder / "c.npz"], store).version == 2
    assert values(unistore.Dataset(store)) == [1, 1, 2, 2, 3, 3]
    assert unistore.append(folder, store).version == 2
    cut(folder / "c.npz", 3)  # the store has it: its file may be gone or damaged
    with pytest.raises(unistore.InputError, match=r"c\.npz"):
        unistore.append(folder, store)
    assert values(unistore.Dataset(store)) == [1, 1, 2, 2, 3, 3]


def test_append_does_not_add_what_the_user_excluded(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "s.zarr"
    unistore.convert(folder, store, "rows", exclude=["b.npz"], on_error="skip")
    write(folder / "b.npz", 7)
    write(folder / "c.npz", 3)
    assert unistore.append(folder, store).version == 2
    assert values(unistore.Dataset(store)) == [1, 1, 3, 3]


def test_a_file_whose_skipped_episode_was_mended_replaces_the_old_one(tmp_path: Path) -> None:
    path, store = tmp_path / "run.hdf5", tmp_path / "s.zarr"

    def record(states: int) -> None:
        with h5py.File(path, "w") as file:
            for number, rows in enumerate((4, states)):
                file[f"data/demo_{number}/actions"] = np.full((4, 2), number)
                file[f"data/demo_{number}/obs/state"] = np.zeros((rows, 3))

    record(states=2)
    report = unistore.convert(path, store, "trajectory", on_error="skip")
    assert [entry["left_out"] for entry in report.skipped] == ["run.hdf5: data/demo_1"]
    record(states=4)
    with pytest.raises(unistore.InputError) as caught:
        unistore.append(path, store)
    assert [problem.kind for problem in caught.value.problems] == ["changed"]
    unistore.append(path, store, replace=True)
    dataset = unistore.Dataset(store, unistore.Episodes())
    assert sorted(float(dataset[number]["action"][0, 0]) for number in range(len(dataset))) == [0, 1]
