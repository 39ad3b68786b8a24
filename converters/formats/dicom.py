"""DICOM images, one slice a file or several: the planes of a volume by their place in the patient.

DICOM PS3.3, C.7.6.2 (plane), C.7.6.16 (multi-frame functional groups), C.11.1 (modality LUT).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
_PIXELS = (b"\xe0\x7f\x10\x00", b"\x7f\xe0\x00\x10")
"""Tag of the element that holds the numbers, in both byte orders."""
_GROUPS = (
    "PlanePositionSequence",
    "PlaneOrientationSequence",
    "PixelMeasuresSequence",
    "PixelValueTransformationSequence",
)
_PLACE = ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing")
_FRAMES = ("NumberOfFrames", "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence")
_FORM = ("Rows", "Columns", "BitsAllocated", "BitsStored", "PixelRepresentation")
_KIND = ("SeriesInstanceUID", "PatientID", "ImageType", "PhotometricInterpretation")
_TAGS = [*_KIND, *_FORM, *_PLACE, *_FRAMES, "RescaleSlope", "RescaleIntercept", "SliceThickness"]
"""All that is read of a header."""


class Plane(NamedTuple):
    """One plane of a file, and where it lies: x, y, z of LPS in mm."""

    frame: int
    position: tuple[float, ...]
    orientation: tuple[float, ...]  # along a row, then along a column
    spacing: tuple[float, ...]  # of rows, then of columns
    slope: float
    intercept: float
    start: int  # byte of its numbers in the file; 0: they are compressed


class Pixels(NamedTuple):
    """What a file says of its pixels; nothing of it tells who the patient is."""

    shape: tuple[int, int]
    dtype: str
    bits: int  # that a number has, of those of its dtype
    thickness: float
    planes: tuple[Plane, ...]  # empty: the file has no pixels, or does not say where they lie


class Header(NamedTuple):
    """What a file says of its pixels, and of the series that it is of."""

    series: str
    patient: str
    kind: str  # of object, as DICOM names it: "CT Image Storage"
    is_localiser: bool
    is_gray: bool
    pixels: Pixels


class Dicom(Format):
    """One array, called ``image``: the planes of a file and of its `SourceFile.parts`, along their normal.

    `SourceFile.known` has the `Pixels` of each of these files; else their headers are read.
    """

    name: ClassVar[str] = "dicom"
    suffixes: ClassVar[tuple[str, ...]] = (".dcm", ".ima")
    library: ClassVar[str] = "pydicom"
    offered: ClassVar[bool] = False

    def recognise(self, file: SourceFile) -> Claim:
        """Look for the mark behind the preamble."""
        if file.head(_MARK + 4)[_MARK:] == b"DICM":
            return sure("has the mark of DICOM")
        file.check_whole()
        raise file.problem("has no DICM mark at byte 128", "write it again as a DICOM file, with its header")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[Opened]:
        """Find the planes of all files; pixels are read, or decoded, when they are sliced."""
        needed("pydicom", "medical", file)
        paths = (file.path, *file.parts)
        pixels = file.known or [read_header(path).pixels for path in paths]
        if not all(one.planes for one in pixels):
            raise file.problem("has no pixels that lie in the patient", "leave it out")
        slices = _Slices(file, paths, pixels)
        facts = _placed([plane for _, plane in slices.planes], pixels[0].thickness)
        yield Opened({"image": Array(slices)}, facts, forward_only=True)


class _Slices:
    """The planes of a series in the order of their places."""

    def __init__(self, file: SourceFile, paths: Sequence[Path], pixels: Sequence[Pixels]) -> None:
        self._file = file
        self._pixels = pixels[0]
        self._decoded: tuple[Path | None, Any] = None, None
        owners = [path for path, one in zip(paths, pixels, strict=True) for _ in one.planes]
        planes = [plane for one in pixels for plane in one.planes]
        self.planes = [(owners[number], planes[number]) for number in order_of(planes)]
        self.shape = (len(planes), *self._pixels.shape)
        self._scalings = {scale: self._scaling(*scale) for scale in {_scale_of(plane) for plane in planes}}
        self.dtype = np.result_type(*[scaling.dtype for scaling in self._scalings.values()])

    @property
    def _limits(self) -> tuple[int, int]:
        """The lowest and the highest number of so many bits."""
        bits = self._pixels.bits
        if np.dtype(self._pixels.dtype).kind == "i":
            return -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        return 0, (1 << bits) - 1

    def _scaling(self, slope: float, intercept: float) -> Scaling:
        return Scaling.of(slope, intercept, *self._limits)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        planes = self.planes[rows]
        values = np.empty((len(planes), *self._pixels.shape), self.dtype)
        lowest, highest = self._limits
        for number, (path, plane) in enumerate(planes):
            numbers = self._numbers(path, plane)
            if numbers.min() < lowest or numbers.max() > highest:
                message = f"holds numbers of more than the {self._pixels.bits} bits that it tells of"
                raise self._file.problem(message, "correct BitsStored", "values")
            values[number] = self._scalings[_scale_of(plane)].apply(numbers)
        return values

    def _numbers(self, path: Path, plane: Plane) -> NDArray[Any]:
        """Read the numbers of a plane where they stand, or decode them."""
        if not plane.start:
            return self._decode(path, plane.frame)
        height, width = self._pixels.shape
        numbers = np.fromfile(path, self._pixels.dtype, height * width, offset=plane.start)
        if numbers.size < height * width:
            raise self._file.problem("ends before its last voxel", "copy it again", "truncated")
        return numbers.reshape(height, width)

    def _decode(self, path: Path, frame: int) -> NDArray[Any]:
        """Decode a frame; a file of many is read once."""
        from pydicom import dcmread
        from pydicom.pixels.utils import pixel_array

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self._decoded[0] != path:
                self._decoded = path, dcmread(path)
            return pixel_array(self._decoded[1], index=frame)


def read_header(path: Path) -> Header:
    """Read a file up to its pixels."""
    from pydicom import dcmread

    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they quote values, which may name the patient
        data_set = dcmread(file, stop_before_pixels=True, specific_tags=_TAGS)
        start = file.tell()
        has_pixels = file.read(4) in _PIXELS
        is_implicit = file.read(2) not in (b"OW", b"OB")
    number_bytes = data_set.get("BitsAllocated", 16) // 8
    letter = "i" if data_set.get("PixelRepresentation") == 1 else "u"
    is_plain = data_set.file_meta.TransferSyntaxUID in _PLAIN
    first = start + (8 if is_implicit else 12) if is_plain else 0
    planes = _planes(data_set, first, number_bytes) if has_pixels else []
    return Header(
        series=str(data_set.get("SeriesInstanceUID", "")),
        patient=str(data_set.get("PatientID", "")),
        kind=data_set.file_meta.MediaStorageSOPClassUID.name,
        is_localiser="LOCALIZER" in data_set.get("ImageType", ()),
        is_gray=str(data_set.get("PhotometricInterpretation", "")).startswith("MONOCHROME"),
        pixels=Pixels(
            shape=(data_set.get("Rows", 0), data_set.get("Columns", 0)),
            dtype=f"<{letter}{number_bytes}",
            bits=data_set.get("BitsStored", 8 * number_bytes),
            thickness=float(data_set.get("SliceThickness") or 0),
            planes=tuple(planes),
        ),
    )


def _planes(data_set: Any, start: int, number_bytes: int) -> Iterator[Plane]:
    """Yield the planes of a file whose place is known."""
    frame_bytes = data_set.Rows * data_set.Columns * number_bytes
    shared = _first(data_set, "SharedFunctionalGroupsSequence")
    frames = data_set.get("PerFrameFunctionalGroupsSequence") or [data_set]
    if len(frames) != (data_set.get("NumberOfFrames") or 1):
        return
    for number, frame in enumerate(frames):
        sources = [_first(part, name) for part in (frame, shared) for name in _GROUPS]
        sources.append(data_set)
        position, orientation, spacing = [_numbers_of(sources, name) for name in _PLACE]
        if len(position) != 3 or len(orientation) != 6 or len(spacing) != 2:
            return
        slope = _numbers_of(sources, "RescaleSlope") or (1.0,)
        intercept = _numbers_of(sources, "RescaleIntercept") or (0.0,)
        at = start + number * frame_bytes if start else 0
        yield Plane(number, position, orientation, spacing, slope[0], intercept[0], at)


def _first(data_set: Any, name: str) -> Any:
    """Return the only item of a sequence; an empty data set where it is not there."""
    return (data_set.get(name) or [{}])[0]


def _numbers_of(sources: Sequence[Any], name: str) -> tuple[float, ...]:
    """Return the numbers of the first data set that has them."""
    value = next((source.get(name) for source in sources if source.get(name) is not None), None)
    if value is None:
        return ()
    return tuple(map(float, value)) if np.iterable(value) else (float(value),)


def _scale_of(plane: Plane) -> tuple[float, float]:
    return plane.slope, plane.intercept


def normal_of(plane: Plane) -> NDArray[np.float64]:
    """Return the direction across a plane."""
    return np.cross(plane.orientation[:3], plane.orientation[3:])


def order_of(planes: Sequence[Plane]) -> list[int]:
    """Return the numbers of planes by their place along the normal of the first, whatever they are called."""
    places = np.array([plane.position for plane in planes]) @ normal_of(planes[0])
    order: list[int] = places.argsort(kind="stable").tolist()
    return order


def _placed(planes: Sequence[Plane], thickness: float) -> dict[str, Any]:
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
