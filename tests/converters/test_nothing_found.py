"""What is said where nothing is found: one line, with what lies there and a fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import unistore
from unistore.errors import InputError


def volumes(folder: Path) -> None:
    np.save(folder / "a.npy", np.full((3, 4, 5), -1000, "i2"))


def scanned(folder: Path) -> None:
    (folder / "a.e57").write_bytes(b"x")


def empty(folder: Path) -> None:
    """Nothing."""


def zarr2(folder: Path) -> None:
    (folder / ".zgroup").write_text("{}")


def zarr3(folder: Path) -> None:
    (folder / "zarr.json").write_text("{}")


def text(folder: Path) -> None:
    (folder / "a.unheard").write_text("x")


@pytest.mark.parametrize("family", [None, "trajectory"])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (empty, "the folder is empty. Fix: check the path"),
        (scanned, "a.e57 is E57, which is not supported. Fix: load the files with their own library"),
        (zarr2, "is a Zarr hierarchy, which cannot be converted. Fix: save its arrays as .npy"),
        (zarr3, "Fix: unistore export"),
        (text, "Fix: unistore inspect"),
    ],
)
def test_a_folder_without_sources_is_an_error_that_names_its_content(
    tmp_path: Path, make: Callable[[Path], None], said: str, family: str | None
) -> None:
    source = tmp_path / "src"
    source.mkdir()
    make(source)
    with pytest.raises(InputError) as refused:
        unistore.convert(source, tmp_path / "out.zarr", family)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["src"]


def test_an_option_implies_its_family(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "cloud.h5", "w") as file:
        for axis in "xyz":
            file[axis] = np.arange(5.0)
    report = unistore.convert(tmp_path / "cloud.h5", tmp_path / "out.zarr", voxel_size=2.0)
    assert report.family == "point_cloud"
    volumes(tmp_path)
    report = unistore.convert(tmp_path, tmp_path.parent / "of_ct.zarr", window="lung")
    assert report.family == "ct"
    assert [each["why"] for each in report.verdicts if each["verdict"] == "taken"] == ["ct"]
    others = {each["why"]: each["files"] for each in report.verdicts if each["verdict"] == "left out"}
    assert others["of another family (unistore convert point-cloud)"] == 1
