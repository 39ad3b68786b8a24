"""Which files are point clouds: each verdict, of no other file; and a file is scanned alike anywhere."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.support.family_converters import point_cloud
from unistore.converters.adapter.converter import Converter
from unistore.converters.claims import Claim, sure
from unistore.converters.scan_types import Candidate
from unistore.errors import InputError


def look(path: Path, converter: Converter | None = None) -> Claim:
    with Candidate(path, [path.parent]) as file:
        return (converter or point_cloud()).look(file)


def hdf5(path: Path, **values: np.ndarray) -> Path:
    with h5py.File(path, "w") as file:
        for key, each in values.items():
            file[key.replace("__", "/")] = each
    return path


AXES = {axis: np.arange(4.0) for axis in "xyz"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a.npy", "does not have the name of a point cloud"),
        ("a.h5.txt", "is text, which is read as points only if you name the file"),
        ("images.h5", "is not a point cloud of a known format"),
    ],
)
def test_a_file_that_is_not_a_known_point_cloud_has_a_reason(tmp_path: Path, name: str, reason: str) -> None:
    path = hdf5(tmp_path / name, data=np.zeros((3, 16, 3), "f4"), label=np.zeros(3, "f4"))
    seen = look(path)
    assert seen.certainty != "sure"
    assert seen.reason.startswith(reason)


def test_batches_are_columns_where_the_map_says_what_x_is(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "f.h5", data=np.zeros((2, 5, 3), "f4"), label=np.zeros(2, "u1"))
    assert look(path, point_cloud(map={"x": "label"})).certainty != "sure"


def test_a_coordinate_behind_a_broken_link_is_recognised_by_its_name(tmp_path: Path) -> None:
    hdf5(tmp_path / "b.h5", z=np.arange(4.0))
    path = hdf5(tmp_path / "a.h5", x=AXES["x"], y=AXES["y"])
    with h5py.File(path, "r+") as file:
        file["z"] = h5py.ExternalLink("b.h5", "z")
    whole = look(path)
    (tmp_path / "b.h5").unlink()
    assert look(path) == whole == sure("is a point cloud of layout columns", "columns")


def test_a_broken_link_that_hides_the_format_is_an_error(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "a.h5", label=np.zeros(2, "u1"))
    with h5py.File(path, "r+") as file:
        file["data"] = h5py.ExternalLink("b.h5", "data")
    with pytest.raises(InputError, match=r"a\.h5: data: is a link into .*b\.h5, which does not exist"):
        look(path)
