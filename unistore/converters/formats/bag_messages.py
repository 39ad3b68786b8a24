"""Turn messages of ROS into columns."""

# Numbers, and arrays of one length, are fields of a record a message. A message of several numbers of one
# float type (a vector, a quaternion) is one field with an axis. Fields inside of others have names with dots:
# ``pose.position``. Texts, and lists of messages, are left out.

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np

from unistore.converters.common.columns import any_length
from unistore.converters.formats.images import encoding_of
from unistore.system.types import AnyArray, Dtype, Shape, UInt8s

HEADER = "header.stamp"
STAMP = "header_stamp"
LOG_TIME = "log_time"
IMAGE = "sensor_msgs/msg/Image"
# Its lists have a number for each name in the message: several publishers may send different joints
JOINTS = "sensor_msgs/msg/JointState"
_COMPRESSED = "sensor_msgs/msg/CompressedImage"
_POINTS = "sensor_msgs/msg/PointCloud2"
PICTURES = (IMAGE, _COMPRESSED)
_TIMES = ("builtin_interfaces/msg/Time", "builtin_interfaces/msg/Duration")
_DTYPES = {"bool": "?", "byte": "u1", "char": "u1", "octet": "u1", "float32": "<f4", "float64": "<f8"}
for _size in (1, 2, 4, 8):
    _DTYPES |= {f"int{8 * _size}": f"<i{_size}", f"uint{8 * _size}": f"<u{_size}"}
_FLOATS = ("float32", "float64")
_NANOSECONDS = 1_000_000_000
_DUMMY = "structure_needs_at_least_one_member"  # a byte of messages of ROS 2 that have no fields

# Takes the value of a field from a message; a `ValueError` says what is wrong with it.
Take = Callable[[Any], Any]


class MessageField(NamedTuple):
    """A field of the messages of a topic."""

    name: str
    dtype: Dtype
    shape: Shape
    take: Take
    kind: Literal["number", "list", "values"] = (
        "number"  # of a record, as many as a message has, or any other
    )
    wrong: str = ""  # why it is not read


Definitions = Mapping[str, Any]  # fields of all types, as of rosbags: by name a pair of constants and fields


def undefined_in(kind: str, definitions: Definitions) -> str:
    """Return a type that messages hold, if only in a list that is left out, and nothing defines.

    Empty: all are defined.
    """
    seen: set[str] = set()
    pending = [kind]
    while pending:
        name = pending.pop()
        if name not in definitions:
            return name
        if name in seen:
            continue
        seen.add(name)
        for _, (node, content) in definitions[name][1]:
            held = (node, content) if node.name in ("BASE", "NAME") else content[0]
            if held[0].name == "NAME":
                pending.append(held[1])
    return ""


def fields_of(kind: str, definitions: Definitions, left_out: dict[str, str]) -> list[MessageField]:
    """List the numbers and lists in messages of a type, and add others to `left_out`."""
    fields = list(_fields(kind, "", definitions, left_out))
    if kind in (*PICTURES, _POINTS):
        left_out.clear()
        return [field for field in fields if field.name == STAMP]
    return fields


def values_of(kind: str, first: Any, left_out: dict[str, str]) -> list[MessageField]:
    """List the images, frames or points in messages of a type like the first.

    Fields of points that are not read are added to `left_out`.
    """
    if kind == IMAGE:
        return [_image(first)]
    if kind == _COMPRESSED:
        return [_frame(first)]
    return list(_points(first, left_out)) if kind == _POINTS else []


def lists_of_nothing(kind: str, definitions: Definitions) -> str:
    """Return a type without bytes of which messages of ROS 1 have lists, "" if there is none.

    A few bytes may tell of billions of them.
    """
    for _, (node, content) in definitions[kind][1]:
        held = (node, content) if node.name in ("BASE", "NAME") else content[0]
        if held[0].name != "NAME":
            continue
        if node.name != "NAME" and _takes_no_bytes(held[1], definitions):
            return str(held[1])
        if inside := lists_of_nothing(held[1], definitions):
            return inside
    return ""


