"""Bags of a robot with a camera, a lidar, an IMU and joints, as rosbags writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from rosbags import rosbag1, rosbag2
from rosbags.typesys import Stores, get_typestore

START = 1_700_000_000_000_000_000
LATENCY = 2_000_000
"""Nanoseconds from the stamp of a message to when it was logged."""
ROS1, ROS2 = get_typestore(Stores.ROS1_NOETIC), get_typestore(Stores.ROS2_HUMBLE)
RATES = {"camera/left": 10, "camera/right": 5, "lidar": 5, "imu": 50, "joints": 25, "cmd_vel": 20}
CLOUD = np.dtype(
    {
        "names": ["x", "y", "z", "intensity", "ring"],
        "formats": ["<f4", "<f4", "<f4", "<f4", "<u2"],
        "offsets": [0, 4, 8, 16, 20],
        "itemsize": 24,
    }
)


class Sent(NamedTuple):
    """A message: when it was logged, its topic, type, and message."""

    time: int
    topic: str
    message: Any


class Robot:
    """Messages of a robot, and the arrays that they should become."""

    def __init__(self, typestore: Any = ROS2, seconds: float = 1.0, seed: int = 0) -> None:
        self.typestore = typestore
        self.types = typestore.types
        self._rng = np.random.default_rng(seed)
        self._is_ros1 = typestore is ROS1
        self.sent: list[Sent] = []
        self.stamps: dict[str, list[int]] = {}
        self.values: dict[str, list[Any]] = {}
        makers = {
            "camera/left": self._image,
            "camera/right": self._compressed,
            "lidar": self._cloud,
            "imu": self._imu,
            "joints": self._joints,
            "cmd_vel": self._twist,
        }
        for topic, make in makers.items():
            for number in range(int(seconds * RATES[topic])):
                stamp = START + int(number * 1e9 / RATES[topic]) + int(self._rng.integers(0, 2_000_000))
                self.stamps.setdefault(topic, []).append(stamp)
                self.sent.append(Sent(stamp + LATENCY, topic, make(stamp)))
        text = self.types["std_msgs/msg/String"](data="hello")
        self.sent.append(Sent(START + LATENCY, "chatter", text))
        self.sent.sort(key=lambda one: one.time)

    def keep(self, name: str, value: Any) -> Any:
        """Keep what a field of a message should become."""
        self.values.setdefault(name, []).append(value)
        return value

    def array(self, name: str) -> np.ndarray:
        """Return what a field of all messages should become."""
        return np.array(self.values[name])

    def header(self, stamp: int) -> Any:
        """Return a header."""
        time = self.types["builtin_interfaces/msg/Time"](sec=stamp // 10**9, nanosec=stamp % 10**9)
        seq = {"seq": 0} if self._is_ros1 else {}
        return self.types["std_msgs/msg/Header"](stamp=time, frame_id="base", **seq)

    def vector(self, values: Any, kind: str = "Vector3") -> Any:
        """Return a vector, or a quaternion."""
        names = "xyzw"[: len(values)]
        return self.types[f"geometry_msgs/msg/{kind}"](**dict(zip(names, map(float, values), strict=True)))

    def image(self, stamp: int, pixels: np.ndarray, encoding: str, padding: int = 0) -> Any:
        """Return an image, whose rows are padded."""
        rows = np.ascontiguousarray(pixels).reshape(len(pixels), -1).view("u1")
        rows = np.pad(rows, ((0, 0), (0, padding)))
        return self.types["sensor_msgs/msg/Image"](
            header=self.header(stamp),
            height=len(pixels),
            width=pixels.shape[1],
            encoding=encoding,
            is_bigendian=0,
            step=rows.shape[1],
            data=rows.reshape(-1),
        )

    def _image(self, stamp: int) -> Any:
        pixels = self._rng.integers(0, 255, (6, 8, 3), "u1")
        self.keep("camera/left/image", pixels[..., ::-1])
        return self.image(stamp, pixels, "bgr8", padding=3)

    def _compressed(self, stamp: int) -> Any:
        pixels = self.keep("camera/right/image", self._rng.integers(0, 255, (6, 8, 3), "u1"))
        data = cv2.imencode(".png", pixels[..., ::-1])[1].ravel()
        kind = self.types["sensor_msgs/msg/CompressedImage"]
        return kind(header=self.header(stamp), format="rgb8; png compressed bgr8", data=data)

    def _cloud(self, stamp: int) -> Any:
        points = np.zeros(int(self._rng.integers(0, 9)), CLOUD)
        for name in CLOUD.names:
            points[name] = self._rng.integers(0, 1000, len(points))
        self.keep("lidar/xyz", np.stack([points["x"], points["y"], points["z"]], axis=1))
        self.keep("lidar/intensity", points["intensity"])
        self.keep("lidar/ring", points["ring"])
        return self.cloud(stamp, points)

    def cloud(self, stamp: int, points: np.ndarray) -> Any:
        """Return a cloud."""
        field = self.types["sensor_msgs/msg/PointField"]
        kinds = {"f4": 7, "u2": 4}
        fields = [
            field(name=name, offset=CLOUD.fields[name][1], datatype=kinds[CLOUD[name].str[1:]], count=1)
            for name in CLOUD.names
        ]
        return self.types["sensor_msgs/msg/PointCloud2"](
            header=self.header(stamp),
            height=1,
            width=len(points),
            fields=fields,
            is_bigendian=False,
            point_step=CLOUD.itemsize,
            row_step=points.nbytes,
            data=np.frombuffer(points.tobytes(), "u1"),
            is_dense=True,
        )

    def _imu(self, stamp: int) -> Any:
        orientation = self.keep("imu/orientation", self._rng.normal(size=4))
        velocity = self.keep("imu/angular_velocity", self._rng.normal(size=3))
        acceleration = self.keep("imu/linear_acceleration", self._rng.normal(size=3))
        covariance = self.keep("imu/orientation_covariance", self._rng.normal(size=9))
        return self.types["sensor_msgs/msg/Imu"](
            header=self.header(stamp),
            orientation=self.vector(orientation, "Quaternion"),
            orientation_covariance=covariance,
            angular_velocity=self.vector(velocity),
            angular_velocity_covariance=np.zeros(9),
            linear_acceleration=self.vector(acceleration),
            linear_acceleration_covariance=np.zeros(9),
        )

    def _joints(self, stamp: int) -> Any:
        position = self.keep("joints/position", self._rng.normal(size=3))
        effort = self.keep("joints/effort", self._rng.normal(size=int(self._rng.integers(0, 3))))
        kind = self.types["sensor_msgs/msg/JointState"]
        names = ["a", "b", "c"]
        return kind(
            header=self.header(stamp), name=names, position=position, velocity=np.empty(0), effort=effort
        )

    def _twist(self, stamp: int) -> Any:
        del stamp
        linear = self.keep("cmd_vel/linear", self._rng.normal(size=3))
        angular = self.keep("cmd_vel/angular", self._rng.normal(size=3))
        return self.types["geometry_msgs/msg/Twist"](linear=self.vector(linear), angular=self.vector(angular))

    # Containers.

    def bag(self, path: Path, compression: Any = None) -> Path:
        """Write a ``.bag``."""
        writer = rosbag1.Writer(path)
        if compression is not None:
            writer.set_compression(compression)
        with writer:
            self._write(writer, self.typestore.serialize_ros1)
        return path

    def folder(self, path: Path, plugin: str = "mcap", **compression: Any) -> Path:
        """Write a folder with ``metadata.yaml``."""
        kind = rosbag2.StoragePlugin.MCAP if plugin == "mcap" else rosbag2.StoragePlugin.SQLITE3
        writer = rosbag2.Writer(path, version=9, storage_plugin=kind)
        if compression:
            writer.set_compression(**compression)
        with writer:
            self._write(writer, self.typestore.serialize_cdr)
        return path

    def _write(self, writer: Any, serialize: Any) -> None:
        connections: dict[str, Any] = {}
        for one in self.sent:
            kind = one.message.__msgtype__
            if one.topic not in connections:
                connections[one.topic] = writer.add_connection(
                    f"/{one.topic}", kind, typestore=self.typestore
                )
            writer.write(connections[one.topic], one.time, serialize(one.message, kind))
