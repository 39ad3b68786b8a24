"""An open HDF5 file says what it is asked for, and reads no more of the file than that."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from unistore.converters.files.hdf5.tree import walk
from unistore.converters.formats.arrays import Npz
from unistore.converters.formats.hdf5 import Hdf5, OpenedHdf5
from unistore.converters.opened import OpenFile, SourceFile


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Each search of a whole file."""
    made: list[Any] = []

    def counting(*arguments: Any) -> Any:
        made.append(arguments)
        return walk(*arguments)

    monkeypatch.setattr("unistore.converters.formats.hdf5.walk", counting)
    return made


@contextmanager
def opened(path: Path) -> Iterator[OpenedHdf5]:
    with Hdf5().open(SourceFile(path, path.name, (path.parent,))) as file:
        assert isinstance(file, OpenedHdf5)
        yield file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["far"] = np.ones(2)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in (10, 2):
            file[f"data/demo_{number}/actions"] = np.arange(6.0).reshape(3, 2)
        file["data/demo_2"].attrs["success"] = True
        file["data/demo_2"].attrs["rate"] = np.float32("nan")
        file["task"] = "push"
        file["names"] = np.array(["a", "b"], h5py.string_dtype())
        file["gain"] = 2.5
        file["nothing"] = h5py.Empty("f4")
        file.create_dataset("unwritten", (4,), "f4")
        file["gone"] = h5py.SoftLink("/nowhere")
        file["far"] = h5py.ExternalLink("other.h5", "/far")
    return tmp_path / "a.h5"


def test_an_open_file_lists_sound_arrays_metadata_and_problems_after_one_walk(
    path: Path, walks: list[Any]
) -> None:
    with opened(path) as file:
        assert set(file.arrays) == {"data/demo_10/actions", "data/demo_2/actions", "gain", "far"}
        assert set(file.all_arrays) - set(file.arrays) == {"task", "names", "unwritten"}
        assert file.metadata == {"gain": 2.5}
        assert file.all_arrays["task"].item() == b"push"
        assert file.all_arrays["names"].item(1) == b"b"
        assert file.all_arrays["names"].problems(as_objects=True) == []
        assert [problem.kind for problem in file.all_arrays["unwritten"].problems()] == ["unwritten"]
        assert {problem.dataset for problem in file.problems} == {"names", "nothing", "unwritten", "gone"}
        assert [problem.dataset for problem in file.unreachable] == ["gone"]
        assert [Path(other.path).name for other in file.further] == ["other.h5"]
        assert file.groups == ["data", "data/demo_2", "data/demo_10"]
        assert file.group_metadata("data/demo_2") == {"rate": "nan", "success": True}
        assert len(walks) == 1


def test_linked_files_are_closed_at_once(path: Path) -> None:
    gc.collect()
    gc.disable()
    before = h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_DATASET)
    try:
        with opened(path) as file:
            assert len(file.arrays["far"]) == 2
            assert file.without(["data"]).problems
        del file
        assert h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_DATASET) == before
    finally:
        gc.enable()


def test_names_with_slashes_in_npz_are_opened_as_groups(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz", **{"data/demo_10/x": np.ones(2), "data/demo_2/x": np.ones(2), "y": np.ones(2)}
    )
    with Npz().open(SourceFile(tmp_path / "a.npz", "a.npz")) as file:
        assert isinstance(file, OpenFile)
        assert file.members() == {"data": "group", "y": "array"}
        assert list(file.members("data")) == ["demo_2", "demo_10"]
        assert file.groups == ["data", "data/demo_2", "data/demo_10"]
        assert file.all_arrays is file.arrays
        assert file.group_metadata("data") == {}
        assert file.attributes(lambda _: True) is None
        np.testing.assert_array_equal(file.arrays["y"].item(), [1, 1])
