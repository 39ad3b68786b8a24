"""Read what DICOM files say of their pixels: form, scale, and the place of each plane in the patient."""

# DICOM PS3.3, C.7.6.2 (plane), C.7.6.16 (multi-frame functional groups), C.11.1 (modality LUT).

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from unistore.converters.formats.volumes import stated
from unistore.system.types import Float64s, JsonObject

# Transfer syntaxes whose numbers stand in the file, lowest byte first.
_PLAIN = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1")
_DEFLATED = "1.2.840.10008.1.2.1.99"  # all behind the file's own elements is one stream of deflate
# Tag of the element that holds the numbers, in both byte orders.
_PIXELS = (b"\xe0\x7f\x10\x00", b"\x7f\xe0\x00\x10")
_GROUPS = (
    "PlanePositionSequence",
    "PlaneOrientationSequence",
    "PixelMeasuresSequence",
    "PixelValueTransformationSequence",
)
# How many numbers each has
_PLACE = {"ImagePositionPatient": 3, "ImageOrientationPatient": 6, "PixelSpacing": 2}
_FRAMES = ("NumberOfFrames", "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence")
_FORM = ("Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation")
_KIND = ("SOPClassUID", "SeriesInstanceUID", "PatientID", "ImageType", "PhotometricInterpretation")
# All that is read of a header.
_SCALE = ("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence")
_TAGS = [*_KIND, *_FORM, *_PLACE, *_FRAMES, *_SCALE, "SliceThickness"]


class Plane(NamedTuple):
    """One plane of a file, and where it lies: x, y, z of LPS in mm."""

    frame: int
    position: tuple[float, ...]
    orientation: tuple[float, ...]  # along a row, then along a column
    spacing: tuple[float, ...]  # of rows, then of columns
    slope: float
    intercept: float
    start: int  # byte of its numbers in the file; 0: they are compressed


class DicomPixels(NamedTuple):
    """What a file says of its pixels. Nothing of it tells who the patient is."""

    shape: tuple[int, int]
    dtype: str
    bits: int  # that a number has, of those of its dtype
    high_bit: int  # the place of its highest one
    thickness: float
    planes: tuple[Plane, ...]  # empty: the file has no pixels, or does not say where they lie
    unsupported: str  # what of the pixels is not read, as it follows the name of the file; empty: nothing


class DicomHeader(NamedTuple):
    """What a file says of its pixels, and of the series that it is of."""

    series: str
    patient: str
    kind: str  # of object, as DICOM names it: "CT Image Storage"
    is_localiser: bool
    is_gray: bool
    pixels: DicomPixels


def read_header(path: Path) -> DicomHeader:
    """Read a file up to its pixels."""
    from pydicom.uid import UID

    plain = read_elements(path)
    if plain is None:
        return _by_pydicom(path)
    values, start = plain
    return _header(values, UID(values["SOPClassUID"]).name, start)


def _by_pydicom(path: Path) -> DicomHeader:
    from pydicom import dcmread

    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they quote values, which may name the patient
        # Files of old scanners begin without the 128 bytes and the mark
        is_bare = file.read(_BEGIN)[-4:] != b"DICM"
        file.seek(0)
        data_set = dcmread(file, stop_before_pixels=True, specific_tags=_TAGS, force=is_bare)
        syntax = data_set.file_meta.get("TransferSyntaxUID")
        if syntax == _DEFLATED:
            start = 0
            file.seek(0)
            has_pixels = "PixelData" in dcmread(file, specific_tags=["PixelData"])
        else:
            start = file.tell()
            has_pixels = file.read(4) in _PIXELS
            start += 12 if file.read(2) in (b"OW", b"OB") else 8
    # Those without a syntax begin with the first element, which shows theirs
    is_plain = data_set.original_encoding[1]
    if syntax is not None:
        is_plain = syntax in _PLAIN
    kind = data_set.file_meta.get("MediaStorageSOPClassUID") or data_set.get("SOPClassUID")
    if not kind and "Rows" not in data_set:
        raise ValueError("states neither the kind of its content nor the size of an image")
    start = start if is_plain else 0
    return _header(data_set, kind.name if kind else "", start if has_pixels else None)


