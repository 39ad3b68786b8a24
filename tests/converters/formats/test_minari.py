"""Minari datasets: values as Minari's own class returns them (`tools/oracles/minari_samples.py`)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import unistore
from unistore.converters.formats.minari import Minari
from unistore.converters.plugin import SourceFile
from unistore.errors import InputError
from unistore.testing import check_format

SAMPLES = Path(__file__).parents[2] / "data/minari"
EPISODES = range(3)
ROLES = {"actions": "action", "rewards": "reward", "terminations": "terminated", "truncations": "truncated"}


@pytest.fixture(params=["flat", "nested"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAMPLES / request.param, tmp_path / request.param))


def dump(name: str) -> dict[str, Any]:
    """What Minari returns."""
    with np.load(SAMPLES / f"{name}.npz") as arrays:
        return {path: arrays[path] for path in arrays.files}


def test_a_store_has_what_minari_returns(dataset: Path, tmp_path: Path) -> None:
    store = tmp_path / "store.zarr"
    unistore.convert(dataset, store, workers=0)
    steps = unistore.Dataset(store, unistore.Transitions())
    rows = [steps[step] for step in range(len(steps))]
    found = dump(dataset.name)
    for path, values in found.items():
        episode, _, name = path.partition("/")
        first = sum(len(found[f"episode_{other}/rewards"]) for other in range(int(episode[-1])))
        length = len(found[f"{episode}/rewards"])
        key = ROLES.get(name) or f"observation.{name.partition('/')[2].replace('/', '.') or 'state'}"
        for step in range(length):
            np.testing.assert_array_equal(as_stored(rows[first + step][key]), values[step], err_msg=path)
            if key not in ROLES.values():
                following = as_stored(rows[first + step][f"next.{key}"])
                np.testing.assert_array_equal(following, values[step + 1], err_msg=path)
    assert unistore.verify(store, against=dataset).receipt is not None
    assert_exported(store, dataset, tmp_path / "out")


def assert_exported(store: Path, dataset: Path, out: Path) -> None:
    """An export is the same dataset."""
    unistore.export(store, out)
    (exported,) = out.rglob("main_data.hdf5")
    before: dict[str, Any] = {}
    with h5py.File(dataset / "data/main_data.hdf5") as file:
        file.visititems(
            lambda name, node: before.update({name: node[()]}) if hasattr(node, "dtype") else None
        )
    with h5py.File(exported) as file:
        for name, values in before.items():
            np.testing.assert_array_equal(file[name][()], values, err_msg=name)
        assert file["episode_1"].attrs["total_steps"] == 7
    metadata = exported.with_name("metadata.json")
    assert json.loads(metadata.read_text()) == json.loads((dataset / "data/metadata.json").read_text())


def as_stored(value: Any) -> np.ndarray[Any, Any]:
    """Images with channels last."""
    array: np.ndarray[Any, Any] = np.asarray(value)
    return array.transpose(1, 2, 0) if array.ndim == 3 else array


def test_the_format_keeps_its_promises(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SAMPLES / "flat/data", tmp_path / "data"))
    expected = {}
    for path, values in dump("flat").items():
        if path.endswith("observations"):
            expected[path] = values[:-1]
            expected[path.replace("observations", "next_observations")] = values[1:]
        else:
            expected[path] = values
    for episode in EPISODES:
        length = len(expected[f"episode_{episode}/rewards"])
        infos = np.linspace(0, 1, length + 1)
        expected[f"episode_{episode}/observations/infos/progress"] = infos[:-1]
        expected[f"episode_{episode}/next_observations/infos/progress"] = infos[1:]
    check_format(Minari(), folder / "main_data.hdf5", expected)


def test_without_metadata_it_is_no_dataset_of_minari(dataset: Path) -> None:
    file = dataset / "data/main_data.hdf5"
    assert Minari().recognise(SourceFile(file, file.name)).certainty == "sure"
    (dataset / "data/metadata.json").unlink()
    assert Minari().recognise(SourceFile(file, file.name)).certainty == "no"


def test_damaged_metadata(dataset: Path, tmp_path: Path) -> None:
    (dataset / "data/metadata.json").write_text('{"observation_space": ')
    with pytest.raises(InputError, match=r"metadata.json.*is no JSON"):
        unistore.convert(dataset, tmp_path / "store.zarr", family="trajectory", workers=0)


@pytest.mark.parametrize("rows", [3, 6])
def test_another_number_of_observations(rows: int, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SAMPLES / "flat", tmp_path / "flat"))
    with h5py.File(folder / "data/main_data.hdf5", "a") as file:
        del file["episode_0/observations"]
        file["episode_0/observations"] = np.zeros((rows, 5))
    with pytest.raises(InputError, match=r"episode_0: datasets have different numbers of steps"):
        unistore.convert(folder, tmp_path / "store.zarr", family="trajectory", workers=0)
