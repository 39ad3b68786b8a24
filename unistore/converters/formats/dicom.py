"""DICOM images, one slice a file or several: the planes of a volume by their place in the patient."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from unistore.converters.array import Array
from unistore.converters.common.faults import COPY_AGAIN
from unistore.converters.files.formats import begins_as_dicom
from unistore.converters.formats.dicom_headers import DicomPixels, Plane, order_of, placed, read_header
from unistore.converters.formats.volumes import Scaling, VolumeFormat
from unistore.converters.opened import OpenFile, SourceFile
from unistore.system.types import AnyArray


class Dicom(VolumeFormat):
    """One array, ``image``: the planes of a file and of its `SourceFile.parts`, along their normal.

    `SourceFile.known` has the `DicomPixels` of each of these files. If it is None, their headers are read.
    """

    name = "dicom"
    suffixes = (".dcm", ".ima")
    library = "pydicom"

    def begins(self, file: SourceFile) -> bool:
        return begins_as_dicom(file.head())

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        """Find the planes of all files. Pixels are read, or decoded, when they are sliced."""
        file.library("pydicom", "medical")
        paths = (file.path, *file.parts)
        pixels = file.known or [read_header(path).pixels for path in paths]
        if not all(one.planes for one in pixels):
            message = "does not state where its pixels are in the patient"
            raise file.problem(message, "skip it with --exclude")
        for one in pixels:
            if one.unsupported:
                raise file.problem(one.unsupported, "skip it with --exclude")
            _check_bits(file, one)
        slices = Slices(file, paths, pixels)
        metadata = placed([plane for _, plane in slices.planes], pixels[0].thickness)
        yield OpenFile({"image": Array(slices)}, metadata, forward_only=True)


class Slices:
    """The planes of a series in the order of their places."""

    def __init__(self, file: SourceFile, paths: Sequence[Path], pixels: Sequence[DicomPixels]) -> None:
        self._file = file
        self._pixels = pixels[0]
        self._decoded: tuple[Path | None, Any] = None, None
        owners: list[Path] = []
        planes: list[Plane] = []
        for path, one in zip(paths, pixels, strict=True):
            owners += [path] * len(one.planes)
            planes += one.planes
        self.planes = [(owners[number], planes[number]) for number in order_of(planes)]
        self.shape = (len(planes), *self._pixels.shape)
        scales = set(map(_scale_of, planes))
        self._scalings = {scale: Scaling.of(*scale, *self._limits) for scale in scales}
        self.dtype = np.result_type(*[scaling.dtype for scaling in self._scalings.values()])

    @property
    def _limits(self) -> tuple[int, int]:
        """The lowest and the highest number of so many bits."""
        bits = self._pixels.bits
        if np.dtype(self._pixels.dtype).kind == "i":
            return -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        return 0, (1 << bits) - 1

    def __getitem__(self, rows: slice) -> AnyArray:
        planes = self.planes[rows]
        values = np.empty((len(planes), *self._pixels.shape), self.dtype)
        lowest, highest = self._limits
        for number, (path, plane) in enumerate(planes):
            numbers = self._numbers(path, plane)
            if numbers.min() < lowest or numbers.max() > highest:
                raise self._file.problem(
                    f"has values of more bits than its header states: BitsStored is {self._pixels.bits} and "
                    f"HighBit is {self._pixels.high_bit}",
                    "correct BitsStored and HighBit, or write values that fit into these bits",
                    "values",
                )
            if plane.slope == 0 and numbers.any():
                message = f"states the RescaleSlope 0, by which all its values would be {plane.intercept:g}"
                raise self._file.problem(message, "correct RescaleSlope", "values")
            values[number] = self._scalings[_scale_of(plane)].apply(numbers)
        return values

    def _numbers(self, path: Path, plane: Plane) -> AnyArray:
        """Read the numbers of a plane where they stand, or decode them."""
        if not plane.start:
            return self._decode(path, plane.frame)
        height, width = self._pixels.shape
        numbers = np.fromfile(path, self._pixels.dtype, height * width, offset=plane.start)
        if numbers.size < height * width:
            message = "is truncated: it ends before its last voxel"
            raise self._file.problem(message, COPY_AGAIN, "truncated")
        # Unused high bits hold overlays, or zeros in place of the sign (PS3.5, 8.1.1). Readers disagree about
        # other values of HighBit: numbers stay as they are then, and must fit.
        unused = 8 * numbers.itemsize - self._pixels.bits
        if unused and self._pixels.high_bit == self._pixels.bits - 1:
            np.left_shift(numbers, unused, out=numbers)
            np.right_shift(numbers, unused, out=numbers)
        return numbers.reshape(height, width)

    def _decode(self, path: Path, frame: int) -> AnyArray:
        """Decode a frame. A file of many is read once."""
        from pydicom import dcmread
        from pydicom.pixels.utils import pixel_array

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self._decoded[0] != path:
                self._decoded = path, dcmread(path, force=True)
            return pixel_array(self._decoded[1], index=frame)


def _check_bits(file: SourceFile, pixels: DicomPixels) -> None:
    """Refuse numbers that do not take whole bytes, or have more bits than these."""
    allocated = 8 * int(pixels.dtype[2:])
    if allocated not in (8, 16, 32, 64) or not 1 <= pixels.bits <= allocated:
        raise file.problem(
            f"states BitsAllocated {allocated} and BitsStored {pixels.bits}, but BitsAllocated must be "
            "8, 16, 32 or 64, and BitsStored at most as large",
            "correct BitsAllocated and BitsStored",
            "dtype",
        )


def _scale_of(plane: Plane) -> tuple[float, float]:
    return plane.slope, plane.intercept
