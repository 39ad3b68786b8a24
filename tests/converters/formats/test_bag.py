"""Bags of ROS: fields of messages as the mcap library returns them (`tools/oracles/mcap_samples.py`)."""

from __future__ import annotations

import bz2
import struct
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pytest
from rosbags import rosbag1
from rosbags.rosbag2.storage_mcap import zstd

from unistore.converters.formats.bag_files import decoded
from unistore.converters.formats.bags import Rosbag
from unistore.converters.opened import SourceFile
from unistore.errors import InputError
from unistore.testing import check_format

SAMPLES = Path(__file__).parents[2] / "data/mcap"
NO_VALUES = "joints/effort"


def test_messages_equal_those_that_the_mcap_library_returns() -> None:
    """Chunks overlap in time, and are compressed."""
    expected = dict(np.load(SAMPLES / "robot.npz"))
    expected[NO_VALUES] = np.empty((12, 0))
    check_format(Rosbag(), SAMPLES / "robot.mcap", expected, {})


def read_all(path: Path) -> None:
    with Rosbag().open(SourceFile(path, path.name)) as opened:
        for array in opened.arrays.values():
            array[:]


def test_checksums_of_chunks_are_compared(tmp_path: Path) -> None:
    content = bytearray((SAMPLES / "robot.mcap").read_bytes())
    content[200] ^= 1
    path = tmp_path / "a.mcap"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is damaged or truncated"):
        read_all(path)


PACKERS: dict[str, tuple[Any, Any]] = {
    "lz4": (lz4.frame.compress, lz4.frame.LZ4FrameDecompressor),
    "bz2": (bz2.compress, bz2.BZ2Decompressor),
    "zstd": (zstd.compress, zstd.ZstdDecompressor),
}


