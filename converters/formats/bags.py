"""Bags of ROS 1 and ROS 2: a group for each topic, with an array for each field of its messages.

``camera/left/{image, header_stamp, log_time}``: times are int64 nanoseconds, the stamp of the header where
messages have one, and when each was logged. Nothing but indices and first messages is read before arrays are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import any_length
from unistore.converters.formats.bag_files import (
    EXTRA,
    LIBRARY,
    MCAP,
    METADATA,
    METADATA_KEY,
    ROS1,
    SQLITE,
    Bag,
    BagFile,
    damages,
    open_bag,
)
from unistore.converters.formats.bag_messages import (
    COMPRESSED,
    IMAGE,
    LOG_TIME,
    POINTS,
    STAMP,
    Leaf,
    Listed,
    MessageForm,
    cloud_of,
    encoding_problem,
    form_of,
    picture_of,
    pixels_of,
    points_of,
)
from unistore.converters.formats.extras import needed
from unistore.converters.formats.images import encoding_of
from unistore.converters.plugin import Array, Claim, Facts, Format, Opened, SourceFile, no, sure
from unistore.errors import InputError, Location, Problem, location_of
from unistore.system.foreign import begin_reading

_BLOCK_BYTES = 16 << 20
"""Bytes of records that are made at a time."""
_ROWS_TOGETHER = 4096
"""Records after which the time that a library may take is counted anew."""
_MEMORY = 128 << 20
"""Bytes that reading takes beside rows: records, and a few chunks of a file."""
_IGNORE = "leave it out with --ignore"


class Rosbag(Format):
    """A bag: ``.bag`` of ROS 1, ``.mcap`` or ``.db3`` of ROS 2, or the ``metadata.yaml`` beside these."""

    name: ClassVar[str] = "bag"
    suffixes: ClassVar[tuple[str, ...]] = (".bag", ".mcap", ".db3", ".yaml")
    library: ClassVar[str] = LIBRARY
    offered: ClassVar[bool] = False

    def recognise(self, file: SourceFile) -> Claim:
        """Look at the first bytes."""
        head = file.head()
        if file.path.name == METADATA and METADATA_KEY.encode() in head:
            return sure("describes a bag of ROS 2")
        for magic, kind in ((ROS1, "a bag of ROS 1"), (MCAP, "MCAP"), (SQLITE, "a bag of ROS 2 in SQLite")):
            if head.startswith(magic):
                return sure(f"begins as {kind}")
        return no("is no bag of ROS")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[Opened]:
        """Read the index, and the first message of each topic."""
        with open_bag(file) as bag:
            yield _opened(file, bag)


@dataclass(frozen=True, eq=False, kw_only=True)
class _OpenedBag(Opened):
    """An open bag, which says types and frames of topics: ``imu/type``, ``imu/frame_id``."""

    said: Facts

    def group_facts(self, group: str = "") -> Facts:
        """See `Opened`."""
        return {} if group else self.said


def _opened(file: SourceFile, bag: Bag) -> Opened:
    store = _Definitions(file, bag)
    arrays: dict[str, Array] = {}
    left_out: dict[str, str] = {}
    said: dict[str, str] = {}
    cursor = _Cursor(file, bag, store)
    for name, kinds in _topics(bag).items():
        topic = _Topic(file, name, kinds[0], cursor)
        if not topic.count:
            left_out[topic.group] = "has no messages"
            continue
        problem = f"has messages of several types: {', '.join(kinds)}" if len(kinds) > 1 else ""
        problem = problem or store.problem(topic.kind)
        if problem:
            arrays[f"{topic.group}/messages"] = _Unread(topic, problem)
            arrays[f"{topic.group}/{LOG_TIME}"] = _LogTimes(topic)
            continue
        form = form_of(topic.kind, store.definitions)
        columns = _columns(topic, form)
        if columns.keys() <= {STAMP, "header.seq"}:
            left_out[topic.group] = f"is {topic.kind}, which has no numbers"
            continue
        left_out |= {f"{topic.group}/{field}": reason for field, reason in form.left_out.items()}
        columns[LOG_TIME] = _LogTimes(topic)
        said |= {f"{topic.group}/{name}": text for name, text in topic.facts(form).items()}
        arrays |= {f"{topic.group}/{field}": array for field, array in columns.items()}
    return _OpenedBag(
        arrays=arrays,
        further=[part.file for part in bag.files if part.file.path != file.path],
        memory=_MEMORY,
        left_out=left_out,
        said=said,
        file=file,
    )


def _topics(bag: Bag) -> dict[str, list[str]]:
    """Types of the messages of each topic, by name."""
    topics: dict[str, list[str]] = {}
    for file in bag.files:
        for connection in file.connections:
            kinds = topics.setdefault(connection.topic, [])
            if connection.msgtype not in kinds:
                kinds.append(connection.msgtype)
    return dict(sorted(topics.items()))


class _Definitions:
    """What a bag says of its types of messages; what old bags do not say is taken from ROS itself."""

    def __init__(self, file: SourceFile, bag: Bag) -> None:
        self._typesys = needed("rosbags.typesys", EXTRA, file)
        self._bag = bag
        self._problems: dict[str, str] = {}
        self.store = self._typesys.get_typestore(self._typesys.Stores.EMPTY)
        definitions = {}
        for bag_file in bag.files:
            for connection in bag_file.connections:
                definitions[connection.msgtype, connection.msgdef.data] = connection
        for connection in definitions.values():
            self._add(connection)

    @property
    def definitions(self) -> Mapping[str, Any]:
        """Fields of all types."""
        fields: Mapping[str, Any] = self.store.fielddefs
        return fields

    def problem(self, kind: str) -> str:
        """Say why messages of a type cannot be read; empty: they can be."""
        return self._problems.get(kind, "")

    def decode(self, kind: str, raw: bytes) -> Any:
        """Return the message in some bytes."""
        decode = self.store.deserialize_ros1 if self._bag.is_ros1 else self.store.deserialize_cdr
        return decode(raw, kind)

    def _add(self, connection: Any) -> None:
        kind = connection.msgtype
        encoding = getattr(connection.ext, "serialization_format", "cdr")
        if encoding != "cdr":
            self._problems[kind] = f"has messages in {encoding}, expected cdr"
            return
        try:
            types = self._types_of(kind, connection.msgdef)
            differing = [name for name in types if self.definitions.get(name, types[name]) != types[name]]
            if differing:
                self._problems[kind] = f"has several definitions of {differing[0]}"
                return
            self.store.register(
                {name: fields for name, fields in types.items() if name not in self.definitions}
            )
        except Exception as error:  # noqa: BLE001  the parser of rosbags raises anything at a damaged definition
            text = str(error).partition("\n")[0]
            self._problems[kind] = f"has a definition of {kind} that cannot be read: {text}"
            return
        missing = next(self._missing(kind), "")
        if missing:
            what = "them" if missing == kind else missing
            self._problems[kind] = f"has messages of {kind}, and nothing says what is in {what}"

    def _missing(self, kind: str) -> Iterator[str]:
        """Yield the types in messages of a type that nothing defines."""
        if kind not in self.definitions:
            yield kind
            return
        for _, (node, content) in self.definitions[kind][1]:
            value_node, name = (node, content) if node.name in ("BASE", "NAME") else content[0]
            if value_node.name == "NAME":
                yield from self._missing(name)

    def _types_of(self, kind: str, definition: Any) -> Mapping[str, Any]:
        if definition.format.name == "MSG":
            types_of_text: Mapping[str, Any] = self._typesys.get_types_from_msg(definition.data, kind)
            return types_of_text
        if definition.format.name == "IDL":
            types: dict[str, Any] = {}
            for part in definition.data.split(f"{'=' * 80}\n"):
                text = part.partition("\n")[2] if part.startswith("IDL: ") else part
                types |= self._typesys.get_types_from_idl(text) if text.strip() else {}
            return types
        return self._known(kind)

    def _known(self, kind: str) -> Mapping[str, Any]:
        """Return a type of ROS 2 with the types in it, if all distributions that the bag may be of agree."""
        names = [name for name in self._typesys.Stores if name.value.startswith("ros2")]
        recorded = [name for name in names if name.value == f"ros2_{self._bag.distro}"]
        stores = [self._typesys.get_typestore(name) for name in recorded or names]
        having = [store for store in stores if kind in store.fielddefs]
        if len({store.hash_rihs01(kind) for store in having}) != 1:
            return {}
        fields: Mapping[str, Any] = having[0].fielddefs
        return fields


class _Cursor:
    """Where reading of a bag stands: only one topic is read at a time, as its files are read on."""

    def __init__(self, file: SourceFile, bag: Bag, definitions: _Definitions) -> None:
        self.bag = bag
        self._file = file
        self._definitions = definitions
        self._topic = ""
        self._next = 0
        self._coming: Iterator[bytes] = iter(())

    def messages(self, topic: _Topic, lo: int, hi: int) -> Iterator[Any]:
        """Yield the messages of rows of a topic."""
        if self._topic != topic.name or self._next != lo:
            self._coming = topic.raw(lo)
        self._topic = ""
        for row in range(lo, hi):
            with damages(self._file):
                raw = next(self._coming, None)
            if raw is None:
                message = f"ends before message {row} of {topic.count} of {topic.name}"
                raise self._file.problem(message, "copy it again", "truncated")
            with damages(self._file):
                message = self._definitions.decode(topic.kind, raw)
            self._topic, self._next = topic.name, row + 1
            yield message


class _Part(NamedTuple):
    """Messages of a topic in a file: publishers, and log times."""

    file: BagFile
    connections: Sequence[Any]
    times: NDArray[np.int64]


class _Topic:
    """The messages of a topic, in all files of a bag."""

    def __init__(self, file: SourceFile, name: str, kind: str, cursor: _Cursor) -> None:
        self.file = file
        self.name = name
        self.kind = kind
        self._cursor = cursor
        self._owners = [
            (bag_file, [connection for connection in bag_file.connections if connection.topic == name])
            for bag_file in cursor.bag.files
        ]
        self.count = sum(connection.msgcount for connection in self._connections())
        self._records: tuple[int, NDArray[Any]] = (0, np.empty(0))

    def _connections(self) -> Iterator[Any]:
        for _, publishers in self._owners:
            yield from publishers

    @property
    def group(self) -> str:
        """Name of its group of arrays."""
        return "/".join(part for part in self.name.split("/") if part)

    @cached_property
    def _parts(self) -> list[_Part]:
        parts = []
        for bag_file, publishers in self._owners:
            if publishers:
                with damages(bag_file.file):
                    parts.append(_Part(bag_file, publishers, bag_file.times(publishers)))
        indexed = sum(len(part.times) for part in parts)
        if indexed != self.count:
            message = f"tells of {self.count} messages of {self.name}, and has {indexed}"
            raise self.file.problem(message, "copy it again", "truncated")
        return parts

    @cached_property
    def times(self) -> NDArray[np.int64]:
        """Log times of all messages."""
        return np.concatenate([part.times for part in self._parts])

    def raw(self, row: int) -> Iterator[bytes]:
        """Yield messages from a row on, as they are serialised."""
        decompress = partial(_zstd, self.file) if self._cursor.bag.is_compressed else bytes
        for part in self._parts:
            if row < len(part.times):
                for message in part.file.messages(part.connections, part.times, row):
                    yield decompress(message.raw)
            row = max(0, row - len(part.times))

    def messages(self, lo: int, hi: int) -> Iterator[Any]:
        """Yield the messages of rows ``lo:hi``."""
        for first in range(lo, hi, _ROWS_TOGETHER):
            begin_reading()
            yield from self._cursor.messages(self, first, min(hi, first + _ROWS_TOGETHER))

    @cached_property
    def first(self) -> Any:
        """The first message."""
        return next(self.messages(0, 1))

    def facts(self, form: MessageForm) -> Mapping[str, str]:
        """Type of the messages, frame of the first, and encoding of its image."""
        facts = {"type": self.kind}
        if form.has_header:
            facts["frame_id"] = str(self.first.header.frame_id)
        for name in ("encoding", "format"):
            if self.kind in (IMAGE, COMPRESSED) and hasattr(self.first, name):
                facts[name] = str(getattr(self.first, name))
        return facts

    def location(self, field: str, row: int | None = None) -> Location:
        """What messages call a field of the topic."""
        return location_of(self.file.name, f"{self.group}/{field}")._replace(row=row)

    def records(self, leaves: Sequence[Leaf], lo: int, hi: int) -> NDArray[Any]:
        """Return the records of rows; those of the last rows are kept."""
        start, kept = self._records
        if start <= lo and hi <= start + len(kept):
            return kept[lo - start : hi - start]
        dtype = np.dtype([(leaf.name, leaf.dtype, leaf.shape) for leaf in leaves])
        records = np.empty(hi - lo, dtype)
        getters = [leaf.get for leaf in leaves]
        with damages(self.file):
            for row, message in enumerate(self.messages(lo, hi)):
                records[row] = tuple([get(message) for get in getters])
        self._records = lo, records
        return records


def _zstd(file: SourceFile, raw: bytes) -> bytes:
    message: bytes = needed("rosbags.rosbag2.storage_mcap", EXTRA, file).zstd.decompress(raw)
    return message


# Arrays of a topic.


def _columns(topic: _Topic, form: MessageForm) -> dict[str, Array]:
    """Arrays of a topic by the names of the fields, without the log times."""
    columns: dict[str, Array] = {leaf.name: _Field(topic, form.leaves, leaf) for leaf in form.leaves}
    columns |= {listed.name: _Lists(topic, listed) for listed in form.lists}
    if topic.kind == IMAGE:
        columns["image"] = _Images(topic)
    elif topic.kind == COMPRESSED:
        columns["image"] = _Frames(topic)
    elif topic.kind == POINTS:
        cloud = cloud_of(topic.first)
        columns |= {name: _Points(topic, name, dtype) for name, dtype in cloud.columns().items()}
    return columns


class _TopicArray(Array):
    """An array with a row for each message of a topic."""

    __slots__ = ("_topic",)

    def __init__(self, topic: _Topic) -> None:
        super().__init__(None)
        self._topic = topic

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Array`."""
        return (self._topic.count,)


