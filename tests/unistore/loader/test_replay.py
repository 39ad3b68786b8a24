"""``replay``: what a state says of a run, against the batches that a Loader delivered."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from tests.support.programs import call
from unistore.errors import InputError, LoaderError

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
ORDERS: dict[str, dict[str, Any]] = {
    "in order": {},
    "full": {"shuffle": "full", "seed": 3},
    "blocks": {"shuffle": "blocks", "seed": 4},
    "sources": {"shuffle": "sources", "seed": 5},
}
ONLY_LOADERS: dict[str, dict[str, Any]] = {
    "subset": {"shuffle": True, "subset": np.arange(0, 900, 3)},
    "weights": {"shuffle": True, "weights": np.arange(1, 1066)},
    "sampler": {"sampler": list(range(1000, 0, -1))},
}
PATH = GOLDEN / "rows.zarr"


def seen(loader: unistore.Loader, steps: int) -> tuple[list[np.ndarray[Any, Any]], list[str], dict[str, Any]]:
    """Indices of each batch of the epochs that so many steps enter, the last sources, and the state."""
    indices: list[np.ndarray[Any, Any]] = []
    sources: list[str] = []
    while len(indices) < steps:
        for batch in loader:
            indices.append(np.array(batch["index"].numpy()))
            sources += list(batch["source"])
            if len(indices) == steps:
                break
    return indices, sources, json.loads(json.dumps(loader.state_dict()))


def make_loader(**options: Any) -> unistore.Loader:
    dataset = unistore.Dataset(PATH, fields=["label", "source"])
    return unistore.Loader(dataset, batch_size=100, num_workers=0, **options)


@pytest.mark.parametrize("name", ORDERS)
def test_replay_of_a_store_gives_the_samples_that_a_loader_delivered(name: str) -> None:
    loader = make_loader(**ORDERS[name])
    indices, sources, state = seen(loader, 16)  # 11 steps an epoch
    now = unistore.replay(PATH, state)
    assert (now.epoch, now.first) == (1, 0)
    np.testing.assert_array_equal(now.index, np.concatenate(indices[11:]))
    before = unistore.replay(PATH, state, epoch=0)
    np.testing.assert_array_equal(before.index, np.concatenate(indices[:11]))
    assert [*before.sources, *now.sources] == sources
    one = unistore.replay(PATH, state, batch=3, batch_size=100)
    np.testing.assert_array_equal(one.index, indices[14])
    assert one.first == 300
    last = unistore.replay(PATH, state, epoch=0, batch=10, batch_size=100)
    np.testing.assert_array_equal(last.index, indices[10])


@pytest.mark.parametrize("name", ONLY_LOADERS)
def test_replay_of_a_loader_with_weights_gives_its_delivered_samples(name: str) -> None:
    loader = make_loader(**ONLY_LOADERS[name])
    indices, sources, state = seen(loader, 2)
    replayed = unistore.replay(make_loader(**ONLY_LOADERS[name]), state)
    np.testing.assert_array_equal(replayed.index, np.concatenate(indices))
    assert replayed.sources.tolist() == sources
    one = unistore.replay(loader, state, batch=1)
    np.testing.assert_array_equal(one.index, indices[1])
    with pytest.raises(InputError, match=r"weights, a subset, or a sampler.*replay\(loader, state\)"):
        unistore.replay(PATH, state)


STATE = make_loader(shuffle="full").state_dict()
WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "other store": ({"digest": "0" * 32}, {}, "was saved with other samples than Dataset.*split and seed"),
    "other kind": ({}, {"samples": "Ragged()"}, "Ragged cannot read this rows store"),
    "other seed": ({}, {"seed": 7}, "was saved with other samples"),
    "epoch": ({"delivered": 5}, {"epoch": 1}, "the run had only reached epoch 0"),
    "batch": (
        {"delivered": 5},
        {"batch": 1, "batch_size": 5},
        "is 1, but only 5 samples of the epoch were deliv",
    ),
    "size": ({}, {"batch": 1}, "needs batch_size"),
    "order": ({"order": {}}, {}, "weights, a subset, or a sampler"),
    "seed of order": ({"order": {**STATE["order"], "seed": "x"}}, {}, "weights, a subset, or a sampler"),
    "lacks": ({"epoch": None}, {}, "has no epoch"),
    "beyond": ({"delivered": 10**9}, {}, "the state is invalid"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_state_or_batch_that_does_not_fit_is_an_error(case: str) -> None:
    changed, arguments, message = WRONG[case]
    with pytest.raises((InputError, LoaderError), match=message):
        unistore.replay(PATH, {**STATE, **changed}, **arguments)


def test_replay_reads_the_version_of_the_state(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "sources").mkdir(exist_ok=True)
        np.save(tmp_path / "sources" / f"part_{number}.npy", np.arange(10) + 10 * number)
    store = tmp_path / "store.zarr"
    unistore.convert([tmp_path / "sources"], store, progress=False)
    loader = unistore.Loader(unistore.Dataset(store), batch_size=4, shuffle=True, num_workers=0)
    first = next(iter(loader))["index"].numpy().copy()
    state = loader.state_dict()
    unistore.remove(store, "part_0.npy")
    np.testing.assert_array_equal(unistore.replay(store, state).index, first)


def test_the_replay_command_prints_index_and_source_of_each_sample(tmp_path: Path, capsys: Any) -> None:
    path = shutil.copytree(PATH, tmp_path / "rows.zarr")
    loader = make_loader(shuffle="full", seed=3)
    indices, sources, state = seen(loader, 2)
    (tmp_path / "state.json").write_text(json.dumps(state))
    (tmp_path / "state.pt").write_bytes(pickle.dumps(state))
    (tmp_path / "list.json").write_text("[]")
    assert call("replay", path, tmp_path / "state.json") == 0
    lines = [line.split(" ", 2) for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == [str(number) for number in range(200)]
    assert [int(line[1]) for line in lines] == np.concatenate(indices).tolist()
    assert [line[2] for line in lines] == sources
    one = ("--batch", 1, "--batch-size", 100, "--json")
    assert call("replay", path, tmp_path / "state.json", *one) == 0
    assert json.loads(capsys.readouterr().out)["index"] == indices[1].tolist()
    for name, message in {"state.pt": "pickled", "list.json": "not a state", "none.json": "check"}.items():
        assert call("replay", path, tmp_path / name) == 2
        assert message in capsys.readouterr().err


def test_batches_of_one_sample_are_replayed() -> None:
    _, _, state = seen(make_loader(), 1)
    one = unistore.replay(PATH, state, batch=7, batch_size=1)
    assert (one.first, one.index.tolist()) == (7, [7])