@pytest.mark.parametrize("name", PACKERS)
def test_packed_bytes_decode_to_the_size_that_is_stated(name: str) -> None:
    pack, begin = PACKERS[name]
    content = np.random.default_rng(0).bytes(5_000) + bytes(90_000)
    packed = pack(content)
    assert decoded(begin, packed, len(content)) == content
    assert decoded(begin, packed, None) == content
    assert decoded(begin, packed + pack(b"x"), len(content) + 1) == content + b"x"
    assert decoded(begin, pack(b""), 0) == b""
    for size, length in (
        (len(content) - 1, len(packed)),
        (len(content) + 1, len(packed)),
        (len(content), len(packed) // 2),
        (1 << 40, len(packed)),
    ):
        with pytest.raises(ValueError, match="compressed bytes"):
            decoded(begin, packed[:length], size)


# By what a message has before its number: a definition, and its bytes
LISTS = {
    "empty": ("std_msgs/Empty[] a\n", "std_msgs/Empty\n", b"\2\0\0\0"),
    "nested": ("b/Holds a\n", "b/Holds\nstd_msgs/Empty[2] c\n", b""),
    "sound": ("b/Holds[] a\n", "b/Holds\nuint8 c\nstd_msgs/Empty d\n", b"\2\0\0\0\7\7"),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_messages_without_bytes_are_a_problem(name: str, tmp_path: Path) -> None:
    """Four bytes may state four billion of them."""
    field, inside, content = LISTS[name]
    line = "=" * 80 + "\nMSG: "
    text = f"{field}float64 x\n{line}{inside}{line}std_msgs/Empty\n"
    with rosbag1.Writer(tmp_path / "a.bag") as writer:
        connection = writer.add_connection("/a", "a/msg/Many", msgdef=text, md5sum="0" * 32)
        for time in range(3):
            writer.write(connection, time, content + struct.pack("<d", time))
    with Rosbag().open(SourceFile(tmp_path / "a.bag", "a.bag")) as opened:
        if name == "sound":
            assert opened.arrays["a/x"][0:3].tolist() == [0, 1, 2]
            return
        (problem,) = opened.arrays["a/messages"].problems()
    assert "lists of std_msgs/msg/Empty, whose items have 0 bytes" in problem.message


MAGIC = b"\x89MCAP0\r\n"
DATA_END, FOOTER = 0x0F, 0x02
SCHEMA, CHANNEL, CHUNK_INDEX, STATISTICS = 0x03, 0x04, 0x08, 0x0B


def record(kind: int, content: bytes) -> bytes:
    return struct.pack("<BQ", kind, len(content)) + content


def rewritten(content: bytes, form: str) -> bytes:
    """Write an MCAP file again with less of an index at its end."""
    (start,) = struct.unpack_from("<Q", content, len(content) - 37 + 9)
    data, summary = content[:start], b""
    position = start
    while content[position] not in (FOOTER, 0x0E):
        kind, size = struct.unpack_from("<BQ", content, position)
        inside = content[position + 9 : position + 9 + size]
        position += 9 + size
        kept = {"no statistics": kind != STATISTICS, "chunks alone": kind == CHUNK_INDEX}.get(form, True)
        if form == "no chunks":
            kept = kind != CHUNK_INDEX
        if form in ("no messages", "neither") and kind == CHUNK_INDEX:
            (length,) = struct.unpack_from(
                "<I", inside, 32
            )  # of the places of message indices, 10 bytes each
            inside = inside[:32] + bytes(12) + inside[44 + length :]
        if form == "neither":
            kept = kind != STATISTICS
        summary += record(kind, inside) if kept else b""
    has_summary = form != "no summary"
    footer = struct.pack("<QQI", len(data) if has_summary else 0, 0, 0)
    return data + (summary if has_summary else b"") + record(FOOTER, footer) + MAGIC


FORMS = ("whole", "no summary", "no chunks", "no messages", "no statistics", "neither", "chunks alone")


@pytest.mark.parametrize("form", FORMS)
def test_a_bag_with_a_missing_or_partial_index_is_read_whole(tmp_path: Path, form: str) -> None:
    """As recorders leave it that write none: `mcap` reads such files from the first byte on."""
    path = tmp_path / "a.mcap"
    path.write_bytes(rewritten((SAMPLES / "robot.mcap").read_bytes(), form))
    expected = dict(np.load(SAMPLES / "robot.npz"))
    expected[NO_VALUES] = np.empty((12, 0))
    check_format(Rosbag(), path, expected, {})


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_chunk_without_an_index_is_an_error(tmp_path: Path, form: str) -> None:
    content = bytearray(rewritten((SAMPLES / "robot.mcap").read_bytes(), form))
    content[200] ^= 1
    (tmp_path / "a.mcap").write_bytes(content)
    with pytest.raises(InputError, match="is damaged or truncated"):
        read_all(tmp_path / "a.mcap")


# What a message has beside a number, whose definition lacks the type b/Holds or is all there
HELD = {"list": "b/Holds[] a\n", "array": "b/Holds[2] a\n", "one": "b/Holds a\n", "deep": "b/Outer[] a\n"}


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("is_whole", [True, False])
def test_an_undefined_type_is_a_problem_of_its_own_topic_only(
    tmp_path: Path, held: str, *, is_whole: bool
) -> None:
    line = "=" * 80 + "\nMSG: "
    text = HELD[held] + "float64 x\n"
    text += f"{line}b/Outer\nb/Holds inner\n" if held == "deep" else ""
    text += f"{line}b/Holds\nuint8 c\n" if is_whole else ""
    counted = struct.pack("<I", 2) if held in ("list", "deep") else b""
    content = counted + (b"\7" if held == "one" else b"\7\7")
    with rosbag1.Writer(tmp_path / "a.bag") as writer:
        custom = writer.add_connection("/custom", "a/msg/Many", msgdef=text, md5sum="0" * 32)
        sound = writer.add_connection("/sound", "a/msg/One", msgdef="float64 y\n", md5sum="1" * 32)
        for time in range(3):
            writer.write(custom, time, content + struct.pack("<d", time))
            writer.write(sound, time, struct.pack("<d", 10 + time))
    with Rosbag().open(SourceFile(tmp_path / "a.bag", "a.bag")) as opened:
        assert opened.arrays["sound/y"][0:3].tolist() == [10, 11, 12]
        if is_whole:
            assert opened.arrays["custom/x"][0:3].tolist() == [0, 1, 2]
            return
        (problem,) = opened.arrays["custom/messages"].problems()
    assert "does not define b/msg/Holds" in problem.message
    assert "--ignore 'custom/*'" in problem.advice
