"""Bags of ROS: topics as clocks of their own, times of headers and of logging, and what is refused."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import psutil
import pytest
from rosbags import rosbag1, rosbag2

import unistore
from tests.support import bags
from tests.support.family_converters import trajectory
from tests.support.trajectories import problems_of
from unistore.converters.formats.bags import Rosbag
from unistore.converters.opened import SourceFile
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError

FIELDS = {
    "camera/right": ["image"],
    "imu": ["orientation", "angular_velocity", "linear_acceleration", "orientation_covariance"],
    "joints": ["position"],
    "cmd_vel": ["linear", "angular"],
}
RAGGED = {"lidar": ["xyz", "intensity", "ring"], "joints": ["effort"]}


def written(kind: str, folder: Path, **options: Any) -> tuple[bags.Robot, Path]:
    """Write a bag into a folder."""
    folder.mkdir(exist_ok=True)
    if kind == "bag":
        robot = bags.Robot(bags.ROS1)
        return robot, robot.bag(folder / "run.bag", **options)
    robot = bags.Robot()
    return robot, robot.folder(folder / "run", kind, **options)


@pytest.mark.parametrize("kind", ["bag", "mcap", "db3"])
def test_topics_are_tables_of_their_own_clock(tmp_path: Path, kind: str) -> None:
    robot, _ = written(kind, tmp_path / "bags")
    unistore.convert(tmp_path / "bags", tmp_path / "a.zarr", workers=0)
    store = unistore.Store(tmp_path / "a.zarr")
    told = store.group("episodes")["clocks"]
    assert set(told) == {"steps", "camera_right", "cmd_vel", "imu", "joints", "lidar"}
    assert told["cmd_vel"] == {"timestamps": "clocks/cmd_vel/observation/cmd_vel/log_time", "unit": "ns"}
    assert store.text("episodes/name") == ["run"]
    image = store.array("steps/observation/camera/left/image").read()
    assert np.array_equal(image, robot.array("camera/left/image"))
    stamps = store.array("steps/observation/camera/left/header_stamp").read()
    assert stamps.tolist() == robot.stamps["camera/left"]
    for topic, fields in FIELDS.items():
        table = f"clocks/{topic.replace('/', '_')}/observation/{topic}"
        for field in fields:
            assert np.array_equal(store.array(f"{table}/{field}").read(), robot.array(f"{topic}/{field}"))
        logged = np.array(robot.stamps[topic]) + bags.LATENCY
        assert np.array_equal(store.array(f"{table}/log_time").read(), logged)
    for topic, fields in RAGGED.items():
        for field in fields:
            group = f"clocks/{topic}/observation/{topic}/{field}_ragged"
            rows = robot.values[f"{topic}/{field}"]
            assert np.array_equal(store.array(f"{group}/data").read(), np.concatenate(rows))
            assert np.diff(store.array(f"{group}/offsets").read()).tolist() == [len(row) for row in rows]
    said = json.loads(store.text("episodes/attributes")[0])
    assert said["camera/left/encoding"] == "bgr8"
    assert said["imu/type"] == "sensor_msgs/msg/Imu"
    assert unistore.verify(store.path, against=tmp_path / "bags").ok


def test_a_store_of_bags_is_exported(tmp_path: Path) -> None:
    robot, path = written("bag", tmp_path)
    unistore.convert(path, tmp_path / "a.zarr", workers=0, images="keep")
    unistore.export(tmp_path / "a.zarr", tmp_path / "again")
    with h5py.File(tmp_path / "again/run.bag.h5") as file:
        assert np.array_equal(file["imu/orientation"], robot.array("imu/orientation"))
        assert np.array_equal(file["lidar/xyz"], np.concatenate(robot.values["lidar/xyz"]))
        assert np.diff(file["lidar/xyz_offsets"]).tolist() == [len(one) for one in robot.values["lidar/xyz"]]
        frame = cv2.imdecode(np.array(file["camera/right/image"][1]), cv2.IMREAD_COLOR)
        assert np.array_equal(frame[..., ::-1], robot.values["camera/right/image"][1])


def test_windows_around_a_camera_have_the_latest_rows_of_other_topics(tmp_path: Path) -> None:
    robot, path = written("bag", tmp_path)
    store = tmp_path / "a.zarr"
    unistore.convert(path, store, workers=0, images="keep", map={"action": "cmd_vel/linear"})
    around = {"camera_right": (0,), "imu": (-1, 0), "lidar": (0,), "action": (0,)}
    dataset = unistore.Dataset(store, unistore.Windows(around, clock="camera_left", pad="edge"))
    assert len(dataset) == len(robot.stamps["camera/left"])
    times = np.array(robot.stamps["camera/left"])
    for number in (3, 8):
        sample = dataset[number]
        rows = {
            topic: np.searchsorted(stamps, times[number], "right") - 1
            for topic, stamps in robot.stamps.items()
        }
        expected = robot.values["camera/right/image"][rows["camera/right"]]
        assert np.array_equal(sample["observation.camera.right.image"][0], np.moveaxis(expected, -1, 0))
        xyz = robot.values["lidar/xyz"][rows["lidar"]]
        assert np.array_equal(sample["observation.lidar.xyz"], xyz)
        orientation = robot.array("imu/orientation")[[rows["imu"] - 1, rows["imu"]]]
        assert np.array_equal(sample["observation.imu.orientation"], orientation)
    store_paths = unistore.Store(store).paths()
    assert "clocks/camera_right/observation/camera/right/image_jpeg/data" in store_paths
    assert "steps/action" in store_paths


@pytest.mark.nightly
def test_a_bag_larger_than_the_memory_limit_is_converted_within_it(tmp_path: Path) -> None:
    robot = bags.Robot(seconds=0)
    dark = robot.image(bags.START, np.zeros((1000, 1000, 3), np.uint8), "rgb8")
    robot.sent = [bags.Sent(bags.START + number * 100_000_000, "camera", dark) for number in range(115)]
    options = {"mode": rosbag2.CompressionMode.STORAGE, "fmt": rosbag2.CompressionFormat.ZSTD}
    path = robot.folder(tmp_path / "run", **options)
    words = ["convert", str(path), str(tmp_path / "a.zarr"), "--stamps", "log", "--memory", "335MB"]
    peak = 0
    with psutil.Popen([sys.executable, "-m", "unistore", *words]) as process:
        while process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                processes = [process, *process.children(recursive=True)]
                peak = max(peak, sum(one.memory_full_info().pss for one in processes))
            time.sleep(0.05)
    assert process.returncode == 0
    assert 115 * dark.data.nbytes // 2 < peak < 335_000_000
    assert unistore.Store(tmp_path / "a.zarr").array("steps/observation/camera/image").shape[0] == 115


COMPRESSIONS = [
    ("bag", {"compression": rosbag1.Writer.CompressionFormat.LZ4}),
    ("bag", {"compression": rosbag1.Writer.CompressionFormat.BZ2}),
    ("mcap", {"mode": rosbag2.CompressionMode.STORAGE, "fmt": rosbag2.CompressionFormat.ZSTD}),
    ("mcap", {"mode": rosbag2.CompressionMode.MESSAGE, "fmt": rosbag2.CompressionFormat.ZSTD}),
    ("db3", {"mode": rosbag2.CompressionMode.MESSAGE, "fmt": rosbag2.CompressionFormat.ZSTD}),
]


@pytest.mark.parametrize(("kind", "options"), COMPRESSIONS)
def test_compressed_bags_have_the_values_that_were_written(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    robot, path = written(kind, tmp_path, **options)
    file = path / "metadata.yaml" if path.is_dir() else path
    with Rosbag().open(SourceFile(file, file.name, (tmp_path,))) as opened:
        for name in ("imu/orientation", "cmd_vel/angular", "camera/left/image"):
            rows = opened.arrays[name]
            assert np.array_equal(rows[:], robot.array(name))
            assert np.array_equal(rows[3:7], robot.array(name)[3:7])


def test_files_compressed_as_a_whole_are_refused(tmp_path: Path) -> None:
    options = {"mode": rosbag2.CompressionMode.FILE, "fmt": rosbag2.CompressionFormat.ZSTD}
    written("db3", tmp_path, **options)
    assert "compressed as a whole, which is not supported" in problems_of(tmp_path)


def test_a_file_of_ros_2_is_a_bag_by_itself(tmp_path: Path) -> None:
    robot, path = written("mcap", tmp_path)
    alone = next(path.glob("*.mcap")).rename(tmp_path / "alone.mcap")
    unistore.convert(alone, tmp_path / "a.zarr", workers=0, ignore=("camera/*", "lidar/*"))
    store = unistore.Store(tmp_path / "a.zarr")
    assert store.text("episodes/name") == ["alone"]
    steps = store.array("steps/observation/cmd_vel/linear").read()
    assert np.array_equal(steps, robot.array("cmd_vel/linear"))


def damaged(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize(("kind", "part"), [("bag", 0.6), ("mcap", 0.97), ("db3", 0.97)])
def test_a_truncated_bag_is_a_problem_that_names_its_file(tmp_path: Path, kind: str, part: float) -> None:
    _, path = written(kind, tmp_path / "bags")
    file = path if path.is_file() else next(one for one in path.iterdir() if one.suffix != ".yaml")
    damaged(file, int(file.stat().st_size * part))
    found = problems_of(tmp_path / "bags")
    assert file.name in found
    assert "truncated" in found


def test_a_bag_with_fewer_messages_than_its_metadata_states_is_a_problem(tmp_path: Path) -> None:
    _, path = written("mcap", tmp_path)
    text = (path / "metadata.yaml").read_text()
    count = len(bags.Robot().sent)
    assert f"message_count: {count}" in text
    (path / "metadata.yaml").write_text(
        text.replace(f"\n  message_count: {count}", f"\n  message_count: {count + 5}")
    )
    found = problems_of(tmp_path)
    assert f"states {count + 5} messages, but its files contain {count}" in found
    for file in path.glob("*.mcap"):
        file.unlink()
    assert "needs the file run.mcap" in problems_of(tmp_path)


def test_a_database_with_a_write_ahead_log_is_a_problem(tmp_path: Path) -> None:
    _, path = written("db3", tmp_path)
    file = next(path.glob("*.db3"))
    Path(f"{file}-wal").write_bytes(b"some")
    assert "PRAGMA wal_checkpoint" in problems_of(tmp_path)


def changed(robot: bags.Robot, topic: str, change: Any) -> None:
    """Change the messages of a topic, numbered."""
    own = [one for one in robot.sent if one.topic == topic]
    for number, one in enumerate(own):
        change(number, one.message)


def set_stamp(message: Any, stamp: int) -> None:
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp, 10**9)


def falling(number: int, message: Any) -> None:
    if number == 3:
        set_stamp(message, bags.START)


def unset(number: int, message: Any) -> None:
    set_stamp(message, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (falling, "imu/header_stamp: row 3 is 1700000000000000000, earlier than the row before it"),
        (unset, "imu/header_stamp: has the same time in all 50 rows: 0 ns"),
    ],
)
def test_falling_or_unset_stamps_are_a_problem_that_offers_log_times(
    change: Any, message: str, tmp_path: Path
) -> None:
    robot = bags.Robot()
    changed(robot, "imu", change)
    robot.folder(tmp_path / "run")
    found = problems_of(tmp_path)
    assert message in found
    assert "--stamps log to read the times at which messages were logged" in found
    scan = scan_sources(trajectory(stamps="log"), [tmp_path])
    assert "clock imu: observation/imu/header_stamp, observation/imu/orientation" in " ".join(scan.notes)


@pytest.mark.parametrize(
    ("encoding", "pixels"),
    [
        ("rgb8", np.arange(72).reshape(4, 6, 3).astype("u1")),
        ("mono8", np.arange(24).reshape(4, 6).astype("u1")),
        ("mono16", (np.arange(24) * 999).reshape(4, 6).astype("u2")),
        ("32FC1", np.arange(24).reshape(4, 6).astype("f4")),
    ],
)
def test_images_of_every_encoding_keep_pixels_and_dtype(
    encoding: str, pixels: np.ndarray, tmp_path: Path
) -> None:
    robot = bags.Robot()
    robot.sent = [bags.Sent(bags.START, "depth", robot.image(bags.START, pixels, encoding))]
    path = robot.folder(tmp_path / "run") / "metadata.yaml"
    with Rosbag().open(SourceFile(path, path.name, (tmp_path,))) as opened:
        found = opened.arrays["depth/image"][:]
    assert found.dtype == pixels.dtype
    assert np.array_equal(found, pixels[None])


def test_an_image_encoding_that_is_not_read_is_a_problem(tmp_path: Path) -> None:
    robot = bags.Robot()
    pixels = np.zeros((4, 6), "u1")
    robot.sent.append(bags.Sent(bags.START + 10**9, "raw", robot.image(bags.START, pixels, "bayer_rggb8")))
    robot.folder(tmp_path / "run")
    found = problems_of(tmp_path)
    assert "raw/image: has the encoding 'bayer_rggb8', " in found
    assert scan_sources(trajectory(ignore=("raw/*",)), [tmp_path])


def test_images_that_change_their_size_are_an_error(tmp_path: Path) -> None:
    robot = bags.Robot()
    other = robot.image(bags.START + 2 * 10**9, np.zeros((4, 6, 3), "u1"), "bgr8")
    robot.sent.append(bags.Sent(bags.START + 2 * 10**9, "camera/left", other))
    robot.folder(tmp_path / "run")
    with pytest.raises(InputError, match="an image is 6 x 4 bgr8, but the first one is 8 x 6 bgr8"):
        unistore.convert(tmp_path / "run", tmp_path / "a.zarr", workers=0)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "c", "b"], "its value 1 is of the joint 'c', but in the first message of 'b'"),
        (["left", "b", "c"], "its value 0 is of the joint 'left', but in the first message of 'a'"),
        (["a", "b"], "has 2 names of joints, but the first message has 3"),
    ],
)
def test_joints_of_other_names_in_one_topic_are_an_error(
    names: list[str], message: str, tmp_path: Path
) -> None:
    """Drivers change the order, and two arms may publish to one topic: a column would mix joints."""
    robot = bags.Robot()

    def rename(number: int, message: Any) -> None:
        if number == 4:
            message.name = names

    changed(robot, "joints", rename)
    robot.folder(tmp_path / "run")
    found = problems_of(tmp_path)
    assert f"joints/position row 4: {message}" in found
    assert "--ignore joints/position to skip it" in found
    assert scan_sources(trajectory(ignore=("joints/*",)), [tmp_path])


def set_field(field: int, **values: Any) -> Any:
    """Return a change of a field of all clouds."""

    def change(number: int, message: Any) -> None:
        for name, value in values.items():
            setattr(message.fields[field], name, value)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_field(3, name="x"), "its fields are x, y, z, x, ring, of which two have the same name"),
        (set_field(3, datatype=0), "its field 'intensity' has the unknown datatype 0"),
        (set_field(3, offset=21), "its field 'intensity' begins at byte 21, but a point has 24 bytes"),
    ],
)
def test_fields_of_points_that_contradict_each_other_are_a_problem_of_their_topic(
    change: Any, message: str, tmp_path: Path
) -> None:
    robot = bags.Robot()
    changed(robot, "lidar", change)
    robot.folder(tmp_path / "run")
    assert f"lidar/points: {message}" in problems_of(tmp_path)
    scan = scan_sources(trajectory(ignore=("lidar/points",)), [tmp_path])
    assert "clock lidar: observation/lidar/header_stamp" in " ".join(scan.notes)


@pytest.mark.parametrize("count", [0, 2])
def test_fields_of_points_with_another_count_than_1_are_named_in_a_note(count: int, tmp_path: Path) -> None:
    robot = bags.Robot()
    changed(robot, "lidar", set_field(3, count=count))
    path = robot.folder(tmp_path / "run") / "metadata.yaml"
    with Rosbag().open(SourceFile(path, path.name, (tmp_path,))) as opened:
        rings = opened.arrays["lidar/ring"][0:2]
        assert "lidar/intensity" not in opened.arrays
        assert opened.left_out["lidar/intensity"] == f"because it has the count {count}, and only 1 is read"
    for ring, expected in zip(rings, robot.values["lidar/ring"], strict=False):
        assert np.array_equal(ring, expected)
    for field in (0, 1, 2, 4):
        changed(robot, "lidar", set_field(field, count=count))
    robot.folder(tmp_path / "all")
    with Rosbag().open(SourceFile(tmp_path / "all/metadata.yaml", "metadata.yaml", (tmp_path,))) as opened:
        assert {f"lidar/{name}" for name in bags.CLOUD.names} <= set(opened.left_out)
        assert "lidar" not in opened.left_out


def test_a_message_type_without_a_definition_is_a_problem_that_ignore_solves(tmp_path: Path) -> None:
    robot = bags.Robot()
    path = robot.folder(tmp_path / "run") / "run.mcap"
    content = path.read_bytes()
    assert content.count(b"sensor_msgs/msg/Imu") > 1
    known, unknown = b"geometry_msgs/Quaternion orientation", b"geometry_msgs/Quaternjon orientation"
    path.write_bytes(content.replace(known, unknown))
    found = problems_of(tmp_path)
    assert "imu/messages: has messages of the type sensor_msgs/msg/Imu" in found
    assert "does not define geometry_msgs/msg/Quaternjon" in found
    assert "--ignore 'imu/*'" in found
    assert scan_sources(trajectory(ignore=("imu/*",)), [tmp_path])


def test_channels_without_ros_messages_are_a_problem(tmp_path: Path) -> None:
    robot = bags.Robot()
    path = robot.folder(tmp_path / "run") / "run.mcap"
    content = (
        path.read_bytes()
        .replace(b"ros2msg", b"jsonsch")
        .replace(b"\x03\x00\x00\x00cdr", b"\x03\x00\x00\x00jsn")
    )
    path.write_bytes(content)
    found = problems_of(path)
    assert "do not contain ROS 2 messages: they are described in 'jsonsch'" in found
    assert "mcap filter run.mcap -o ros2.mcap -n TOPIC" in found


def test_databases_without_definitions_have_only_the_known_types_of_ros(tmp_path: Path) -> None:
    """As ROS 2 wrote them until Iron; types of ROS itself are known."""
    robot, path = written("db3", tmp_path)
    with closing(sqlite3.connect(path / "run.db3")) as database:
        database.execute("UPDATE schema SET schema_version = 3")
        database.execute("DROP TABLE message_definitions")
        database.execute("UPDATE topics SET type = 'own_msgs/msg/Command' WHERE name = '/cmd_vel'")
        database.commit()
    metadata = path / "metadata.yaml"
    text = metadata.read_text().replace("geometry_msgs/msg/Twist", "own_msgs/msg/Command")
    metadata.write_text(text)
    found = problems_of(tmp_path)
    assert (
        "cmd_vel/messages: has messages of the type own_msgs/msg/Command, but the bag does not define"
        in found
    )
    assert "--ignore 'cmd_vel/*'" in found
    with Rosbag().open(SourceFile(metadata, metadata.name, (tmp_path,))) as opened:
        assert np.array_equal(opened.arrays["imu/orientation"][:], robot.array("imu/orientation"))


def test_a_type_with_two_definitions_is_a_problem(tmp_path: Path) -> None:
    with rosbag1.Writer(tmp_path / "a.bag") as writer:
        for number, definition in enumerate(("float64 x", "float32 x")):
            connection = writer.add_connection(
                f"/{number}", "own_msgs/msg/X", msgdef=definition, md5sum="0" * 32
            )
            writer.write(connection, bags.START + number, bytes(8 - 4 * number))
    assert "'own_msgs/msg/X' is already present with different definition" in problems_of(tmp_path)
