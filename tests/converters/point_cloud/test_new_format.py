"""A format that point clouds are given: nothing else knows of it, and all that clouds can do works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import unistore
from tests.converters.point_cloud import pts
from tests.detection import detect
from unistore import export, verify
from unistore.conversion.convert import convert
from unistore.converters.point_cloud.family import PointCloud
from unistore.converters.point_cloud.family import converter as point_cloud
from unistore.converters.point_cloud.layouts import ColumnPoints
from unistore.converters.scanning import scan_sources
from unistore.errors import InputError


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PointCloud, "formats", (*PointCloud.formats, pts.Pts))


def records(count: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    found = np.zeros(count, pts.RECORD)
    for axis in "xyz":
        found[axis] = random.normal(5e5, 30, count)
    found["intensity"] = random.integers(0, 1 << 16, count)
    found["label"] = random.integers(0, 5, count)
    return found


def write(path: Path, count: int = 500, seed: int = 0) -> np.ndarray:
    written = records(count, seed)
    header = np.array([(b"POINTS\r\n", 1, count)], pts.HEADER)
    path.write_bytes(header.tobytes() + written.tobytes())
    return written


def write_hdf5(path: Path, values: np.ndarray) -> Path:
    with h5py.File(path, "w") as file:
        for key in pts.RECORD.names or ():
            file[f"data/{key}"] = values[key]
    return path


def read(path: Path) -> np.ndarray:
    """The file's records, read without unistore."""
    return np.fromfile(path, pts.RECORD, offset=24)


def xyz_of(values: np.ndarray) -> np.ndarray:
    return np.stack([values[axis] for axis in "xyz"], axis=1)


def test_detected_by_suffix_and_content(tmp_path: Path) -> None:
    write(tmp_path / "a.pts")
    found = detect([tmp_path])
    assert found is not None
    assert (found.family, found.layout) == ("point_cloud", "columns")
    (tmp_path / "a.pts").write_bytes(b"something else of this suffix")
    assert detect([tmp_path]) is None
    with pytest.raises(InputError, match=r"a\.pts: does not begin with POINTS"):
        scan_sources(point_cloud(), [tmp_path / "a.pts"])


@pytest.mark.parametrize("options", [{}, {"segment": "window:20", "min_points": 3, "max_points": 90}])
def test_alone_it_becomes_what_the_same_points_in_hdf5_become(
    tmp_path: Path, check_contract: Any, options: dict[str, Any]
) -> None:
    write(tmp_path / "a.pts")
    values = read(tmp_path / "a.pts")
    converter = point_cloud(voxel_size=(2.0, 15.0), **options)
    converted = check_contract(converter, [tmp_path / "a.pts"])
    arrays = converted.arrays
    rows = arrays["points/source_row"]
    np.testing.assert_array_equal(np.sort(rows), np.arange(len(values)))
    assert arrays["points/xyz"].tobytes() == xyz_of(values)[rows].tobytes()
    for key in ("intensity", "label"):
        np.testing.assert_array_equal(arrays[f"points/{key}"], values[key][rows])
    other = check_contract(converter, [write_hdf5(tmp_path / "b.h5", values)]).arrays
    assert set(other) == set(arrays)
    for name in arrays:
        if not name.startswith("sources/"):
            np.testing.assert_array_equal(arrays[name], other[name], name)


def test_beside_hdf5_in_one_folder_and_renamed_by_map(tmp_path: Path, check_contract: Any) -> None:
    parts = [records(40, 1), write(tmp_path / "b.pts", 60, 2), records(30, 3)]
    write_hdf5(tmp_path / "a.h5", parts[0])
    write_hdf5(tmp_path / "c.h5", parts[2])
    whole = np.concatenate(parts)
    oracle = {"points/xyz": xyz_of(whole), "points/class": whole["label"]}
    converter = point_cloud(map={"class": "label", "intensity": ""})
    converted = check_contract(converter, [tmp_path], oracle)
    assert "points/intensity" not in converted.arrays
    assert [source.detail.formats for source in converted.scan.sources] == [("hdf5",), ("pts",), ("hdf5",)]


def test_a_truncated_file_is_refused_by_name_and_skipped(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    good = write(folder / "good.pts", 50)
    for name, cut in (("bad.pts", -1), ("short.pts", 20)):
        write(folder / name, 70)
        (folder / name).write_bytes((folder / name).read_bytes()[:cut])
    with pytest.raises(InputError) as caught:
        convert(folder, tmp_path / "out")
    text = str(caught.value)
    assert "bad.pts: is 1913 bytes, but its header and 70 points take 1914" in text
    assert "short.pts: is 20 bytes" in text
    report = convert(folder, tmp_path / "out", on_error="skip")
    assert [entry["left_out"] for entry in report.skipped] == ["bad.pts", "short.pts"]
    stored = unistore.open_zarr(tmp_path / "out")["points/xyz"][...]
    assert stored.tobytes() == xyz_of(good).tobytes()


@pytest.mark.usefixtures("in_this_process")
def test_compared_with_its_own_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "a.pts"
    write(source)
    convert(source, tmp_path / "out", segment="window:30")
    receipt = verify(tmp_path / "out", against=[source]).receipt
    assert receipt is not None
    assert (receipt.values, receipt.files) == (500 * 5, 1)

    right = ColumnPoints.read

    def wrong(self: ColumnPoints, column: str, lo: int, hi: int) -> np.ndarray:
        rows = right(self, column, lo, hi)
        return rows[::-1] if column == "label" else rows

    monkeypatch.setattr(ColumnPoints, "read", wrong)
    convert(source, tmp_path / "wrong")
    locations = {problem.location for problem in verify(tmp_path / "wrong", against=[source]).problems}
    assert locations == {"a.pts: label"}, "a mistake in reading, made now as when converting, shows"


def test_exported_as_hdf5(tmp_path: Path) -> None:
    values = write(tmp_path / "a.pts")
    convert(tmp_path / "a.pts", tmp_path / "out", segment="window:25")
    export(tmp_path / "out", tmp_path / "export")
    with h5py.File(tmp_path / "export" / "a.pts.h5") as file:
        for key in pts.RECORD.names or ():
            given = file[key][()]
            assert given.dtype == values[key].dtype
            assert given.tobytes() == values[key].tobytes()
