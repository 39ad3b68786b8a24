"""Bags of ROS: fields of messages as the mcap library returns them (`tools/oracles/mcap_samples.py`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

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
