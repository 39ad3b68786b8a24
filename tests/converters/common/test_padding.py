"""Columns of several shapes: padded with a mask, counted without what is padded, given back as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import unistore
from unistore.errors import InputError

SHAPES = {
    "a": [(4, (4, 6)), (4, (4, 6))],
    "b": [(2, (5, 3)), (3, (4, 6))],
}  # states and camera of each episode
PADDED = ("states", "observation.cam", "observation.joint")


def episode(group: h5py.Group, states: int, image: tuple[int, int], seed: int, *, joint: bool = True) -> None:
    rng = np.random.default_rng(seed)
    group["actions"] = rng.normal(size=(5, 2)).astype("f4")
    group["states"] = rng.normal(size=(5, states)).astype("f4" if states > 2 else "f2")
    for name in ("obs", "next_obs"):
        group[f"{name}/cam"] = rng.integers(1, 255, (5, *image, 3), np.uint8)
    if joint:
        group["obs/joint"] = rng.integers(1, 9, (5, states + 1), "i4")


def robot_files(folder: Path) -> list[Path]:
    for name, episodes in SHAPES.items():
        with h5py.File(folder / f"{name}.h5", "w") as file:
            for number, (states, image) in enumerate(episodes):
                group = file.create_group(f"data/demo_{number}")
                episode(group, states, image, 10 * ord(name) + number, joint=(name, number) != ("b", 1))
    return [folder / "a.h5", folder / "b.h5"]


def originals(paths: list[Path]) -> dict[str, list[np.ndarray | None]]:
    """Return the values of each key, one array per episode."""
    values: dict[str, list[np.ndarray | None]] = {key: [] for key in (*PADDED, "next.observation.cam")}
    places = ("states", "obs/cam", "obs/joint", "next_obs/cam")
    for path in paths:
        with h5py.File(path) as file:
            for demo in ("demo_0", "demo_1"):
                for key, place in zip(values, places, strict=True):
                    group = file[f"data/{demo}"]
                    values[key].append(group[place][()] if place in group else None)
    return values


def padded(values: np.ndarray | None, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return values as they are padded, and which are real."""
    out, is_real = np.zeros((5, *shape)), np.zeros((5, *shape), bool)
    if values is not None:
        part = (slice(None), *map(slice, values.shape[1:]))
        out[part], is_real[part] = values, True
    if len(shape) == 3:
        return np.moveaxis(out, -1, 1), np.moveaxis(is_real, -1, 1)
    return out, is_real


@pytest.fixture(scope="module")
def robots(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Path]:
    folder = tmp_path_factory.mktemp("robots")
    paths = robot_files(folder)
    unistore.convert(paths, folder / "s.zarr", "trajectory", columns="union", image_size=8)
    return paths, folder / "s.zarr"


