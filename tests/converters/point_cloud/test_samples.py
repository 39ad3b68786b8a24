"""Real point clouds: every value against what h5py reads and the definitions say, point by point."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.support.cases import DATA
from tests.support.converter_contract import check_contract
from tests.support.family_converters import point_cloud
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError

COORDINATES = ("x", "y", "z")


def bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, np.float64).view(np.int64)


def restored(converted, rows: slice | np.ndarray, source: int) -> np.ndarray:
    """Float64 coordinates of stored rows, by the format's formula."""
    xyz = converted.arrays["points/xyz"][rows]
    if xyz.dtype != np.int32:
        return xyz.astype(np.float64)
    return (
        xyz.astype(np.float64) * converted.arrays["sources/scale"][source]
        + converted.arrays["sources/offset"][source]
    )


def segments_of(converted) -> list[tuple[int, int, int, int]]:
    """Source, number, first and last row of each stored segment."""
    arrays = converted.arrays
    bounds = arrays["segments/offsets"].tolist()
    return list(
        zip(
            arrays["segments/source"].tolist(),
            arrays["segments/number"].tolist(),
            bounds,
            bounds[1:],
            strict=False,
        )
    )


def test_real_clouds_with_partial_segments_are_stored_to_the_bit() -> None:
    paths = [DATA / "pointcloud" / name for name in ("thin_a.h5", "thin_b.h5")]
    converted = check_contract(point_cloud(voxel_size=(20.0, 100.0)), paths)
    arrays = converted.arrays
    assert converted.finalized.samples == 24
    np.testing.assert_array_equal(arrays["segments/number"], [*range(12), -1] * 2)
    last = 0
    for source, number, lo, hi in segments_of(converted):
        with h5py.File(paths[source]) as file:
            cloud = np.stack([file[f"data/{axis}"][:] for axis in COORDINATES], axis=1)
            inside = {key: group["indices"][:] for key, group in file["segments"].items()}
            classes = file["data/classification"][:]
        assigned = np.concatenate(list(inside.values()))
        rest = np.setdiff1d(np.arange(len(cloud)), assigned)
        rows = rest if number == -1 else inside[f"segment_{number:04d}"]
        np.testing.assert_array_equal(arrays["points/source_row"][lo:hi], rows)
        np.testing.assert_array_equal(arrays["points/classification"][lo:hi], classes[rows])
        np.testing.assert_array_equal(bits(restored(converted, slice(lo, hi), source)), bits(cloud[rows]))
        if number == -1:
            assert (arrays["voxels/20/point_voxel"][lo:hi] == -1).all()
        last = hi
    assert last == len(arrays["points/xyz"])
    assert converted.fields["points/xyz"].unit == "m"
    assert '"point_format": 3' in arrays["sources/header/data"].tobytes().decode()


def test_quantised_beside_unquantised_is_restored_to_the_bit() -> None:
    folder = DATA / "samples" / "pointcloud"
    paths = [folder / "derived_pointsuite_thin-1.h5", folder / "derived_pointsuite_thin-1_fast.h5"]
    with pytest.raises(InputError, match="columns differ"):
        scan_sources(point_cloud(), paths)
    converted = check_contract(point_cloud(columns="intersection"), paths)
    arrays = converted.arrays
    assert [bool(prepared["quantised"]) for prepared in converted.prepared] == [True, False]
    assert arrays["points/xyz"].dtype == np.float64
    assert "sources/scale" not in arrays
    with h5py.File(paths[0]) as file:
        expected = np.stack([file[f"data/{axis}"][:] for axis in COORDINATES], axis=1)
    first = arrays["points/xyz"][:5327]
    np.testing.assert_array_equal(bits(first), bits(expected[arrays["points/source_row"][:5327]]))
    np.testing.assert_array_equal(bits(first), bits(arrays["points/xyz"][5327:]), "both hold the same points")


def test_several_coordinates_are_one_problem(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["points"] = file["pos"] = np.random.default_rng(0).random((9, 3))
    with pytest.raises(InputError) as caught:
        scan_sources(point_cloud(), [tmp_path])
    (problem,) = caught.value.problems
    assert problem.message == "contains points and pos, and each may be the coordinates"


def test_map_selects_the_coordinates_of_a_real_file() -> None:
    path = DATA / "pointcloud" / "pdal_twoPoints.h5"
    with pytest.raises(InputError, match=r"has no x, y, z; datasets: elevation, .*--map x="):
        scan_sources(point_cloud(), [path])
    names = {"x": "longitude", "y": "latitude", "z": "elevation", "pitch": "instrument_parameters/pitch"}
    converted = check_contract(point_cloud(map=names), [path])
    with h5py.File(path) as file:
        expected = np.stack([file[names[axis]][:].astype("f8") for axis in COORDINATES], axis=1)
        pitch = file["instrument_parameters/pitch"][:]
    np.testing.assert_array_equal(bits(converted.arrays["points/xyz"]), bits(expected))
    np.testing.assert_array_equal(converted.arrays["points/pitch"], pitch)
