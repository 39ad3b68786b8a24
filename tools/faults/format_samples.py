"""A small sound file of every format that is registered, made from a seed, and what a store of it holds.

``SAMPLES[format].make(folder, name, rng)`` writes one source called `name` into a folder, by a library that
is not unistore's, and returns the file that faults damage and the arrays that a store of it must hold.
`registered` names the formats that there are: one without a sample ends the programs that use them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import h5py
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from trials import DATA

from unistore.conversion.convert import make_converter
from unistore.converters.adapter.formats import formats
from unistore.converters.registry import own_families

ROWS = 1013
"""Rows of most files: a number that nothing else in them is."""
Values = Mapping[str, NDArray[Any]]
Maker = Callable[[Path, str, Generator], "Made"]


TRUNCATED, CUT, EMPTY, BEGINNING = "truncated", "cut in its header", "empty", "wrong beginning"
MORE, HUGE, FLIPPED = "one more", "huge", "flipped bytes"


class Made(NamedTuple):
    """A source: the file that faults damage, and arrays of a store of it alone."""

    file: Path
    values: Values


class Sample(NamedTuple):
    """How a source of a format is made and converted, and what of it can lie.

    `sizes` are numbers that headers state, each with the forms in which it stands there: dtypes, ``text``, or
    ``varint``, ``US`` of DICOM. They are looked for where `header` says.
    `blind` says of faults that nothing in a file of the format shows, why. `is_named`: detection leaves the
    files to the user. `names`: how names begin by which messages call its files.
    """

    family: str
    make: Callable[[Path, str, Generator], Made]
    sizes: Mapping[int, tuple[str, ...]] = {}
    header: Callable[[bytes], slice] = lambda content: slice(len(content))
    blind: Mapping[str, str] = {}
    options: tuple[str, ...] = ()
    is_named: bool = False
    names: tuple[str, ...] = ()


def registered() -> dict[str, str]:
    """Every format that some family of unistore or any package reads, each with the first that does."""
    names: dict[str, str] = {}
    for family in own_families():
        for kind in make_converter(family.name, {}).formats:  # type: ignore[attr-defined]
            names.setdefault(kind.name, family.name)
    return {**dict.fromkeys(formats(), ""), **names}


def _table(rng: Generator, rows: int = ROWS) -> dict[str, NDArray[Any]]:
    return {"value": rng.normal(size=(rows, 3)).astype("f4"), "label": rng.integers(0, 99, rows)}


def _hdf5(folder: Path, name: str, rng: Generator) -> Made:
    path, table = folder / f"{name}.h5", _table(rng)
    with h5py.File(path, "w") as file:
        for column, values in table.items():
            file.create_dataset(column, data=values, chunks=(100, *values.shape[1:]), compression="gzip")
    return Made(path, {f"rows/{column}": values for column, values in table.items()})


def _npy(folder: Path, name: str, rng: Generator) -> Made:
    path, values = folder / f"{name}.npy", rng.normal(size=(ROWS, 3))
    np.save(path, values)
    return Made(path, {"rows/data": values})


def _npz(folder: Path, name: str, rng: Generator) -> Made:
    path, table = folder / f"{name}.npz", _table(rng)
    np.savez(path, **table)
    return Made(path, {f"rows/{column}": values for column, values in table.items()})


def _parquet(folder: Path, name: str, rng: Generator) -> Made:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, table = folder / f"{name}.parquet", {"a": rng.normal(size=ROWS), "b": rng.integers(0, 99, ROWS)}
    pq.write_table(pa.table(table), path, row_group_size=200)
    return Made(path, {f"rows/{column}": values for column, values in table.items()})


def _cloud(rng: Generator) -> NDArray[Any]:
    points = np.zeros(ROWS, [*[(axis, "<f4") for axis in "xyz"], ("intensity", "<u2")])
    for axis in "xyz":
        points[axis] = np.round(rng.random(ROWS) * 50, 2)
    points["intensity"] = rng.integers(0, 999, ROWS)
    return points


def _las(folder: Path, name: str, rng: Generator, ending: str = ".las") -> Made:
    import laspy

    cloud = laspy.LasData(laspy.LasHeader(version="1.4", point_format=6))
    points = _cloud(rng)
    for axis in "xyz":
        cloud[axis] = points[axis]
    cloud.intensity = points["intensity"]
    cloud.write(folder / f"{name}{ending}")
    return Made(folder / f"{name}{ending}", {"points/intensity": points["intensity"]})


def _laz(folder: Path, name: str, rng: Generator) -> Made:
    return _las(folder, name, rng, ".laz")


def _ply(folder: Path, name: str, rng: Generator) -> Made:
    from plyfile import PlyData, PlyElement

    points = _cloud(rng)
    PlyData([PlyElement.describe(points, "vertex")]).write(folder / f"{name}.ply")
    return Made(folder / f"{name}.ply", {"points/intensity": points["intensity"]})


def _pcd(folder: Path, name: str, rng: Generator) -> Made:
    points = _cloud(rng)
    header = (
        "# .PCD v0.7 - Point Cloud Data file format\nVERSION 0.7\nFIELDS x y z intensity\nSIZE 4 4 4 2\n"
        f"TYPE F F F U\nCOUNT 1 1 1 1\nWIDTH {ROWS}\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS {ROWS}\n"
        "DATA binary\n"
    )
    (folder / f"{name}.pcd").write_bytes(header.encode() + points.tobytes())
    return Made(folder / f"{name}.pcd", {"points/intensity": points["intensity"]})


def _text_points(folder: Path, name: str, rng: Generator) -> Made:
    points = _cloud(rng)
    np.savetxt(folder / f"{name}.xyz", np.stack([points[axis] for axis in "xyz"], 1), "%.2f")
    hundredths = np.rint(np.loadtxt(folder / f"{name}.xyz") * 100)
    return Made(folder / f"{name}.xyz", {"points/xyz": hundredths})


def _sweep(folder: Path, name: str, rng: Generator) -> Made:
    (folder / "velodyne").mkdir(exist_ok=True)
    points = rng.random((ROWS, 4), "f4")
    points.tofile(folder / f"velodyne/{name}.bin")
    return Made(folder / f"velodyne/{name}.bin", {"points/intensity": points[:, 3]})


def _voxels(rng: Generator) -> NDArray[Any]:
    return rng.integers(-1000, 1000, (7, 53, 59)).astype("<i2")


def _nifti(folder: Path, name: str, rng: Generator) -> Made:
    import nibabel

    voxels = _voxels(rng)
    nibabel.Nifti1Image(voxels.T, np.eye(4)).to_filename(folder / f"{name}.nii")
    return Made(folder / f"{name}.nii", {"volumes/image": voxels})


def _nrrd(folder: Path, name: str, rng: Generator) -> Made:
    import nrrd

    voxels = _voxels(rng)
    nrrd.write(str(folder / f"{name}.nrrd"), voxels.T, {"encoding": "raw"})
    return Made(folder / f"{name}.nrrd", {"volumes/image": voxels})


def _metaimage(folder: Path, name: str, rng: Generator) -> Made:
    import SimpleITK

    voxels = _voxels(rng)
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(voxels), str(folder / f"{name}.mha"))
    return Made(folder / f"{name}.mha", {"volumes/image": voxels})


def _tiff(folder: Path, name: str, rng: Generator) -> Made:
    import tifffile

    voxels = _voxels(rng)
    tifffile.imwrite(folder / f"{name}.tif", voxels, metadata={"axes": "ZYX"})
    return Made(folder / f"{name}.tif", {"volumes/image": voxels})


def _dicom(folder: Path, name: str, rng: Generator) -> Made:
    import pydicom
    from pydicom.data import get_testdata_file
    from pydicom.uid import generate_uid

    voxels = rng.integers(0, 4096, (1, 53, 59)).astype("<u2")
    uid = generate_uid()
    (folder / name).mkdir()
    for number, pixels in enumerate(voxels):
        one = pydicom.dcmread(str(get_testdata_file("CT_small.dcm", download=False)))
        one.SeriesInstanceUID, one.SOPInstanceUID = uid, generate_uid()
        one.Rows, one.Columns = pixels.shape
        one.BitsStored, one.PixelRepresentation = 12, 0
        one.ImagePositionPatient, one.InstanceNumber = [0, 0, number], number
        one.PixelData = pixels.tobytes()
        one.save_as(folder / f"{name}/{number}.dcm")
    return Made(folder / f"{name}/0.dcm", {"volumes/image": voxels.astype("<i4") - 1024})


def _raw(folder: Path, name: str, rng: Generator) -> Made:
    path = folder / f"{name}.dat"
    bits = rng.integers(0, 256, (3, 250, 50), "u1")
    path.write_bytes(bits.tobytes())
    return Made(path, {"spikes/bits": bits[:, ::-1]})


def _image(folder: Path, name: str, rng: Generator, ending: str) -> Made:
    for role in ("spike", "sharp"):
        (folder / f"{name}/{role}").mkdir(parents=True)
    np.save(folder / f"{name}/spike/0.npy", rng.integers(0, 2, (4, 16, 24), "u1"))
    path = folder / f"{name}/sharp/0{ending}"
    pixels = cv2.resize(rng.integers(0, 256, (4, 6, 3), "u1"), (53, 47))
    cv2.imwrite(str(path), pixels)
    decoded = cv2.imread(str(path))
    assert decoded is not None
    return Made(path, {"frames/sharp": decoded[None, ..., ::-1]})


def _png(folder: Path, name: str, rng: Generator) -> Made:
    return _image(folder, name, rng, ".png")


def _jpeg(folder: Path, name: str, rng: Generator) -> Made:
    return _image(folder, name, rng, ".jpg")


def _events(rng: Generator) -> NDArray[Any]:
    events = np.empty(ROWS, [("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "u1")])
    events["t"] = np.sort(rng.integers(0, 40_000, ROWS))
    events["x"], events["y"] = rng.integers(0, 64, ROWS), rng.integers(0, 48, ROWS)
    events["p"] = rng.integers(0, 2, ROWS)
    return events


def _columns(events: NDArray[Any]) -> Values:
    return {f"events/{column}": events[column] for column in events.dtype.names or ()}


def _prophesee_dat(folder: Path, name: str, rng: Generator) -> Made:
    events = _events(rng)
    records = np.empty(ROWS, [("t", "<u4"), ("place", "<u4")])
    records["t"] = events["t"]
    records["place"] = events["p"].astype("u4") << 28 | events["y"].astype("u4") << 14 | events["x"]
    header = b"% Data file\n% Version 2\n% Width 64\n% Height 48\n\x0c\x08"
    (folder / f"{name}.dat").write_bytes(header + records.tobytes())
    return Made(folder / f"{name}.dat", _columns(events))


def _prophesee_raw(folder: Path, name: str, rng: Generator) -> Made:
    events = _events(rng)
    words, high = [], -1
    for t, x, y, p in events.tolist():
        if t >> 6 != high:
            high = t >> 6
            words.append(8 << 28 | high)
        words.append(p << 28 | (t & 63) << 22 | x << 11 | y)
    header = b"% date 2026-01-01 10:00:00\n% evt 2.0\n% geometry 64x48\n% end\n"
    (folder / f"{name}.raw").write_bytes(header + np.array(words, "<u4").tobytes())
    return Made(folder / f"{name}.raw", _columns(events))


def _aedat4(folder: Path, name: str, rng: Generator) -> Made:
    import faery

    events = _events(rng)
    written = np.empty(ROWS, faery.EVENTS_DTYPE)
    for column in "txy":
        written[column] = events[column]
    written["on"] = events["p"]
    faery.events_stream_from_array(written, (64, 48)).to_file(folder / f"{name}.aedat4")
    return Made(folder / f"{name}.aedat4", _columns(events))


def _event_text(folder: Path, name: str, rng: Generator) -> Made:
    events = _events(rng)
    lines = [f"{t} {x} {y} {p}\n" for t, x, y, p in events.tolist()]
    (folder / f"{name}_events.txt").write_text("".join(["64 48\n", *lines]))
    return Made(folder / f"{name}_events.txt", _columns(events))


def _atis_bin(folder: Path, name: str, rng: Generator) -> Made:
    events = _events(rng)
    words = events["p"].astype("i8") << 23 | events["t"]
    rows = np.stack([events["x"], events["y"], words >> 16, words >> 8 & 255, words & 255], axis=1)
    (folder / f"{name}.bin").write_bytes(rows.astype("u1").tobytes())
    return Made(folder / f"{name}.bin", _columns(events))


def _frame_times(folder: Path, name: str, rng: Generator) -> Made:
    events = _events(rng)
    for inner in ("events/left", "images/left/rectified"):
        (folder / name / inner).mkdir(parents=True)
    with h5py.File(folder / name / "events/left/events.h5", "w") as file:
        for column in "txyp":
            file[f"events/{column}"] = events[column]
    times = np.sort(rng.integers(0, 40_000, 3))
    (folder / name / "images/timestamps.txt").write_text("".join(f"{time}\n" for time in times))
    for number in range(3):
        pixels = rng.integers(0, 255, (12, 16, 3), "u1")
        cv2.imwrite(str(folder / f"{name}/images/left/rectified/{number}.png"), pixels)
    return Made(folder / f"{name}/images/timestamps.txt", {**_columns(events), "frames/t": times})


def _bag(folder: Path, name: str, rng: Generator, ending: str) -> Made:
    from rosbags import rosbag1, rosbag2
    from rosbags.typesys import Stores, get_typestore

    is_ros1 = ending == ".bag"
    typestore = get_typestore(Stores.ROS1_NOETIC if is_ros1 else Stores.ROS2_HUMBLE)
    message = typestore.types["geometry_msgs/msg/Vector3"]
    values = rng.normal(size=(ROWS, 3))
    places = {f"steps/observation/place/{axis}": column for axis, column in zip("xyz", values.T, strict=True)}
    apart = folder.parent / f"{name}.apart"
    if is_ros1:
        with rosbag1.Writer(folder / f"{name}.bag") as writer:
            there = writer.add_connection("place", message.__msgtype__, typestore=typestore)
            for number, row in enumerate(values):
                data = typestore.serialize_ros1(message(*row), message.__msgtype__)
                writer.write(there, 10**18 + number * 10**7, data)
        return Made(folder / f"{name}.bag", places)
    plugin = rosbag2.StoragePlugin.MCAP if ending == ".mcap" else rosbag2.StoragePlugin.SQLITE3
    with rosbag2.Writer(apart, version=8, storage_plugin=plugin) as writer:
        there = writer.add_connection("place", message.__msgtype__, typestore=typestore)
        for number, row in enumerate(values):
            data = typestore.serialize_cdr(message(*row), message.__msgtype__)
            writer.write(there, 10**18 + number * 10**7, data)
    (written,) = apart.glob(f"*{ending}")
    written.rename(folder / f"{name}{ending}")
    shutil.rmtree(apart)
    return Made(folder / f"{name}{ending}", places)


def _ros1(folder: Path, name: str, rng: Generator) -> Made:
    return _bag(folder, name, rng, ".bag")


def _mcap(folder: Path, name: str, rng: Generator) -> Made:
    return _bag(folder, name, rng, ".mcap")


def _db3(folder: Path, name: str, rng: Generator) -> Made:
    return _bag(folder, name, rng, ".db3")


def _lerobot(folder: Path, name: str, rng: Generator) -> Made:
    shutil.copytree(DATA / "lerobot/v21", folder / name)
    import pyarrow.parquet as pq

    tables = sorted((folder / name / "data/chunk-000").glob("*.parquet"))
    actions = [np.array(pq.read_table(path)["action"].to_pylist(), "f4") for path in tables]
    return Made(folder / name / "meta/info.json", {"steps/action": np.concatenate(actions)})


def _minari(folder: Path, name: str, rng: Generator) -> Made:
    shutil.copytree(DATA / "minari/flat/data", folder / name)
    path = folder / name / "main_data.hdf5"
    with h5py.File(path) as file:
        actions = [file[f"episode_{number}/actions"][()] for number in range(3)]
    return Made(path, {"steps/action": np.concatenate(actions)})


def _maniskill(folder: Path, name: str, rng: Generator) -> Made:
    (folder / name).mkdir()
    path = folder / name / "trajectory.state.h5"
    actions = []
    with h5py.File(path, "w") as file:
        for number, steps in enumerate((5, ROWS - 5)):
            group = file.create_group(f"traj_{number}")
            actions.append(rng.normal(size=(steps, 2)).astype("f4"))
            group["actions"] = actions[-1]
            group["obs/agent/qpos"] = rng.normal(size=(steps + 1, 3)).astype("f4")
            for end in ("terminated", "truncated"):
                group[end] = np.arange(steps) == steps - 1
    episodes = [{"episode_id": number, "episode_seed": number} for number in range(2)]
    path.with_suffix(".json").write_text(json.dumps({"env_info": {}, "episodes": episodes}))
    return Made(path, {"steps/action": np.concatenate(actions)})


def _rlds(folder: Path, name: str, rng: Generator) -> Made:
    shutil.copytree(DATA / "rlds/toy/1.0.0", folder / name)
    (folder / name / "toy-val.tfrecord-00000-of-00001").unlink()
    actions = np.load(DATA / "rlds/toy.npz")["train/action"]
    return Made(folder / name / "toy-train.tfrecord-00000-of-00001", {"steps/action": actions})


def _replay_zarr(folder: Path, name: str, rng: Generator) -> Made:
    import zarr
    from zarr.storage import ZipStore

    values = rng.normal(size=(ROWS, 2)).astype("f4")
    with ZipStore(folder / f"{name}.zarr.zip", mode="w") as store:
        root = zarr.open_group(store, mode="w", zarr_format=2)
        root.create_array("data/action", data=values, chunks=(100, 2))
        root.create_array("meta/episode_ends", data=np.array([5, ROWS]))
    return Made(folder / f"{name}.zarr.zip", {"steps/action": values})


def _beside(make: Maker, *place: str) -> Maker:
    """Return a maker of the same source, of which faults damage another file, by its path below."""

    def make_and_name(folder: Path, name: str, rng: Generator) -> Made:
        made = make(folder, name, rng)
        return made._replace(file=folder.joinpath(name, *place))

    return make_and_name


def _first(count: int) -> Callable[[bytes], slice]:
    return lambda content: slice(count)


def _footer(content: bytes) -> slice:
    """Return the metadata of a Parquet file, whose length is before its last four bytes."""
    return slice(len(content) - 8 - int.from_bytes(content[-8:-4], "little"), len(content))


_ANY_BYTES = "any bytes are values"
_ANY_END = "it may end after any value"
_OF_OTHERS = "its ending is that of other files, too"
_POINTS = {ROWS: ("<u4", "<u8")}
_VOXELS = {53: ("text",), 59: ("text",)}
SAMPLES: Mapping[str, Sample] = {
    "hdf5": Sample("rows", _hdf5, {ROWS: ("<u8",), 100: ("<u4",)}),
    "npy": Sample("rows", _npy, {ROWS: ("text",)}),
    "npz": Sample("rows", _npz, {ROWS: ("text",)}),
    "parquet": Sample("rows", _parquet, {ROWS: ("varint",), 200: ("varint",)}, header=_footer),
    "las": Sample("point_cloud", _las, _POINTS, header=_first(375)),
    "laz": Sample("point_cloud", _laz, _POINTS, header=_first(375)),
    "ply": Sample("point_cloud", _ply, {ROWS: ("text",)}),
    "pcd": Sample("point_cloud", _pcd, {ROWS: ("text",)}),
    "text_points": Sample(
        "point_cloud", _text_points, blind={CUT: _OF_OTHERS, TRUNCATED: _ANY_END, EMPTY: _OF_OTHERS}
    ),
    "sweep": Sample("point_cloud", _sweep, blind={BEGINNING: _ANY_BYTES}),
    "nifti": Sample("ct", _nifti, {7: ("<i2",), 53: ("<i2",), 59: ("<i2",)}, header=_first(60)),
    "nrrd": Sample("ct", _nrrd, _VOXELS, header=_first(300)),
    "metaimage": Sample("ct", _metaimage, _VOXELS, header=_first(400)),
    "tiff": Sample("ct", _tiff, {53: ("<u2",), 59: ("<u2",)}, header=_first(400)),
    "dicom": Sample("ct", _dicom, {53: ("US",), 59: ("US",)}, names=("unreadable-", "series-")),
    "raw": Sample("spike", _raw, blind={BEGINNING: _ANY_BYTES}, is_named=True),
    "png": Sample("spike", _png, {47: (">u4",), 53: (">u4",)}, header=_first(40)),
    "jpeg": Sample(
        "spike",
        _jpeg,
        {47: (">u2",), 53: (">u2",)},
        header=_first(200),
        blind={MORE: "blocks of 8 pixels are filled up"},
    ),
    "prophesee_dat": Sample("events", _prophesee_dat, blind={TRUNCATED: _ANY_END}),
    "prophesee_raw": Sample("events", _prophesee_raw, blind={TRUNCATED: _ANY_END}),
    "aedat4": Sample("events", _aedat4),
    "event_text": Sample("events", _event_text, blind={CUT: _OF_OTHERS}, options=("--unit", "us")),
    "atis_bin": Sample(
        "events",
        _atis_bin,
        blind={TRUNCATED: _ANY_END, **dict.fromkeys((BEGINNING, CUT, EMPTY, FLIPPED), _OF_OTHERS)},
        options=("--sensor", "64", "48"),
        is_named=True,
    ),
    "frame_times": Sample("events", _frame_times, options=("--sensor", "64", "48")),
    "bag": Sample("trajectory", _ros1, {ROWS: ("<u4",)}),
    "bag mcap": Sample("trajectory", _mcap, {ROWS: ("<u8",)}),
    "bag db3": Sample("trajectory", _db3),
    "lerobot": Sample("trajectory", _lerobot, {21: ("text",)}),
    "lerobot table": Sample("trajectory", _beside(_lerobot, "data/chunk-000/episode_000001.parquet")),
    "lerobot episodes": Sample("trajectory", _beside(_lerobot, "meta/episodes.jsonl")),
    "lerobot video": Sample(
        "trajectory", _beside(_lerobot, "videos/chunk-000/observation.images.top/episode_000001.mp4")
    ),
    "minari metadata": Sample("trajectory", _beside(_minari, "metadata.json")),
    "rlds features": Sample("trajectory", _beside(_rlds, "features.json")),
    "maniskill": Sample("trajectory", _maniskill),
    "maniskill episodes": Sample("trajectory", _beside(_maniskill, "trajectory.state.json")),
    "minari": Sample("trajectory", _minari),
    "rlds": Sample("trajectory", _rlds),
    "replay_zarr": Sample("trajectory", _replay_zarr, {ROWS: ("text",)}),
}
