"""DICOM images, one slice a file or several: the planes of a volume by their place in the patient.

DICOM PS3.3, C.7.6.2 (plane), C.7.6.16 (multi-frame functional groups), C.11.1 (modality LUT).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.formats.extras import needed
from unistore.converters.formats.volumes import Scaling, stated
from unistore.converters.plugin import Array, Claim, Format, Opened, SourceFile, sure

_MARK = 128
"""Byte at which a file says DICM."""
_PLAIN = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1")
"""Transfer syntaxes whose numbers stand in the file, lowest byte first."""
_PIXELS = b"\xe0\x7f\x10\x00"
"""Tag of the element that holds the numbers."""


class Plane(NamedTuple):
    """One plane of a file, and where it lies: x, y, z of LPS in mm."""

    path: Path
    frame: int
    position: tuple[float, ...]
    orientation: tuple[float, ...]  # along a row, then along a column
    spacing: tuple[float, ...]  # of rows, then of columns
    slope: float
    intercept: float
    start: int  # byte of its numbers in the file; 0: they are compressed


class Header(NamedTuple):
    """What a file says of its pixels, and of the series that it is of."""

    series: str
    patient: str
    kind: str  # of object, as DICOM names it: "CT Image Storage"
    is_localiser: bool
    is_gray: bool
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    bits: int  # that a number has, of those of its dtype
    thickness: float
    planes: tuple[Plane, ...]  # empty: the file has no pixels, or does not say where they lie


class Dicom(Format):
    """One array, called ``image``: the planes of a file and of its `SourceFile.parts`, along their normal."""

    name: ClassVar[str] = "dicom"
    suffixes: ClassVar[tuple[str, ...]] = (".dcm", ".ima")
    library: ClassVar[str] = "pydicom"
    offered: ClassVar[bool] = False

    def recognise(self, file: SourceFile) -> Claim:
        """Look for the mark behind the preamble."""
        file.check_whole()
        if file.head(_MARK + 4)[_MARK:] == b"DICM":
            return sure("has the mark of DICOM")
        raise file.problem("has no DICM mark at byte 128", "write it again as a DICOM file, with its header")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[Opened]:
        """Read the headers of all files; pixels are read, or decoded, when they are sliced."""
        needed("pydicom", "medical", file)
        paths = (file.path, *file.parts)
        headers = _headers(paths, tuple([path.stat().st_mtime_ns for path in paths]))
        if not all(header.planes for header in headers):
            raise file.problem("has no pixels that lie in the patient", "leave it out")
        slices = Slices(file, headers)
        facts = placed(slices.planes, headers[0].thickness)
        yield Opened({"image": Array(slices)}, facts, forward_only=True)


class Slices:
    """The planes of a series in the order of their places."""

    def __init__(self, file: SourceFile, headers: Sequence[Header]) -> None:
        self._file = file
        self._header = headers[0]
        self.planes = in_order(list(chain.from_iterable(header.planes for header in headers)))
        self.shape = (len(self.planes), *self._header.shape)
        self._scalings = {scale: self._scaling(*scale) for scale in {_scale_of(p) for p in self.planes}}
        self.dtype = np.result_type(*[one.dtype for one in self._scalings.values()])

    def _scaling(self, slope: float, intercept: float) -> Scaling:
        bits = self._header.bits
        if self._header.dtype.kind == "i":
            return Scaling.of(slope, intercept, -(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        return Scaling.of(slope, intercept, 0, (1 << bits) - 1)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        planes = self.planes[rows]
        values = np.empty((len(planes), *self._header.shape), self.dtype)
        for number, plane in enumerate(planes):
            numbers = self._numbers(plane)
            scaling = self._scalings[_scale_of(plane)]
            scaled = scaling.apply(numbers)
            if scaling.dtype.kind != "f" and not np.array_equal(scaled, scaling.wide(numbers)):
                message = f"holds numbers of more than the {self._header.bits} bits that it tells of"
                raise self._file.problem(message, "correct BitsStored", "values")
            values[number] = scaled
        return values

    def _numbers(self, plane: Plane) -> NDArray[Any]:
        """Read the numbers of a plane where they stand, or decode them."""
        if not plane.start:
            from pydicom.pixels.utils import pixel_array

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return pixel_array(plane.path, index=plane.frame)
        height, width = self._header.shape
        numbers = np.fromfile(plane.path, self._header.dtype, height * width, offset=plane.start)
        if numbers.size < height * width:
            raise self._file.problem("ends before its last voxel", "copy it again", "truncated")
        return numbers.reshape(height, width)


@lru_cache(maxsize=4)
def _headers(paths: tuple[Path, ...], times: tuple[int, ...]) -> list[Header]:  # noqa: ARG001  tell changes
    """Read the headers of a series, kept for its next reading."""
    return [read_header(path) for path in paths]


def read_header(path: Path) -> Header:
    """Read a file up to its pixels."""
    from pydicom import dcmread

    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they quote values, which may name the patient
        data_set = dcmread(file, stop_before_pixels=True)
        start = file.tell()
        has_pixels = file.read(4) in (_PIXELS, _PIXELS[1::-1] + _PIXELS[:1:-1])
        is_implicit = file.read(2) not in (b"OW", b"OB")
    bits_allocated = data_set.get("BitsAllocated", 16)
    letter = "i" if data_set.get("PixelRepresentation") == 1 else "u"
    is_plain = data_set.file_meta.TransferSyntaxUID in _PLAIN
    first = start + (8 if is_implicit else 12) if is_plain else 0
    planes = _planes(path, data_set, first, bits_allocated // 8) if has_pixels else []
    return Header(
        series=str(data_set.get("SeriesInstanceUID", "")),
        patient=str(data_set.get("PatientID", "")),
        kind=data_set.file_meta.MediaStorageSOPClassUID.name,
        is_localiser="LOCALIZER" in data_set.get("ImageType", ()),
        is_gray=str(data_set.get("PhotometricInterpretation", "")).startswith("MONOCHROME"),
        shape=(data_set.get("Rows", 0), data_set.get("Columns", 0)),
        dtype=np.dtype(f"<{letter}{bits_allocated // 8}"),
        bits=data_set.get("BitsStored", bits_allocated),
        thickness=float(data_set.get("SliceThickness") or 0),
        planes=tuple(planes),
    )


def _planes(path: Path, data_set: Any, start: int, number_bytes: int) -> Iterator[Plane]:
    """Yield the planes of a file whose place is known."""
    frame_bytes = data_set.Rows * data_set.Columns * number_bytes
    shared = _first(data_set, "SharedFunctionalGroupsSequence")
    frames = data_set.get("PerFrameFunctionalGroupsSequence") or [data_set]
    if len(frames) != (data_set.get("NumberOfFrames") or 1):
        return
    for number, frame in enumerate(frames):
        sources = [_first(part, name) for part in (frame, shared) for name in _GROUPS] + [data_set]
        position = _numbers_of(sources, "ImagePositionPatient")
        orientation = _numbers_of(sources, "ImageOrientationPatient")
        spacing = _numbers_of(sources, "PixelSpacing")
        if len(position) != 3 or len(orientation) != 6 or len(spacing) != 2:
            return
        slope = _numbers_of(sources, "RescaleSlope") or (1.0,)
        intercept = _numbers_of(sources, "RescaleIntercept") or (0.0,)
        offset = start + number * frame_bytes if start else 0
        yield Plane(path, number, position, orientation, spacing, slope[0], intercept[0], offset)


_GROUPS = (
    "PlanePositionSequence",
    "PlaneOrientationSequence",
    "PixelMeasuresSequence",
    "PixelValueTransformationSequence",
)


def _first(data_set: Any, name: str) -> Any:
    """Return the only item of a sequence; an empty data set where it is not there."""
    return (data_set.get(name) or [{}])[0]


def _numbers_of(sources: Sequence[Any], name: str) -> tuple[float, ...]:
    """Return the numbers of the first data set that has them."""
    for source in sources:
        value = source.get(name)
        if value is not None:
            numbers = np.atleast_1d(np.array(getattr(value, "value", value), float))
            return tuple(numbers.tolist())
    return ()


def _scale_of(plane: Plane) -> tuple[float, float]:
    return plane.slope, plane.intercept


def normal_of(plane: Plane) -> NDArray[np.float64]:
    """Return the direction across a plane."""
    return np.cross(plane.orientation[:3], plane.orientation[3:])


def in_order(planes: Sequence[Plane]) -> list[Plane]:
    """Return planes by their place along the normal of the first, whatever they are called or numbered."""
    normal = normal_of(planes[0])
    return sorted(planes, key=lambda plane: float(normal @ np.array(plane.position)))


def placed(planes: Sequence[Plane], thickness: float) -> dict[str, Any]:
    """Return where the voxels of ordered planes lie; of one plane without thickness, nothing is known."""
    first = planes[0]
    across = normal_of(first) * thickness
    if len(planes) > 1:
        across = (np.array(planes[-1].position) - np.array(first.position)) / (len(planes) - 1)
    if not across.any():
        return {}
    down = np.array(first.orientation[3:]) * first.spacing[0]
    along = np.array(first.orientation[:3]) * first.spacing[1]
    return stated(np.stack([across, down, along], axis=1), np.array(first.position))
