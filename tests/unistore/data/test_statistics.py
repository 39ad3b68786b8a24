"""Statistics of datasets against numpy over the values that plain arrays hold."""

from __future__ import annotations

import itertools
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

import unistore
from tests.support.spikes import stored_spikes
from unistore.data.counts import codes_of, count_values, merge, values_of
from unistore.data.statistics import kept_problem
from unistore.errors import InputError, StoreError
from unistore.store.names import STATISTICS

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
SHARES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
BOUND = 0.005
FLOATS = st.floats(width=64) | st.floats(-3, 3) | st.sampled_from([0.0, -0.0, 5e-324, -1e-310, 1e308, -7.0])


def agree(found: unistore.Statistics, values: NDArray[Any], *, rtol: float = 1e-12) -> None:
    """Compare with numpy over rows (n, components)."""
    wide = values.astype(np.float64)
    finite = np.isfinite(wide)
    for column in range(wide.shape[1]):
        own = wide[finite[:, column], column]
        mean, std = own.mean(), own.std()
        bound = rtol * max(abs(mean), std, 1e-300)
        component = column if found.count.ndim else ()
        assert found.count[component] == len(own)
        assert found.nan[component] == np.isnan(wide[:, column]).sum()
        assert found.infinite[component] == np.isinf(wide[:, column]).sum()
        assert abs(found.mean[component] - mean) <= bound
        assert abs(found.std[component] - std) <= bound
        assert (found.min[component], found.max[component]) == (own.min(), own.max())
        for name, share in SHARES.items():
            exact = np.quantile(own, share, method="inverted_cdf")
            assert abs(getattr(found, name)[component] - exact) <= BOUND * abs(exact) + 1e-307


@given(hnp.arrays(np.float64, st.integers(1, 40), elements=FLOATS))
@settings(deadline=None, max_examples=80)
def test_quantiles_are_within_their_bound(values: NDArray[np.float64]) -> None:
    counts = count_values(values[:, None])
    finite = values[np.isfinite(values)]
    shares = list(SHARES.values())
    found = counts.quantiles(shares, whole=False)[:, 0]
    assert counts.counts.sum() == len(finite)
    if not len(finite):
        assert np.isnan(found).all()
        return
    exact = np.quantile(finite, shares, method="inverted_cdf")
    assert (np.abs(found - exact) <= BOUND * np.abs(exact) + 1e-307).all()


def test_histogram_codes_of_small_whole_numbers_are_exact() -> None:
    values = np.arange(-255.0, 256.0)
    codes = codes_of(values).astype(np.int64)
    np.testing.assert_array_equal(values_of(codes, whole=True), values)
    large = np.arange(256.0, 70_000.0)
    middle = values_of(codes_of(large).astype(np.int64), whole=True)
    assert (np.abs(middle - large) <= 0.004 * large).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16, np.uint8, np.int8, np.bool_])
def test_merged_counts_of_parts_equal_the_counts_of_all_values(dtype: Any) -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(5, 2, (5000, 2))
    if np.dtype(dtype).kind == "f":
        values[::7, 0] = np.nan
        values[3, 1] = -np.inf
    values = values.astype(dtype)
    cuts = [0, 0, 5, 5, 1700, 5000]
    parts = [count_values(values[lo:hi]) for lo, hi in itertools.pairwise(cuts)]
    assert parts[0].count.tolist() == [0, 0]
    found = merge(parts)
    for component in range(2):
        column = values[:, component].astype(np.float64)
        own = column[np.isfinite(column)]
        assert (found.count[component], found.nan[component]) == (len(own), np.isnan(column).sum())
        assert found.infinite[component] == np.isinf(column).sum()
        np.testing.assert_allclose(found.mean[component], own.mean(), rtol=1e-13)
        np.testing.assert_allclose(found.deviation[component], own.var() * len(own), rtol=1e-11)
        assert (found.low[component], found.high[component]) == (own.min(), own.max())
    whole = count_values(values)
    np.testing.assert_array_equal(found.bins, whole.bins)
    np.testing.assert_array_equal(found.counts, whole.counts)


