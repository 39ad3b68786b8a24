"""Families with several tables a source: those of sensors with rates of their own, and computed ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import unistore
from tests.plugins.conftest import check_schema
from unistore import plugin
from unistore.converters.checking import checked_family
from unistore.errors import InputError

pytestmark = pytest.mark.timeout(400)
READINGS = {"a.h5": (30, 500), "b.h5": (20, 0), "c.h5": (10, 170)}


def episode(path: Path, seed: int, frames: int, readings: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    values = {
        "camera/t": np.arange(frames) * 33_000_000,
        "camera/image": rng.integers(0, 255, (frames, 4, 6)).astype("u1"),
        "force/t": np.arange(readings) * 2_000_000 + 5,
        "force/value": rng.normal(0, 1, (readings, 3)).astype("f4"),
    }
    with h5py.File(path, "w") as file:
        for name, array in values.items():
            file[name] = array
    return values


@pytest.fixture(scope="module")
def robots(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, np.ndarray]]]:
    folder = tmp_path_factory.mktemp("robots")
    found = [episode(folder / name, number, *READINGS[name]) for number, name in enumerate(READINGS)]
    return folder, found


def touches(values: dict[str, np.ndarray], least: float) -> list[tuple[int, int]]:
    """Touches, one reading after the other."""
    found: list[tuple[int, int]] = []
    is_touched = False
    for time, xyz in zip(values["force/t"].tolist(), values["force/value"], strict=True):
        was_touched, is_touched = is_touched, bool(np.sqrt((xyz**2).sum()) > least)
        if is_touched and not was_touched:
            found.append((time, 0))
        if is_touched:
            found[-1] = found[-1][0], found[-1][1] + 1
    return found


def joined(episodes: list[dict[str, np.ndarray]], name: str) -> np.ndarray:
    return np.concatenate([values[name] for values in episodes])


def test_a_family_of_several_tables_keeps_its_promises(
    robots: tuple[Path, list[dict[str, np.ndarray]]], tmp_path: Path
) -> None:
    folder, episodes = robots
    computed = [touches(values, 1.5) for values in episodes]
    times, counts = zip(*(touch for found in computed for touch in found), strict=True)
    oracle = {
        "frames/image": joined(episodes, "camera/image"),
        "forces/t": joined(episodes, "force/t"),
        "forces/value": joined(episodes, "force/value"),
        "sources/forces/offsets": np.array([0, 500, 500, 670]),
        "touches/t": np.array(times),
        "touches/count": np.array(counts),
        "sources/touches/offsets": np.cumsum([0, *map(len, computed)]),
    }
    check_schema("robot", folder, tmp_path, oracle, least=1.5)


@pytest.mark.usefixtures("in_this_process")
def test_columns_of_tables_that_only_some_sources_have_are_united(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unistore_robot import Robot

    forces = Robot.schema.tables["forces"]

    def choose(family: Robot, head: plugin.FileSummary) -> plugin.Chosen:
        own = {name: column for name, column in forces.items() if column.source in head.arrays}
        return plugin.Chosen(family.schema.columns, tables={"forces": own} if own else {})

    monkeypatch.setattr(Robot, "schema", replace(Robot.schema, tables={"forces": forces}))
    monkeypatch.setattr(Robot, "choose", choose)
    monkeypatch.setattr(Robot, "match", lambda *_: plugin.sure("holds frames"))
    monkeypatch.setattr(Robot, "columns", "union", raising=False)
    lacking = {"a": ("t", "value"), "b": ("value",), "c": ("t", "value"), "d": ()}
    for number, (name, columns) in enumerate(lacking.items()):
        episode(tmp_path / f"{name}.h5", number, 3, 4)
        with h5py.File(tmp_path / f"{name}.h5", "r+") as file:
            for column in columns:
                del file[f"force/{column}"]
    sources = [tmp_path / f"{name}.h5" for name in lacking]
    unistore.convert(sources, tmp_path / "r.zarr", "robot")
    store = unistore.Store(tmp_path / "r.zarr")
    assert store.array("sources/forces/offsets").read().tolist() == [0, 0, 4, 4, 8]
    assert store.array("forces/t").attributes["missing_in"] == [0, 2]
    assert store.array("forces/value").attributes["missing_in"] == [0, 1, 2]
    values = store.array("forces/value").read()
    assert np.isnan(values).all(axis=1).tolist() == [True] * 4 + [False] * 4


@pytest.fixture
def store(robots: tuple[Path, list[dict[str, np.ndarray]]], tmp_path: Path) -> Path:
    unistore.convert(robots[0], tmp_path / "r.zarr", "robot")
    return tmp_path / "r.zarr"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"force/t": None}, r"r\.h5: does not contain force/t"),
        ({"force/t": np.zeros(9, int)}, r"its arrays differ in the length of axis 0:\n +force/t +9\n"),
        ({"force/value": np.zeros(8)}, r"force/value: is float64 \(n\), but must have 2 axes of float"),
    ],
)
def test_a_table_that_does_not_fit_the_schema_is_an_error(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    values = episode(tmp_path / "r.h5", 0, 5, 8) | change
    with h5py.File(tmp_path / "r.h5", "w") as file:
        for name, array in values.items():
            if array is not None:
                file[name] = array
    with pytest.raises(InputError, match=message):
        unistore.convert(tmp_path / "r.h5", tmp_path / "r.zarr", "robot")


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"t": np.zeros(2, int)},
            r"Robot\.derive returned {'t': 'int64 \(\)'} for touches, but {'t': .*'count': 'int32",
        ),
        (
            {"t": np.zeros(2), "count": np.zeros(2, "i4")},
            r"returned {'t': 'float64 \(\)'",
        ),
        (
            {"t": np.zeros(2, int), "count": np.zeros((2, 1), "i4")},
            r"returned .*'count': 'int32 \(1,\)'",
        ),
        (
            {"t": np.zeros(2, int), "count": np.zeros(3, "i4")},
            r"that differ in length: \{'t': 2, 'count': 3\}",
        ),
    ],
)
def test_a_computed_table_that_is_not_as_declared_names_the_plugin(
    given: Mapping[str, np.ndarray],
    message: str,
    robots: tuple[Path, list[dict[str, np.ndarray]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from unistore_robot import Robot

    monkeypatch.setattr(Robot, "derive", lambda *_: iter([("touches", given)]))
    with pytest.raises(InputError, match=message):
        unistore.convert(robots[0], tmp_path / "r.zarr", "robot")
    assert not (tmp_path / "r.zarr").exists()


@pytest.mark.usefixtures("in_this_process")
def test_tables_of_forward_only_files_are_the_same(
    store: Path,
    robots: tuple[Path, list[dict[str, np.ndarray]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from unistore.converters.formats.hdf5 import Hdf5

    whole = Hdf5.open

    @contextmanager
    def forward(self: Hdf5, file: Any) -> Iterator[plugin.OpenFile]:
        with whole(self, file) as opened:
            yield plugin.OpenFile(opened.arrays, opened.metadata, forward_only=True, file=file)

    monkeypatch.setattr(Hdf5, "open", forward)
    unistore.convert(robots[0], tmp_path / "f.zarr", "robot")
    one, other = unistore.Store(store), unistore.Store(tmp_path / "f.zarr")
    assert one.paths() == other.paths()
    for path in one.paths():
        assert np.array_equal(one.array(path).read(), other.array(path).read())


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"frames": {"t": plugin.Column()}}, "has a table 'frames', whose name is already used"),
        ({"a/b": {"t": plugin.Column()}}, "has a table 'a/b'"),
        ({"forces": {}}, "has a table 'forces' without columns"),
        (
            {"forces": {"t": plugin.Column(), "n": plugin.Column(dtype="int8")}},
            "only some columns have a dtype",
        ),
    ],
)
def test_a_family_with_impossible_tables_is_an_error(tables: Mapping[str, Any], message: str) -> None:
    from unistore_robot import Robot

    wrong = type("Wrong", (Robot,), {"schema": replace(Robot.schema, tables=tables)})
    with pytest.raises(InputError, match=message):
        checked_family(wrong)
