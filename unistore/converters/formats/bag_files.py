"""Read the files of bags: ROS 1 (``.bag``), ROS 2 (``.mcap``, ``.db3``), folders with ``metadata.yaml``."""

# Messages of a topic are in the order of their log times, which the index of each file tells.

from __future__ import annotations

import bz2
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unistore.converters.common.faults import COPY_AGAIN, is_out_of_memory
from unistore.converters.opened import SourceFile
from unistore.errors import InputError
from unistore.system.foreign import opening
from unistore.system.types import Int64s

LIBRARY = "rosbags"
EXTRA = "bags"
METADATA = "metadata.yaml"
METADATA_KEY = b"rosbag2_bagfile_information"
# Words that only the text that describes a bag has: one whose beginning is damaged has the others
_METADATA_WORDS = (
    METADATA_KEY,
    b"relative_file_paths:",
    b"storage_identifier:",
    b"topics_with_message_count:",
)
MCAP_MODULE = "rosbags.rosbag2.storage_mcap"
_REPAIRS = {
    ".bag": f"{COPY_AGAIN}, or repair it with rosbag reindex",
    ".mcap": f"{COPY_AGAIN}, or repair it with mcap recover",
}
_UNINDEXED = 128 << 20  # bytes of open chunks that no index tells of
# What packed bytes may decode to without a question, and, more than that, at most for each of them
_UNASKED = 256 << 20
_MOST_EXPANSION = 1032
_INDEX_ENTRY = 16
# Bytes of a MessageIndex record before its entries: opcode, length, channel, length of the entries.
_INDEX_HEAD = 15


def _times_in_ros1(reader: Any, connections: Sequence[Any]) -> Int64s:
    indexes = [reader.indexes[connection.id] for connection in connections]
    times = [np.array([entry.time for entry in index], np.int64) for index in indexes]
    return np.sort(np.concatenate(times))


def _times_in_mcap(reader: Any, connections: Sequence[Any]) -> Int64s:
    """Read the MessageIndex records behind the chunks: pairs of a time and an offset, 8 bytes each."""
    if not reader.chunks or not all(chunk.message_index_offsets for chunk in reader.chunks):
        return np.array([time for _, time, _ in reader.messages(connections)], np.int64)
    channels = {connection.id for connection in connections}
    times = [np.empty(0, np.int64)]
    for chunk in reader.chunks:
        for channel, offset in chunk.message_index_offsets.items():
            if channel in channels:
                reader.bio.seek(offset)
                (size,) = struct.unpack("<I", reader.bio.read(_INDEX_HEAD)[-4:])
                entries = reader.bio.read(size - size % _INDEX_ENTRY)
                times.append(np.frombuffer(entries, "<u8")[::2].astype(np.int64))
    return np.sort(np.concatenate(times))


def _times_in_sqlite(reader: Any, connections: Sequence[Any]) -> Int64s:
    numbers = [connection.id for connection in connections]
    places = ",".join("?" for _ in numbers)
    query = f"SELECT timestamp FROM messages WHERE topic_id IN ({places}) ORDER BY timestamp"  # noqa: S608
    return np.array([time for (time,) in reader.dbconn.execute(query, numbers)], np.int64)


# rosbags decodes a chunk as a whole before it looks at the size that is stated, if it does: a few bytes may
# decode to all memory that there is.


def decoded(begin: Callable[[], Any], content: bytes, size: int | None) -> bytes:
    """Decode packed frames that follow each other to `size` bytes (None: as many as they plausibly give).

    Those of another size raise `ValueError`, once a byte more is decoded.
    """
    plausible = max(_UNASKED, _MOST_EXPANSION * len(content))
    if size is not None and size > plausible:
        raise ValueError(
            f"{len(content):,} compressed bytes state a size of {size:,}, which is not plausible"
        )
    most = plausible if size is None else size
    values = b""
    unread = content
    while unread and len(values) <= most:
        decoder = begin()
        try:
            values += decoder.decompress(unread, most + 1 - len(values))
        except OSError as error:  # of bz2, at damage
            raise ValueError(f"compressed bytes are damaged: {error}") from error
        if not decoder.eof:
            break
        unread = decoder.unused_data
    if len(values) > most:
        raise ValueError(f"{len(content):,} compressed bytes decode to more than {most:,}")
    if (unread and not decoder.eof) or size not in (None, len(values)):
        raise ValueError(f"{len(content):,} compressed bytes end after {len(values):,} decoded bytes")
    return values