LENGTHS = (40, 1, 0, 90, 30)
"""Steps of the episodes; splits train and val in turn."""


@pytest.fixture
def robots(make_store: Any) -> tuple[Path, dict[str, NDArray[Any]]]:
    return robots_in(make_store, seed=3)


def robots_in(make_store: Any, seed: int, shift: float = 0.0) -> tuple[Path, dict[str, NDArray[Any]]]:
    rng = np.random.default_rng(seed)
    offsets = np.cumsum([0, *LENGTHS])
    total = int(offsets[-1])
    last = np.zeros(total, np.bool_)
    last[offsets[1:][np.array(LENGTHS) > 0] - 1] = True
    action = (rng.normal(shift, 3, (total, 3)) * [1, 1e-6, 1e6]).astype(np.float32)
    action[4, 0] = np.nan
    action[9, 2] = np.inf
    columns: dict[str, NDArray[Any]] = {
        "action": action,
        "reward": rng.integers(-3, 4, total).astype(np.int64),
        "terminated": last,
        "truncated": np.zeros(total, np.bool_),
        "next_valid": ~last,
        "observation/joint": np.concatenate([rng.random((total, 2)), np.full((total, 1), 0.1)], axis=1),
        "observation/camera": rng.integers(0, 255, (total, 5, 6, 3)).astype(np.uint8),
    }
    path = make_store(
        "trajectory",
        {
            **{f"steps/{name}": values for name, values in columns.items()},
            "episodes/offsets": offsets,
            "episodes/source": np.array([0, 0, 1, 1, 1], np.int32),
            "episodes/name": [f"demo_{number}" for number in range(5)],
            "episodes/attributes": [json.dumps({"success": number % 2 == 0}) for number in range(5)],
            "sources/path": ["lab_a/a.hdf5", "lab_b/b.hdf5"],
        },
        count=len(LENGTHS),
        table="episodes",
        splits={"train": [0, 2, 4], "val": [1, 3]},
        axes={"steps/observation/camera": ("step", "y", "x", "channel")},
    )
    return path, columns


def rows_of(episodes: list[int]) -> NDArray[np.int64]:
    offsets = np.cumsum([0, *LENGTHS])
    return np.concatenate([np.arange(offsets[number], offsets[number + 1]) for number in episodes])


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    "kind", [None, unistore.Episodes(), unistore.Windows(history=2, horizon=3, pad="edge")]
)
def test_statistics_of_episodes_and_splits_equal_numpy(robots: Any, kind: Any, kept: bool) -> None:
    path, columns = robots
    if kept:
        unistore.keep_statistics(path)
    dataset = unistore.Dataset(path, kind)
    for key, name in (("action", "action"), ("observation.joint", "observation/joint")):
        agree(dataset.statistics(key), columns[name])
        agree(dataset.statistics(key, split="val"), columns[name][rows_of([1, 3])])
        agree(dataset.statistics(key, split=["train", "val"]), columns[name])
    agree(dataset.statistics("reward"), columns["reward"][:, None])
    images = columns["observation/camera"].reshape(-1, 3)
    colours = dataset.statistics("observation.camera")
    agree(colours, images)
    assert colours.axis == -3
    assert colours.q50.tolist() == np.quantile(images, 0.5, axis=0, method="inverted_cdf").tolist()


def test_a_constant_has_no_deviation(robots: Any) -> None:
    found = unistore.Dataset(robots[0]).statistics("observation.joint")
    assert (found.mean[2], found.std[2], found.q01[2], found.q99[2]) == (0.1, 0.0, 0.1, 0.1)


