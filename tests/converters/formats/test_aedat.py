"""AEDAT 4 files, which faery writes and the library aedat reads."""

from __future__ import annotations

import struct
from pathlib import Path

import faery
import lz4.frame
import numpy as np
import pytest
from rosbags.rosbag2.storage_mcap import zstd

from tests.support.event_recordings import made_up
from unistore.converters.formats.aedat import Aedat4, largest_packet
from unistore.converters.opened import SourceFile


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    events = made_up(3_000)
    written = np.empty(len(events), faery.EVENTS_DTYPE)
    for name, other in zip("txy", "txy", strict=True):
        written[name] = events[other]
    written["on"] = events["p"]
    path = tmp_path / "a.aedat4"
    faery.events_stream_from_array(written, (64, 48)).to_file(path)
    return path


def test_events_of_aedat4_equal_those_that_were_written(recording: Path) -> None:
    near = made_up(3_000)
    assert Aedat4().recognise(SourceFile(recording, "a.aedat4")).certainty == "sure"
    with Aedat4().open(SourceFile(recording, "a.aedat4")) as opened:
        assert opened.metadata == {"width": 64, "height": 48}
        array = opened.arrays["events"]
        assert array.shape == (3_000,)
        events = array[0:3_000]
        assert array[100:200].tolist() == events[100:200].tolist()
    for name, other in zip(("t", "x", "y", "on"), "txyp", strict=True):
        assert np.array_equal(events[name], near[other]), name


@pytest.mark.parametrize("compression", ["lz4", "zstd", None])
def test_headers_of_packets_bound_their_decoded_size(compression: str | None, tmp_path: Path) -> None:
    """No less than the libraries of LZ4 and zstd decode, and no more than a block or two above that."""
    events = made_up(30_000)
    written = np.empty(len(events), faery.EVENTS_DTYPE)
    for name in "txy":
        written[name] = events[name]
    written["on"] = events["p"]
    path = tmp_path / "a.aedat4"
    packing = None if compression is None else (compression, 1)
    faery.events_stream_from_array(written, (64, 48)).to_file(path, compression=packing)
    content = path.read_bytes()
    (size,) = struct.unpack_from("<I", content, 14)
    (length,) = struct.unpack_from("<I", content, 18 + size + 4)
    packet = content[18 + size + 8 :][:length]
    unpack = {"lz4": lz4.frame.decompress, "zstd": zstd.decompress, None: bytes}[compression]
    decoded = len(unpack(packet))
    assert decoded <= largest_packet(SourceFile(path, "a.aedat4")) <= 2 * decoded + (1 << 17)
