"""Open bags of ROS 1 and ROS 2: a group for each topic, with an array for each field of its messages."""

# `camera/left/{image, header_stamp, log_time}`: times are int64 nanoseconds, the stamp of the header where
# messages have one, and when each was logged. Only indices and first messages are read before arrays are.

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from unistore.converters.array import Array
from unistore.converters.claims import Claim, no, sure
from unistore.converters.common.faults import COPY_AGAIN, is_out_of_memory
from unistore.converters.formats.bag_files import (
    EXTRA,
    LIBRARY,
    MCAP_MODULE,
    METADATA_KEY,
    Bag,
    BagFile,
    damages,
    decoded,
    describes_bag,
    kind_of,
    open_bag,
)
from unistore.converters.formats.bag_messages import (
    JOINTS,
    LOG_TIME,
    PICTURES,
    STAMP,
    MessageField,
    fields_of,
    lists_of_nothing,
    undefined_in,
    values_of,
)
from unistore.converters.formats.lazy import LazyRows, Unread
from unistore.converters.opened import Format, OpenFile, SourceFile
from unistore.errors import AddOptions, InputError, Location, Problem, location_of
from unistore.system.foreign import begin_reading
from unistore.system.types import AnyArray, Dtype, Int64s, JsonObject, Shape

_BLOCK_BYTES = 16 << 20  # bytes of records that are made at a time
_ROWS_TOGETHER = 4096  # records after which the time that a library may take is counted anew
_MEMORY = 4 << 20  # bytes that reading takes beside rows, records and what the library holds: definitions

# Files with messages of a topic, and the connections in each that have them
_Parts: TypeAlias = list[tuple[BagFile, list[Any]]]


class Rosbag(Format):
    """A bag: ``.bag`` of ROS 1, ``.mcap`` or ``.db3`` of ROS 2, or the ``metadata.yaml`` beside these."""

    name = "bag"
    suffixes = (".bag", ".mcap", ".db3", ".yaml")
    twins = (".mcap", ".db3", ".bag", "/metadata.yaml")
    library = LIBRARY
    offered = False

    def recognise(self, file: SourceFile) -> Claim:
        if file.path.suffix == ".yaml":
            return self._described(file)
        head = file.head()
        kind = kind_of(head)
        if kind is not None:
            return sure(f"begins as {kind.name}")
        if head.startswith(b"#ROSRECORD"):
            return no("is a ROS 1 bag of a version before 1.2, which is not supported")
        raise file.wrong_beginning("as a ROS bag does")

    def _described(self, file: SourceFile) -> Claim:
        if not describes_bag(file.path):
            return no("does not describe a ROS bag")
        if METADATA_KEY not in file.path.read_bytes():
            raise file.wrong_beginning(f"with {METADATA_KEY.decode()}")
        return sure("describes a ROS 2 bag")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        with open_bag(file) as bag:
            yield _opened(file, bag)


def _opened(file: SourceFile, bag: Bag) -> OpenFile:
    messages = _Messages(file, bag)
    arrays: dict[str, Array] = {}
    left_out: dict[str, str] = {}
    metadata: dict[str, str] = {}
    largest_block = 0
    for name, parts in _parts_of_topics(bag).items():
        topic = _Topic(file, name, parts, messages)
        if not topic.count:
            left_out[topic.group] = "because it has no messages"
            continue
        of_topic: dict[str, Array] = {}
        try:
            left_out_fields: dict[str, str] = {}
            topic.fields = messages.fields(topic.kinds, left_out_fields)
            fields = [*topic.fields, *values_of(topic.kind, topic.first, left_out_fields)]
            left_out |= {f"{topic.group}/{field}": reason for field, reason in left_out_fields.items()}
            if {field.name for field in fields} <= {STAMP, "header.seq"}:
                if not left_out_fields:
                    left_out[topic.group] = f"because {topic.kind} has no numbers"
                continue
            of_topic = {field.name: _TopicArray(topic, field) for field in fields}
            metadata |= {f"{topic.group}/{name}": text for name, text in topic.metadata().items()}
            largest_block = max(largest_block, min(_BLOCK_BYTES, topic.count * topic.record.itemsize))
        except _UnknownTypeError as error:
            problem = Problem.at(topic.location("messages"), str(error), topic.ignoring("*"), "format")
            of_topic["messages"] = Unread(topic.count, problem)
        of_topic[LOG_TIME] = Array(LazyRows((topic.count,), np.dtype(np.int64), topic.log_times))
        arrays |= {f"{topic.group}/{field}": array for field, array in of_topic.items()}
    return OpenFile(
        arrays=arrays,
        further=[part.file for part in bag.files if part.file.path != file.path],
        memory=_MEMORY + largest_block + messages.bytes_read + bag.held,
        left_out=left_out,
        of_groups={"": metadata},
        file=file,
    )