@pytest.mark.parametrize("kept", [False, True])
def test_statistics_of_subsets_equal_numpy(robots: Any, kept: bool) -> None:
    path, columns = robots
    if kept:
        unistore.keep_statistics(path)
    whole = unistore.Dataset(path, unistore.Episodes(), split="train")
    agree(whole.statistics("action", subset=[2, 0]), columns["action"][rows_of([0, 4])])
    wanted = unistore.Dataset(path, where={"episode.length": (30, None)}, split="train")
    agree(wanted.statistics("action"), columns["action"][rows_of([0, 4])])
    steps = unistore.Dataset(path)
    agree(steps.statistics("action", subset=range(7)), columns["action"][:7])
    following = steps.statistics("next.observation.joint")
    assert following.count.tolist() == [len(steps)] * 3


def test_statistics_of_several_stores_follow_the_weights(make_store: Any) -> None:
    stores = [robots_in(make_store, seed=4), robots_in(make_store, seed=5, shift=9.0)]
    paths = [path for path, _ in stores]
    both = np.concatenate([columns["action"] for _, columns in stores])
    agree(unistore.Dataset(paths).statistics("action"), both)
    mixed = unistore.Dataset(paths, weights=[3, 1]).statistics("observation.joint")
    values = [columns["observation/joint"] for _, columns in stores]
    thrice = np.concatenate([values[0]] * 3 + [values[1]])
    np.testing.assert_allclose(mixed.mean, thrice.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(mixed.std, thrice.std(axis=0), rtol=1e-12, atol=1e-15)
    exact = np.quantile(thrice, 0.9, axis=0, method="inverted_cdf")
    np.testing.assert_allclose(mixed.q90, exact, rtol=BOUND)
    alone = unistore.Dataset(paths, weights=[0, 1]).statistics("action")
    agree(alone, stores[1][1]["action"])


def test_statistics_of_rows_of_a_split_equal_numpy(make_store: Any) -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(size=(9_000, 4)).astype(np.float32)
    data[17, 1] = np.nan
    is_val = rng.random(len(data)) < 0.3
    splits = {"train": np.flatnonzero(~is_val).tolist(), "val": np.flatnonzero(is_val).tolist()}
    path = make_store("rows", {"rows/data": data}, count=len(data), table="rows", splits=splits)
    dataset = unistore.Dataset(path)
    agree(dataset.statistics("data"), data)
    agree(dataset.statistics("data", split="val"), data[is_val])
    agree(dataset.statistics("data", subset=is_val), data[is_val])
    unistore.keep_statistics(path)
    agree(unistore.Dataset(path, split="train").statistics("data"), data[~is_val])


@pytest.mark.parametrize("family", ["point_cloud", "ct", "spike"])
def test_statistics_of_clouds_volumes_and_spikes_equal_numpy(family: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    (tmp_path / "src").mkdir()
    values = []
    for number in range(2):
        path = tmp_path / f"src/part{number}"
        if family == "point_cloud":
            own = rng.normal(100, 30, (500 + number, 3)).astype("f4")
            with h5py.File(f"{path}.h5", "w") as file:
                file["xyz"] = own
        elif family == "ct":
            own = rng.integers(-1000, 2000, (9 + number, 10, 11)).astype("i2")
            np.save(path, own)
        else:
            own = (rng.random((20, 16, 24)) < 0.2).astype("u1")
            np.save(path, own)
        values.append(own.reshape(-1, 3 if family == "point_cloud" else 1))
    key = {"point_cloud": "xyz", "ct": "image", "spike": "spike"}[family]
    unistore.convert(tmp_path / "src", tmp_path / "s.zarr", family)
    agree(unistore.Dataset(tmp_path / "s.zarr").statistics(key), np.concatenate(values))


def test_kept_statistics_are_written_alike_and_read_back(robots: Any) -> None:
    path, _ = robots
    before = unistore.keep_statistics(path)
    content = (path / STATISTICS).read_bytes()
    unistore.keep_statistics(path)
    assert (path / STATISTICS).read_bytes() == content
    dataset = unistore.Dataset(path)
    for key, found in before.items():
        assert dataset.statistics(key).to_json() == found.to_json()
    again = pickle.loads(pickle.dumps(before["action"]))
    assert again.to_json() == before["action"].to_json()


def test_a_damaged_statistics_file_is_an_error(robots: Any) -> None:
    path, _ = robots
    unistore.keep_statistics(path)
    file = path / STATISTICS
    content = bytearray(file.read_bytes())
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(StoreError, match=f"{STATISTICS} is damaged.*unistore statistics"):
        unistore.Dataset(path).statistics("action")


def rewritten(path: Path, change: Any) -> None:
    """Change arrays of the file."""
    with np.load(path / STATISTICS) as arrays:
        values = {name: arrays[name].copy() for name in arrays.files}
    change(values)
    np.savez_compressed(path / STATISTICS, **values)


def about(values: dict[str, Any], **changes: Any) -> None:
    document = json.loads(values["about"].tobytes()) | changes
    values["about"] = np.frombuffer(json.dumps(document).encode(), np.uint8)


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.update({"0.mean": values["0.mean"][:1]}),
        lambda values: values.update({"0.mean": values["0.mean"].astype("S8")}),
        lambda values: values.update({"0.bins": values["0.bins"][::-1]}),
        lambda values: values.update({"0.bins": values["0.bins"] + (1 << 22)}),
        lambda values: values.update({"0.bin_offsets": values["0.bin_offsets"] + 1}),
        lambda values: values.pop("0.counts"),
        lambda values: values.update({"about": np.zeros(4, np.uint8)}),
        lambda values: about(values, keys={"action": {}}),
        lambda values: about(values, keys=5),
        lambda values: about(values, keys={"action": {"number": float("inf")}}),
        lambda values: values.update(about=np.frombuffer(b"[" * 100_000, np.uint8)),
    ],
)
def test_a_forged_statistics_file_is_an_error(robots: Any, change: Any) -> None:
    path, _ = robots
    unistore.keep_statistics(path)
    rewritten(path, change)
    with pytest.raises(StoreError, match=f"{STATISTICS} is damaged"):
        unistore.Dataset(path).statistics("action")


