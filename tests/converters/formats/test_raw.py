"""Files without a header: their bytes, never claimed for sure."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from unistore.converters.plugin import SourceFile
from unistore.errors import InputError

CONTENT = np.random.default_rng(0).integers(0, 256, 1000, np.uint8)


@pytest.fixture
def source(tmp_path: Path) -> SourceFile:
    CONTENT.tofile(tmp_path / "a.dat")
    return SourceFile(tmp_path / "a.dat", "case/a.dat")


def test_bytes_are_read_into_memory_of_bytes(source: SourceFile) -> None:
    out = np.zeros(10, np.uint8)
    assert source.bytes().values.read_into(5, 15, out) is out
    np.testing.assert_array_equal(out, CONTENT[5:15])


def test_a_file_that_becomes_shorter(source: SourceFile) -> None:
    array = source.bytes()
    os.truncate(source.path, 990)
    with pytest.raises(InputError, match=r"case/a\.dat: ended 10 bytes early"):
        array[:]
