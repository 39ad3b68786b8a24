"""What was opened by a relative path goes on after `os.chdir`, and in processes that run elsewhere."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

import unistore
from unistore.data.statistics import keep_statistics
from unistore.system.machine import absolute

ROWS = 40
VALUES = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)

UNPICKLED = """
import pickle, sys
for name in sys.argv[1:]:
    dataset = pickle.load(open(name, "rb"))
    print(name, *[int(dataset[index]["label"]) for index in (0, 7, len(dataset) - 1)], repr(dataset)[:20])
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores: two plain ones, one with an added column, and a grown one."""
    folder = tmp_path_factory.mktemp("home")
    for name in ("a", "b"):
        np.savez(folder / f"{name}.npz", data=VALUES, label=np.arange(ROWS) + 100 * (name == "b"))
        unistore.convert(folder / f"{name}.npz", folder / f"{name}.zarr", "rows")
    unistore.convert(folder / "a.npz", folder / "side.zarr", "rows")
    np.save(folder / "weight.npy", np.arange(ROWS) * 2.0)
    unistore.attach(folder / "side.zarr", "weight", folder / "weight.npy")
    unistore.convert(folder / "a.npz", folder / "grown.zarr", "rows")
    unistore.append(folder / "b.npz", folder / "grown.zarr")
    return folder


@pytest.fixture
def inside(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Begin in the folder of the stores; another one to go to, as Hydra does."""
    monkeypatch.chdir(home)
    yield tmp_path
    assert not [*tmp_path.glob("*.zarr*")]


def labels(dataset: unistore.Dataset) -> list[int]:
    return [int(dataset[index]["label"]) for index in range(len(dataset))]


OWN = list(range(ROWS))
BOTH = [*OWN, *range(100, 100 + ROWS)]


def test_datasets_read_on_after_chdir(inside: Path) -> None:
    plain = unistore.Dataset("a.zarr")
    dotted = unistore.Dataset("./a.zarr/")
    several = unistore.Dataset(["a.zarr", Path("b.zarr")])
    grown = unistore.Dataset("grown.zarr")
    side = unistore.Dataset("side.zarr", fields=["label", "weight"])
    copied = unistore.Dataset("b.zarr", cache_dir="kept")
    url = unistore.Dataset(f"file://{Path.cwd() / 'a.zarr'}")
    store = unistore.Store("a.zarr")
    group = unistore.open_zarr("a.zarr")
    os.chdir(inside)
    assert labels(plain) == labels(dotted) == labels(url) == OWN
    assert labels(several) == labels(grown) == BOTH
    assert labels(grown.at_version(1)) == OWN
    assert [float(side[index]["weight"]) for index in range(ROWS)] == [2.0 * index for index in range(ROWS)]
    assert labels(copied) == BOTH[ROWS:]
    np.testing.assert_array_equal(store.array("rows/data").read(), VALUES)
    np.testing.assert_array_equal(group["rows/data"][:], VALUES)
    assert repr(plain).startswith("Dataset('a.zarr', ")
    assert store.path == "a.zarr"


def test_what_is_kept_beside_a_store_is_found_after_chdir(inside: Path) -> None:
    keep_statistics("a.zarr")
    dataset = unistore.Dataset("a.zarr")
    report = unistore.inspect("a.zarr")
    grown = unistore.inspect("grown.zarr")
    os.chdir(inside)
    np.testing.assert_allclose(dataset.statistics("data").mean, VALUES.mean(axis=0), rtol=1e-5)
    assert "<html" in report.to_html()
    assert "<html" in grown.to_html()
    assert "a.zarr" in report._repr_html_()


def test_workers_read_after_chdir(inside: Path) -> None:
    """Those that are spawned run where the program began."""
    dataset = unistore.Dataset("a.zarr", cache_dir="kept")
    os.chdir(inside)
    with unistore.Loader(dataset, 8, num_workers=1, multiprocessing_context="spawn") as loader:
        assert np.concatenate([batch["label"] for batch in loader]).tolist() == OWN
    assert not (inside / "kept").exists()


