"""Images as arrays of pixels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from unistore.converters.array import Array
from unistore.converters.formats import images
from unistore.converters.opened import Format, Metadata, OpenFile, SourceFile
from unistore.system.types import AnyArray, Dtype, Shape, UInt8s

_ARRAY = "image"


@dataclass(frozen=True)
class ImagePixels:
    """Pixels of an image file, decoded when they are first sliced."""

    file: SourceFile
    header: images.ImageHeader  # what it says of the pixels

    @property
    def shape(self) -> Shape:
        """Shape of the pixels. Only decoding tells that of a JPEG that its EXIF rotates."""
        return self.header.shape or self._decoded.shape

    @property
    def dtype(self) -> Dtype:
        return self.header.dtype

    def __getitem__(self, rows: slice) -> AnyArray:
        return self._decoded[rows]

    @cached_property
    def _decoded(self) -> AnyArray:
        pixels = self._decode(exact=True)
        if self.header.shape is not None:
            self._check(pixels.shape, self.header.shape)
        return pixels

    def rgb(self) -> UInt8s:
        """Decode the pixels as 8-bit RGB, (H, W, 3), in the stored orientation.

        Grey is repeated, alpha is dropped, and 16 bits are cut to the upper 8.
        """
        pixels = self._decode(exact=False)
        self._check(pixels.shape[:2], (self.header.height, self.header.width))
        return pixels

    def _check(self, decoded: Shape, stated: Shape) -> None:
        if decoded != stated:
            message = f"decodes to {decoded}, but its header states {stated}"
            raise self.file.problem(message, "copy or export the image again", "shape")

    def content(self) -> bytes:
        """Read the file as it stands, and check that it is whole."""
        return images.read_file(self.file.path, self.file.name)

    def _decode(self, *, exact: bool) -> AnyArray:
        return images.decode_file(self.file.path, self.file.name, exact=exact)


class Png(Format):
    """A PNG image: the array ``image``, (H, W), (H, W, 3) or (H, W, 4), red first and alpha last.

    The content counts, not the ending: a JPEG that is called ``.png`` is read as a JPEG.
    """

    name = "png"
    suffixes: ClassVar[tuple[str, ...]] = (".png",)
    offered = False

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        header = images.read_header(file.path, file.name)
        images.check_opencv(file.name)  # before files are read: only decoding needs it
        pixels = header.height * header.width * 4 * header.dtype.itemsize
        image = Array(ImagePixels(file, header))
        yield OpenFile({_ARRAY: image}, {"colour": header.colour}, memory=header.size + 2 * pixels)

    def write(self, path: Path, arrays: Mapping[str, Array], metadata: Metadata) -> None:
        cv2 = images.opencv(path.name)
        pixels = arrays[_ARRAY][:]
        if pixels.ndim == 3:
            pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR if pixels.shape[2] == 3 else cv2.COLOR_RGBA2BGRA)
        path.write_bytes(cv2.imencode(".png", pixels)[1].tobytes())


class Jpeg(Png):
    """A JPEG: ``image``, (H, W, 3), rotated as its EXIF says. Written again, it would have other values."""

    name = "jpeg"
    suffixes = (".jpg", ".jpeg")
    write = Format.write
