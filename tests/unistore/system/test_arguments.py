"""Wrong arguments of everything public: each is told by its name, what it must be and what it was."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unistore
from unistore.errors import InputError
from unistore.system.arguments import is_integer
from unistore.system.workers import plan

NO_WHOLE: list[Any] = [True, 1.0, 2.5, float("nan"), "3", [1], object(), np.float64(1), np.array([1])]
NO_COUNT: list[Any] = [*(value for value in NO_WHOLE), 0, -1, 10**30, None]
NO_SEED: list[Any] = [*NO_WHOLE, None]
NO_PAD: list[Any] = ["repeat", True, (0,), b"zero", 1j]
NO_FLAG: list[Any] = [1, 0, "yes", 1.5, []]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arguments")
    np.save(folder / "a.npy", np.arange(200.0).reshape(50, 4))
    unistore.convert(folder / "a.npy", folder / "a.zarr", "rows")
    return folder / "a.zarr"


def loader(store: Path) -> Callable[..., unistore.Loader]:
    return lambda **options: unistore.Loader(unistore.Dataset(store), **({"num_workers": 0} | options))


def dataset(store: Path) -> Callable[..., unistore.Dataset]:
    return lambda **options: unistore.Dataset(**({"path": store} | options))


def weighted(store: Path) -> Callable[..., unistore.Loader]:
    return lambda **options: loader(store)(**({"weights": np.ones(50), "shuffle": True} | options))


def plainly(make: Any) -> Callable[[Path], Any]:
    return lambda _: make


KINDS: list[tuple[Callable[[Path], Any], dict[str, list[Any]]]] = [
    (
        loader,
        {
            "batch_size": [each for each in NO_COUNT if each is not None],
            "prefetch_factor": [each for each in NO_COUNT if each is not None],
            "seed": NO_SEED,
            "rank": [-1, True, 1.0, 5, 10**30],
            "world_size": [0, -1, True, 2.0, 10**30],
            "num_workers": [-1, True, 1.5, "many", None, 10**30],
            "multiprocessing_context": ["thread", 3, True, ""],
            "persistent_workers": NO_FLAG,
            "batch_sampler": [[[1, 2]], 0],
            "timeout": [30, None],
            "generator": [3],
            "pin_memory_device": ["cuda", None],
            "in_order": [False, None],
            "sampler": [3, "rows", [0.5], [50], [[1, 2]], object()],
            "drop_last": ["no", 0, 1],
            "pin_memory": NO_FLAG,
            "collate_fn": [3, "default"],
            "worker_init_fn": [3],
            "device": [3.5, "gpu", "meta"],
            "batch_transform": [3],
            "log_every": [-1, True, 1.0, None],
            "cache": [True, -1, "much", float("nan"), []],
            "shuffle": ["rows", 3, 1],
            "subset": [[-1], [50], [0.5], [[1], [2, 3]], "all", 3, np.ones(7, bool), [10**30]],
        },
    ),
    (
        weighted,
        {
            "samples_per_epoch": [0, -1, True, 1.0, float("nan"), 10**30, "5"],
            "weights": [
                [float("nan")] * 50,
                [float("inf")] * 50,
                [-1.0] * 50,
                [0.0] * 50,
                [1e308] * 50,
                [1.0] * 49,
                [[1.0]] * 50,
                [None] * 50,
                ["a"] * 50,
                3,
                "even",
            ],
        },
    ),
    (
        dataset,
        {
            "path": [None, 3, b"a.zarr", [3], [], object()],
            "seed": NO_SEED,
            "fields": [3, [3], "unknown"],
            "split": [3, [3]],
            "transform": [3],
            "cache_dir": [3, "https://host/cache"],
            "samples": [unistore.Rows, 3],
            "weights": [[1.0], "even"],
        },
    ),
    (
        plainly(unistore.Shuffle),
        {
            "data": [-1, True, 1.5, None, 10**30],
        },
    ),
    (
        plainly(lambda **options: unistore.Shuffle(9, **options)),
        {
            "seed": NO_SEED,
            "samples_per_epoch": [0, -1, True, 1.5],
        },
    ),
    (
        plainly(unistore.Clips),
        {
            "length": NO_COUNT,
            "stride": NO_COUNT,
            "crop": [0, -1, True, 1.5, (1,), (1, 2, 3), (1, 0), (True, 2), "a"],
            "voxel_bins": [0, True, 1.5],
            "fields": [3, [3]],
            "random": NO_FLAG,
            "pad": NO_PAD,
        },
    ),
    (
        plainly(unistore.Patches),
        {
            "size": [0, -1, True, 1.5, (1, 2), (1, 2, 0), None, "abc", {1: 2}],
            "per_volume": NO_COUNT,
            "random": NO_FLAG,
            "pad": NO_PAD,
        },
    ),
    (
        plainly(unistore.Segments),
        {"coordinates": ["global", 3, None], "max_points": [0, True, 1.5], "voxel": [0, -1, True, "0.5"]},
    ),
    (
        plainly(unistore.SparsePoints),
        {"window": [3, True], "min_points": [-1, True, 1.5], "max_points": [0, -1, True]},
    ),
    (plainly(unistore.Transitions), {"only_valid": NO_FLAG}),
    (
        plainly(lambda **options: unistore.Windows(**({"history": 1, "horizon": 1} | options))),
        {"history": NO_COUNT, "horizon": NO_COUNT, "stride": NO_COUNT, "pad": NO_PAD},
    ),
    (plainly(unistore.Collate), {"ragged": ["flat", None, 3], "groups": [3, {"a": 3}, ["a"]]}),
    (
        plainly(lambda **options: unistore.ReplayBuffer("nothing", **options)),
        {
            "output": ["list", None, 3],
            "limit": [0, -1, True, 1.5],
            "image_size": [0, True, "84"],
            "seed": NO_SEED,
            "prefetch": [-1, True, 1.5, 10**30, None],
            "device": ["nowhere", 1.5],
        },
    ),
    (
        plainly(plan),
        {
            "workers": [-1, True, 1.5, None, "cpu*0"],
            "ranks": NO_COUNT,
            "samples": [-1, True, 1.5],
            "cores": [0, -1, True, float("nan"), float("inf"), "4"],
        },
    ),
    (
        plainly(lambda **options: unistore.convert(**({"sources": "a", "destination": "b"} | options))),
        {
            "sources": [3, None, [3], [], ""],
            "destination": [3, None],
            "family": [3, "sound"],
            "codec": ["zip", None, 3],
            "split": [3, 0.5],
            "split_from": [3, b"a.csv"],
            "overwrite": NO_FLAG,
            "restart": NO_FLAG,
            "work": [3],
            "workers": [-1, True, 1.5, None, "4", 10**30],
            "scheduler": [3],
            "memory": [True, 0, "much"],
            "on_error": ["ask", None],
        },
    ),
    (
        plainly(lambda **options: unistore.repair(**({"store": "a", "sources": ["b"]} | options))),
        {"store": [3, None], "workers": [-1, True, 1.5, None]},
    ),
]
ARGUMENTS = [(make, name, values) for make, options in KINDS for name, values in options.items()]


@pytest.mark.parametrize(("make", "name", "values"), ARGUMENTS)
def test_wrong_arguments_are_told_by_their_name(
    store: Path, make: Callable[[Path], Any], name: str, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises(InputError) as caught:
            make(store)(**{name: value})
        told = str(caught.value).replace("-", "_")
        names = (name.rstrip("s"), "family") if name == "family" else (name.rstrip("s"),)
        assert any(each in told for each in names) or (name == "path" and "the list is empty" in told), value


OPTIONS: dict[str, dict[str, list[Any]]] = {
    "rows": {"map": ["a=b", 3, {"a": 3}], "columns": [3, "some", None], "exclude": [3, None, (3,)]},
    "point_cloud": {
        "voxel_size": ["x", ("a",), None, True, (float("nan"),), b"x"],
        "segment": [3, ()],
        "min_points": [0, 1.5, "x", True],
        "max_points": [0, 1.5, True],
    },
    "ct": {"window": [3, None, (3,)], "tile": [None, "x"], "resolution": ["x", 1.5, True]},
    "spike": {
        "height": ["x", 1.5, float("nan"), True],
        "flip": ["no", 1, None],
        "voxel_bins": ["x", (1.5,), None],
        "spike_dir": [3, None],
    },
    "trajectory": {"image_size": ["x", 1.5, True, 0], "ignore": [None, (3,)], "colour": [3]},
}


@pytest.mark.parametrize("family", OPTIONS)
def test_wrong_options_of_a_converter_are_told_by_their_name(family: str) -> None:
    for option, values in OPTIONS[family].items():
        for value in values:
            with pytest.raises(InputError) as caught:
                unistore.convert("nothing", "nowhere", family, **{option: value})
            assert option.rstrip("s").replace("_", "-") in str(caught.value).replace("_", "-"), value


@pytest.mark.parametrize("seed", [-1, -(10**30), 10**30, np.int64(-3), 2**64])
def test_every_whole_number_is_a_seed(store: Path, seed: Any) -> None:
    found = unistore.Dataset(store, seed=seed)
    with unistore.Loader(found, 7, shuffle=True, seed=seed, num_workers=0) as made:
        assert sorted(int(index) for batch in made for index in batch["index"]) == list(range(50))
    assert sorted(at.index for at in unistore.Shuffle(found, seed)) == list(range(50))


@pytest.mark.parametrize("epoch", [-1, True, 1.5, "1", None, 10**30])
def test_epochs_are_whole_numbers(store: Path, epoch: Any) -> None:
    for each in (unistore.Dataset(store), unistore.Shuffle(9), loader(store)()):
        with pytest.raises(InputError, match=r"epoch: must be a whole number of at (least 0|most)"):
            each.set_epoch(epoch)


@pytest.mark.parametrize("index", [10**30, -(10**30), unistore.EpochIndex(0, 10**30)])
def test_a_sample_beyond_all_numbers_does_not_exist(store: Path, index: Any) -> None:
    with pytest.raises(IndexError, match=r"there is no sample or epoch -?1,000"):
        unistore.Dataset(store)[index]


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"])
@pytest.mark.parametrize("value", ["", "two", "-1", "1.5", "9" * 5000])
def test_variables_of_the_environment_are_checked(
    store: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=rf"^{name}: .*in the environment, but a whole number"):
        loader(store)()


@given(st.integers() | st.booleans() | st.floats() | st.text() | st.none())
def test_is_integer_is_true_only_for_int_within_the_bounds(value: Any) -> None:
    assert is_integer(value) == (type(value) is int)
    assert is_integer(value, 0, sys.maxsize) == (type(value) is int and 0 <= value <= sys.maxsize)
