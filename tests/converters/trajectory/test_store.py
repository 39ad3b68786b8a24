"""Trajectories all the way into a sealed store, read back by zarr-python."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import unistore
from unistore.conversion.signatures import convert
from unistore.store.reader import Store

RANDOM = np.random.default_rng(17)


def test_episodes_of_one_file_are_assigned_by_name_and_masks_win(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for number in range(20):
            file[f"data/demo_{number}/actions"] = RANDOM.normal(size=(3, 2))
            file[f"data/demo_{number}/obs/state"] = RANDOM.normal(size=(3, 4))
    shares = {"split": "train=0.9,val=0.1", "split_by": "episode"}
    convert(tmp_path / "a.hdf5", tmp_path / "a.zarr", **shares)
    store = Store(tmp_path / "a.zarr")
    codes, names = store.splits()
    assert (names, np.bincount(codes).tolist()) == (["train", "val"], [17, 3])
    assert store.attributes["options"]["split_by"] == "episode"
    assert "--split train=0.9,val=0.1 --split-by episode" in str(unistore.inspect(store.path))
    assert unistore.verify(store.path, against=[tmp_path / "a.hdf5"]).receipt
    held_out = {name for name, code in zip(store.text("episodes/name"), codes, strict=True) if code}
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        file["mask/train"] = np.array(sorted(held_out), "S")
    report = convert(tmp_path / "a.hdf5", tmp_path / "masks.zarr", **shares)
    codes, names = Store(tmp_path / "masks.zarr").splits()
    assert (list(names), np.bincount(codes).tolist()) == (["train", "other"], [3, 17])
    assert any("are kept, and --split is ignored" in note for note in report.notes)


@pytest.mark.parametrize(("last", "cut"), [("terminals", False), ("timeouts", False), (None, True)])
def test_an_episode_that_a_flag_ends_is_not_cut(tmp_path: Path, last: str | None, *, cut: bool) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["observations"] = np.zeros((10, 2), np.float32)
        file["actions"] = np.zeros((10, 1), np.float32)
        file["rewards"] = np.zeros(10, np.float32)
        for flag in ("terminals", "timeouts"):
            marked = np.arange(10) == 4 if flag == "timeouts" else np.zeros(10, bool)
            marked[9] = flag == last
            file[flag] = marked
    convert([tmp_path / "a.hdf5"], tmp_path / "a.zarr", "trajectory")
    store = Store(tmp_path / "a.zarr")
    found = store.array("episodes/cut").read().tolist() if store.has("episodes/cut") else [False, False]
    assert found == [False, cut]
    assert store.array("steps/terminated").read().tolist() == [False] * 9 + [last == "terminals"]
