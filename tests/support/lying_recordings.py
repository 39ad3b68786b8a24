"""Small recordings that tell of gigabytes, or decode to them: bags, streams of events, video."""

from __future__ import annotations

import bz2
import json
import shutil
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import av
import faery
import lz4.frame
import numpy as np
from rosbags import rosbag1
from rosbags.typesys import Stores, get_typestore

from tests.support.bags import ROS1, Robot
from tests.support.event_recordings import made_up

DATA = Path(__file__).resolve().parents[1] / "data"
BOMB = 3 << 30  # bytes of zeros that a chunk or a packet decodes to
Writer = Callable[[Path], None]


@cache
def zeros(kind: str) -> bytes:
    """Pack zeros as a frame."""
    if kind == "lz4":
        packer = lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX4MB)
        block = bytes(4 << 20)
        parts = [packer.begin(), *[packer.compress(block) for _ in range(BOMB >> 22)], packer.flush()]
        return b"".join(parts)
    if kind == "bz2":
        return bz2.compress(bytes(BOMB >> 3)) * 8
    # An empty window, and blocks of one repeated byte (RFC 8878): 128 KiB in 4 bytes
    count = BOMB >> 17
    block = (1 << 17 << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    last = (1 << 17 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd" + b"\x00\x58" + block * (count - 1) + last


def mcap_chunk(name: str, stated: int | None = None) -> Writer:
    """Put a chunk of many zeros in the place of the first one of a sound file."""

    def make(folder: Path) -> None:
        content = (DATA / "mcap/robot.mcap").read_bytes()
        start = content.index(b"\x06", 8 + 9 + int.from_bytes(content[9:17], "little"))
        # Opcode, length, times, size, checksum, compression, bytes, records
        (length,) = struct.unpack_from("<Q", content, start + 1)
        times = content[start + 9 : start + 25]
        packed = zeros(name)
        (decoded,) = struct.unpack_from("<Q", content, start + 25)
        text = struct.pack("<I", len(name)) + name.encode()
        body = times + struct.pack("<QI", decoded if stated is None else stated, 0) + text
        body += struct.pack("<Q", len(packed)) + packed
        chunk = b"\x06" + struct.pack("<Q", len(body)) + body
        # Without the summary, the chunks are read
        end = content[-8:]
        footer = b"\x02" + struct.pack("<Q", 20) + bytes(20)
        data = content[:start] + chunk + b"\x0f" + struct.pack("<QI", 4, 0) + footer + end
        assert length
        (folder / "a.mcap").write_bytes(data)

    return make


def mcap_index(folder: Path) -> None:
    """Let the index of the chunks state a terabyte each."""
    content = bytearray((DATA / "mcap/robot.mcap").read_bytes())
    (summary,) = struct.unpack_from("<Q", content, len(content) - 28)
    place = summary
    while content[place] != 2:
        (length,) = struct.unpack_from("<Q", content, place + 1)
        if content[place] == 8:
            struct.pack_into("<Q", content, place + 9 + length - 8, 1 << 40)
        place += 9 + length
    (folder / "a.mcap").write_bytes(content)


def ros1_chunk(name: str, stated: int | None = None) -> Writer:
    """Write a bag whose only chunk is many zeros, of the size that it states or another."""

    def make(folder: Path) -> None:
        sound = folder / "sound.bag"
        Robot(ROS1, 1).bag(sound, rosbag1.Writer.CompressionFormat.LZ4)
        with rosbag1.Reader(sound) as reader:
            ((place, chunk),) = reader.chunks.items()
        content = sound.read_bytes()
        sound.unlink()
        packed = zeros(name)
        header = bytearray(content[place : chunk.datapos - 4])
        at = header.index(b"size=") + 5
        if stated is not None:
            struct.pack_into("<I", header, at, stated)
        field = struct.pack("<I", 15) + b"compression=lz4"
        assert field in header
        other = f"compression={name}".encode()
        header = bytearray(header.replace(field, struct.pack("<I", len(other)) + other))
        behind = content[chunk.datapos + chunk.datasize :]
        body = bytes(header) + struct.pack("<I", len(packed)) + packed
        moved = len(body) - (chunk.datapos + chunk.datasize - place)
        data = bytearray(content[:place] + body + behind)
        index = data.index(b"index_pos=") + 10
        struct.pack_into("<Q", data, index, struct.unpack_from("<Q", data, index)[0] + moved)
        (folder / "a.bag").write_bytes(data)

    return make


def ros1_empty_messages(folder: Path) -> None:
    """Write a message of four billion messages that take no bytes."""
    store = get_typestore(Stores.EMPTY)
    with rosbag1.Writer(folder / "a.bag") as writer:
        store = get_typestore(Stores.ROS1_NOETIC)
        text = "std_msgs/Empty[] nothing\nfloat64 x\n" + "=" * 80 + "\nMSG: std_msgs/Empty\n"
        connection = writer.add_connection("/a", "a/msg/Many", msgdef=text, md5sum="0" * 32)
        del store
        for time in range(3):
            writer.write(connection, time, struct.pack("<Id", (1 << 32) - 1, 1.0))


def ros1_wide_messages(folder: Path) -> None:
    """Write messages whose definition tells of gigabytes."""
    with rosbag1.Writer(folder / "a.bag") as writer:
        connection = writer.add_connection(
            "/a", "a/msg/Wide", msgdef=f"uint8[{1 << 30}] x\n", md5sum="0" * 32
        )
        for time in range(3):
            writer.write(connection, time, bytes(100))


def image_of(height: int, width: int) -> Writer:
    """Write images that are hardly as large as they tell."""

    def make(folder: Path) -> None:
        robot = Robot(ROS1, 1)
        for sent in robot.sent:
            if sent.topic == "camera/left":
                sent.message.height, sent.message.width = height, width
                sent.message.step = 0
        robot.bag(folder / "a.bag", None)

    return make


def aedat4(name: str) -> Writer:
    """Append a packet of many zeros to a sound stream."""

    def make(folder: Path) -> None:
        path = folder / "a.aedat4"
        events = made_up(1000)
        written = np.empty(len(events), faery.EVENTS_DTYPE)
        for field in "txy":
            written[field] = events[field]
        written["on"] = events["p"]
        compression = ("lz4", 1) if name == "lz4" else ("zstd", 1)
        faery.events_stream_from_array(written, (64, 48)).to_file(path, compression=compression)
        packed = b"" if name == "length" else zeros(name)
        with path.open("r+b") as file:
            (size,) = struct.unpack_from("<I", file.read(18), 14)
            start = 18 + size
            header = file.read(size)
            # The place of the table behind the packets, which moves
            ((place, table),) = [
                (place, number)
                for place in range(size - 7)
                if start
                < (number := int.from_bytes(header[place : place + 8], "little"))
                < path.stat().st_size
            ]
            file.seek(18 + place)
            file.write(struct.pack("<q", table + 8 + len(packed)))
            file.seek(start)
            sound = file.read()
            file.seek(start)
            length = len(packed) or (1 << 32) - 1
            file.write(sound[:4] + struct.pack("<I", length) + packed + sound)

    return make


def lerobot(size: tuple[int, int], claim: tuple[int, int] | None = None) -> Writer:
    """Write black video of a size, in a data set that states that or another."""

    def make(folder: Path) -> None:
        shutil.copytree(DATA / "lerobot/v3", folder / "a")
        shape_of(folder, "observation.images.top", [*(claim or size), 3])
        path = next(folder.rglob("*.mp4"))
        with av.open(str(path), "w") as container:
            stream: Any = container.add_stream("libx264", rate=10, options={"preset": "ultrafast"})
            stream.height, stream.width = size
            stream.pix_fmt = "yuv420p"
            stream.codec_context.thread_count = 1
            frame = av.VideoFrame.from_ndarray(np.zeros((*size, 3), "u1"), format="rgb24")
            for number in range(21):
                frame.pts = number
                container.mux(stream.encode(frame))
            container.mux(stream.encode())

    return make


def shape_of(folder: Path, feature: str, shape: list[int]) -> None:
    path = next(folder.rglob("info.json"))
    info = json.loads(path.read_text())
    info["features"][feature]["shape"] = shape
    path.write_text(json.dumps(info))


def lerobot_state(folder: Path) -> None:
    shutil.copytree(DATA / "lerobot/v3", folder / "a")
    shape_of(folder, "observation.state", [1 << 30])


RECORDINGS: dict[str, tuple[str, Writer]] = {
    "mcap_lz4": ("trajectory", mcap_chunk("lz4")),
    "mcap_zstd": ("trajectory", mcap_chunk("zstd")),
    "mcap_zstd_stated": ("trajectory", mcap_chunk("zstd", BOMB)),
    "mcap_index": ("trajectory", mcap_index),
    "ros1_lz4": ("trajectory", ros1_chunk("lz4")),
    "ros1_bz2": ("trajectory", ros1_chunk("bz2")),
    "ros1_bz2_stated": ("trajectory", ros1_chunk("bz2", BOMB)),
    "ros1_empty_messages": ("trajectory", ros1_empty_messages),
    "ros1_wide_messages": ("trajectory", ros1_wide_messages),
    "ros1_image": ("trajectory", image_of(1 << 20, 1 << 11)),
    "aedat4_length": ("events", aedat4("length")),
    "aedat4_lz4": ("events", aedat4("lz4")),
    "aedat4_zstd": ("events", aedat4("zstd")),
    "lerobot_video": ("trajectory", lerobot((8192, 8192))),
    "lerobot_larger_video": ("trajectory", lerobot((8192, 8192), (64, 64))),
    "lerobot_image": ("trajectory", lerobot((64, 64), (65535, 65535))),
    "lerobot_state": ("trajectory", lerobot_state),
}
