"""Every format at the least limit that a refusal names: it converts, in workers that cannot have more."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import faery
import h5py
import laspy
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pydicom
import pytest
import SimpleITK
import tifffile
import zarr
from pydicom.data import get_testdata_file
from rosbags import rosbag1

from tests.support.bags import ROS1, Robot
from tests.support.event_recordings import made_up, write_dat, write_dsec
from tests.support.lzf import lzf
from unistore.converters.adapter.formats import formats
from unistore.converters.events import EventsFamily

DATA = Path(__file__).resolve().parents[2] / "data"
RNG = np.random.default_rng(4)
POINTS = 1 << 20


def rows(megabytes: int = 48, width: int = 64) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = RNG.normal(size=((megabytes << 18) // width, width)).astype("f4")
    return values


def hdf5(folder: Path) -> None:
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("data", data=rows(), chunks=(1 << 16, 64), compression="gzip", compression_opts=1)


def npy(folder: Path) -> None:
    np.save(folder / "a.npy", np.asfortranarray(rows()))


def npz(folder: Path) -> None:
    np.savez_compressed(folder / "a.npz", a=rows(16), b=np.asfortranarray(rows(16)))


def parquet(folder: Path) -> None:
    """Twenty columns of one row group."""
    columns = {f"c{number}": RNG.normal(size=1 << 20) for number in range(20)}
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=1 << 20)


def parquet_one_page(folder: Path) -> None:
    """A row group of one column, in pages of 64 MB."""
    table = pa.table({"a": RNG.normal(size=1 << 23)})
    pq.write_table(
        table, folder / "a.parquet", row_group_size=1 << 23, data_page_size=1 << 26, use_dictionary=False
    )


def parquet_wide(folder: Path) -> None:
    """Rows of 16 MB, of which Arrow decodes small numbers as larger ones, with levels."""
    values = pa.array(RNG.integers(0, 100, 3 << 24).astype("i1"))
    pq.write_table(pa.table({"a": pa.FixedSizeListArray.from_arrays(values, 1 << 24)}), folder / "a.parquet")


def points() -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = RNG.random((POINTS, 3), "f4") * 100
    return values


def las(ending: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        header = laspy.LasHeader(point_format=6, version="1.4")
        header.scales = [0.001] * 3
        data = laspy.LasData(header)
        data.x, data.y, data.z = points().T
        data.write(folder / f"a.{ending}")

    return make


def ply(form: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        xyz = points()
        body = xyz.astype("<f4").tobytes()
        if form == "ascii":
            body = "".join(f"{x:.4f} {y:.4f} {z:.4f}\n" for x, y, z in xyz.tolist()).encode()
        names = "".join(f"property float {axis}\n" for axis in "xyz")
        header = f"ply\nformat {form} 1.0\nelement vertex {POINTS}\n{names}end_header\n"
        (folder / "a.ply").write_bytes(header.encode() + body)

    return make


def pcd(folder: Path) -> None:
    content = np.round(points()).T.astype("<f4").tobytes()
    packed = lzf(content, folder)
    (folder / "packed.h5").unlink()
    header = f"VERSION 0.7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\nWIDTH {POINTS}\nHEIGHT 1\n"
    sizes = np.array([len(packed), len(content)], "<u4").tobytes()
    text = f"{header}POINTS {POINTS}\nDATA binary_compressed\n"
    (folder / "a.pcd").write_bytes(text.encode() + sizes + packed)


def text(folder: Path) -> None:
    np.savetxt(folder / "a.xyz", points()[: POINTS // 4], fmt="%.3f")


def sweep(folder: Path) -> None:
    (folder / "velodyne").mkdir()
    RNG.random((POINTS, 4), "f4").tofile(folder / "velodyne/000000.bin")


def voxels() -> np.ndarray[Any, Any]:
    return RNG.integers(-1000, 1000, (96, 512, 512), "i2")


def volume(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        image = SimpleITK.GetImageFromArray(voxels())
        SimpleITK.WriteImage(image, str(folder / name), useCompression=True)

    return make


def tiff(folder: Path) -> None:
    tifffile.imwrite(folder / "a.tif", voxels().astype("u2"), photometric="minisblack", compression="zlib")


def dicom(folder: Path) -> None:
    found = get_testdata_file("CT_small.dcm", download=False)
    assert found is not None
    for number in range(8):
        data = pydicom.dcmread(found)
        pixels = RNG.integers(0, 1000, (1024, 1024), "i2")
        data.Rows = data.Columns = 1024
        data.PixelData = pixels.tobytes()
        data.ImagePositionPatient = [0, 0, number]
        data.SOPInstanceUID = f"1.2.3.{number}"
        data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID
        data.compress(pydicom.uid.RLELossless, encoding_plugin="pydicom")
        data.save_as(folder / f"{number}.dcm")


def copied(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        shutil.copytree(DATA / name, folder / Path(name).name)

    return make


def replay(folder: Path) -> None:
    root = zarr.open_group(folder / "a.zarr", mode="w", zarr_format=2)
    frames = RNG.integers(0, 255, (300, 96, 96, 3), "u1")
    root.create_array("data/img", data=frames, chunks=(150, 96, 96, 3))
    root.create_array("data/action", data=RNG.normal(size=(300, 7)), chunks=(100, 7))
    root.create_array("meta/episode_ends", data=np.array([100, 300]), chunks=(2,))


def maniskill(folder: Path) -> None:
    with h5py.File(folder / "trajectory.rgb.h5", "w") as file:
        for number, steps in enumerate((100, 200)):
            group = file.create_group(f"traj_{number}")
            group["actions"] = RNG.normal(size=(steps, 8))
            frames = RNG.integers(0, 255, (steps + 1, 96, 96, 3), "u1")
            group.create_dataset("obs/sensor_data/camera/rgb", data=frames, chunks=(50, 96, 96, 3))
            for end in ("terminated", "truncated"):
                group[end] = np.arange(steps) == steps - 1


def bag(kind: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        if kind == "bag":
            Robot(ROS1, 20).bag(folder / "a.bag", rosbag1.Writer.CompressionFormat.LZ4)
        else:
            shutil.copy(DATA / "mcap/robot.mcap", folder)

    return make


EVENTS = 3_000_000


def dsec(folder: Path) -> None:
    write_dsec(folder / "a.h5", made_up(EVENTS))


def dat(folder: Path) -> None:
    write_dat(folder / "a.dat", made_up(EVENTS))


def by_faery(name: str, version: str | None = None) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        events = made_up(EVENTS)
        written = np.empty(len(events), faery.EVENTS_DTYPE)
        for field in "txy":
            written[field] = events[field]
        written["on"] = events["p"]
        options = {} if version is None else {"version": version}
        faery.events_stream_from_array(written, (64, 48)).to_file(folder / name, **options)

    return make


def spikes(folder: Path) -> None:
    RNG.integers(0, 255, 1300 * 20_000, "u1").tofile(folder / "a.dat")


def frame(ending: str) -> Callable[[Path], None]:
    """Pictures beside spikes, of 2,000 pixels a side."""

    def make(folder: Path) -> None:
        for number in range(3):
            pixels = RNG.integers(0, 255, (250, 400, 3), "u1")
            cv2.imwrite(str(folder / f"{number}{ending}"), pixels)
            RNG.integers(0, 255, 12_500 * 41, "u1").tofile(folder / f"{number}.dat")

    return make


def frame_times(folder: Path) -> None:
    (folder / "seq/events/left").mkdir(parents=True)
    write_dsec(folder / "seq/events/left/events.h5", made_up(100_000))
    images = folder / "seq/images/left/rectified"
    images.mkdir(parents=True)
    for number in range(8):
        cv2.imwrite(str(images / f"{number:06d}.png"), RNG.integers(0, 255, (1080, 1440, 3), "u1"))
    times = "\n".join(str(57_000_000 + 40_000 * number) for number in range(8))
    (folder / "seq/images/timestamps.txt").write_text(times + "\n")


def atis(folder: Path) -> None:
    events = made_up(400_000)
    words = events["p"].astype("i8") << 23 | events["t"].astype("i8") % (1 << 22)
    words = np.sort(words & ((1 << 23) - 1)) | (words & (1 << 23))
    rows = np.stack([events["x"] % 64, events["y"] % 48, words >> 16, words >> 8 & 255, words & 255], axis=1)
    (folder / "a.bin").write_bytes(rows.astype("u1").tobytes())


def event_text(folder: Path) -> None:
    count = 400_000
    columns = [np.arange(count), *RNG.integers(0, 48, (2, count)), RNG.integers(0, 2, count)]
    np.savetxt(folder / "events.txt", np.stack(columns, 1), "%d", header="64 48", comments="")


SENSOR = {"sensor": (64, 48)}
SPIKES = {"height": 100, "width": 104}
# By format: family, options, and what makes files of it
SOUND: dict[str, tuple[str, dict[str, Any], Callable[[Path], None]]] = {
    "hdf5": ("rows", {}, hdf5),
    "npy": ("rows", {}, npy),
    "npz": ("rows", {}, npz),
    "parquet": ("rows", {}, parquet),
    "parquet/page": ("rows", {}, parquet_one_page),
    "parquet/wide": ("rows", {}, parquet_wide),
    "las": ("point_cloud", {}, las("las")),
    "laz": ("point_cloud", {}, las("laz")),
    "ply": ("point_cloud", {}, ply("binary_little_endian")),
    "ply/ascii": ("point_cloud", {}, ply("ascii")),
    "pcd": ("point_cloud", {}, pcd),
    "text_points": ("point_cloud", {}, text),
    "sweep": ("point_cloud", {}, sweep),
    "nifti": ("ct", {"window": ("lung",)}, volume("a.nii.gz")),
    "nrrd": ("ct", {"window": ("lung",)}, volume("a.nrrd")),
    "metaimage": ("ct", {"window": ("lung",)}, volume("a.mha")),
    "tiff": ("ct", {}, tiff),
    "dicom": ("ct", {}, dicom),
    "lerobot": ("trajectory", {}, copied("lerobot/v3")),
    "maniskill": ("trajectory", {}, maniskill),
    "minari": ("trajectory", {}, copied("minari/flat")),
    "rlds": ("trajectory", {}, copied("rlds/toy")),
    "replay_zarr": ("trajectory", {}, replay),
    "bag": ("trajectory", {}, bag("bag")),
    "bag/mcap": ("trajectory", {}, bag("mcap")),
    "hdf5/events": ("events", SENSOR, dsec),
    "prophesee_dat": ("events", {}, dat),
    "prophesee_raw": ("events", {}, by_faery("a.raw", "evt3")),
    "prophesee_raw/evt2": ("events", {}, by_faery("a.raw", "evt2")),
    "aedat4": ("events", {}, by_faery("a.aedat4")),
    "event_text": ("events", {"unit": "us"}, event_text),
    "atis_bin": ("events", SENSOR, atis),
    "frame_times": ("events", SENSOR, frame_times),
    "raw": ("spike", SPIKES, spikes),
    "png": ("spike", {"height": 250, "width": 400}, frame(".png")),
    "jpeg": ("spike", {"height": 250, "width": 400}, frame(".jpg")),
}


def test_every_format_has_a_case() -> None:
    own = [kind.name for kind in EventsFamily().formats if not isinstance(kind, str)]
    assert {name.partition("/")[0] for name in SOUND} >= {*formats(), *own}


def converted(folder: Path, family: str, memory: str, options: dict[str, Any]) -> tuple[int, str]:
    """Convert in a process of its own, as tests here make smaller shards."""
    arguments = f"{str(folder / 'in')!r}, {str(folder / 'out')!r}, {family!r}, memory={memory!r}, workers=1"
    script = f"import unistore; unistore.convert({arguments}, **{options!r})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr[-2000:]


@pytest.mark.nightly
@pytest.mark.parametrize("name", SOUND)
def test_the_smallest_limit_that_an_error_names_converts_every_format(name: str, tmp_path: Path) -> None:
    family, options, make = SOUND[name]
    (tmp_path / "in").mkdir()
    make(tmp_path / "in")
    _, refused = converted(tmp_path, family, "136MB", options)
    named = re.search(r"--memory ([0-9]+)(M)B", refused)
    assert named is not None, refused
    assert converted(tmp_path, family, f"{named[1]}{named[2]}B", options) == (0, ""), named[0]