def _parts_of_topics(bag: Bag) -> dict[str, _Parts]:
    """The messages of each topic, by its name in alphabetical order."""
    parts: dict[str, _Parts] = {}
    for file in bag.files:
        publishers: dict[str, list[Any]] = {}
        for connection in file.connections:
            publishers.setdefault(connection.topic, []).append(connection)
        for topic, connections in publishers.items():
            parts.setdefault(topic, []).append((file, connections))
    return dict(sorted(parts.items()))


class _UnknownTypeError(Exception):
    """Why the messages of a topic cannot be read."""


class _Messages:
    """Decodes the messages of a bag by its definitions, or by ROS's own."""

    # Only one topic is read at a time, as the files of the bag are read on.

    def __init__(self, file: SourceFile, bag: Bag) -> None:
        self.bag = bag
        self._file = file
        self._typesys = file.library("rosbags.typesys", EXTRA)
        self._store = self._typesys.get_typestore(self._typesys.Stores.EMPTY)
        self._problems: dict[str, str] = {}
        self._topic = ""
        self._next = 0
        self._coming: Iterator[bytes] = iter(())
        self.bytes_read = 0
        definitions = {}
        for bag_file in bag.files:
            for connection in bag_file.connections:
                definitions[connection.msgtype, connection.msgdef.data] = connection
        for connection in definitions.values():
            self._add(connection)

    def _add(self, connection: Any) -> None:
        kind = connection.msgtype
        encoding = getattr(connection.ext, "serialization_format", "cdr")
        if encoding != "cdr":
            self._problems[kind] = f"has messages in the format '{encoding}', and only 'cdr' is supported"
            return
        try:
            self._store.register(self._types_of(kind, connection.msgdef))
        except Exception as error:
            if is_out_of_memory(error):
                raise
            text = str(error).partition("\n")[0]
            self._problems[kind] = f"its definition of the message type {kind} cannot be read: {text}"

    def _types_of(self, kind: str, definition: Any) -> Mapping[str, Any]:
        """Read a definition. A type without one is as all distributions that the bag may be of define it."""
        types: JsonObject = {}
        if definition.format.name == "MSG":
            return {**self._typesys.get_types_from_msg(definition.data, kind)}
        if definition.format.name == "IDL":
            for part in definition.data.split(f"{'=' * 80}\n"):
                text = part.partition("\n")[2] if part.startswith("IDL: ") else part
                types |= self._typesys.get_types_from_idl(text) if text.strip() else {}
            return types
        distributions = [one for one in self._typesys.Stores if one.value.startswith("ros2")]
        recorded = [one for one in distributions if one.value == f"ros2_{self.bag.distro}"]
        stores = map(self._typesys.get_typestore, recorded or distributions)
        having = [store for store in stores if kind in store.fielddefs]
        agree = len({store.hash_rihs01(kind) for store in having}) == 1
        return {**having[0].fielddefs} if agree else {}

    def fields(self, kinds: Sequence[str], left_out: dict[str, str]) -> list[MessageField]:
        kind = kinds[0]
        if len(kinds) > 1:
            raise _UnknownTypeError(f"has messages of several types: {', '.join(kinds)}")
        if kind in self._problems:
            raise _UnknownTypeError(self._problems[kind])
        missing = undefined_in(kind, self._store.fielddefs)
        if missing:
            what = "this type" if missing == kind else missing
            raise _UnknownTypeError(f"has messages of the type {kind}, but the bag does not define {what}")
        empty = lists_of_nothing(kind, self._store.fielddefs) if self.bag.is_ros1 else ""
        if empty:
            message = f"has messages of the type {kind} with lists of {empty}, whose items have 0 bytes"
            raise _UnknownTypeError(f"{message}, so that their number is not limited by the file")
        return fields_of(kind, self._store.fielddefs, left_out)

    def read(self, topic: _Topic, lo: int, hi: int) -> Iterator[Any]:
        if self._topic != topic.name or self._next != lo:
            self._coming = topic.serialised(lo)
        self._topic = ""
        decode = self._store.deserialize_ros1 if self.bag.is_ros1 else self._store.deserialize_cdr
        for row in range(lo, hi):
            if row % _ROWS_TOGETHER == 0:
                begin_reading()
            with damages(self._file):
                raw = next(self._coming, None)
                if raw is not None:
                    message = decode(raw, topic.kind)
            if raw is None:
                wrong = f"is truncated: it ends before message {row:,} of {topic.count:,} of {topic.name}"
                raise self._file.problem(wrong, COPY_AGAIN, "truncated")
            self._topic = topic.name
            self._next = row + 1
            self.bytes_read += len(raw)
            yield message