def test_statistics_of_another_store_are_not_taken(robots: Any) -> None:
    path, columns = robots
    unistore.keep_statistics(path)
    rewritten(path, lambda values: about(values, seal="of another store"))
    agree(unistore.Dataset(path).statistics("action"), columns["action"])


def test_verify_compares_with_the_values(tmp_path: Path) -> None:
    path = Path(shutil.copytree(GOLDEN / "trajectory.zarr", tmp_path / "robots.zarr"))
    unistore.keep_statistics(path)
    assert not unistore.verify(path).problems

    def shifted(values: dict[str, Any]) -> None:
        values["0.mean"] = values["0.mean"] + 1

    rewritten(path, shifted)
    (problem,) = unistore.verify(path).problems
    assert (problem.file, problem.kind) == (STATISTICS, "statistics")
    assert "unistore statistics" in problem.advice
    (path / STATISTICS).write_bytes(b"PK")
    (problem,) = unistore.verify(path).problems
    assert "damaged" in problem.message


def test_normalize_takes_samples_and_gives_them_back(robots: Any) -> None:
    path, columns = robots
    dataset = unistore.Dataset(path)
    keys = ("observation.joint", "observation.camera")
    for mode in ("mean-std", "min-max", "quantile"):
        normalize = unistore.Normalize({key: dataset.statistics(key) for key in keys}, mode)
        sample = dataset[3]
        changed = normalize(sample)
        assert changed["action"] is sample["action"]
        assert changed["observation.joint"][2] == 0
        assert torch.isfinite(changed["observation.camera"]).all()
        back = normalize.inverse(changed)
        torch.testing.assert_close(back["observation.joint"], sample["observation.joint"])
        torch.testing.assert_close(back["observation.camera"], sample["observation.camera"].float())
    joints = columns["observation/joint"]
    values = unistore.Normalize(dataset.statistics("observation.joint"))(joints)
    np.testing.assert_allclose(values[:, :2].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(values[:, :2].std(axis=0), 1, rtol=1e-12)
    assert not values[:, 2].any()


def test_normalize_is_a_transform_and_a_module(robots: Any) -> None:
    path, _ = robots
    dataset = unistore.Dataset(path)
    normalize = unistore.Normalize({"action": dataset.statistics("action")}, "min-max")
    expected = normalize["action"](dataset[20]["action"])
    dataset.transform = normalize
    assert torch.equal(dataset[20]["action"], expected)
    assert torch.equal(pickle.loads(pickle.dumps(dataset))[20]["action"], expected)
    assert len(normalize.state_dict()) == 2
    assert normalize["action"].float()(torch.ones(3, dtype=torch.float64)).dtype == torch.float64


def test_normalize_takes_keys_of_one_component(make_store: Any) -> None:
    values = np.arange(9.0) ** 2
    frames = np.arange(9 * 4 * 3, dtype=np.float32).reshape(9, 4, 3)
    columns = {"single": values, "vector": values[:, None], "frames": frames}
    path = make_store("rows", {f"rows/{name}": rows for name, rows in columns.items()}, count=9, table="rows")
    dataset = unistore.Dataset(path)
    statistics = {name: dataset.statistics(name) for name in columns}
    assert statistics["single"].axis is None
    for mode in ("mean-std", "min-max"):
        normalize = unistore.Normalize(statistics, mode)
        changed = [normalize(sample) for sample in dataset]
        expected = (values - values.mean()) / values.std() if mode == "mean-std" else values / 32 - 1
        np.testing.assert_allclose([sample["single"] for sample in changed], expected, rtol=1e-12)
        np.testing.assert_allclose([sample["vector"][0] for sample in changed], expected, rtol=1e-12)
        back = [normalize.inverse(sample)["single"] for sample in changed]
        np.testing.assert_allclose(back, values, atol=1e-12)
        of_single = normalize["single"]
        np.testing.assert_allclose(of_single(values), expected, rtol=1e-12)
        np.testing.assert_allclose(of_single(values[4]), expected[4], rtol=1e-12)
        again = unistore.Normalize(statistics, mode)
        again.load_state_dict(normalize.state_dict())
        assert again["single"].centre.shape == ()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.nightly
def test_normalize_is_unchanged_when_it_is_compiled(robots: Any) -> None:
    path, _ = robots
    dataset = unistore.Dataset(path)
    normalize = unistore.Normalize(dataset.statistics("action"))
    values = torch.stack([dataset[step]["action"] for step in range(8)])
    for module in (normalize, normalize.inverse):
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(values), module(values), rtol=1e-12, atol=0, equal_nan=True)


