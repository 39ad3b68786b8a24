"""Files that a store is compared with are read by NumPy and OpenCV, whichever family they are of."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from unistore.converters.adapter.formats import formats
from unistore.converters.adapter.restore import open_original
from unistore.converters.opened import SourceFile

PIXELS = np.random.default_rng(0).integers(0, 65536, (7, 9, 4), np.uint16)


def read(form: str, path: Path) -> tuple[str, NDArray[np.generic]]:
    """The library that reads a file, and its only array."""
    opening = formats()[form]
    with open_original(opening, SourceFile(path, path.name), path) as opened:
        (name,) = opened.names
        return opened.library, np.asarray(opened.array(name)[:])


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_png_originals_are_read_by_opencv_with_all_channels_and_16_bits(
    tmp_path: Path, channels: int
) -> None:
    pixels = PIXELS[..., 0] if channels == 1 else PIXELS[..., :channels]
    path = tmp_path / "a.png"
    cv2.imwrite(str(path), pixels if channels == 1 else pixels[..., [2, 1, 0, 3][:channels]])
    library, values = read("png", path)
    assert library == "OpenCV"
    np.testing.assert_array_equal(values, pixels)


def test_jpeg_originals_are_rotated_by_their_exif_orientation(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "a.jpg"
    Image.fromarray((PIXELS[..., :3] >> 8).astype(np.uint8)).save(path, exif=exif.tobytes())
    _, values = read("jpeg", path)
    np.testing.assert_array_equal(values, cv2.imread(str(path))[..., ::-1])
    assert values.shape == (9, 7, 3)


def test_raw_originals_are_read_as_the_bytes_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    PIXELS.tofile(path)
    library, values = read("raw", path)
    assert library == "numpy"
    np.testing.assert_array_equal(values, PIXELS.reshape(-1).view(np.uint8))