def _bound_ros1(reader: Any) -> None:
    """Let each chunk decode to what its header states."""
    lz4 = import_module("lz4.frame")
    header_type = import_module("rosbags.rosbag1.reader").Header
    decoders = {b"lz4": lz4.LZ4FrameDecompressor, b"bz2": bz2.BZ2Decompressor}
    for place, chunk in reader.chunks.items():
        reader.bio.seek(place)
        header = header_type.read(reader.bio)
        begin = decoders.get(header["compression"])
        if begin is not None:
            unpack = partial(decoded, begin, size=int.from_bytes(header["size"], "little"))
            reader.chunks[place] = chunk._replace(decompressor=unpack)


def _bound_mcap(module: Any) -> None:
    """Let chunks decode to the size that rosbags gives its decoders, which they ignore."""
    lz4 = import_module("lz4.frame")
    module.DECOMPRESSORS["lz4"] = partial(decoded, lz4.LZ4FrameDecompressor)
    module.DECOMPRESSORS["zstd"] = partial(decoded, module.zstd.ZstdDecompressor)


# A file may have no index at its end, or one that does not say which messages a chunk has: to rosbags, such
# chunks are empty, and files without an index are read only where their messages are in order.

_MESSAGE = 0x05
_CHUNK = 0x06
_RECORD = struct.Struct("<BQ")  # what it is, and its bytes behind these
_MESSAGE_HEAD = struct.Struct("<HIQ")  # channel, number, log time
_CHUNK_HEAD = struct.Struct("<QQQII")  # first and last log time, size, checksum, length of the name behind


def _index_mcap(module: Any, reader: Any) -> None:
    """Look through a file whose index does not tell its topics, its chunks or what is in these."""
    if reader.connections and reader.chunks and all(chunk.message_index_offsets for chunk in reader.chunks):
        return
    reader.meta_scan()
    counts = reader.statistics.channel_message_counts
    reader.connections = [
        connection._replace(msgcount=counts.get(connection.id, 0)) for connection in reader.connections
    ]
    reader.metadata = reader.metadata._replace(message_count=reader.statistics.message_count)
    reader.chunks = list(_chunks_of(module, reader))


def _chunks_of(module: Any, reader: Any) -> Iterator[Any]:
    """Yield what an index would say of each chunk. Messages outside of chunks are in none."""
    reader.bio.seek(reader.data_start)
    while reader.bio.tell() < reader.data_end:
        start = reader.bio.tell()
        kind, size = _RECORD.unpack(module.read_exact(reader.bio, _RECORD.size))
        if kind != _CHUNK:
            module.skip_exact(reader.bio, size)
            continue
        content = module.read_exact(reader.bio, size)
        *_, unpacked, checksum, length = _CHUNK_HEAD.unpack_from(content)
        behind = _CHUNK_HEAD.size + length
        compression = content[_CHUNK_HEAD.size : behind].decode()
        packed = int.from_bytes(content[behind : behind + 8], "little")
        records = content[behind + 8 : behind + 8 + packed]
        counts: dict[int, int] = {}
        times = [0]
        for channel, time in _messages_in(module.decompress(records, compression, unpacked, checksum)):
            counts[channel] = counts.get(channel, 0) + 1
            times.append(time)
        first = min(times[1:], default=0)
        yield module.ChunkInfo(
            first, max(times), start, _RECORD.size + size, {}, 0, compression, packed, unpacked, counts
        )


def _messages_in(records: bytes) -> Iterator[tuple[int, int]]:
    """Yield channel and log time of the messages of a decoded chunk."""
    position = 0
    while position < len(records):
        kind, size = _RECORD.unpack_from(records, position)
        position += _RECORD.size
        if kind == _MESSAGE:
            channel, _, time = _MESSAGE_HEAD.unpack_from(records, position)
            yield channel, time
        position += size