def test_normalize_refuses_what_has_no_values(make_store: Any) -> None:
    data = np.full((9, 2), np.nan)
    data[:, 0] = 1e-40
    path = make_store("rows", {"rows/data": data}, count=9, table="rows")
    statistics = unistore.Dataset(path).statistics("data")
    with pytest.raises(InputError, match=r"1 components of .* have no finite value"):
        unistore.Normalize(statistics)
    with pytest.raises(InputError, match="mode"):
        unistore.Normalize(statistics, "meanstd")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="Statistics by key"):
        unistore.Normalize({"data": 5})  # type: ignore[dict-item]


def rows_store(make_store: Any, axes: tuple[str, ...] | None = None, **columns: NDArray[Any]) -> Path:
    """Return a store with a row per sample, the axes of its columns without names unless given."""
    named = None if axes is None else {f"rows/{name}": ("row", *axes) for name in columns}
    arrays = {f"rows/{name}": values for name, values in columns.items()}
    count = len(next(iter(columns.values())))
    path: Path = make_store("rows", arrays, count=count, table="rows", axes=named)
    return path


def by_component(values: NDArray[Any], axis: int | None) -> NDArray[Any]:
    if axis is None:
        return values.reshape(-1, 1)
    return np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("shape", "dtype", "axis"),
    [
        ((3, 12, 11), "f4", -3),
        ((3, 12, 11), "u1", -3),
        ((1, 12, 11), "f4", -3),
        ((12, 11, 3), "f4", -1),
        ((12, 11, 4), "u2", -1),
        ((2, 3, 12, 11), "f4", -3),
        ((12, 11), "u1", None),
        ((12, 11), "?", None),
        ((16, 12, 11), "u1", None),
        ((7,), "f8", -1),
        ((), "f8", None),
        ((4, 4), "f8", -1),
        ((2, 7), "f8", -1),
    ],
)
def test_the_axis_of_components_is_found_by_shape_and_dtype(
    make_store: Any, shape: tuple[int, ...], dtype: str, axis: int | None, kept: bool
) -> None:
    values = (np.random.default_rng(0).random((9, *shape)) * 200).astype(dtype)
    path = rows_store(make_store, x=values)
    if kept:
        unistore.keep_statistics(path)
    found = unistore.Dataset(path).statistics("x")
    assert found.axis == axis
    agree(found, by_component(values, axis))
    assert np.shape(found.mean) == (() if axis is None else (shape[axis],))


