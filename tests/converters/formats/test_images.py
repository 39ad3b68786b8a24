"""Headers of images, and images as arrays, against OpenCV and Pillow; images that are cut off or lie."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from unistore.converters.formats.images import decode, header_of, is_complete, read_file, read_header
from unistore.converters.formats.pictures import Jpeg, Png
from unistore.converters.opened import SourceFile
from unistore.errors import InputError
from unistore.testing import check_format

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 4), np.uint8)
MODES = {"L": PIXELS[..., 0], "LA": PIXELS[..., :2], "RGB": PIXELS[..., :3], "RGBA": PIXELS}


def encoded(image: Image.Image, encoding: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, encoding, **options)
    return buffer.getvalue()


def images() -> dict[str, bytes]:
    """Every kind of PNG that there is, and JPEG of one, three and four channels, some rotated."""
    palette = Image.fromarray(MODES["RGB"]).convert("P", palette=Image.Palette.ADAPTIVE, colors=8)
    cut = (PIXELS[..., 0] > 128).astype(np.uint8) * 255
    made = {f"png {mode}": encoded(Image.fromarray(values), "PNG") for mode, values in MODES.items()}
    made["png 1"] = encoded(Image.fromarray(cut).convert("1"), "PNG")
    made["png P"] = encoded(palette, "PNG")
    made["png P transparent"] = encoded(palette, "PNG", transparency=1)
    made["png RGB transparent"] = encoded(Image.fromarray(MODES["RGB"]), "PNG", transparency=(1, 2, 3))
    made["png text first"] = with_chunk(made["png RGB"], b"tEXt", b"Comment\0tRNS IDAT")
    for channels in (1, 3, 4):
        deep = PIXELS[..., :channels].astype(np.uint16) * 257
        made[f"png 16 bits of {channels}"] = cv2.imencode(".png", deep)[1].tobytes()
    for mode in ("L", "RGB", "CMYK"):
        made[f"jpeg {mode}"] = encoded(Image.fromarray(MODES["RGB"]).convert(mode), "JPEG")
    rotation = Image.Exif()
    rotation[0x0112] = 6
    made["jpeg rotated"] = encoded(Image.fromarray(MODES["RGB"]), "JPEG", exif=rotation.tobytes())
    return made


def with_chunk(png: bytes, kind: bytes, data: bytes) -> bytes:
    chunk = struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return png[:33] + chunk + png[33:]


IMAGES = images()


@pytest.mark.parametrize("name", IMAGES)
def test_the_header_states_the_shape_and_dtype_of_the_decoded_image(name: str) -> None:
    image = IMAGES[name]
    header = header_of(io.BytesIO(image), name)
    pixels = decode(image, name, exact=True)
    assert (header.height, header.width, header.size) == (5, 7, len(image))
    assert header.dtype == pixels.dtype
    assert header.shape == (None if name == "jpeg rotated" else pixels.shape)
    assert is_complete(np.frombuffer(image, np.uint8))


@pytest.mark.parametrize("name", [name for name in IMAGES if "16" not in name and "CMYK" not in name])
def test_decoded_to_rgb_as_pillow_does(name: str) -> None:
    with Image.open(io.BytesIO(IMAGES[name])) as image:
        expected = np.asarray(image.convert("RGBA").convert("RGB"))
    found = decode(IMAGES[name], name)
    # decoders of JPEG may differ by a step of rounding
    np.testing.assert_allclose(found.astype(int), expected, atol=2 if name.startswith("jpeg") else 0)


def test_16_bits_are_kept_or_cut_to_the_upper_8() -> None:
    deep = np.arange(35, dtype=np.uint16).reshape(5, 7) * 1871
    image = cv2.imencode(".png", deep)[1]
    np.testing.assert_array_equal(decode(image, "a", exact=True), deep)
    np.testing.assert_array_equal(decode(image, "a"), np.repeat((deep >> 8)[..., None], 3, axis=2))


def test_an_exact_jpeg_is_rotated_as_its_exif_says() -> None:
    upright = decode(IMAGES["jpeg rotated"], "a")
    np.testing.assert_array_equal(decode(IMAGES["jpeg rotated"], "a", exact=True), np.rot90(upright, -1))


def test_swapped_reverses_the_order_of_colours() -> None:
    image = cv2.imencode(".png", MODES["RGB"])[1]
    np.testing.assert_array_equal(decode(image, "a", exact=True, swapped=True), MODES["RGB"])
    np.testing.assert_array_equal(decode(image, "a", exact=True), MODES["RGB"][..., ::-1])


@pytest.mark.parametrize("name", ["png RGB", "jpeg RGB"])
def test_an_image_that_is_cut_off_anywhere_is_refused(tmp_path: Path, name: str) -> None:
    whole = IMAGES[name]
    for length in range(0, len(whole), 7):
        cut = whole[:length]
        with pytest.raises(InputError):
            header_of(io.BytesIO(cut), "a")
        assert not is_complete(np.frombuffer(cut, np.uint8))
        (tmp_path / "a").write_bytes(cut)
        with pytest.raises(InputError):
            decode(read_file(tmp_path / "a", "a"), "a")


def test_a_flipped_bit_of_a_png_is_noticed(tmp_path: Path) -> None:
    content = bytearray(IMAGES["png RGB"])
    content[len(content) // 2] ^= 1
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(InputError, match="checksum of its chunk"):
        read_file(tmp_path / "a.png", "a.png")


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"", "empty"), (b"GIF89a" + bytes(40), "format"), (b"version https://git-lfs\n", "format")],
)
def test_the_header_of_a_file_that_is_not_an_image_is_an_error(content: bytes, kind: str) -> None:
    with pytest.raises(InputError) as error:
        header_of(io.BytesIO(content), "a")
    assert [problem.kind for problem in error.value.problems] == [kind]


@pytest.mark.parametrize("image", [b"", b"hello", IMAGES["png RGB"][:40]])
def test_bytes_that_cannot_be_decoded_are_an_error(image: bytes) -> None:
    with pytest.raises(InputError, match=r"run: 1\.h5: cannot be decoded"):
        decode(image, "run: 1.h5")


@pytest.mark.parametrize("ending", [".png", ".jpg"])
def test_an_image_that_claims_more_pixels_than_its_file_can_hold_is_refused(
    tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"a{ending}"
    cv2.imwrite(str(path), np.zeros((48, 80, 3), np.uint8))
    assert (read_header(path, "a").height, read_header(path, "a").width) == (48, 80)
    content = bytearray(path.read_bytes())
    if ending == ".png":
        content[16:24] = struct.pack(">II", 1 << 30, 1 << 30)
    else:
        at = content.index(b"\xff\xc0") + 5
        content[at : at + 4] = struct.pack(">HH", 65535, 65535)
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_header(path, "a")
    (problem,) = error.value.problems
    assert (problem.location, problem.kind) == ("a", "damaged")
    assert "too few for the" in problem.message


@pytest.mark.parametrize(
    ("ending", "options"),
    [
        (".png", [cv2.IMWRITE_PNG_COMPRESSION, 9]),
        (".jpg", [cv2.IMWRITE_JPEG_OPTIMIZE, 1, cv2.IMWRITE_JPEG_QUALITY, 1]),
        (".jpg", [cv2.IMWRITE_JPEG_PROGRESSIVE, 1, cv2.IMWRITE_JPEG_OPTIMIZE, 1]),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_one_colour_pass_the_check_of_compression(
    tmp_path: Path, ending: str, options: list[int], channels: int
) -> None:
    """They compress best."""
    cv2.imwrite(str(tmp_path / f"a{ending}"), np.zeros((2000, 2000, channels), np.uint8), options)
    assert read_header(tmp_path / f"a{ending}", "a").height == 2000


LARGE = np.random.default_rng(0).integers(0, 256, (19, 23, 4), np.uint8)


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_a_jpeg_is_as_opencv_shows_it(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(LARGE[..., :3]).save(tmp_path / "a.jpg", exif=exif.tobytes())
    expected = cv2.imread(str(tmp_path / "a.jpg"))[..., ::-1]
    assert expected.shape == ((23, 19, 3) if orientation == 6 else (19, 23, 3))
    check_format(Jpeg(), tmp_path / "a.jpg", {"image": expected}, {"colour": "rgb"})


def test_a_header_that_lies_is_a_problem_of_the_file(tmp_path: Path) -> None:
    Image.fromarray(LARGE).save(tmp_path / "a.png")
    source = SourceFile(tmp_path / "a.png", "a.png")
    with Png().open(source) as opened:
        Image.fromarray(LARGE[:, :5]).save(tmp_path / "a.png")
        with pytest.raises(InputError, match=r"a\.png: decodes to \(19, 5, 4\), but its header states"):
            opened.arrays["image"][:]