# Bytes that rosbags holds while it reads messages: those of open chunks four times (decoded, as messages,
# as numbers), as they are stored, and its index. Objects are counted by what CPython takes for them.


def _held_in_ros1(reader: Any) -> int:
    header_type = import_module("rosbags.rosbag1.reader").Header
    chunks = [0]
    for place, chunk in reader.chunks.items():
        reader.bio.seek(place)
        decoded = int.from_bytes(header_type.read(reader.bio)["size"], "little")
        chunks.append(chunk.datasize + 4 * decoded)
    return max(chunks) + 250 * int(reader.message_count)


def _held_in_mcap(reader: Any) -> int:
    count = int(reader.metadata.message_count)
    if not reader.chunks:
        return _UNINDEXED + 64 * count
    index = 24 * count
    changes = []  # of the bytes that are free; of equal times, chunks are opened before others are closed
    for chunk in reader.chunks:
        messages = sum(chunk.channel_count.values())
        size = chunk.compressed_size + 4 * chunk.uncompressed_size + 200 * messages
        changes += [(chunk.message_start_time, -size), (chunk.message_end_time, size)]
        index += 1024 + 128 * len(chunk.message_index_offsets)
    return index - int(min(accumulate(size for _, size in sorted(changes))))


def _held_in_sqlite(reader: Any) -> int:
    ((largest,),) = reader.dbconn.execute("SELECT max(length(data)) FROM messages")
    return 5 * int(largest or 0) + 64 * int(reader.metadata.message_count)


class BagKind(NamedTuple):
    """A kind of files of bags: its first bytes, and how rosbags reads it."""

    magic: bytes
    name: str
    module: str
    reader: str
    # Log times of all messages of some connections of a reader, in order.
    times: Callable[[Any, Sequence[Any]], Int64s]
    held: Callable[[Any], int]  # most bytes that a reader holds


ROS1 = BagKind(b"#ROSBAG V", "a bag of ROS 1", "rosbags.rosbag1", "Reader", _times_in_ros1, _held_in_ros1)
_MCAP = BagKind(b"\x89MCAP0\r\n", "MCAP", MCAP_MODULE, "McapReader", _times_in_mcap, _held_in_mcap)
_SQLITE = BagKind(
    b"SQLite format 3\0",
    "a bag of ROS 2 in SQLite",
    "rosbags.rosbag2.storage_sqlite3",
    "Sqlite3Reader",
    _times_in_sqlite,
    _held_in_sqlite,
)


def describes_bag(path: Path) -> bool:
    """Return whether a file is the text beside the files of a bag of ROS 2, if only a damaged one."""
    if path.name != METADATA:
        return False
    text = path.read_bytes()
    if not text.strip(b"\0\n "):  # never written, or lost
        return any(other.suffix in (".mcap", ".db3") for other in path.parent.iterdir())
    return any(word in text for word in _METADATA_WORDS)


def kind_of(head: bytes) -> BagKind | None:
    """Return the kind of a file by its first bytes (None: it is no bag)."""
    return next((kind for kind in (ROS1, _MCAP, _SQLITE) if head.startswith(kind.magic)), None)


class BagFile(NamedTuple):
    """An open file of a bag."""

    file: SourceFile
    kind: BagKind
    reader: Any

    @property
    def connections(self) -> Sequence[Any]:
        """What rosbags calls connections: a topic of one publisher each."""
        connections: Sequence[Any] = self.reader.connections
        return connections

    def messages(self, connections: Sequence[Any], times: Int64s, row: int) -> Iterator[bytes]:
        """Yield serialised messages from a row on, in the order of their log times."""
        start = int(times[row])
        skipped = row - int(np.searchsorted(times, start))
        for _, _, raw in self.reader.messages(connections, start=start):
            if skipped:
                skipped -= 1
            else:
                yield raw


class Bag(NamedTuple):
    """The open files of a bag, in order."""

    files: Sequence[BagFile]
    is_compressed: bool = False  # whether each message is compressed by itself (zstd)
    distro: str = ""  # of ROS 2, as the bag says

    @property
    def held(self) -> int:
        """Most bytes that its readers hold while messages are read."""
        with damages(self.files[0].file):
            return sum(bag_file.kind.held(bag_file.reader) for bag_file in self.files)

    @property
    def is_ros1(self) -> bool:
        """Whether its messages are serialised as those of ROS 1."""
        return self.files[0].kind is ROS1


