"""``derive``: side tables made from a store equal what a conversion with the option writes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from tests.support.cases import Case
from tests.support.progress import CountedProgress
from unistore.cli.main import main
from unistore.errors import InputError, StoreError

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
VOXELS = {"cloud_real": 50.0, "cloud_indices": 10.0, "cloud_mixed": 0.3, "cloud_batches": 0.5}
WINDOWS = {"ct_real": "lung", "ct_cases": "tight:30:40"}


def arrays(store: unistore.Store, start: str) -> dict[str, Any]:
    return {path: store.array(path) for path in store.paths() if path.startswith(start)}


def check_equal(derived: unistore.Store, converted: unistore.Store, start: str) -> None:
    expected = arrays(converted, start)
    made = arrays(derived, start)
    assert list(made) == list(expected) != []
    for path, array in expected.items():
        np.testing.assert_array_equal(made[path].read(), array.read())
        assert made[path].dtype == array.dtype


@pytest.mark.nightly
@pytest.mark.parametrize("name", VOXELS)
def test_voxels_are_those_of_a_conversion(
    name: str, make_case: Callable[[str], tuple[Case, Path]], tmp_path: Path
) -> None:
    case, _ = make_case(name)
    size = VOXELS[name]
    path = Case(case.family, case.sources).convert(tmp_path / "plain.zarr")
    other = Case(case.family, case.sources, {"voxel_size": (size,)}).convert(tmp_path / "voxels.zarr")
    (side,) = unistore.derive(path, voxel_size=size)
    kind = unistore.Segments(voxel=size)
    derived = unistore.Dataset(path, kind)
    converted = unistore.Dataset(other, kind)
    assert kind.voxel_group(unistore.Store(path)) is None
    assert kind.voxel_group(derived.store) == f"voxels/{size:g}"
    check_equal(derived.store, converted.store, "voxels/")
    for key, value in converted[0].items():
        np.testing.assert_array_equal(derived[0][key], value)
    assert unistore.verify(path).ok
    assert "derived from the store" in str(unistore.inspect(path))
    assert unistore.derive(path, voxel_size=size) == (side,)
    assert unistore.derive(path, voxel_size=size, overwrite=True)[0].folder != side.folder


@pytest.mark.nightly
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("sparse", ["coords", "mask", "auto"])
def test_windows_are_those_of_a_conversion(
    name: str, sparse: str, make_case: Callable[[str], tuple[Case, Path]], tmp_path: Path
) -> None:
    case, _ = make_case(name)
    window = WINDOWS[name]
    options = {**case.options, "sparse": sparse}
    path = Case("ct", case.sources, {**options, "window": ()}).convert(tmp_path / "plain.zarr")
    other = Case("ct", case.sources, {**options, "window": (window,)}).convert(tmp_path / "window.zarr")
    unistore.derive(path, window=window)
    group = f"windows/{window.partition(':')[0]}"
    kind = unistore.SparsePoints(window.partition(":")[0])
    derived = unistore.Dataset(path, kind)
    converted = unistore.Dataset(other, kind)
    check_equal(derived.store, converted.store, f"{group}/")
    assert derived.store.group(group) == converted.store.group(group)
    for key, value in converted[1].items():
        np.testing.assert_array_equal(derived[1][key], value)
    assert unistore.verify(path).ok


@pytest.mark.parametrize(
    ("name", "options"),
    [("point_cloud_decimal.zarr", {"voxel_size": (5, 9)}), ("ct.zarr", {"window": "mine:300:40"})],
)
def test_progress_ends_at_the_bytes_that_are_read(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    path = shutil.copytree(GOLDEN / name, tmp_path / name)
    progress = CountedProgress()
    sides = unistore.derive(path, **options, progress=progress)
    store = unistore.Store(path)
    if store.family == "ct":
        total = 2 * store.array("volumes/extent").read().prod(axis=1).sum() * 2
    else:
        lengths = np.diff(store.array("segments/offsets").read())
        total = lengths[store.array("segments/number").read() >= 0].sum() * 3 * 8
    assert progress.begun == [("deriving", total)] * len(sides)
    assert progress.done == total * len(sides)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "nothing": ("ct.zarr", {}, "at least one option"),
    "family": ("ct.zarr", {"voxel_size": 0.2}, "--voxel-size cannot be computed from a ct store.*--window"),
    "others": ("rows.zarr", {"window": "lung"}, "--window cannot be computed from a rows store$"),
    "later": (
        "spike_steps.zarr",
        {"voxel_bins": 3},
        r"spike store\. Fix: convert its sources again with --voxel-bins",
    ),
    "value": ("point_cloud_scaled.zarr", {"voxel_size": -1}, "the sizes must be above 0"),
    "text": ("point_cloud_scaled.zarr", {"voxel_size": "x"}, "must be"),
    "there": ("point_cloud_scaled.zarr", {"voxel_size": 200}, r"has voxels/200/offsets of 200\.0 already"),
    "window": (
        "ct.zarr",
        {"window": "lung"},
        r"ct\.zarr has windows/lung/offsets of lung:1500\.0:-600\.0 already",
    ),
    "no images": ("ct_windows.zarr", {"window": "mediastinum"}, "has no images"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_impossible_derive_is_an_error_and_leaves_nothing(case: str, tmp_path: Path) -> None:
    name, options, message = REFUSED[case]
    path = Path(shutil.copytree(GOLDEN / name, tmp_path / name))
    with pytest.raises(InputError, match=message):
        unistore.derive(path, **options)
    assert not path.with_name(f"{name}.unistore-side").exists()


def test_two_windows_of_one_name_are_refused(tmp_path: Path) -> None:
    path = shutil.copytree(GOLDEN / "ct.zarr", tmp_path / "a.zarr")
    unistore.derive(path, window="mine:300:40")
    with pytest.raises(InputError, match=r"a\.zarr has windows/mine/offsets of mine:400\.0:40\.0 already"):
        unistore.derive(path, window="mine:400:40")


def test_a_derived_table_of_another_seal_is_ignored_and_can_be_made_again(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    shutil.copytree(GOLDEN / "point_cloud_scaled.zarr", path)
    unistore.derive(path, voxel_size=7)
    shutil.rmtree(path)
    shutil.copytree(GOLDEN / "point_cloud_decimal.zarr", path)
    kind = unistore.Segments(voxel=7)
    assert kind.voxel_group(unistore.Dataset(path, kind).store) is None
    (problem,) = unistore.verify(path).problems
    assert "other values of this store" in problem.message
    unistore.derive(path, voxel_size=7)
    assert kind.voxel_group(unistore.Dataset(path, kind).store) == "voxels/7"
    assert unistore.verify(path).ok
    with pytest.raises(StoreError, match="another store"):
        unistore.Store(GOLDEN / "rows.zarr", beside=[unistore.derive(path, voxel_size=7)[0].folder])


def test_the_derive_command_makes_a_table_for_each_size(tmp_path: Path, capsys: Any) -> None:
    path = shutil.copytree(GOLDEN / "point_cloud_scaled.zarr", tmp_path / "a.zarr")
    arguments = ("derive", str(path), "--voxel-size", "3", "--voxel-size", "4", "--json")
    for _ in range(2):
        with pytest.raises(SystemExit, match="0"):
            main(arguments)
        names = [side["name"] for side in json.loads(capsys.readouterr().out)]
        assert names == ["voxel_size-3.0", "voxel_size-4.0"]
    with pytest.raises(SystemExit, match="2"):
        main(["derive", str(path), "--window", "lung"])
    assert "--window cannot be computed from a point-cloud store" in capsys.readouterr().err
