"""Files of formats that need the library of an extra, written by the libraries of the tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import cv2
import faery
import h5py
import hdf5plugin
import laspy
import nibabel
import nrrd
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tifffile
from pydicom.data import get_testdata_file

from tests.support.bags import ROS1, Robot
from tests.support.event_recordings import made_up

DATA = Path(__file__).parents[1] / "data"
VOLUME = np.random.default_rng(0).integers(-1000, 1000, (12, 16, 20)).astype(np.int16)


class NeedsExtra(NamedTuple):
    """A source that unistore reads only with the libraries of an extra."""

    extra: str
    family: str
    write: Callable[[Path], Path]  # into an empty folder; returns the source


def png(folder: Path) -> Path:
    for kind in ("blur", "sharp", "spike"):
        (folder / "recordings/one" / kind).mkdir(parents=True)
    for kind in ("blur", "sharp"):
        cv2.imwrite(str(folder / f"recordings/one/{kind}/000.png"), np.zeros((250, 400, 3), np.uint8))
    spikes = np.random.default_rng(0).integers(0, 10, (41, 250, 400)) == 0
    np.packbits(spikes, axis=-1, bitorder="little").tofile(folder / "recordings/one/spike/000.dat")
    return folder / "recordings"


def bitshuffle(folder: Path) -> Path:
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(100), chunks=(10,), **hdf5plugin.Bitshuffle())
    return folder / "a.h5"


def nifti(folder: Path) -> Path:
    nibabel.Nifti1Image(VOLUME, np.eye(4)).to_filename(folder / "a.nii.gz")
    return folder / "a.nii.gz"


def _dicom(folder: Path, name: str) -> Path:
    found = get_testdata_file(name, download=False)
    assert found is not None
    return Path(shutil.copy(found, folder))


def dicom(folder: Path) -> Path:
    return _dicom(folder, "CT_small.dcm")


def jpeg2000(folder: Path) -> Path:
    return _dicom(folder, "MR_small_jp2klossless.dcm")


def jpeg_ls(folder: Path) -> Path:
    return _dicom(folder, "MR_small_jpeg_ls_lossless.dcm")


def nrrd_file(folder: Path) -> Path:
    nrrd.write(str(folder / "a.nrrd"), VOLUME)
    return folder / "a.nrrd"


def tiff(folder: Path) -> Path:
    tifffile.imwrite(folder / "a.tif", VOLUME)
    return folder / "a.tif"


def las(folder: Path) -> Path:
    return Path(shutil.copy(DATA / "pointcloud/pdal_extrabytes.las", folder))


def laz(folder: Path) -> Path:
    laspy.read(DATA / "pointcloud/pdal_extrabytes.las").write(str(folder / "a.laz"))
    return folder / "a.laz"


def mcap(folder: Path) -> Path:
    return Path(shutil.copy(DATA / "mcap/robot.mcap", folder))


def ros1_bag(folder: Path) -> Path:
    robot = Robot(ROS1)
    robot.sent = [
        sent for sent in robot.sent if sent.topic != "camera/right"
    ]  # compressed: needs `images` too
    return robot.bag(folder / "a.bag")


def aedat4(folder: Path) -> Path:
    events = made_up(3_000)
    written = np.empty(len(events), faery.EVENTS_DTYPE)
    for name, other in {"t": "t", "x": "x", "y": "y", "on": "p"}.items():
        written[name] = events[other]
    faery.events_stream_from_array(written, (64, 48)).to_file(folder / "a.aedat4")
    return folder / "a.aedat4"


def parquet(folder: Path) -> Path:
    pq.write_table(pa.table({"x": np.arange(100), "y": np.arange(100) / 7}), folder / "a.parquet")
    return folder / "a.parquet"


def lerobot(folder: Path) -> Path:
    return shutil.copytree(DATA / "lerobot/v3", folder / "v3")


SOURCES = {
    case.write.__name__: case
    for case in (
        NeedsExtra("images", "spike", png),
        NeedsExtra("filters", "rows", bitshuffle),
        NeedsExtra("medical", "ct", nifti),
        NeedsExtra("medical", "ct", dicom),
        NeedsExtra("medical", "ct", jpeg2000),
        NeedsExtra("medical", "ct", jpeg_ls),
        NeedsExtra("medical", "ct", nrrd_file),
        NeedsExtra("medical", "ct", tiff),
        NeedsExtra("lidar", "point-cloud", las),
        NeedsExtra("lidar", "point-cloud", laz),
        NeedsExtra("bags", "trajectory", mcap),
        NeedsExtra("bags", "trajectory", ros1_bag),
        NeedsExtra("events", "events", aedat4),
        NeedsExtra("robots", "rows", parquet),
        NeedsExtra("robots", "trajectory", lerobot),
    )
}