@pytest.mark.parametrize(
    "shape", [(12, 11), (3, 12, 3), (3, 12, 4), (16, 12, 11), (4, 12, 11)], ids=lambda shape: str(shape)
)
def test_several_possible_axes_are_refused_with_each_way_to_write_it(
    make_store: Any, shape: tuple[int, ...]
) -> None:
    values = np.random.default_rng(0).random((9, *shape)).astype(np.float32)
    path = rows_store(make_store, x=values, y=values[:, 0, 0])
    dataset = unistore.Dataset(path)
    with pytest.raises(InputError) as error:
        dataset.statistics("x")
    (problem,) = error.value.problems
    assert (problem.file, problem.kind) == ("axis", "option")
    for axis in range(-len(shape), 0):
        assert f"axis={axis} (" in problem.advice
        agree(dataset.statistics("x", axis=axis), by_component(values, axis))
    assert "axis=None" in problem.advice
    agree(dataset.statistics("x", axis=None), values.reshape(-1, 1))
    with pytest.warns(UserWarning, match=r"not saved: axis: values of x have"):
        kept = unistore.keep_statistics(path)
    assert list(kept) == ["y"]
    assert kept_problem(dataset.store) is None


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("axes", "axis"),
    [
        (("channel", "y", "x"), -3),
        (("y", "x_channel", "x"), -2),
        (("y", "x", "channel"), -1),
    ],
)
def test_the_axis_that_the_store_calls_channel_comes_first(
    make_store: Any, axes: tuple[str, ...], axis: int, kept: bool
) -> None:
    values = np.random.default_rng(0).random((9, 3, 5, 3)).astype(np.float32)
    path = rows_store(make_store, axes=axes, x=values)
    if kept:
        unistore.keep_statistics(path)
    dataset = unistore.Dataset(path)
    found = dataset.statistics("x")
    assert (found.axis, found.axis_name) == (axis, axes[axis])
    agree(found, by_component(values, axis))
    assert dataset.statistics("x", axis="channel").to_json() == found.to_json()
    other = dataset.statistics("x", axis="y")
    assert (other.axis, other.axis_name) == (axes.index("y") - 3, "y")
    agree(other, by_component(values, other.axis))
    assert dataset.statistics("x").axis == axis


def test_an_axis_that_does_not_exist_is_an_error_that_names_one(make_store: Any) -> None:
    path = rows_store(make_store, axes=("channel", "y", "x"), x=np.zeros((9, 3, 5, 6)))
    dataset = unistore.Dataset(path)
    for axis, advice in (
        (0, "give axis=-3"),
        (2, "give axis=-1"),
        (-4, "axis=-3 (channel"),
        ("z", "axis=-2 (y"),
    ):
        with pytest.raises(InputError) as error:
            dataset.statistics("x", axis=axis)
        (problem,) = error.value.problems
        assert (problem.file, problem.kind) == ("axis", "option")
        assert advice in problem.advice
    for axis in (1.5, True):
        with pytest.raises(InputError, match="axis"):
            dataset.statistics("x", axis=axis)  # type: ignore[arg-type]


