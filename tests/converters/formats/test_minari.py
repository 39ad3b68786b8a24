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
from unistore.converters.opened import SourceFile
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


@pytest.mark.filterwarnings("ignore")
def test_minari_reads_what_a_store_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari", reason="the extra [test] has Minari")
    from gymnasium import spaces
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    box = spaces.Box(-9, 9, (5,), np.float64, seed=1)
    pair_space = spaces.Tuple((box, spaces.Discrete(4, seed=2)))
    space = spaces.Dict({"state": box, "pair": pair_space, "mission": spaces.Text(9)})
    action = spaces.Box(-1, 1, (2,), np.float32, seed=3)
    buffers = []
    for number, length in enumerate((4, 7, 1)):
        rows = range(length + 1)
        pair = ([box.sample() for _ in rows], [space["pair"][1].sample() for _ in rows])
        is_last = np.arange(length) == length - 1
        buffer = EpisodeBuffer(
            id=number,
            seed=number,
            observations={
                "state": [box.sample() for _ in rows],
                "pair": pair,
                "mission": [f"door {number}{row}" for row in rows],
            },
            actions=[action.sample() for _ in range(length)],
            rewards=[float(step) for step in range(length)],
            terminations=list(is_last & (number != 1)),
            truncations=list(is_last & (number == 1)),
            infos={},
        )
        buffers.append(buffer)
    dataset = minari.create_dataset_from_buffers(
        "toy/own-v0", buffers, observation_space=space, action_space=action, data_format="hdf5"
    )
    folder = tmp_path / "datasets/toy/own-v0"
    unistore.convert(folder, tmp_path / "store.zarr", "trajectory", workers=0)
    steps = iter(unistore.Dataset(tmp_path / "store.zarr", unistore.Transitions()))
    for episode in dataset.iterate_episodes():
        observed = episode.observations
        columns = {
            "observation.state": observed["state"],
            "observation.pair._index_0": observed["pair"][0],
            "observation.pair._index_1": observed["pair"][1],
        }
        for number in range(len(episode.rewards)):
            step = next(steps)
            for key, values in columns.items():
                np.testing.assert_array_equal(step[key], values[number], err_msg=key)
                np.testing.assert_array_equal(step[f"next.{key}"], values[number + 1], err_msg=key)
            missions = [step["observation.mission"], step["next.observation.mission"]]
            assert missions == list(observed["mission"][number : number + 2])
            np.testing.assert_array_equal(step["action"], episode.actions[number])
            assert step["reward"] == episode.rewards[number]
            assert bool(step["terminated"]) == bool(episode.terminations[number])
            assert bool(step["truncated"]) == bool(episode.truncations[number])
    assert next(steps, None) is None
    unistore.export(tmp_path / "store.zarr", tmp_path / "out")
    (exported,) = (tmp_path / "out").rglob("main_data.hdf5")
    again = minari.MinariDataset(exported.parent)
    for one, other in zip(again.iterate_episodes(), dataset.iterate_episodes(), strict=True):
        np.testing.assert_array_equal(one.observations["state"], other.observations["state"])
        np.testing.assert_array_equal(one.actions, other.actions)
        assert list(one.observations["mission"]) == list(other.observations["mission"])


def test_without_metadata_it_is_no_dataset_of_minari(dataset: Path) -> None:
    file = dataset / "data/main_data.hdf5"
    assert Minari().recognise(SourceFile(file, file.name)).certainty == "sure"
    (dataset / "data/metadata.json").unlink()
    assert Minari().recognise(SourceFile(file, file.name)).certainty == "no"


def test_metadata_that_is_not_valid_json_is_an_error(dataset: Path, tmp_path: Path) -> None:
    (dataset / "data/metadata.json").write_text('{"observation_space": ')
    with pytest.raises(InputError, match=r"metadata.json.*is not valid JSON"):
        unistore.convert(dataset, tmp_path / "store.zarr", family="trajectory", workers=0)


@pytest.mark.parametrize("rows", [3, 6])
def test_a_wrong_number_of_observations_is_an_error(rows: int, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SAMPLES / "flat", tmp_path / "flat"))
    with h5py.File(folder / "data/main_data.hdf5", "a") as file:
        del file["episode_0/observations"]
        file["episode_0/observations"] = np.zeros((rows, 5))
    with pytest.raises(InputError, match=r"episode_0: datasets have different numbers of steps"):
        unistore.convert(folder, tmp_path / "store.zarr", family="trajectory", workers=0)
