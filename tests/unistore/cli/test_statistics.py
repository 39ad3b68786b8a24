"""``unistore statistics``: what it keeps and shows, and what inspect shows of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from tests.support.programs import call
from unistore.store.names import STATISTICS

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
KEYS = {
    "ct.zarr": {"image": "", "lung": ""},
    "point_cloud_scaled.zarr": {"intensity": "", "xyz": ""},
    "rows.zarr": {"data": "rows/data", "label": "rows/label"},
    "spike_steps.zarr": {"voxel": ""},
    "trajectory_streams.zarr": {"action": "steps/action", "observation.force": ""},
}
"""Keys of stores of each family, and arrays that hold their values without padding."""


@pytest.mark.parametrize("name", KEYS)
def test_the_statistics_command_keeps_and_prints_statistics_of_every_family(
    name: str, tmp_path: Path, capsys: Any
) -> None:
    path = shutil.copytree(GOLDEN / name, tmp_path / name)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert call("statistics", str(path), "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    dataset = unistore.Dataset(path)
    for key, array in KEYS[name].items():
        assert printed[key] == dataset.statistics(key).to_json()
        if array:
            values = dataset.store.array(array).read()
            np.testing.assert_array_equal(printed[key]["max"], values.max(axis=0))
    assert {file: file.read_bytes() for file in before} == before
    assert (path / STATISTICS).is_file()
    assert unistore.verify(path).ok
    assert unistore.inspect(path).to_json()["samples_statistics"] == printed


def test_keys_of_which_several_axes_may_be_components_are_named(tmp_path: Path, capsys: Any) -> None:
    np.savez(tmp_path / "a.npz", depth=np.zeros((4, 12, 11)), vector=np.zeros((4, 7)))
    unistore.convert(tmp_path / "a.npz", tmp_path / "a.zarr")
    assert call("statistics", str(tmp_path / "a.zarr"), "--json") == 0
    shown = capsys.readouterr()
    assert list(json.loads(shown.out)) == ["vector"]
    assert shown.err.startswith(
        "note: the statistics are not saved: axis: values of depth have the shape (12, 11)"
    )
    assert unistore.verify(tmp_path / "a.zarr").ok