class _LogTimes(_TopicArray):
    """When messages were logged, in nanoseconds."""

    __slots__ = ()
    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.int64)

    def read(self, lo: int, hi: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Array`."""
        del out
        return self._topic.times[lo:hi]


class _Field(_TopicArray):
    """Numbers of a message, as many in each."""

    __slots__ = ("_leaf", "_leaves")

    def __init__(self, topic: _Topic, leaves: Sequence[Leaf], leaf: Leaf) -> None:
        super().__init__(topic)
        self._leaves = leaves
        self._leaf = leaf

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Array`."""
        return (self._topic.count, *self._leaf.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """See `Array`."""
        return self._leaf.dtype

    def read(self, lo: int, hi: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Array`."""
        del out
        record_bytes = sum(leaf.dtype.itemsize * int(np.prod(leaf.shape)) for leaf in self._leaves)
        step = max(1, _BLOCK_BYTES // record_bytes)
        rows = np.empty((hi - lo, *self._leaf.shape), self.dtype)
        for first in range(lo, hi, step):
            stop = min(hi, first + step)
            rows[first - lo : stop - lo] = self._topic.records(self._leaves, first, stop)[self._leaf.name]
        return rows


class _Lists(_TopicArray):
    """Numbers of a message: rows of one length, that of the first, or ragged ones."""

    __slots__ = ("_listed",)

    def __init__(self, topic: _Topic, listed: Listed) -> None:
        super().__init__(topic)
        self._listed = listed

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Array`."""
        return (self._topic.count, len(self._listed.get(self._topic.first)))

    @property
    def dtype(self) -> np.dtype[Any]:
        """See `Array`."""
        return self._listed.dtype

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        """Say whether messages have different numbers of values."""
        if as_objects:
            return ()
        expected = self.shape[1]
        try:
            for row, message in enumerate(self._topic.messages(0, len(self))):
                count = len(self._listed.get(message))
                if count != expected:
                    location = self._topic.location(self._listed.name, row)
                    wrong = f"has {count} values, the first message {expected}"
                    return [Problem.at(location, wrong, _IGNORE, "ragged")]
        except InputError as error:
            return error.problems
        return ()

    def read(self, lo: int, hi: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read rows; as objects, if they have different numbers of values."""
        del out
        if lo >= hi:
            return np.empty((0, self.shape[1]), self.dtype)
        rows = [np.asarray(self._listed.get(message), self.dtype) for message in self._topic.messages(lo, hi)]
        if {len(row) for row in rows} == {self.shape[1]}:
            return np.stack(rows)
        return _objects(rows)


class _Images(_TopicArray):
    """Images of one size."""

    __slots__ = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Array`."""
        return (self._topic.count, *picture_of(self._topic.first).shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """See `Array`."""
        pixels = picture_of(self._topic.first).pixels
        return np.dtype(object if pixels is None else pixels.dtype)

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        """Say whether the encoding is not read."""
        del as_objects
        picture = picture_of(self._topic.first)
        if picture.pixels is not None:
            return ()
        message = encoding_problem(picture.encoding)
        return [Problem.at(self._topic.location("image"), message, _IGNORE, "format")]

    def read(self, lo: int, hi: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Array`."""
        picture = picture_of(self._topic.first)
        fits = out is not None and out.dtype == self.dtype
        rows = out if fits and out is not None else np.empty((hi - lo, *picture.shape), self.dtype)
        for row, message in enumerate(self._topic.messages(lo, hi)):
            rows[row] = pixels_of(message, picture, _problem_of(self._topic, "image", lo + row))
        return rows


class _Frames(_TopicArray):
    """Compressed images, as they are."""

    __slots__ = ()
    dtype: ClassVar[np.dtype[Any]] = any_length(np.dtype(np.uint8))

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        """Say whether the first is no PNG or JPEG, or its encoder did more than that."""
        del as_objects
        first = self._topic.first
        if encoding_of(bytes(first.data[:16])) is not None:
            return ()
        message = f"has images of the format {first.format!r}, expected PNG or JPEG"
        return [Problem.at(self._topic.location("image"), message, _IGNORE, "format")]

    def read(self, lo: int, hi: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Array`."""
        del out
        return _objects([np.asarray(message.data, np.uint8) for message in self._topic.messages(lo, hi)])


class _Points(_TopicArray):
    """Values of the points of clouds, any number in each."""

    __slots__ = ("_dtype", "_name")

    def __init__(self, topic: _Topic, name: str, dtype: np.dtype[Any]) -> None:
        super().__init__(topic)
        self._name = name
        self._dtype = dtype

    @property
    def dtype(self) -> np.dtype[Any]:
        """See `Array`."""
        return any_length(self._dtype.newbyteorder("="), (3,) if self._name == "xyz" else ())

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        """See `Array`."""
        if as_objects:
            return ()
        location = self._topic.location(self._name)
        return [Problem.at(location, "has any number of values in a row", _IGNORE, "dtype")]

    def read(self, lo: int, hi: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Array`."""
        del out
        cloud = cloud_of(self._topic.first)
        rows = []
        for row, message in enumerate(self._topic.messages(lo, hi), lo):
            rows.append(points_of(message, cloud, self._name, _problem_of(self._topic, self._name, row)))
        return _objects(rows)


class _Unread(_TopicArray):
    """Messages that cannot be read."""

    __slots__ = ("_problem",)
    dtype: ClassVar[np.dtype[Any]] = np.dtype(object)

    def __init__(self, topic: _Topic, problem: str) -> None:
        super().__init__(topic)
        self._problem = problem

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        """Say why."""
        del as_objects
        cure = f"leave it out: --ignore '{self._topic.group}/*'"
        return [Problem.at(self._topic.location("messages"), self._problem, cure, "format")]


def _problem_of(topic: _Topic, field: str, row: int) -> Callable[[str], InputError]:
    def problem(message: str) -> InputError:
        return InputError(Problem.at(topic.location(field, row), message, _IGNORE, "shape"))

    return problem


def _objects(rows: Collection[NDArray[Any]]) -> NDArray[Any]:
    """Rows of any length each, as an array of objects."""
    objects = np.empty(len(rows), object)
    for row, values in enumerate(rows):
        objects[row] = values
    return objects