def _takes_no_bytes(kind: str, definitions: Definitions) -> bool:
    for name, (node, content) in definitions[kind][1]:
        if name == _DUMMY or (node.name == "ARRAY" and not content[1]):
            continue
        held = content[0] if node.name == "ARRAY" else (node, content)
        if held[0].name != "NAME" or not _takes_no_bytes(held[1], definitions):
            return False
    return True


def _fields(
    kind: str, path: str, definitions: Definitions, left_out: dict[str, str]
) -> Iterator[MessageField]:
    for name, (node, content) in definitions[kind][1]:
        field_path = f"{path}{name}"
        if node.name == "NAME":
            yield from _fields_inside(content, field_path, definitions, left_out)
            continue
        held = (node, content)
        length: Sequence[int] = ()
        if node.name != "BASE":  # a list: what it holds, as a node and its content, and its length
            held, *length = content
        is_basic = held[0].name == "BASE"
        dtype = _DTYPES.get(held[1][0]) if is_basic else None
        if dtype is None:
            left_out[field_path] = f"because it is {'text' if is_basic else 'a list of messages'}"
        elif node.name == "SEQUENCE":
            yield MessageField(field_path, np.dtype(dtype), (), attrgetter(field_path), "list")
        else:
            yield MessageField(field_path, np.dtype(dtype), tuple(length), attrgetter(field_path))


def _fields_inside(
    kind: str, path: str, definitions: Definitions, left_out: dict[str, str]
) -> Iterator[MessageField]:
    if kind in _TIMES:
        yield MessageField(
            STAMP if path == HEADER else path, np.dtype(np.int64), (), _nanoseconds(attrgetter(path))
        )
        return
    parts = definitions[kind][1]
    elements = {content[0] if node.name == "BASE" else "" for _, (node, content) in parts}
    if len(parts) > 1 and len(elements) == 1 and elements <= set(_FLOATS):
        take = attrgetter(*[f"{path}.{name}" for name, _ in parts])
        yield MessageField(path, np.dtype(_DTYPES[elements.pop()]), (len(parts),), take)
    else:
        yield from _fields(kind, f"{path}.", definitions, left_out)


def _nanoseconds(get: Take) -> Take:
    def nanoseconds(message: Any) -> int:
        time = get(message)
        return int(time.sec * _NANOSECONDS + time.nanosec)

    return nanoseconds


# Images.


class _Pixels(NamedTuple):
    """How the pixels of an encoding are stored."""

    dtype: str
    channels: int = 1
    is_bgr: bool = False


_ENCODINGS = {
    "rgb8": _Pixels("u1", 3),
    "bgr8": _Pixels("u1", 3, is_bgr=True),
    "mono8": _Pixels("u1"),
    "8UC1": _Pixels("u1"),
    "mono16": _Pixels("u2"),
    "16UC1": _Pixels("u2"),
    "32FC1": _Pixels("f4"),
}


def _form(message: Any) -> str:
    return f"{message.width} x {message.height} {message.encoding}"


def _image(first: Any) -> MessageField:
    """Return the field of images of the form of the first, red first."""
    pixels = _ENCODINGS.get(first.encoding)
    if pixels is None:
        wrong = f"has the encoding {first.encoding!r}, which is not one of {', '.join(_ENCODINGS)}"
        return MessageField("image", np.dtype(object), (), bytes, "values", wrong)
    height = int(first.height)
    width = int(first.width)
    shape = (height, width) if pixels.channels == 1 else (height, width, pixels.channels)

    def take(message: Any) -> AnyArray:
        if _form(message) != _form(first):
            raise ValueError(f"an image is {_form(message)}, but the first one is {_form(first)}")
        dtype = np.dtype(pixels.dtype).newbyteorder(">" if message.is_bigendian else "<")
        row_bytes = width * pixels.channels * dtype.itemsize
        rows = _rows(message.data, height, int(message.step) or row_bytes, row_bytes)
        image = rows.view(dtype).reshape(shape)
        return image[..., ::-1] if pixels.is_bgr else image

    return MessageField("image", np.dtype(pixels.dtype), shape, take, "values")


