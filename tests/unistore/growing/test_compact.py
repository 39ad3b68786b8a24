"""One plain store of a version: every array is that of one conversion of all sources, in every family."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import unistore
from tests import cases
from unistore.conversion import build
from unistore.growing.folder import growing
from unistore.store.versions import describe_part

CASES: list[Callable[[Path], cases.Case]] = [
    cases.rows_npz,
    cases.cloud_indices,
    cases.ct_sparse,
    cases.spike_tiles,
    cases.robot_flat,
    cases.events_of_two_cameras,
]


def joined(case: cases.Case, folder: Path) -> Path:
    """Return a grown store of two parts that have every other source each."""
    unistore.convert(case.sources, folder / "one.zarr", case.family, **case.options)
    names = unistore.Store(folder / "one.zarr").text("sources/path")
    for name, others in (("s.zarr", names[1::2]), ("p.zarr", names[::2])):
        unistore.convert(case.sources, folder / name, case.family, exclude=others, **case.options)
    with growing(folder / "s.zarr") as growth:
        shutil.move(folder / "p.zarr", growth.new_store)
        schemas = list(growth.version.schemas)
        part = describe_part(unistore.Store(growth.new_store), schemas)
        growth.commit([*growth.version.parts, part], schemas, adds_store=True)
    return folder / "s.zarr"


def check_equal(path: Path, expected: Path) -> None:
    store = unistore.Store(path)
    one = unistore.Store(expected)
    assert store.paths() == one.paths()
    for array in one.paths():
        if array != "sources/digest":  # of other shards
            np.testing.assert_array_equal(store.array(array).read(), one.array(array).read(), array)
            assert dict(store.array(array).attributes) == dict(one.array(array).attributes), array
    assert store.splits()[1] == one.splits()[1]


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_it_equals_one_conversion(tmp_path: Path, make: Callable[[Path], cases.Case]) -> None:
    (tmp_path / "src").mkdir()
    case = make(tmp_path / "src")
    store = joined(case, tmp_path)
    for limit in (0, 1 << 25):
        compacted = tmp_path / f"compacted{limit}.zarr"
        unistore.compact(store, compacted, order="name", largest_index=limit)
        check_equal(compacted, tmp_path / "one.zarr")
    assert unistore.verify(compacted, against=case.sources).receipt is not None
    first = unistore.Store(tmp_path / "one.zarr").text("sources/path")[0]
    unistore.remove(store, first)
    unistore.compact(store, tmp_path / "less.zarr", order="name")
    unistore.convert(case.sources, tmp_path / "same.zarr", case.family, exclude=[first], **case.options)
    check_equal(tmp_path / "less.zarr", tmp_path / "same.zarr")


def _write(folder: Path, name: str, **columns: object) -> None:
    folder.mkdir(exist_ok=True)
    np.savez(folder / f"{name}.npz", **columns)  # type: ignore[arg-type]


def test_parts_that_differ_are_refused_by_name(tmp_path: Path) -> None:
    _write(tmp_path / "a", "a", x=np.zeros(3, np.int16), y=np.ones(3))
    _write(tmp_path / "b", "b", x=np.zeros(4, np.int16))
    unistore.convert(tmp_path / "a", tmp_path / "s.zarr")
    unistore.convert(tmp_path / "b", tmp_path / "p.zarr")
    with growing(tmp_path / "s.zarr") as growth:
        shutil.move(tmp_path / "p.zarr", growth.new_store)
        schemas = list(growth.version.schemas)
        part = describe_part(unistore.Store(growth.new_store), schemas)
        growth.commit([*growth.version.parts, part], schemas, adds_store=True)
    with pytest.raises(unistore.InputError, match="array rows/y is in some of its parts alone"):
        unistore.compact(tmp_path / "s.zarr", tmp_path / "one.zarr")
    assert not (tmp_path / "one.zarr").exists()


def test_a_killed_one_goes_on_and_nothing_is_overwritten(tmp_path: Path) -> None:
    _write(tmp_path / "a", "a", x=np.arange(3))
    _write(tmp_path / "b", "b", x=np.arange(5))
    unistore.convert(tmp_path / "a", tmp_path / "s.zarr")
    unistore.append(tmp_path / "b", tmp_path / "s.zarr")
    child = os.fork()
    if child == 0:
        build.FolderBuild.move_into_place = lambda _: os._exit(9)  # type: ignore[method-assign]
        unistore.compact(tmp_path / "s.zarr", tmp_path / "one.zarr")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not (tmp_path / "one.zarr").exists()
    report = unistore.compact(tmp_path / "s.zarr", tmp_path / "one.zarr")
    assert report.resumed == report.tasks == 1
    assert unistore.Store(tmp_path / "one.zarr").array("rows/x").read().tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    with pytest.raises(unistore.InputError, match="a finished store is there already"):
        unistore.compact(tmp_path / "s.zarr", tmp_path / "one.zarr")
