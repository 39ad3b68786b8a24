"""Write a small MCAP file of ROS 2 by the mcap library, and what its reader returns of it.

Run by ``make oracles`` in an environment of its own.

    python tools/oracles/mcap_samples.py tests/data/mcap
"""

import sys
from pathlib import Path

import numpy as np
from mcap.writer import CompressionType
from mcap_ros2.reader import read_ros2_messages
from mcap_ros2.writer import Writer

START = 1_700_000_000_000_000_000
SEPARATOR = "=" * 80
HEADER = f"""{SEPARATOR}
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
{SEPARATOR}
MSG: builtin_interfaces/Time
int32 sec
uint32 nanosec
"""
VECTOR = f"""{SEPARATOR}
MSG: geometry_msgs/Vector3
float64 x
float64 y
float64 z
"""
DEFINITIONS = {
    "geometry_msgs/msg/Vector3Stamped": "std_msgs/Header header\ngeometry_msgs/Vector3 vector\n"
    f"{VECTOR}{HEADER}",
    "sensor_msgs/msg/JointState": "std_msgs/Header header\nstring[] name\nfloat64[] position\n"
    f"float64[] velocity\nfloat64[] effort\n{HEADER}",
    "sensor_msgs/msg/Image": "std_msgs/Header header\nuint32 height\nuint32 width\nstring encoding\n"
    f"uint8 is_bigendian\nuint32 step\nuint8[] data\n{HEADER}",
    "test_msgs/msg/Mixed": "int16 count\nbool[3] flags\nuint64[<=4] numbers\ntest_msgs/Inner inner\n"
    f"{SEPARATOR}\nMSG: test_msgs/Inner\nfloat32 value\nuint8 code\nbuiltin_interfaces/Duration passed\n"
    f"{SEPARATOR}\nMSG: builtin_interfaces/Duration\nint32 sec\nuint32 nanosec\n",
}


def header(time):
    return {"stamp": {"sec": time // 10**9, "nanosec": time % 10**9}, "frame_id": "base"}


def messages(random):
    """Yield topic, type, message and log time; a few are logged late, into a later chunk."""
    for number in range(12):
        time = START + number * 20_000_000
        late = time - 50_000_000 if number in (5, 9) else time
        vector = dict(zip("xyz", random.normal(size=3).tolist(), strict=True))
        yield "/force", "geometry_msgs/msg/Vector3Stamped", {"header": header(late), "vector": vector}, late
        position, velocity = random.normal(size=(2, 3)).tolist()
        joints = {"name": ["a", "b", "c"], "position": position, "velocity": velocity, "effort": []}
        yield "/joints", "sensor_msgs/msg/JointState", {"header": header(time), **joints}, time + 1000
        inner = {"value": number / 2, "code": number, "passed": {"sec": number, "nanosec": 5}}
        flags = [number % 2 == 0, True, False]
        mixed = {"count": -number, "flags": flags, "numbers": [number, 2**63], "inner": inner}
        yield "/mixed", "test_msgs/msg/Mixed", mixed, time + 2000
        if number % 4 == 0:
            pixels = random.integers(0, 255, (6, 8, 3), "u1")
            size = {"height": 6, "width": 8, "encoding": "rgb8", "is_bigendian": 0, "step": 24}
            image = {"header": header(time), **size, "data": pixels.tobytes()}
            yield "/camera", "sensor_msgs/msg/Image", image, time + 3000


def write(path):
    random = np.random.default_rng(0)
    with path.open("wb") as stream:
        writer = Writer(stream, chunk_size=1500, compression=CompressionType.LZ4)
        schemas = {name: writer.register_msgdef(name, text) for name, text in DEFINITIONS.items()}
        for number, (topic, kind, message, time) in enumerate(messages(random)):
            writer.write_message(topic, schemas[kind], message, time, time, number)
        writer.finish()


def stamp(message):
    return message.header.stamp.sec * 10**9 + message.header.stamp.nanosec


FIELDS = {
    "/force": {"vector": lambda m: [m.vector.x, m.vector.y, m.vector.z], "header_stamp": stamp},
    "/joints": {"position": lambda m: m.position, "velocity": lambda m: m.velocity, "header_stamp": stamp},
    "/mixed": {
        "count": lambda m: np.int16(m.count),
        "flags": lambda m: np.array(m.flags, bool),
        "numbers": lambda m: np.array(m.numbers, np.uint64),
        "inner.value": lambda m: np.float32(m.inner.value),
        "inner.code": lambda m: np.uint8(m.inner.code),
        "inner.passed": lambda m: m.inner.passed.sec * 10**9 + m.inner.passed.nanosec,
    },
    "/camera": {
        "image": lambda m: np.frombuffer(m.data, np.uint8).reshape(m.height, m.width, 3),
        "header_stamp": stamp,
    },
}


def read(path):
    """Return the fields of all messages, as the library reads them, in the order of their log times."""
    found = {}
    for message in read_ros2_messages(str(path)):
        topic = message.channel.topic
        found.setdefault(f"{topic}/log_time", []).append(message.log_time_ns)
        for name, get in FIELDS[topic].items():
            found.setdefault(f"{topic}/{name}", []).append(get(message.ros_msg))
    return {name.strip("/"): np.array(values) for name, values in found.items()}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "robot.mcap")
    np.savez_compressed(folder / "robot.npz", **read(folder / "robot.mcap"))
