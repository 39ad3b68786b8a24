"""Messages of ROS as columns: what each field of a type becomes.

Numbers, and arrays of one length, are fields of a record a message. A message of several numbers of one float
type (a vector, a quaternion) is one field with an axis. Fields inside of others have names with dots:
``pose.position``. Texts, and lists of messages, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.errors import InputError

HEADER = "std_msgs/msg/Header"
STAMP = "header_stamp"
LOG_TIME = "log_time"
IMAGE = "sensor_msgs/msg/Image"
COMPRESSED = "sensor_msgs/msg/CompressedImage"
POINTS = "sensor_msgs/msg/PointCloud2"
_TIMES = ("builtin_interfaces/msg/Time", "builtin_interfaces/msg/Duration")
_DTYPES = {
    "bool": "?",
    "byte": "u1",
    "char": "u1",
    "octet": "u1",
    "int8": "i1",
    "uint8": "u1",
    "int16": "<i2",
    "uint16": "<u2",
    "int32": "<i4",
    "uint32": "<u4",
    "int64": "<i8",
    "uint64": "<u8",
    "float32": "<f4",
    "float64": "<f8",
}
_NANOSECONDS = 1_000_000_000

Get = Callable[[Any], Any]
"""Takes the value of a field from a message."""


class Leaf(NamedTuple):
    """A field of a record: its name, form, and where its value is in a message."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    get: Get


class Listed(NamedTuple):
    """Numbers in a message, as many as it has."""

    name: str
    dtype: np.dtype[Any]
    get: Get


class MessageForm(NamedTuple):
    """What a type of messages becomes.

    Attributes
    ----------
    leaves
        Fields of records.
    lists
        Numbers of any length.
    left_out
        Other fields, with the reason.
    has_header
        Whether messages begin with a header.
    """

    leaves: list[Leaf]
    lists: list[Listed]
    left_out: dict[str, str]
    has_header: bool

    @property
    def record(self) -> np.dtype[Any]:
        """Dtype of the record of a message."""
        return np.dtype([(leaf.name, leaf.dtype, leaf.shape) for leaf in self.leaves])


def form_of(kind: str, definitions: Mapping[str, Any]) -> MessageForm:
    """Return what messages of a type become; `definitions` has the fields of all types, as of rosbags."""
    has_header = any(_is_header(name, content) for name, content in _fields(kind, definitions))
    form = MessageForm([], [], {}, has_header)
    if kind in (IMAGE, COMPRESSED, POINTS):
        if has_header:
            form.leaves.append(_time(STAMP, "header.stamp"))
        return form
    _add_fields(form, kind, "", definitions)
    return form


def _fields(kind: str, definitions: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, Any]]]:
    """Yield the names of the fields of a type, each with its node and what that holds."""
    for name, (node, content) in definitions[kind][1]:
        yield name, (node.name, content)


def _is_header(name: str, content: tuple[str, Any]) -> bool:
    return name == "header" and content == ("NAME", HEADER)


def _add_fields(form: MessageForm, kind: str, path: str, definitions: Mapping[str, Any]) -> None:
    for name, (node, content) in _fields(kind, definitions):
        field_path = f"{path}{name}"
        if node == "NAME":
            _add_message(form, field_path, content, definitions)
            continue
        element = _element(node, content)
        dtype = _DTYPES.get(element)
        if dtype is None:
            form.left_out[field_path] = "is text" if "string" in element else "is a list of messages"
        elif node == "BASE":
            form.leaves.append(Leaf(field_path, np.dtype(dtype), (), attrgetter(field_path)))
        elif node == "ARRAY":
            form.leaves.append(Leaf(field_path, np.dtype(dtype), (content[1],), attrgetter(field_path)))
        else:
            form.lists.append(Listed(field_path, np.dtype(dtype), attrgetter(field_path)))


def _element(node: str, content: Any) -> str:
    """Return the basic type of a field, or of the values in it; empty: these are messages."""
    if node == "BASE":
        return str(content[0])
    kind, name = content[0]
    return str(name[0]) if kind.name == "BASE" else ""


def _add_message(form: MessageForm, path: str, kind: str, definitions: Mapping[str, Any]) -> None:
    """Add the fields of a message inside of another."""
    if kind in _TIMES:
        form.leaves.append(_time(STAMP if path == "header.stamp" else path, path))
        return
    parts = list(_fields(kind, definitions))
    elements = {content[0] for _, (node, content) in parts if node == "BASE"}
    is_vector = len(parts) > 1 and all(node == "BASE" for _, (node, _) in parts) and len(elements) == 1
    if is_vector and elements <= {"float32", "float64"}:
        get = attrgetter(*[f"{path}.{name}" for name, _ in parts])
        form.leaves.append(Leaf(path, np.dtype(_DTYPES[elements.pop()]), (len(parts),), get))
    else:
        _add_fields(form, kind, f"{path}.", definitions)


def _time(name: str, path: str) -> Leaf:
    get = attrgetter(path)

    def nanoseconds(message: Any) -> int:
        time = get(message)
        return int(time.sec * _NANOSECONDS + time.nanosec)

    return Leaf(name, np.dtype(np.int64), (), nanoseconds)


# Images.


class Pixels(NamedTuple):
    """How the pixels of an encoding are stored: dtype, channels, and whether red is last."""

    dtype: str
    channels: int
    is_bgr: bool = False


