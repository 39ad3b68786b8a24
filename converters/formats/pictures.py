"""Images as arrays of pixels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.formats import images
from unistore.converters.plugin import Array, Claim, Facts, Format, Opened, SourceFile, no, sure

_ARRAY = "image"


@dataclass(frozen=True)
class _Pixels:
    """Pixels of an image file, decoded when they are first sliced."""

    file: SourceFile
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @cached_property
    def _decoded(self) -> NDArray[Any]:
        pixels = _decode(self.file)
        if pixels.shape != self.shape:
            message = f"decodes to {pixels.shape}, but its header says {self.shape}"
            raise self.file.problem(message, "copy or export it again", "shape")
        return pixels

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return self._decoded[rows]


class Png(Format):
    """A PNG: the array ``image``, (H, W), (H, W, 3) or (H, W, 4), red first and alpha last."""

    name: ClassVar[str] = "png"
    suffixes: ClassVar[tuple[str, ...]] = (".png",)
    library: ClassVar[str] = images.LIBRARY

    def recognise(self, file: SourceFile) -> Claim:
        """Take what begins as the encoding does."""
        if images.encoding_of(file.head()) == self.name:
            return sure(f"begins as a {self.name} file")
        return no(f"does not begin as a {self.name} file")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[Opened]:
        """Read the header; pixels are decoded when they are sliced."""
        header = images.read_header(file.path, file.name)
        # Only decoding tells the shape of a JPEG that its EXIF rotates.
        shape = header.shape or _decode(file).shape
        pixels = header.height * header.width * 4 * header.dtype.itemsize
        image = Array(_Pixels(file, shape, header.dtype))
        yield Opened({_ARRAY: image}, {"colour": header.colour}, memory=header.size + 2 * pixels)

    def write(self, path: Path, arrays: Mapping[str, Array], facts: Facts) -> None:
        """Write the pixels."""
        import cv2

        pixels = arrays[_ARRAY][:]
        if pixels.ndim == 3:
            pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR if pixels.shape[2] == 3 else cv2.COLOR_RGBA2BGRA)
        path.write_bytes(cv2.imencode(".png", pixels)[1].tobytes())


class Jpeg(Png):
    """A JPEG: ``image``, (H, W, 3), rotated as its EXIF says. Written again, it would have other values."""

    name: ClassVar[str] = "jpeg"
    suffixes: ClassVar[tuple[str, ...]] = (".jpg", ".jpeg")
    write = Format.write


def _decode(file: SourceFile) -> NDArray[Any]:
    return images.decode(images.read_file(file.path, file.name), file.name, exact=True)
