"""Formats of unistore keep what is asked of those of packages; other libraries say what the files hold."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import cv2
import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from unistore.converters.adapter.formats import LATER, OWN, formats
from unistore.converters.formats.aedat import Aedat4
from unistore.converters.formats.bags import Rosbag
from unistore.converters.formats.prophesee import Dat, Evt
from unistore.converters.opened import SourceFile
from unistore.errors import InputError
from unistore.testing import check_format

RANDOM = np.random.default_rng(11)
PIXELS = RANDOM.integers(0, 256, (24, 40, 4), "u1")
Arrays = dict[str, NDArray[Any]]


class Case(NamedTuple):
    """A file that another library writes, its arrays as such a library reads them, and its metadata."""

    name: str
    write: Callable[[Path], object]
    read: Callable[[Path], Arrays]
    metadata: Mapping[str, Any] = MappingProxyType({})


def npy(name: str, values: NDArray[Any]) -> Case:
    return Case(f"{name}.npy", lambda path: np.save(path, values), lambda path: {"data": np.load(path)})


def npz(name: str, save: Callable[..., object]) -> Case:
    arrays = {"a": RANDOM.normal(size=(9, 2)), "b": np.arange(7, dtype=">i2")}
    return Case(f"{name}.npz", lambda path: save(path, **arrays), lambda path: dict(np.load(path)))


def write_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["group/plain"] = RANDOM.normal(size=(30, 3))
        file["rate"] = 50
        file["unit"] = "m"
        file.create_dataset("packed", data=RANDOM.integers(0, 9, (40, 5)), chunks=(8, 5), compression="gzip")
        file["records"] = np.zeros(6, [("t", "<i8"), ("x", "<f4", (2,))])


def read_hdf5(path: Path) -> Arrays:
    with h5py.File(path) as file:
        return {name: file[name][()] for name in ("group/plain", "packed", "records")}


def image(name: str, mode: str) -> Case:
    pixels = PIXELS[..., 0] if mode == "L" else PIXELS[..., : len(mode)]
    return Case(
        name,
        lambda path: Image.fromarray(pixels, mode).save(path),
        lambda path: {"image": np.asarray(Image.open(path))},
        {"colour": {"L": "gray", "RGB": "rgb", "RGBA": "rgb and alpha"}[mode]},
    )


def decoded(path: Path) -> Arrays:
    """Pixels of a JPEG by the same decoder: others differ in the last bit."""
    pixels = cv2.imread(str(path), cv2.IMREAD_COLOR)
    assert pixels is not None
    return {"image": pixels[..., ::-1]}


CASES = {
    "hdf5": [Case("a.h5", write_hdf5, read_hdf5, {"rate": 50})],
    "npy": [
        npy("plain", RANDOM.normal(size=(60, 4))),
        npy("columns first", np.asfortranarray(RANDOM.normal(size=(60, 4)))),
        npy("big-endian", np.arange(60, dtype=">u4")),
        npy("records", np.zeros(20, [("t", "<i8"), ("x", "<f4", (2,))])),
    ],
    "npz": [npz("plain", np.savez), npz("packed", np.savez_compressed)],
    "png": [image("rgb.png", "RGB"), image("gray.png", "L"), image("alpha.png", "RGBA")],
    "jpeg": [image("a.jpg", "RGB")._replace(read=decoded)],
    "raw": [
        Case(
            "a.dat",
            lambda path: PIXELS.tofile(path),
            lambda path: {"bytes": np.fromfile(path, "u1")},
        )
    ],
}


BARE = {"atis_bin", "sweep", "text_points"}
"""Formats of bare points or events: the first of them are a whole file, too, which `check_format` refuses."""


def test_every_format_is_checked_here_or_in_its_own_test() -> None:
    others = {kind.name for kind in (*OWN, *LATER)} - set(CASES) - BARE - {"laz"}  # with las
    tests = {name: Path(__file__).parent / f"test_{name}.py" for name in others}
    assert all("check_format(" in path.read_text() for path in tests.values()), sorted(tests)


@pytest.mark.parametrize(("kind", "case"), [(kind, case) for kind in CASES for case in CASES[kind]])
def test_a_format_keeps_its_promises(kind: str, case: Case, tmp_path: Path) -> None:
    path = tmp_path / case.name
    case.write(path)
    check_format(formats()[kind], path, case.read(path), case.metadata)


HEADER_OF_A_PAIR = (348).to_bytes(4, "little") + bytes(340) + b"ni1\0"
OTHERS = [
    ("metaimage", "a.mha", b"NDims = 3\n", "does not begin as a metaimage file does"),
    ("nrrd", "a.nrrd", b"", "is empty"),
    ("nrrd", "a.nrrd", b"NRDD0004\n", "does not begin as a nrrd file does"),
    ("nifti", "a.nii.gz", b"", "is empty"),
    ("nifti", "a.nii.gz", b"\x1f\x8b garbage", "is damaged|ends before"),
    ("nifti", "a.nii.gz", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    ("nifti", "a.nii", bytes(400), "does not begin as a nifti file does"),
    ("nifti", "a.nii", HEADER_OF_A_PAIR, "does not begin as a nifti file does"),
    ("tiff", "a.tif", b"", "is empty"),
    ("tiff", "a.tif", b"JFIF", "does not begin as a tiff file does"),
    ("dicom", "a.dcm", b"x" * 400, "does not begin as a dicom file does"),
    *(("ply", "a.ply", content, "does not begin with ply") for content in (b"plywood", b"OFF")),
    ("pcd", "a.pcd", b"", "is empty"),
    ("pcd", "a.pcd", b"XXXXX\n", "does not begin with a PCD header"),
    ("las", "a.las", b"PK", "does not begin with LASF"),
    ("parquet", "a.parquet", b"PAR0", "does not begin with PAR1"),
    ("parquet", "a.parquet", b"PARE", "is encrypted"),
    ("rlds", "a.tfrecord", bytes(12) + b"more", "does not begin with a record"),
    ("rlds", "a.tfrecord", gzip.compress(b"records", mtime=0), "is compressed"),
    *((Rosbag, f"a.{ending}", b"something: 1\n", "as a ROS bag") for ending in ("mcap", "bag", "db3")),
    (Rosbag, "a.bag", b"#ROSRECORD V1.1\n", "is a ROS 1 bag of a version before"),
    (Rosbag, "a.yaml", b"something: 1\n", "does not describe a ROS bag"),
    (Rosbag, "metadata.yaml", b"something: 1\n", "does not describe a ROS bag"),
    (Rosbag, "metadata.yaml", b"XXXXXX_bag:\n  storage_identifier: mcap\n", "does not begin with rosbag2"),
    (Aedat4, "a.aedat4", b"#!AER-DAT2.0\r\n", "is AEDAT 2.0"),
    (Aedat4, "a.aedat4", b"#!AFR-DAT4.0\r\n", "does not begin with #!AER-DAT4"),
    (Evt, "a.raw", b"XX evt 3.0\n% geometry 640x480\n% end\n", "does not begin with %"),
    (Evt, "a.raw", bytes(400), "does not begin with a header of lines"),
    (Dat, "a.dat", b"\0\0Data file\n% Version 2\n", "does not begin with %"),
    (Dat, "a.dat", bytes(range(256)), "does not begin with a header of lines"),
    ("replay_zarr", "a.zarr.zip", b"", "is empty"),
    ("replay_zarr", "a.zarr.zip", b"PK\3\4" + bytes(40), "is a damaged or truncated zip"),
    *(("text_points", "a.txt", content, "") for content in (b"", b"read me\n", b"1 2\n3 4\n", b"1 2")),
]


@pytest.mark.parametrize(("kind", "name", "content", "said"), OTHERS)
def test_a_format_refuses_files_of_others_with_the_reason(
    tmp_path: Path, kind: Any, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    form = formats()[kind] if isinstance(kind, str) else kind()
    try:
        claim = form.recognise(SourceFile(tmp_path / name, name))
    except InputError as error:
        reason = str(error)
    else:
        assert claim.certainty == "no"
        reason = claim.reason
    assert re.search(said, reason)
