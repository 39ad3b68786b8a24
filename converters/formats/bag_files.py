"""Files of bags: of ROS 1 (``.bag``), of ROS 2 (``.mcap``, ``.db3``), and folders with a ``metadata.yaml``.

rosbags reads them. Messages of a topic are in the order of their log times, which the index of each file
tells without reading messages.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.formats.extras import needed
from unistore.converters.plugin import SourceFile
from unistore.errors import InputError
from unistore.system.foreign import opening

LIBRARY = "rosbags"
EXTRA = "bags"
METADATA = "metadata.yaml"
METADATA_KEY = "rosbag2_bagfile_information"
ROS1 = b"#ROSBAG V"
MCAP = b"\x89MCAP0\r\n"
SQLITE = b"SQLite format 3\0"
_INDEX_ENTRY = 16
_INDEX_HEAD = 15
"""Bytes of a MessageIndex record before its entries: opcode, length, channel, length of the entries."""


class Message(NamedTuple):
    """When a message was logged, in nanoseconds, and its bytes."""

    time: int
    raw: bytes


class BagFile(ABC):
    """An open file of a bag."""

    def __init__(self, file: SourceFile, reader: Any) -> None:
        self.file = file
        self.reader = reader

    @property
    def connections(self) -> Sequence[Any]:
        """What rosbags calls connections: a topic of one publisher each."""
        connections: Sequence[Any] = self.reader.connections
        return connections

    @abstractmethod
    def times(self, connections: Sequence[Any]) -> NDArray[np.int64]:
        """Return the log times of all messages of some connections, in order."""

    def messages(self, connections: Sequence[Any], times: NDArray[np.int64], row: int) -> Iterator[Message]:
        """Yield messages from a row on, in the order of their log times."""
        if row >= len(times):
            return
        start = int(times[row])
        skipped = row - int(np.searchsorted(times, start))
        coming = self.reader.messages(connections, start=start)
        for _, time, raw in coming:
            if skipped:
                skipped -= 1
            else:
                yield Message(time, raw)


class Ros1File(BagFile):
    """A ``.bag``, whose index is read when it is opened."""

    def times(self, connections: Sequence[Any]) -> NDArray[np.int64]:
        """See `BagFile`."""
        entries = [self.reader.indexes[connection.id] for connection in connections]
        times = [np.array([entry.time for entry in index], np.int64) for index in entries]
        return np.sort(np.concatenate(times))


class McapFile(BagFile):
    """A ``.mcap``, with an index of messages behind each chunk."""

    def times(self, connections: Sequence[Any]) -> NDArray[np.int64]:
        """See `BagFile`."""
        chunks = self.reader.chunks
        if not chunks or not all(chunk.message_index_offsets for chunk in chunks):
            messages = self.reader.messages(connections)
            return np.array([time for _, time, _ in messages], np.int64)
        channels = {connection.id for connection in connections}
        times = [np.empty(0, np.int64)]
        for chunk in chunks:
            for channel, offset in chunk.message_index_offsets.items():
                if channel in channels:
                    times.append(self._index_at(offset))
        return np.sort(np.concatenate(times))

    def _index_at(self, offset: int) -> NDArray[np.int64]:
        """Log times in the MessageIndex record at a place: pairs of a time and an offset, 8 bytes each."""
        stream = self.reader.bio
        stream.seek(offset)
        head = stream.read(_INDEX_HEAD)
        (size,) = struct.unpack("<I", head[-4:])
        entries = stream.read(size)
        if len(entries) != size or size % _INDEX_ENTRY:
            raise self.file.problem("ends in an index of messages", _cure(self.file), "truncated")
        return np.frombuffer(entries, "<u8").reshape(-1, 2)[:, 0].astype(np.int64)


class SqliteFile(BagFile):
    """A ``.db3``."""

    def times(self, connections: Sequence[Any]) -> NDArray[np.int64]:
        """See `BagFile`."""
        numbers = [connection.id for connection in connections]
        places = ",".join("?" for _ in numbers)
        query = f"SELECT timestamp FROM messages WHERE topic_id IN ({places}) ORDER BY timestamp"  # noqa: S608
        return np.array([time for (time,) in self.reader.dbconn.execute(query, numbers)], np.int64)


class Bag(NamedTuple):
    """The open files of a bag, in order.

    Attributes
    ----------
    is_ros1
        Whether its messages are serialised as those of ROS 1.
    is_compressed
        Whether each message is compressed by itself (zstd).
    distro
        Of ROS 2, as the bag says; empty: it does not.
    """

    files: Sequence[BagFile]
    is_ros1: bool
    is_compressed: bool = False
    distro: str = ""


@contextmanager
def open_bag(file: SourceFile) -> Iterator[Bag]:
    """Open a bag by its only file, or by its ``metadata.yaml``."""
    with ExitStack() as stack:
        if file.path.name == METADATA:
            yield _by_metadata(file, stack)
        elif file.head(len(ROS1)) == ROS1:
            yield Bag([_opened(file, stack)], is_ros1=True)
        else:
            yield Bag([_opened(file, stack)], is_ros1=False)


@contextmanager
def damages(file: SourceFile) -> Iterator[None]:
    """Turn what rosbags raises at a damaged file into a problem of it."""
    try:
        yield
    except (InputError, OSError, MemoryError):
        raise
    except Exception as error:  # rosbags trusts what it parses, so that damage raises anything
        text = str(error).partition("\n")[0] or type(error).__name__
        message = f"is damaged or truncated: {text}"
        raise file.problem(message, _cure(file), "damaged") from error


def _cure(file: SourceFile) -> str:
    again = "copy it again"
    if file.path.suffix == ".bag":
        return f"{again}, or repair it: rosbag reindex"
    if file.path.suffix == ".mcap":
        return f"{again}, or repair it: mcap recover"
    return again


def _opened(file: SourceFile, stack: ExitStack) -> BagFile:
    file.check_whole()
    stack.enter_context(opening(file.path, file.name, LIBRARY))
    head = file.head(16)
    if head.startswith(ROS1):
        reader = needed("rosbags.rosbag1", EXTRA, file).Reader(file.path)
        kind: type[BagFile] = Ros1File
    elif head.startswith(MCAP):
        reader = needed("rosbags.rosbag2.storage_mcap", EXTRA, file).McapReader(file.path)
        kind = McapFile
    elif head == SQLITE:
        _check_sqlite(file)
        reader = needed("rosbags.rosbag2.storage_sqlite3", EXTRA, file).Sqlite3Reader(file.path)
        kind = SqliteFile
    else:
        raise file.problem("is no bag of ROS", "leave it out")
    with damages(file):
        try:
            reader.open()
        except Exception:
            if kind is McapFile:
                _check_channels(file)
            raise
    stack.callback(reader.close)
    return kind(file, reader)


def _check_sqlite(file: SourceFile) -> None:
    """Refuse a database that is cut off, or whose last messages were not written back."""
    head = file.head(32)
    size = int.from_bytes(head[16:18], "big")
    pages = int.from_bytes(head[28:32], "big")
    expected = pages * (65536 if size == 1 else size)
    if file.size < expected:
        message = f"has {file.size:,} bytes, its header tells of {expected:,}"
        raise file.problem(message, "copy it again", "truncated")
    log = Path(f"{file.path}-wal")
    if log.is_file() and log.stat().st_size:
        message = f"has messages in {log.name} that were not written back"
        raise file.problem(message, f"sqlite3 {file.path.name} 'PRAGMA wal_checkpoint(TRUNCATE)'", "damaged")


def _by_metadata(file: SourceFile, stack: ExitStack) -> Bag:
    """Open the files that a ``metadata.yaml`` names, which lie beside it."""
    yaml = needed("ruamel.yaml", EXTRA, file)
    with damages(file):
        metadata = yaml.YAML(typ="safe").load(file.path.read_text())[METADATA_KEY]
        names = [Path(name).name for name in metadata["relative_file_paths"]]
        count = int(metadata["message_count"])
        mode = str(metadata.get("compression_mode") or "").lower()
        distro = str(metadata.get("ros_distro") or "")
    if mode == "file":
        cure = "unpack it: ros2 bag convert"
        raise file.problem("names files that are compressed as a whole", cure, "format")
    files = [_opened(file.beside(name), stack) for name in names]
    present = sum(_message_count(bag_file) for bag_file in files)
    if present < count:
        message = f"says {count:,} messages, and its files have {present:,}"
        raise file.problem(message, "copy all files of the folder again", "truncated")
    return Bag(files, is_ros1=False, is_compressed=mode == "message", distro=distro)


def _message_count(bag_file: BagFile) -> int:
    return sum(connection.msgcount for connection in bag_file.connections)


# Channels of MCAP that are no messages of ROS 2, which rosbags does not read.

_FOOTER = 37
_SCHEMA, _CHANNEL = 3, 4
_ROS2 = ("cdr",)


def _check_channels(file: SourceFile) -> None:
    """Name the channels of a file that hold other messages than those of ROS 2."""
    with file.path.open("rb") as stream:
        stream.seek(max(0, file.size - _FOOTER))
        footer = stream.read()
        if not footer.endswith(MCAP):
            message = "ends without the footer of MCAP: its writer was killed, or it was cut off"
            raise file.problem(message, _cure(file), "truncated")
        (start,) = struct.unpack("<Q", footer[9:17])
        stream.seek(start)
        summary = stream.read() if start else b""
    encodings = _encodings(summary[: -_FOOTER or None])
    others = {topic: encoding for topic, encoding in encodings.items() if encoding not in _ROS2}
    if others:
        channels = ", ".join(f"{topic} ({encoding})" for topic, encoding in sorted(others.items()))
        cure = f"leave them out: mcap filter {file.path.name} -o ros2.mcap -n {min(others)}"
        message = f"has channels that are no messages of ROS 2: {channels}"
        raise file.problem(message, cure, "format")


def _encodings(summary: bytes) -> dict[str, str]:
    """Encoding of the messages of each topic, from the records of a summary: opcode, length, content."""
    encodings = {}
    at = 0
    while at + 9 <= len(summary):
        opcode, size = struct.unpack_from("<BQ", summary, at)
        content = summary[at + 9 : at + 9 + size]
        if opcode == _CHANNEL:
            topic, behind = _text(content[4:])
            encoding, _ = _text(behind)
            encodings[topic] = encoding
        at += 9 + size
    return encodings


def _text(content: bytes) -> tuple[str, bytes]:
    (size,) = struct.unpack_from("<I", content)
    return content[4 : 4 + size].decode("utf-8", "backslashreplace"), content[4 + size :]
