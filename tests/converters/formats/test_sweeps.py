"""Sweeps without a header: against the arrays that NumPy wrote (synthetic)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import unistore
from unistore import verify
from unistore.conversion.signatures import convert
from unistore.converters.formats.sweeps import Sweep
from unistore.converters.opened import SourceFile
from unistore.errors import InputError

KITTI = ("x", "y", "z", "intensity")


def write(path: Path, values: int, points: int = 30) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    written = np.random.default_rng(1).normal(size=(points, values)).astype("<f4")
    written.tofile(path)
    return written


def read(path: Path, root: Path) -> dict[str, np.ndarray]:
    file = SourceFile(path, path.name, (root,))
    assert Sweep().recognise(file).certainty == "sure"
    with Sweep().open(file) as opened:
        return {name: array[0 : len(array)] for name, array in opened.arrays.items()}


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("velodyne/000000.bin", KITTI),
        ("drive_0001_sync/velodyne_points/data/0000000000.bin", KITTI),
        ("LIDAR_TOP/a.pcd.bin", (*KITTI, "ring")),
        ("b.pcd.bin", (*KITTI, "ring")),
    ],
)
def test_the_name_of_a_sweep_decides_its_columns(tmp_path: Path, name: str, columns: tuple[str, ...]) -> None:
    written = write(tmp_path / name, len(columns), 20)
    found = read(tmp_path / name, tmp_path)
    assert tuple(found) == columns
    for number, column in enumerate(columns):
        assert found[column].tobytes() == written[:, number].tobytes()


def test_classes_are_the_low_half_of_a_label(tmp_path: Path) -> None:
    path = tmp_path / "sequences/00/velodyne/000007.bin"
    write(path, 4, 3)
    labels = tmp_path / "sequences/00/labels/000007.label"
    labels.parent.mkdir()
    written = np.array([40 | 7 << 16, 252 | 65535 << 16, 0], "<u4")
    written.tofile(labels)
    found = read(path, tmp_path)
    assert found["label"].tolist() == (written & 0xFFFF).tolist() == [40, 252, 0]
    assert found["instance"].tolist() == (written >> 16).tolist() == [7, 65535, 0]
    written[:2].tofile(labels)
    with pytest.raises(InputError, match=r"000007\.label: has 8 bytes, but 3 points need 12"):
        read(path, tmp_path)
    labels.unlink()
    with pytest.raises(InputError, match=r"needs the file \.\./labels/000007\.label"):
        read(path, tmp_path)
    written.tofile(labels)
    with pytest.raises(InputError, match="outside the given paths"):
        read(path, path.parent)


@pytest.mark.parametrize(
    ("values", "certainty"), [(4 * 3, "maybe"), (5 * 3, "maybe"), (20, "no"), (7, "no"), (0, "no")]
)
def test_a_bin_file_of_any_name_may_be_a_sweep_by_its_size(
    tmp_path: Path, values: int, certainty: str
) -> None:
    write(tmp_path / "a.bin", values, 1)
    file = SourceFile(tmp_path / "a.bin", "a.bin")
    assert Sweep().recognise(file).certainty == certainty


@pytest.mark.usefixtures("in_this_process")
def test_a_sequence_is_stored_with_labels_and_instances(tmp_path: Path) -> None:
    folder = tmp_path / "sequences/00"
    written = write(folder / "velodyne/000000.bin", 4, 50)
    (folder / "labels").mkdir()
    labels = np.arange(50, dtype="<u4") * 0x10003
    labels.tofile(folder / "labels/000000.label")
    convert(tmp_path / "sequences", tmp_path / "store")
    sample = unistore.Dataset(tmp_path / "store")[0]
    assert np.asarray(sample["xyz"]).tobytes() == written[:, :3].tobytes()
    np.testing.assert_array_equal(sample["label"], labels & 0xFFFF)
    np.testing.assert_array_equal(sample["instance"], labels >> 16)
    assert verify(tmp_path / "store", against=[tmp_path / "sequences"]).receipt is not None


def test_a_raw_recording_of_kitti_is_converted_and_a_cut_sweep_is_an_error(tmp_path: Path) -> None:
    drive = tmp_path / "2011_09_26/2011_09_26_drive_0001_sync"
    sweeps = [write(drive / f"velodyne_points/data/{number:010}.bin", 4, 20 + number) for number in range(2)]
    (drive / "velodyne_points/timestamps.txt").write_text("2011-09-26 13:02:25.196\n" * 2)
    write(drive / "oxts/data/0000000000.bin", 4, 20)
    convert([tmp_path / "2011_09_26"], tmp_path / "s.zarr")
    dataset = unistore.Dataset(tmp_path / "s.zarr")
    assert len(dataset) == 2
    for number, sweep in enumerate(sweeps):
        assert dataset[number]["intensity"].numpy().tobytes() == sweep[:, 3].tobytes()
    path = drive / "velodyne_points/data/0000000001.bin"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match=r"0000000001\.bin: has 332 bytes, .* each has 16 bytes"):
        convert([tmp_path / "2011_09_26"], tmp_path / "cut.zarr")
