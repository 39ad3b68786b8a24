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


def test_a_file_of_another_library_has_what_that_returns() -> None:
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
        with pytest.raises(ValueError, match="packed bytes"):
            decoded(begin, packed[:length], size)


# By what a message has before its number: a definition, and its bytes
LISTS = {
    "empty": ("std_msgs/Empty[] a\n", "std_msgs/Empty\n", b"\2\0\0\0"),
    "nested": ("b/Holds a\n", "b/Holds\nstd_msgs/Empty[2] c\n", b""),
    "sound": ("b/Holds[] a\n", "b/Holds\nuint8 c\nstd_msgs/Empty d\n", b"\2\0\0\0\7\7"),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_messages_without_bytes_are_refused(name: str, tmp_path: Path) -> None:
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
    assert "lists of std_msgs/msg/Empty, which takes no bytes" in problem.message