def oracle(paths: list[Path]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    shapes = {"states": (4,), "observation.cam": (5, 6, 3), "observation.joint": (5,)}
    shapes["next.observation.cam"] = (5, 6, 3)
    return {
        key: tuple(np.stack(part) for part in zip(*[padded(v, shapes[key]) for v in own], strict=True))
        for key, own in originals(paths).items()
    }  # type: ignore[misc]


def test_samples_of_every_kind_have_masks_of_their_padding(robots: tuple[list[Path], Path]) -> None:
    paths, store = robots
    expected = oracle(paths)
    steps = unistore.Dataset(store)
    batch = steps.read_batch(np.arange(20))
    for key, (values, is_real) in expected.items():
        assert np.array_equal(batch[key].values, values.reshape(20, *values.shape[2:])), key
        mask = f"{key.removeprefix('next.')}_mask"
        assert np.array_equal(batch[mask].values, is_real.reshape(20, *values.shape[2:])), mask
    assert "action_mask" not in batch
    assert "observation.cam_8_mask" not in batch
    windows = unistore.Dataset(store, unistore.Windows(history=2, horizon=2, pad="edge")).read_batch([0, 10])
    episodes = unistore.Dataset(store, unistore.Episodes()).read_batch([0, 2])
    for key in PADDED:
        values, is_real = expected[key]
        assert np.array_equal(windows[f"{key}_mask"].values, is_real[[0, 2], 0])
        assert np.array_equal(episodes[f"{key}_mask"].values, is_real[[0, 2], 0])
        assert np.array_equal(episodes[key].values, values[[0, 2]].reshape(10, *values.shape[2:]))
    with unistore.ReplayBuffer(store, output="dict") as buffer:
        assert buffer.sample(3)["states_mask"].shape == (3, 4)
    one = unistore.Dataset(store, fields=["states_mask"])[10]
    assert one["states_mask"].tolist() == [True, True, False, False]


def test_resized_images_are_computed_from_the_originals_without_padding(
    robots: tuple[list[Path], Path],
) -> None:
    cv2 = pytest.importorskip("cv2")
    paths, store = robots
    resized = unistore.Dataset(store, fields=["observation.cam_8"])[10]["observation.cam_8"].numpy()
    image = originals(paths)["observation.cam"][2][0]  # type: ignore[index]
    assert np.array_equal(resized, np.moveaxis(cv2.resize(image, (8, 8)), -1, 0))


def test_padding_is_in_no_statistics(robots: tuple[list[Path], Path], tmp_path: Path) -> None:
    paths, store = robots
    kept = unistore.keep_statistics(store)
    assert unistore.verify(store)
    for key, (values, is_real) in oracle(paths).items():
        axis = 2 if values.ndim > 3 else -1
        numbers = np.moveaxis(np.where(is_real, values, np.nan), axis, -1)
        numbers = numbers.reshape(-1, numbers.shape[-1])
        datasets: list[Any] = [unistore.Dataset(store)]
        if not key.startswith("next."):
            datasets += [unistore.Dataset(store, unistore.Windows(history=1, horizon=1))]
            assert np.array_equal(kept[key].count, np.isfinite(numbers).sum(axis=0)), key
        for dataset in datasets:
            own = dataset.statistics(key)
            assert np.array_equal(own.count, np.isfinite(numbers).sum(axis=0)), key
            assert not own.nan.any()
            scale = np.maximum(np.abs(np.nanmean(numbers, axis=0)), np.nanstd(numbers, axis=0))
            assert np.allclose(own.mean, np.nanmean(numbers, axis=0), 0, 1e-12 * scale.max())
            assert np.allclose(own.std, np.nanstd(numbers, axis=0), 0, 1e-12 * scale.max())
            assert np.array_equal(own.min, np.nanmin(numbers, axis=0))
    moments = unistore.inspect(store).to_json()["statistics"]
    assert {path for path in moments if "mean" in moments[path]} == {"steps/action"}
    some = unistore.Dataset(store).statistics("states", subset=[10, 11])
    assert some.count.tolist() == [2, 2, 0, 0]
    assert unistore.Normalize(unistore.Dataset(store).statistics("states")).centre.shape == (4,)
    with pytest.raises(InputError, match=r"2 components of .* have no finite value"):
        unistore.Normalize(some)


def test_padded_columns_are_exported_with_their_original_shapes(
    robots: tuple[list[Path], Path], tmp_path: Path
) -> None:
    paths, store = robots
    assert unistore.verify(store, against=paths).receipt
    unistore.export(store, tmp_path / "again")
    for path in paths:
        with h5py.File(path) as file, h5py.File(tmp_path / "again" / path.name) as again:
            names: list[str] = []
            file.visititems(lambda name, item, names=names: names.append(name))
            others: list[str] = []
            again.visititems(lambda name, item, others=others: others.append(name))
            assert {name for name in others if not name.endswith("_8")} == set(names)
            for name in names:
                if isinstance(file[name], h5py.Dataset):
                    assert file[name].shape == again[name].shape
                    assert np.array_equal(file[name][()], again[name][()]), name


def test_relative_actions_of_padded_components_are_an_error(robots: tuple[list[Path], Path]) -> None:
    around = {"history": 1, "horizon": 1}
    delta = {"action": ("states", (0, 1))}
    _, store = robots
    action = unistore.Dataset(store, unistore.Windows(**around, delta=delta))[0]["action"]
    assert action.shape == (1, 2)  # every episode has two states
    wide = {"states": ("observation.joint", range(4))}
    dataset = unistore.Dataset(store, unistore.Windows(**around, delta=wide))
    with pytest.raises(InputError, match="components in every episode"):
        dataset[0]


def test_rows_of_several_shapes_are_padded_with_a_mask_and_exported_as_before(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"a.npz": (3, "f4"), "b.npz": (5, "f4"), "c.npz": (2, "f2")}
    sources = []
    for name, (width, dtype) in arrays.items():
        records = np.zeros(4, [("v", dtype, (width,)), ("n", "i4")])
        records["v"] = rng.normal(size=(4, width))
        np.savez(tmp_path / name, x=rng.integers(1, 9, (4, width, 2)).astype("u1"), r=records)
        sources.append(tmp_path / name)
    unistore.convert(sources, tmp_path / "s.zarr", "rows", columns="union")
    dataset = unistore.Dataset(tmp_path / "s.zarr")
    batch = dataset.read_batch(np.arange(12))
    widths = [width for width, _ in arrays.values()]
    for number, source in enumerate(sources):
        with np.load(source) as own:
            for key, values in (("x", own["x"]), ("r/v", own["r"]["v"])):
                mine = batch[key].values[4 * number :][:4]
                is_real = batch[f"{key}_mask"].values[4 * number :][:4]
                assert np.array_equal(mine[:, : widths[number]], values)
                assert is_real[:, : widths[number]].all()
                assert not is_real[:, widths[number] :].any()
                assert not mine[:, widths[number] :].any()
    assert (dataset.statistics("x").count, dataset.statistics("x").min) == (80, 1)
    assert dataset.statistics("r/v").count.tolist() == [12, 12, 8, 4, 4]
    assert unistore.verify(tmp_path / "s.zarr", against=sources).receipt
    unistore.export(tmp_path / "s.zarr", tmp_path / "again")
    for source in sources:
        with np.load(source) as own, np.load(tmp_path / "again" / source.name) as again:
            assert again["x"].dtype == own["x"].dtype
            assert np.array_equal(again["x"], own["x"])
            assert again["r"].dtype == own["r"].dtype
            assert np.array_equal(again["r"]["v"], own["r"]["v"])


def write(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"x": np.ones((2, 3))}, {"x": np.ones((2, 3, 1))}, "rename columns that no common shape and dtype"),
        (
            {"x": np.ones((2, 3), "u8")},
            {"x": np.ones((2, 4), "i8")},
            "rename columns that no common shape and dtype",
        ),
        (
            {"x": np.ones((2, 3)), "x_mask": np.ones(2)},
            {"x": np.ones((2, 4)), "x_mask": np.ones(2)},
            "rename x_mask with --map",
        ),
    ],
)
def test_columns_that_cannot_be_padded_are_an_error(
    tmp_path: Path, first: Any, second: Any, message: str
) -> None:
    sources = [write(tmp_path / "a.npz", **first), write(tmp_path / "b.npz", **second)]
    with pytest.raises(InputError, match=message):
        unistore.convert(sources, tmp_path / "s.zarr", "rows", columns="union")