def _header(data_set: Any, kind: str, start: int | None) -> DicomHeader:
    """Make a header of a data set of pydicom, or of values by keyword, whose pixels start at a byte."""
    number_bytes = data_set.get("BitsAllocated", 16) // 8
    bits = data_set.get("BitsStored", 8 * number_bytes)
    letter = "i" if data_set.get("PixelRepresentation") == 1 else "u"
    planes: tuple[Plane, ...] = ()
    unplaced = "has no pixels of whole numbers"
    if start is not None:
        sources_of_frames = _sources_of_frames(data_set)
        unplaced = _why_unplaced(data_set, sources_of_frames)
        planes = () if unplaced else tuple(_planes(data_set, sources_of_frames, start, number_bytes))
    return DicomHeader(
        series=str(data_set.get("SeriesInstanceUID", "")),
        patient=str(data_set.get("PatientID", "")),
        kind=kind,
        is_localiser="LOCALIZER" in data_set.get("ImageType", ()),
        is_gray=str(data_set.get("PhotometricInterpretation", "")).startswith("MONOCHROME"),
        pixels=DicomPixels(
            shape=(data_set.get("Rows", 0), data_set.get("Columns", 0)),
            dtype=f"<{letter}{number_bytes}",
            bits=bits,
            high_bit=data_set.get("HighBit", bits - 1),
            thickness=float(data_set.get("SliceThickness") or 0),
            planes=planes,
            unsupported=unplaced or _unsupported(data_set, len(planes)),
        ),
    )


def _unsupported(data_set: Any, plane_count: int) -> str:
    if data_set.get("ModalityLUTSequence"):
        return "states its values by a table (ModalityLUTSequence), which is not supported"
    # Newer scanners save the slices of a mosaic as planes, and still call it one
    if "MOSAIC" in data_set.get("ImageType", ()) and plane_count == 1:
        return "has its slices as tiles of one image (MOSAIC), which is not supported"
    return ""


def _why_unplaced(data_set: Any, sources: Sequence[Sequence[Any]]) -> str:
    """Say why the places of the frames are unknown, after the name of the file. Empty: all are known."""
    frame_count = data_set.get("NumberOfFrames") or 1
    for sources_of_frame in sources:
        for name, count in _PLACE.items():
            if len(_numbers_of(sources_of_frame, name)) != count:
                return f"does not state {name}"
    if len(sources) != frame_count:
        return f"has {frame_count} frames, but states the places of {len(sources)}"
    return ""


def _sources_of_frames(data_set: Any) -> list[list[Any]]:
    """Return, for each frame, the data sets that may hold its values: the first one that does counts."""
    shared = _first(data_set, "SharedFunctionalGroupsSequence")
    frames = data_set.get("PerFrameFunctionalGroupsSequence")
    if not frames:
        return [[data_set]]
    common = [_first(shared, name) for name in _GROUPS]
    return [[*[_first(frame, name) for name in _GROUPS], *common, data_set] for frame in frames]


def _planes(
    data_set: Any, sources_of_frames: Sequence[Sequence[Any]], start: int, number_bytes: int
) -> Iterator[Plane]:
    """Yield the planes of a file whose place is known."""
    frame_bytes = data_set.get("Rows", 0) * data_set.get("Columns", 0) * number_bytes
    for number, sources in enumerate(sources_of_frames):
        position, orientation, spacing = [_numbers_of(sources, name) for name in _PLACE]
        slope = _numbers_of(sources, "RescaleSlope") or (1.0,)
        intercept = _numbers_of(sources, "RescaleIntercept") or (0.0,)
        start_of_frame = start + number * frame_bytes if start else 0
        yield Plane(number, position, orientation, spacing, slope[0], intercept[0], start_of_frame)


def _first(data_set: Any, name: str) -> Any:
    """Return the only item of a sequence, or an empty data set where it is not there."""
    return (data_set.get(name) or [{}])[0]


def _numbers_of(sources: Sequence[Any], name: str) -> tuple[float, ...]:
    """Return the numbers of the first data set that has them."""
    for source in sources:
        value = source.get(name)
        if value is not None:
            return tuple(map(float, value)) if np.iterable(value) else (float(value),)
    return ()


def normal_of(plane: Plane) -> Float64s:
    """Return the direction across a plane."""
    return np.cross(plane.orientation[:3], plane.orientation[3:])


def order_of(planes: Sequence[Plane]) -> list[int]:
    """Return the numbers of planes by their place along the normal of the first, whatever they are called."""
    places = np.array([plane.position for plane in planes]) @ normal_of(planes[0])
    order: list[int] = places.argsort(kind="stable").tolist()
    return order