_ENCODINGS = {
    "rgb8": Pixels("u1", 3),
    "bgr8": Pixels("u1", 3, is_bgr=True),
    "mono8": Pixels("u1", 1),
    "8UC1": Pixels("u1", 1),
    "mono16": Pixels("u2", 1),
    "16UC1": Pixels("u2", 1),
    "32FC1": Pixels("f4", 1),
}


class Picture(NamedTuple):
    """Form of the images of a topic."""

    encoding: str
    height: int
    width: int

    @property
    def text(self) -> str:
        """What messages call the form."""
        return f"{self.width} x {self.height} {self.encoding}"

    @property
    def pixels(self) -> Pixels | None:
        """How pixels are stored; None: in a way that is not read."""
        return _ENCODINGS.get(self.encoding)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an image."""
        pixels = self.pixels
        is_gray = pixels is None or pixels.channels == 1
        return (self.height, self.width) if is_gray else (self.height, self.width, 3)


def picture_of(message: Any) -> Picture:
    """Return the form of an image."""
    return Picture(str(message.encoding), int(message.height), int(message.width))


def encoding_problem(encoding: str) -> str:
    """Say that an encoding is not read."""
    return f"has the encoding {encoding!r}, expected one of {', '.join(_ENCODINGS)}"


def pixels_of(message: Any, picture: Picture, problem: Callable[[str], InputError]) -> NDArray[Any]:
    """Return the pixels of an image, red first.

    Raises
    ------
    InputError
        If it has another form than the first one, or fewer bytes than its size takes.
    """
    shown = picture_of(message)
    if shown != picture:
        raise problem(f"is an image of {shown.text}, the first one of {picture.text}")  # noqa: EM102
    pixels = picture.pixels
    assert pixels is not None
    dtype = np.dtype(pixels.dtype).newbyteorder(">" if message.is_bigendian else "<")
    row_bytes = picture.width * pixels.channels * dtype.itemsize
    step = int(message.step) or row_bytes
    if step < row_bytes or len(message.data) < step * picture.height:
        expected = max(step, row_bytes) * picture.height
        raise problem(f"has {len(message.data)} bytes, its size tells of {expected}")  # noqa: EM102
    rows = np.asarray(message.data[: step * picture.height]).reshape(picture.height, step)[:, :row_bytes]
    image = np.ascontiguousarray(rows).view(dtype).reshape(picture.shape)
    return image[..., ::-1] if pixels.is_bgr else image


# Clouds.

_POINT_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 8: "f8"}
"""Dtype by the number that a PointField tells."""
_XYZ = ("x", "y", "z")


class Cloud(NamedTuple):
    """Form of the clouds of a topic: the record of a point, with padding."""

    names: tuple[str, ...]
    formats: tuple[str, ...]
    offsets: tuple[int, ...]
    step: int

    @property
    def record(self) -> np.dtype[Any]:
        """Dtype of a point."""
        layout: Any = {
            "names": self.names,
            "formats": self.formats,
            "offsets": self.offsets,
            "itemsize": self.step,
        }
        record: np.dtype[Any] = np.dtype(layout)
        return record

    def columns(self) -> dict[str, np.dtype[Any]]:
        """Dtype of the values of each column: ``xyz``, and every other field by its name."""
        dtypes = {name: self.record[name] for name in self.names}
        first = [dtypes.get(name) for name in _XYZ]
        if first[0] is None or len(set(first)) > 1:
            return dtypes
        others = {name: dtype for name, dtype in dtypes.items() if name not in _XYZ}
        return {"xyz": first[0], **others}


def cloud_of(message: Any) -> Cloud:
    """Return the form of a cloud; fields without a name, or with several values, are padding."""
    named = [field for field in message.fields if not field.name.startswith("_") and field.count == 1]
    order = ">" if message.is_bigendian else "<"
    return Cloud(
        names=tuple(str(field.name) for field in named),
        formats=tuple(f"{order}{_POINT_TYPES[field.datatype]}" for field in named),
        offsets=tuple(int(field.offset) for field in named),
        step=int(message.point_step),
    )


def points_of(message: Any, cloud: Cloud, column: str, problem: Callable[[str], InputError]) -> NDArray[Any]:
    """Return a column of the points of a cloud, (points,) or (points, 3).

    Raises
    ------
    InputError
        If it has other fields than the first one, or fewer bytes than its points take.
    """
    if cloud_of(message) != cloud:
        raise problem("has other fields than the first cloud")
    width, height = int(message.width), int(message.height)
    row_bytes = width * cloud.step
    step = int(message.row_step) or row_bytes
    if height > 1 and step < row_bytes:
        raise problem(f"has rows of {step} bytes, {width} points take {row_bytes}")  # noqa: EM102
    size = row_bytes if height == 1 else step * height
    if len(message.data) < size:
        raise problem(f"has {len(message.data)} bytes, its points take {size}")  # noqa: EM102
    data = np.asarray(message.data[:size])
    if height > 1:
        data = np.ascontiguousarray(data.reshape(height, step)[:, :row_bytes]).reshape(-1)
    points = data.view(cloud.record)
    if column == "xyz" and "xyz" not in cloud.names:
        return np.stack([points[name] for name in _XYZ], axis=1)
    return np.ascontiguousarray(points[column])
