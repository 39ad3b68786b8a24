"""Datasets of the samples that fulfil conditions, against episodes kept in plain arrays."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from tests.support.programs import call
from unistore.errors import InputError, RunCommand

LENGTHS = (4, 2, 6, 3)
RETURNS = (3.0, 9.0, -1.0, 9.0)


@pytest.fixture
def robots(make_store: Any) -> Path:
    offsets = np.cumsum([0, *LENGTHS])
    total = int(offsets[-1])
    last = np.zeros(total, np.bool_)
    last[offsets[1:] - 1] = True
    path: Path = make_store(
        "trajectory",
        {
            "steps/action": np.random.default_rng(2).random((total, 2)),
            "steps/reward": np.repeat(np.array(RETURNS) / LENGTHS, LENGTHS),
            "steps/terminated": last,
            "steps/truncated": np.zeros(total, np.bool_),
            "steps/next_valid": ~last,
            "episodes/offsets": offsets,
            "episodes/source": np.array([0, 1, 1, 2], np.int32),
            "episodes/name": ["demo_0", "demo_1", "demo_2", "other"],
            "episodes/attributes": [
                json.dumps({"success": number != 1, "task": f"task {number % 2}", "seed": number})
                for number in range(4)
            ],
            "sources/path": ["lab_a/x.hdf5", "lab_a/y.hdf5", "lab_b/x.hdf5"],
            "sources/episodes/offsets": np.array([0, 1, 3, 4]),
            "sources/steps/offsets": offsets[[0, 1, 3, 4]],
            "sources/rate": np.array([10.0, 20.0, 30.0]),
        },
        count=len(LENGTHS),
        table="episodes",
        splits={"train": [0, 1, 2], "val": [3]},
        main_table="steps",
    )
    return path


@pytest.mark.parametrize(
    ("where", "best", "episodes"),
    [
        ({"episode.length": (3, None)}, None, [0, 2, 3]),
        ({"episode.length": (3, 4)}, None, [0, 3]),
        ({"episode.length": (None, 2)}, None, [1]),
        ({"episode.length": [2, 6]}, None, [1, 2]),
        ({"episode.success": True}, None, [0, 2, 3]),
        ({"episode.success": True, "source": "lab_a/*"}, None, [0, 2]),
        ({"episode.task": "task 1"}, None, [1, 3]),
        ({"episode.name": ["demo_0", "other"]}, None, [0, 3]),
        ({"episode.seed": 2}, None, [2]),
        ({"sources.rate": (20, None)}, None, [1, 2, 3]),
        (None, ("episode.return", 0.5), [1, 3]),
        (None, ("episode.return", 0.1), [1]),
        ({"episode.length": (3, None)}, ("episode.return", 0.4), [0, 3]),
    ],
)
def test_conditions_select_the_samples_that_fulfil_them(
    robots: Path, where: Any, best: Any, episodes: list[int]
) -> None:
    dataset = unistore.Dataset(
        robots, unistore.Episodes(), fields=["episode", "action"], where=where, top_fraction=best
    )
    assert [int(dataset[number]["episode"]) for number in range(len(dataset))] == episodes
    steps = unistore.Dataset(robots, fields=["episode"], where=where, top_fraction=best)
    expected = np.repeat(episodes, np.array(LENGTHS)[episodes])
    assert [int(steps[number]["episode"]) for number in range(len(steps))] == expected.tolist()


def test_top_fraction_selects_exactly_a_whole_number_of_samples(make_store: Any) -> None:
    values = np.arange(100, dtype=np.int64)
    path = make_store("rows", {"rows/data": values}, count=100, table="rows")
    for share, count in ((0.07, 7), (0.55, 55), (0.071, 8)):
        assert len(unistore.Dataset(path, top_fraction=("row.data", share))) == count


def test_conditions_combine_with_splits_and_change_the_digest(robots: Path) -> None:
    where = {"episode.length": (3, None)}
    dataset = unistore.Dataset(robots, unistore.Episodes(), split="train", where=where)
    assert len(dataset) == 2
    assert len(pickle.loads(pickle.dumps(dataset))) == 2
    plain = unistore.Dataset(robots, unistore.Episodes(), split="train")
    others = unistore.Dataset(
        robots, unistore.Episodes(), split="train", top_fraction=("episode.return", 0.5)
    )
    assert len({dataset.digest, plain.digest, others.digest}) == 3
    assert len(list(unistore.Loader(dataset, batch_size=1, num_workers=0))) == 2


@pytest.mark.parametrize(
    ("where", "best", "said"),
    [
        ({"episode.lenght": 5}, None, r"no 'episode\.lenght' .*use one of source, .*episode\.length"),
        (None, ("return", 0.1), r"no 'return' .*use one of .*episode\.return"),
        ({"episode.length": "5*"}, None, r"'episode\.length' contains numbers.*\(50, None\)"),
        ({"episode.name": (5, None)}, None, r"'episode\.name' contains texts.*pattern"),
        (None, ("episode.name", 0.5), r"'episode\.name' contains texts"),
        ({"episode.length": (1, 2, 3)}, None, r"where\['episode\.length'\].*a range such as \(50, None\)"),
        ({"episode.length": {"above": 3}}, None, r"where\['episode\.length'\]"),
        ("episode.length > 3", None, "where: must be conditions by name"),
        (None, ("episode.return", 1.5), "top_fraction: must be a name and a share"),
        (None, 0.1, "top_fraction: must be a name and a share"),
        ({"episode.length": (100, None)}, None, r"no sample .*episode\.length"),
    ],
)
def test_an_invalid_condition_is_an_error(robots: Path, where: Any, best: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        len(unistore.Dataset(robots, unistore.Episodes(), where=where, top_fraction=best))


def test_episodes_are_whole_and_ragged(robots: Path) -> None:
    dataset = unistore.Dataset(robots, unistore.Episodes(), ["action", "reward", "source", "episode_name"])
    stored = dataset.store.array("steps/action").read()
    batch = unistore.collate([dataset[2], dataset[0]])
    assert batch["offsets"].tolist() == [0, 6, 10]
    np.testing.assert_array_equal(batch["action"], np.concatenate([stored[6:12], stored[:4]]))
    assert batch["episode_name"] == ["demo_2", "demo_0"]
    assert batch["source"] == ["lab_a/y.hdf5", "lab_a/x.hdf5"]
    with pytest.raises(InputError, match="the samples have no 'step'"):
        unistore.Dataset(robots, unistore.Episodes(), ["step"])
    assert unistore.Dataset(robots, "Episodes()").repeats


def test_episodes_have_rows_of_every_clock() -> None:
    path = Path(__file__).parents[2] / "data" / "golden" / "trajectory_streams.zarr"
    dataset = unistore.Dataset(path, unistore.Episodes())
    batch = dataset.read_batch([1, 0])
    store = dataset.store
    for clock in ("force", "qpos"):
        offsets = store.array(f"episodes/clocks/{clock}/offsets").read()
        values = store.array(f"clocks/{clock}/observation/{clock}").read()
        packed = batch[f"observation.{clock}"]
        np.testing.assert_array_equal(packed[0], values[offsets[1] :])
        np.testing.assert_array_equal(packed[1], values[: offsets[1]])
        assert packed.group == clock
    assert batch["observation.images.wrist"].values.shape[1:] == (3, 4, 4)


def test_a_share_of_a_grown_store_is_one_of_the_store_that_its_fix_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    for number in range(2):
        np.save(f"in/{number}.npy", np.arange(5) + 5 * number)
        unistore.convert("in", "a.zarr") if number == 0 else unistore.append("in", "a.zarr")
    with pytest.raises(InputError, match="works only with a single store") as error:
        unistore.Dataset("a.zarr", top_fraction=("row.data", 0.5))
    (fix,) = error.value.problems[0].fixes
    assert isinstance(fix, RunCommand)
    assert call(*fix.arguments) == 0
    dataset = unistore.Dataset("a-whole.zarr", top_fraction=("row.data", 0.5))
    assert [int(dataset[row]["data"]) for row in range(len(dataset))] == [5, 6, 7, 8, 9]