def test_ragged_samples_have_the_components_of_their_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clouds = [rng.random((count, 3)).astype(np.float32) for count in (40, 50)]
    for number, points in enumerate(clouds):
        with h5py.File(tmp_path / f"cloud{number}.h5", "w") as file:
            file["xyz"] = points
    path = tmp_path / "clouds.zarr"
    unistore.convert(sorted(tmp_path.glob("*.h5")), path, "point_cloud")
    for kind in (None, unistore.Ragged()):
        dataset = unistore.Dataset(path, kind)
        found = dataset.statistics("xyz")
        assert (found.axis, found.axis_name) == (-1, "coordinate")
        agree(found, np.concatenate(clouds))
        agree(dataset.statistics("xyz", subset=[1]), clouds[1])
        agree(dataset.statistics("xyz", axis=None), np.concatenate(clouds).reshape(-1, 1))
        with pytest.raises(InputError, match="axis"):
            dataset.statistics("xyz", axis=-2)


def test_ragged_columns_of_numbers_are_one_component(tmp_path: Path) -> None:
    scans = [np.arange(count, dtype=np.float64) for count in (3, 0, 7)]
    with h5py.File(tmp_path / "scans.h5", "w") as file:
        ranges = file.create_dataset("ranges", (3,), h5py.vlen_dtype(np.float64))
        for row, scan in enumerate(scans):
            ranges[row] = scan
        file["label"] = np.arange(3)
    unistore.convert(tmp_path / "scans.h5", tmp_path / "scans.zarr", "rows")
    found = unistore.Dataset(tmp_path / "scans.zarr").statistics("ranges")
    assert (found.axis, found.axis_name) == (None, None)
    agree(found, np.concatenate(scans)[:, None])


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("extents", [[(8, 16), (8, 16)], [(8, 16), (4, 9)]])
def test_frames_of_spike_cameras_have_channels(
    make_store: Any, extents: list[tuple[int, int]], kept: bool
) -> None:
    rng = np.random.default_rng(0)
    blur = rng.integers(0, 256, (2, 8, 16, 3)).astype(np.uint8)
    spikes = [np.ones((6, height, width), np.uint8) for height, width in extents]
    path = make_store(
        "spike",
        {
            **stored_spikes(spikes),
            "frames/spike_extent": np.array(extents, np.int32),
            "frames/image_extent": np.array(extents, np.int32),
            "frames/blur": blur,
            "sequences/offsets": np.array([0, 2]),
            "sequences/name": ["a"],
            "sources/path": list("ab"),
        },
        count=2,
        table="frames",
    )
    if kept:
        unistore.keep_statistics(path)
    pixels = [
        frame[:height, :width].reshape(-1, 3) for frame, (height, width) in zip(blur, extents, strict=True)
    ]
    dataset = unistore.Dataset(path, unistore.Clips(length=1, crop=None))
    found = dataset.statistics("blur")
    assert (found.axis, found.axis_name) == (-3, "channel")
    agree(found, np.concatenate(pixels))
    agree(dataset.statistics("blur", subset=[1]), pixels[1])
    agree(dataset.statistics("blur", axis=None), np.concatenate(pixels).reshape(-1, 1))
    assert dataset.statistics("blur", subset=np.zeros(0, int)).count.tolist() == [0, 0, 0]
    assert dataset.statistics("spike").axis is None


def test_statistics_show_the_axis_of_their_components(make_store: Any) -> None:
    path = rows_store(make_store, axes=("channel", "y", "x"), x=np.zeros((2, 3, 5, 6)))
    dataset = unistore.Dataset(path)
    assert (
        repr(dataset.statistics("x")) == "Statistics('x': 180 values, 3 components along axis -3 (channel))"
    )
    assert repr(dataset.statistics("x", axis=None)) == "Statistics('x': 180 values, one component)"
    shown = dataset.statistics("x").to_json()
    assert (shown["axis"], shown["axis_name"]) == (-3, "channel")
