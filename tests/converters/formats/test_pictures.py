"""Images as arrays: against Pillow and OpenCV, cut off anywhere, and as a family from outside uses them."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from unistore.converters.formats.pictures import Jpeg, Png
from unistore.converters.plugin import SourceFile
from unistore.errors import InputError
from unistore.testing import check_format

PIXELS = np.random.default_rng(0).integers(0, 256, (19, 23, 4), np.uint8)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_16_bits_stay(tmp_path: Path, channels: int) -> None:
    pixels = PIXELS[..., :channels].astype(np.uint16) * 257
    order = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[channels]
    cv2.imwrite(str(tmp_path / "a.png"), pixels[..., order])
    check_format(Png(), tmp_path / "a.png", {"image": pixels[..., 0] if channels == 1 else pixels})


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_a_jpeg_is_as_opencv_shows_it(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(PIXELS[..., :3]).save(tmp_path / "a.jpg", exif=exif.tobytes())
    expected = cv2.imread(str(tmp_path / "a.jpg"))[..., ::-1]
    assert expected.shape == ((23, 19, 3) if orientation == 6 else (19, 23, 3))
    check_format(Jpeg(), tmp_path / "a.jpg", {"image": expected}, {"colour": "rgb"})


def test_a_header_that_lies_is_a_problem_of_the_file(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    source = SourceFile(tmp_path / "a.png", "a.png")
    with Png().open(source) as opened:
        Image.fromarray(PIXELS[:, :5]).save(tmp_path / "a.png")
        with pytest.raises(InputError, match=r"a\.png: decodes to \(19, 5, 4\), but its header says"):
            opened.arrays["image"][:]