class _Topic:
    """The messages of a topic, in all files of a bag."""

    def __init__(self, file: SourceFile, name: str, parts: _Parts, messages: _Messages) -> None:
        self._file = file
        self.name = name
        self._parts = parts
        self._messages = messages
        self.fields: Sequence[MessageField] = ()
        connections = list(chain.from_iterable(publishers for _, publishers in parts))
        self.kinds = list(dict.fromkeys(connection.msgtype for connection in connections))
        self.kind = self.kinds[0]
        self.count = sum(connection.msgcount for connection in connections)
        self._records: tuple[int, AnyArray] = (0, np.empty(0))

    @property
    def group(self) -> str:
        return "/".join(part for part in self.name.split("/") if part)

    @cached_property
    def _times(self) -> list[Int64s]:
        """Log times of the messages in each file."""
        times = []
        for bag_file, publishers in self._parts:
            with damages(bag_file.file):
                times.append(bag_file.kind.times(bag_file.reader, publishers))
        indexed = sum(map(len, times))
        if indexed != self.count:
            raise self._file.problem(
                f"states {self.count:,} messages of {self.name}, but contains {indexed:,}",
                COPY_AGAIN,
                "truncated",
            )
        return times

    def joints_of(self, message: Any) -> list[str]:
        """Return the names that the numbers of a message have, empty if its type has no such names."""
        return list(message.name) if self.kind == JOINTS else []

    def log_times(self, lo: int, hi: int) -> Int64s:
        """Return when the messages of rows were logged, in nanoseconds."""
        return np.concatenate(self._times)[lo:hi]

    def serialised(self, row: int) -> Iterator[bytes]:
        """Yield messages from a row on, as they are serialised."""
        is_compressed = self._messages.bag.is_compressed
        zstd = self._file.library(MCAP_MODULE, EXTRA).zstd if is_compressed else None
        for (bag_file, publishers), times in zip(self._parts, self._times, strict=True):
            if row < len(times):
                coming = bag_file.messages(publishers, times, row)
                if zstd is None:
                    yield from coming
                else:
                    yield from (decoded(zstd.ZstdDecompressor, message, None) for message in coming)
            row = max(0, row - len(times))

    def messages(self, lo: int, hi: int) -> Iterator[Any]:
        return self._messages.read(self, lo, hi)

    @cached_property
    def first(self) -> Any:
        return next(self.messages(0, 1))

    def metadata(self) -> Mapping[str, str]:
        """Type of the messages, frame of the first, and encoding of its image."""
        metadata = {"type": self.kind}
        if hasattr(self.first, "header"):
            metadata["frame_id"] = str(self.first.header.frame_id)
        for name in ("encoding", "format"):
            if self.kind in PICTURES and hasattr(self.first, name):
                metadata[name] = str(getattr(self.first, name))
        return metadata

    def location(self, field: str, row: int | None = None) -> Location:
        """Return what messages call a field of the topic."""
        return location_of(self._file.name, f"{self.group}/{field}")._replace(row=row)

    def ignoring(self, field: str) -> AddOptions:
        """Return the options that leave a field out."""
        pattern = f"{glob.escape(self.group)}/{field if field == '*' else glob.escape(field)}"
        return AddOptions(("--ignore", pattern), "to skip it")

    @cached_property
    def record(self) -> Dtype:
        """All numbers of a message."""
        numbers = [field for field in self.fields if field.kind == "number"]
        return np.dtype([(field.name, field.dtype, field.shape) for field in numbers])

    def numbers(self, name: str, lo: int, rows: AnyArray) -> None:
        """Fill rows, from row `lo` on, with the numbers of a field."""
        step = max(1, _BLOCK_BYTES // self.record.itemsize)
        for first in range(0, len(rows), step):
            block = rows[first : first + step]
            block[...] = self._records_of(lo + first, lo + first + len(block))[name]

    def _records_of(self, lo: int, hi: int) -> AnyArray:
        """Return the records of rows. The last ones are kept, for the next field of the same rows."""
        start, kept = self._records
        if start <= lo and hi <= start + len(kept):
            return kept[lo - start : hi - start]
        del kept
        self._records = 0, np.empty(0)  # so that one block is in memory at a time
        records = np.empty(hi - lo, self.record)
        takes = [field.take for field in self.fields if field.kind == "number"]
        with damages(self._file):
            for row, message in enumerate(self.messages(lo, hi)):
                records[row] = tuple([take(message) for take in takes])
        self._records = lo, records
        return records


def _differing_joint(first: Sequence[str], others: Sequence[str]) -> str:
    """Say how the joints of a message differ from the joints of the first message."""
    if len(others) != len(first):
        return f"has {len(others):,} names of joints, but the first message has {len(first):,}"
    place = next(place for place, name in enumerate(first) if others[place] != name)
    return (
        f"its value {place} is of the joint {others[place]!r}, but in the first message of {first[place]!r}"
    )


class _TopicArray(Array):
    """A field of the messages of a topic. Lists have the length of the first, or are ragged."""

    __slots__ = ("_field", "_topic")

    def __init__(self, topic: _Topic, field: MessageField) -> None:
        super().__init__(None)
        self._topic = topic
        self._field = field

    @property
    def shape(self) -> Shape:
        own = self._field.shape
        if self._field.kind == "list":
            own = (len(self._field.take(self._topic.first)),)
        return (self._topic.count, *own)

    @property
    def dtype(self) -> Dtype:
        return self._field.dtype

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        """Say whether values are not read, or messages have different numbers of them."""
        if self._field.wrong:
            location = self._topic.location(self._field.name)
            return [Problem.at(location, self._field.wrong, self._topic.ignoring(self._field.name), "format")]
        if as_objects or self._field.kind != "list":
            return ()
        expected = self.shape[1]
        joints = self._topic.joints_of(self._topic.first)
        try:
            for row, message in enumerate(self._topic.messages(0, len(self))):
                count = len(self._field.take(message))
                if count != expected:
                    location = self._topic.location(self._field.name, row)
                    wrong = f"has {count:,} values, but the first message has {expected:,}"
                    return [Problem.at(location, wrong, self._topic.ignoring(self._field.name), "ragged")]
                others = self._topic.joints_of(message)
                if others != joints and count:
                    location = self._topic.location(self._field.name, row)
                    wrong = _differing_joint(joints, others)
                    fix = self._topic.ignoring(self._field.name), "record each robot on a topic of its own"
                    return [Problem.at(location, wrong, fix, "value")]
        except InputError as error:
            return error.problems
        return ()

    def read(self, lo: int, hi: int, out: AnyArray | None = None) -> AnyArray:
        """Read rows, with lists as objects if they have different lengths."""
        field = self._field
        rows = out
        if rows is None or rows.dtype != field.dtype:
            if field.kind == "list":
                return self._lists(lo, hi)
            rows = np.empty((hi - lo, *field.shape), field.dtype)
        if field.kind == "number":
            self._topic.numbers(field.name, lo, rows)
            return rows
        for row, message in enumerate(self._topic.messages(lo, hi)):
            try:
                rows[row] = field.take(message)
            except ValueError as error:
                location = self._topic.location(field.name, lo + row)
                raise InputError.at(
                    location, str(error), self._topic.ignoring(field.name), "shape"
                ) from error
        return rows

    def _lists(self, lo: int, hi: int) -> AnyArray:
        objects = np.empty(hi - lo, object)
        for row, message in enumerate(self._topic.messages(lo, hi)):
            objects[row] = np.asarray(self._field.take(message), self._field.dtype)
        width = self.shape[1]
        if any(len(values) != width for values in objects):
            return objects
        return np.array([*objects], self.dtype).reshape(hi - lo, width)