def test_samples_are_kept_on_disk_where_cache_dir_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "point_cloud_scaled.zarr"
    shutil.copytree(Path(__file__).parents[2] / "data" / "golden" / name, tmp_path / "home" / name)
    whole = unistore.Dataset(tmp_path / "home" / name)
    expected = [whole[index]["xyz"].numpy() for index in range(len(whole))]
    monkeypatch.chdir(tmp_path / "home")
    dataset = unistore.Dataset(name, cache_dir="kept")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        with unistore.Loader(dataset, 1, num_workers=0, cache="disk") as loader:
            for batch, xyz in zip(loader, expected, strict=True):
                np.testing.assert_array_equal(batch["xyz"], xyz)
    assert (tmp_path / "home" / "kept").is_dir()
    assert not (tmp_path / "kept").exists()


def test_a_replay_buffer_draws_on_after_chdir(inside: Path) -> None:
    actions = np.random.default_rng(1).normal(size=(12, 2)).astype(np.float32)
    with h5py.File("demos.hdf5", "w") as file:
        for number in range(2):
            demo = file.create_group(f"data/demo_{number}")
            demo["actions"] = actions[6 * number : 6 * number + 6]
            demo["obs/state"] = np.arange(6.0)[:, None]
            demo["rewards"] = np.zeros(6)
            demo["dones"] = np.arange(6) == 5
    unistore.convert("demos.hdf5", "demos.zarr", "trajectory")
    buffers = [
        unistore.ReplayBuffer("demos.zarr", output="dict"),
        unistore.ReplayBuffer(unistore.Store("demos.zarr"), output="dict"),
    ]
    os.chdir(inside)
    for buffer in buffers:
        with buffer:
            assert {*buffer.sample(4)["action"][:, 0].tolist()} <= {*actions[:, 0].tolist()}
            np.testing.assert_allclose(buffer.action_mean, actions.mean(axis=0), rtol=1e-5)


def test_datasets_unpickled_elsewhere_read_the_same(inside: Path) -> None:
    opened = {
        "plain": unistore.Dataset("a.zarr"),
        "several": unistore.Dataset(["a.zarr", "b.zarr"]),
        "grown": unistore.Dataset("grown.zarr"),
        "side": unistore.Dataset("side.zarr", fields=["label", "weight"]),
    }
    assert labels(opened["grown"]) == BOTH  # its joined stores are pickled, too
    for name, dataset in opened.items():
        (inside / name).write_bytes(pickle.dumps(dataset))
    printed = subprocess.run(
        [sys.executable, "-c", UNPICKLED, *opened], cwd=inside, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert printed == [
        "plain 0 7 39 Dataset('a.zarr', un",
        "several 0 7 139 Dataset(['a.zarr', '",
        "grown 0 7 139 Dataset('grown.zarr'",
        "side 0 7 39 Dataset('side.zarr',",
    ]


def test_errors_show_the_path_as_it_was_given(inside: Path) -> None:
    store = unistore.Store("a.zarr")
    os.chdir(inside)
    with pytest.raises(unistore.StoreError, match=r"^a\.zarr: there is no array 'rows/other'"):
        store.array("rows/other")
    again = pickle.loads(pickle.dumps(store))
    with pytest.raises(unistore.StoreError, match=r"^a\.zarr: there is no array 'rows/other'"):
        again.array("rows/other")
    with pytest.raises(unistore.NoStoreError, match=r"^a\.zarr: there is no such store"):
        unistore.Store("a.zarr")


def test_a_path_in_a_folder_that_is_gone_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    assert absolute("x/../y") == f"{gone}/x/../y"
    gone.rmdir()
    assert absolute("x") == "x"
    assert absolute("/x") == "/x"
    with pytest.raises(unistore.NoStoreError, match="no such store"):
        unistore.Dataset("x")
