"""Coordinates that were rounded to decimals: stored as integers, restored to the bit, whatever the blocks."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import unistore
from unistore.converters.point_cloud.coordinates import DecimalPlaces, decimal_of, quantise_decimals
from unistore.schemas.point_cloud.fields import quantum_errors

COUNT = 3000


def write(path: Path, xyz: np.ndarray, scale: float | None = None) -> Path:
    with h5py.File(path, "w") as file:
        if scale is not None:
            header = {
                f"{axis}_{name}": value
                for axis in "xyz"
                for name, value in (("scale", scale), ("offset", 0.0))
            }
            file.create_group("header").attrs.update(header)
        for axis, values in zip("xyz", xyz.T, strict=True):
            file[f"data/{axis}"] = values
        file["segments/segment_0003/indices"] = np.arange(5, len(xyz), 2)
        file["segments/segment_0007/indices"] = np.arange(6, len(xyz), 2)
    return path


def rounded(places: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.round(rng.normal([3.6e5, 5.2e6, 40], [900, 900, 9], (COUNT, 3)), places)


def restored(store: Path, source: int) -> np.ndarray:
    """Coordinates of one source in its own order, by the formula of the format."""
    root = zarr.open_group(store, mode="r")
    lo, hi = root["sources/points/offsets"][source : source + 2].tolist()
    q = root["points/xyz"][lo:hi].astype(np.float64)
    values = np.empty_like(q)
    order = root["points/source_row"][lo:hi]
    values[order] = (q + root["sources/offset"][source]) / root["sources/scale"][source]
    return values


@pytest.mark.parametrize("places", [[2], [3, 0], [1, 4]])
def test_decimal_coordinates_are_restored_to_the_bit_by_reader_verify_and_export(
    places: list[int], tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    clouds = [rounded(each, seed) for seed, each in enumerate(places)]
    for number, xyz in enumerate(clouds):
        write(tmp_path / "in" / f"{number}.h5", xyz, scale=0.01 if number else None)
    store = tmp_path / "out.zarr"
    unistore.convert(tmp_path / "in", store, "point_cloud")
    array = zarr.open_array(store / "points/xyz", mode="r")
    assert array.dtype == np.int32
    assert array.attrs["decimal"]["scale"] == 10 ** max(places)
    for number, xyz in enumerate(clouds):
        assert restored(store, number).tobytes() == xyz.tobytes()
    dataset = unistore.Dataset(store, unistore.Segments(coordinates="absolute"))
    local = unistore.Dataset(store, unistore.Segments())
    for number, xyz in enumerate(clouds):
        expected = xyz[5::2]
        found = np.asarray(dataset[2 * number]["xyz"])
        assert found.dtype == np.float64
        assert found.tobytes() == expected.tobytes()
        near = (expected - expected.min(axis=0)).astype(np.float32)
        assert np.asarray(local[2 * number]["xyz"]).tobytes() == near.tobytes()
    assert unistore.verify(store, against=tmp_path / "in").ok
    unistore.export(store, tmp_path / "again")
    for number, xyz in enumerate(clouds):
        with h5py.File(tmp_path / "again" / f"{number}.h5") as file:
            again = np.stack([file[f"data/{axis}"][:] for axis in "xyz"], axis=1)
        assert again.tobytes() == xyz.tobytes()


@pytest.mark.parametrize(
    ("decimal", "where", "why"),
    [
        ({"scale": 0, "offset": [0, 0, 0]}, "points/xyz", "is 0, expected a power of ten"),
        ({"scale": 1e10, "offset": [0, 0, 0]}, "points/xyz", "up to 1e9"),
        ({"scale": "1e2", "offset": [0, 0, 0]}, "points/xyz", "is '1e2'"),
        ({"scale": True, "offset": [0, 0, 0]}, "sources/scale", "True"),
        ({"scale": 1e3, "offset": [0, 0, 0]}, "sources/scale", "1000.0"),
        ({"scale": 1e2, "offset": [0, 0.5, 0]}, "sources/offset", "[0, 0.5, 0]"),
        ({"scale": 1e2, "offset": None}, "sources/offset", "None"),
        (7, "points/xyz", "is None"),
    ],
)
def test_a_forged_attribute_is_refused(decimal: object, where: str, why: str) -> None:
    found = list(quantum_errors(np.full((2, 3), 100.0), np.zeros((2, 3)), decimal))
    assert any(path == where and why in message for path, message in found), found


@pytest.mark.nightly
def test_the_bytes_do_not_depend_on_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    xyz = rounded(1)
    xyz[-1] = np.floor(xyz[-1]) + np.array([0.125, 0.25, 0.0625])  # more places come late
    source = write(tmp_path / "a.h5", xyz)
    digests = {unistore.convert(source, tmp_path / "0.zarr", "point_cloud", voxel_size=50.0).digest}
    monkeypatch.setattr("unistore.converters.point_cloud.coordinates._STEP", 7)
    little = {"voxel_size": 50.0, "memory": "700MB"}
    digests.add(unistore.convert(source, tmp_path / "1.zarr", "point_cloud", **little).digest)
    assert len(digests) == 1
    assert restored(tmp_path / "0.zarr", 0).tobytes() == xyz.tobytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda xyz: xyz.__setitem__((1500, 1), np.nextafter(xyz[1500, 1], 0)),
        lambda xyz: xyz.__setitem__((0, 2), -0.0),
        lambda xyz: xyz.__setitem__((2999, 0), 5e7 + 0.01),  # beyond int32
        lambda xyz: xyz.__setitem__((2999, 0), 1e300),
    ],
)
def test_what_is_no_decimal_stays_a_float(change, tmp_path: Path) -> None:
    xyz = rounded(2)
    change(xyz)
    unistore.convert(write(tmp_path / "a.h5", xyz), tmp_path / "out.zarr", "point_cloud")
    root = zarr.open_group(tmp_path / "out.zarr", mode="r")
    values = np.empty((COUNT, 3))
    values[root["points/source_row"][:]] = root["points/xyz"][:]
    assert values.tobytes() == xyz.tobytes()
    assert "decimal" not in root["points/xyz"].attrs


@given(
    st.lists(st.tuples(st.integers(-(10**9), 10**9), st.integers(0, 5)), min_size=3, max_size=60),
    st.integers(1, 20),
)
def test_decimal_places_and_integers_do_not_depend_on_blocks(
    numbers: list[tuple[int, int]], step: int
) -> None:
    values = np.array([number / 10**places for number, places in numbers])
    values = np.where(values == 0, 0.0, values)
    xyz = np.repeat(values, 3).reshape(-1, 3)
    whole, parts = DecimalPlaces(), DecimalPlaces()
    whole.update(xyz)
    for lo in range(0, len(xyz), step):
        parts.update(xyz[lo : lo + step])
    assert whole.places == parts.places >= 0
    decimal = decimal_of([whole.places], xyz.min(axis=0), xyz.max(axis=0))
    if decimal is None:
        assert np.ptp(values) * 10.0**whole.places > 2**32 - 3
        return
    q = np.empty(xyz.shape, np.int32)
    quantise_decimals(xyz, {"scale": decimal.scale, "offset": list(decimal.offset)}, q)
    assert ((q.astype(np.float64) + decimal.offset) / decimal.scale).tobytes() == xyz.tobytes()


def test_the_scale_in_a_header_beside_batches_is_used(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 1000, (2, 5, 3)) * 0.3
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data"], file["label"] = values, np.zeros(2, int)
        file.create_group("header").attrs.update(
            {f"{axis}_{name}": value for axis in "xyz" for name, value in (("scale", 0.3), ("offset", 0.0))}
        )
    unistore.convert(tmp_path / "a.h5", tmp_path / "a.zarr", "point-cloud")
    root = zarr.open_group(tmp_path / "a.zarr", mode="r")
    stored = root["points/xyz"]
    assert stored.dtype == np.int32
    np.testing.assert_array_equal(stored[:] * 0.3 + 0.0, values.reshape(-1, 3))
    assert root["sources/scale"][0].tolist() == [0.3] * 3