def _rows(data: Any, height: int, step: int, row_bytes: int) -> UInt8s:
    """Return the bytes of rows that stand `step` bytes apart, (height, row_bytes)."""
    if step < row_bytes or len(data) < step * height:
        stated = max(step, row_bytes) * height
        raise ValueError(f"a message has {len(data):,} bytes of values, but its size states {stated:,}")
    rows = np.asarray(data[: step * height]).reshape(height, step)
    return np.ascontiguousarray(rows[:, :row_bytes])


def _frame(first: Any) -> MessageField:
    """Return the field of compressed images, as they are."""
    wrong = ""
    if encoding_of(bytes(first.data[:16])) is None:
        wrong = f"has images of the format {first.format!r}, and only PNG and JPEG are supported"
    dtype = any_length(np.dtype(np.uint8))
    return MessageField(
        "image", dtype, (), lambda message: np.asarray(message.data, np.uint8), "values", wrong
    )


# Clouds.

# Dtype by the number that a PointField tells.
_POINT_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 8: "f8"}
_XYZ = ["x", "y", "z"]


def _record_of(message: Any) -> Dtype:
    """Return the dtype of a point. Fields without a name, or of several values, are padding.

    Raises
    ------
    ValueError
        If fields have the same name, an unknown type, or lie beyond the point.
    """
    named = [field for field in message.fields if not field.name.startswith("_") and field.count == 1]
    order = ">" if message.is_bigendian else "<"
    for field in named:
        if field.datatype not in _POINT_TYPES:
            raise ValueError(f"its field {field.name!r} has the unknown datatype {field.datatype}")
        if field.offset + np.dtype(_POINT_TYPES[field.datatype]).itemsize > message.point_step:
            place = f"begins at byte {field.offset}, but a point has {message.point_step} bytes"
            raise ValueError(f"its field {field.name!r} {place}")
    names = [field.name for field in named]
    if len(set(names)) < len(names):
        raise ValueError(f"its fields are {', '.join(names)}, of which two have the same name")
    record: Any = {
        "names": names,
        "formats": [f"{order}{_POINT_TYPES[field.datatype]}" for field in named],
        "offsets": [field.offset for field in named],
        "itemsize": message.point_step,
    }
    dtype: Dtype = np.dtype(record)
    return dtype


def _points(first: Any, left_out: dict[str, str]) -> Iterator[MessageField]:
    """Yield the columns of points, any number in each cloud: ``xyz``, and every other field by its name."""
    for field in first.fields:
        if not field.name.startswith("_") and field.count != 1:
            left_out[field.name] = f"because it has the count {field.count}, and only 1 is read"
    try:
        record = _record_of(first)
    except ValueError as error:
        yield MessageField("points", np.dtype(object), (), bytes, "values", str(error))
        return

    def points_of(message: Any) -> AnyArray:
        if _record_of(message) != record:
            raise ValueError("a cloud has other fields than the first one")
        row_bytes = message.width * record.itemsize
        step = row_bytes if message.height == 1 else int(message.row_step) or row_bytes
        return _rows(message.data, message.height, step, row_bytes).reshape(-1).view(record)

    names = list(record.names or ())
    if set(_XYZ) <= set(names) and len({record[axis] for axis in _XYZ}) == 1:
        dtype = record["x"].newbyteorder("=")

        def take(message: Any) -> AnyArray:
            points = points_of(message)
            return np.stack([points[axis] for axis in _XYZ], axis=1)

        yield MessageField("xyz", any_length(dtype, (3,)), (), take, "values")
        names = [name for name in names if name not in _XYZ]
    for name in names:
        dtype = record[name].newbyteorder("=")
        yield MessageField(name, any_length(dtype), (), _field_of_points(points_of, name), "values")


def _field_of_points(points_of: Take, name: str) -> Take:
    return lambda message: np.ascontiguousarray(points_of(message)[name])