@contextmanager
def open_bag(file: SourceFile) -> Iterator[Bag]:
    """Open a bag by its only file, or by its ``metadata.yaml``."""
    with ExitStack() as stack:
        if file.path.name == METADATA:
            yield _by_metadata(file, stack)
        else:
            yield Bag([_opened(file, stack)])


@contextmanager
def damages(file: SourceFile) -> Iterator[None]:
    """Turn what rosbags raises at a damaged file into a problem of it."""
    try:
        yield
    except (InputError, OSError, MemoryError):
        raise
    except Exception as error:  # rosbags trusts what it parses, so that damage raises anything
        if is_out_of_memory(error):
            raise
        text = str(error).partition("\n")[0] or type(error).__name__
        raise file.problem(
            f"is damaged or truncated: {text}", _REPAIRS.get(file.path.suffix, COPY_AGAIN), "damaged"
        ) from error


def _opened(file: SourceFile, stack: ExitStack) -> BagFile:
    file.check_whole()
    stack.enter_context(opening(file.path, file.name, LIBRARY))
    kind = kind_of(file.head(16))
    if kind is None:
        raise file.problem("is not a ROS bag", "skip it with --exclude")
    if kind is _SQLITE:
        _check_sqlite(file)
    module = file.library(kind.module, EXTRA)
    if kind is _MCAP:
        _bound_mcap(module)
    reader = getattr(module, kind.reader)(file.path)
    with damages(file):
        try:
            reader.open()
        except KeyError as error:
            if kind is not _MCAP:
                raise
            # rosbags looks up how the messages of a channel are described.
            raise file.problem(
                f"has channels that do not contain ROS 2 messages: they are described in {error}",
                f"remove them: mcap filter {file.path.name} -o ros2.mcap -n TOPIC",
                "format",
            ) from error
        stack.callback(reader.close)
        if kind is ROS1:
            _bound_ros1(reader)
        elif kind is _MCAP:
            _index_mcap(module, reader)
    return BagFile(file, kind, reader)


def _check_sqlite(file: SourceFile) -> None:
    """Refuse a database that is cut off, or whose last messages are in a log that rosbags does not read."""
    head = file.head(32)
    page_size = int.from_bytes(head[16:18], "big")
    expected = int.from_bytes(head[28:32], "big") * (65536 if page_size == 1 else page_size)
    if file.size < expected:
        message = f"the file is truncated: it has {file.size:,} bytes, but its header states {expected:,}"
        raise file.problem(message, COPY_AGAIN, "truncated")
    log = Path(f"{file.path}-wal")
    if log.is_file() and log.stat().st_size:
        raise file.problem(
            f"some of its messages are only in the write-ahead log {log.name}, which is not read",
            f"sqlite3 {file.path.name} 'PRAGMA wal_checkpoint(TRUNCATE)'",
            "damaged",
        )


def _by_metadata(file: SourceFile, stack: ExitStack) -> Bag:
    """Open the files that a ``metadata.yaml`` names, which lie beside it."""
    yaml = file.library("ruamel.yaml", EXTRA)
    with damages(file):
        metadata = yaml.YAML(typ="safe").load(file.path.read_text())[METADATA_KEY.decode()]
        names = [Path(name).name for name in metadata["relative_file_paths"]]
        count = int(metadata["message_count"])
        mode = str(metadata.get("compression_mode") or "").lower()
        distro = str(metadata.get("ros_distro") or "")
    if mode == "file":
        message = "lists files that are compressed as a whole, which is not supported"
        raise file.problem(message, "decompress the bag with ros2 bag convert", "format")
    bag = Bag([_opened(file.beside(name), stack) for name in names], mode == "message", distro)
    connections = chain.from_iterable(bag_file.connections for bag_file in bag.files)
    present = sum(connection.msgcount for connection in connections)
    if present < count or not names:
        raise file.problem(
            f"states {count:,} messages, but its files contain {present:,}",
            "copy or download all files of the folder again",
            "truncated",
        )
    return bag