def placed(planes: Sequence[Plane], thickness: float) -> JsonObject:
    """Return where the voxels of ordered planes lie. Of one plane without thickness, nothing is known."""
    first = planes[0]
    across = normal_of(first) * thickness
    if len(planes) > 1:
        across = (np.array(planes[-1].position) - np.array(first.position)) / (len(planes) - 1)
    if not across.any():
        return {}
    down = np.array(first.orientation[3:]) * first.spacing[0]
    along = np.array(first.orientation[:3]) * first.spacing[1]
    return stated(np.stack([across, down, along], axis=1), np.array(first.position))


# Headers in the plain transfer syntaxes, by the lengths of their elements (DICOM PS3.5, 7.1). pydicom makes
# an object of every element, which takes longer than reading the pixels of a slice. What is not plain, such
# as sequences of undefined length and texts that need a character set, is left to it.

_IMPLICIT, _EXPLICIT = (syntax.encode() for syntax in _PLAIN)
_BEGIN = 132  # byte behind the mark, where there is one
_MOST = 1 << 16  # bytes of a header that are looked at
_HEAD = Struct("<HH2sH")
_LENGTH = Struct("<I")
_UNDEFINED = 0xFFFFFFFF
# Kinds of values whose length has four bytes, after two that are reserved.
_LONG = (b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT", b"UV")
_PIXEL_TAG = 0x7FE00010
_SYNTAX = 0x00020010
# NumberOfFrames, the shared and per-frame functional groups, and ModalityLUTSequence
_SEQUENCES = (0x00280008, 0x52009229, 0x52009230, 0x00283000)


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, "little")


def _words(raw: bytes) -> list[str]:
    return raw.decode("ascii").rstrip("\0 ").split("\\")


def _text(raw: bytes) -> str:
    (word,) = _words(raw)
    return word


def _numbers(raw: bytes) -> tuple[float, ...] | None:
    words = _words(raw)
    return None if words == [""] else tuple(map(float, words))


# Elements that are read, by tag: their keywords, and what reads their values.
_ELEMENTS: Mapping[int, tuple[str, Callable[[bytes], Any]]] = {
    0x00020002: ("SOPClassUID", _text),
    _SYNTAX: ("TransferSyntaxUID", _text),
    0x00080008: ("ImageType", _words),
    0x0020000E: ("SeriesInstanceUID", _text),
    0x00100020: ("PatientID", _text),
    0x00280004: ("PhotometricInterpretation", _text),
    0x00280010: ("Rows", _number),
    0x00280011: ("Columns", _number),
    0x00280100: ("BitsAllocated", _number),
    0x00280101: ("BitsStored", _number),
    0x00280102: ("HighBit", _number),
    0x00280103: ("PixelRepresentation", _number),
    0x00180050: ("SliceThickness", lambda raw: (_numbers(raw) or (0.0,))[0]),
    0x00200032: ("ImagePositionPatient", _numbers),
    0x00200037: ("ImageOrientationPatient", _numbers),
    0x00280030: ("PixelSpacing", _numbers),
    0x00281052: ("RescaleIntercept", _numbers),
    0x00281053: ("RescaleSlope", _numbers),
}


def read_elements(path: Path) -> tuple[JsonObject, int] | None:
    """Read values by keyword, and where the numbers begin, of a file of one plane (None: for pydicom)."""
    with path.open("rb") as file:
        head = file.read(_MOST)
    values: JsonObject = {}
    try:
        elements, start = _found(head)
        for tag, raw in elements.items():
            keyword, read = _ELEMENTS[tag]
            values[keyword] = read(raw)
    except (ValueError, LookupError):
        return None
    return (values, start) if "SOPClassUID" in values else None


def _found(head: bytes) -> tuple[dict[int, bytes], int]:
    """Return the wanted values by tag, and where the numbers begin, and raise for what pydicom is to read."""
    elements: dict[int, bytes] = {}
    position = _BEGIN if head[_BEGIN - 4 : _BEGIN] == b"DICM" else 0
    syntax = b""
    while len(head) >= position + 12:
        group, number, kind, length = _HEAD.unpack_from(head, position)
        tag = group << 16 | number
        start = position + 8
        if group != 2 and not syntax:
            syntax = elements[_SYNTAX].rstrip(b"\0")
        if syntax == _IMPLICIT:
            (length,) = _LENGTH.unpack_from(head, position + 4)
        elif kind in _LONG:
            (length,) = _LENGTH.unpack_from(head, position + 8)
            start = position + 12
        if tag == _PIXEL_TAG and syntax in (_IMPLICIT, _EXPLICIT):
            return elements, start
        if length == _UNDEFINED or tag in _SEQUENCES:
            break
        position = start + length
        if tag in _ELEMENTS:
            elements[tag] = head[start:position]
    raise ValueError("is not a plain header of one plane")
