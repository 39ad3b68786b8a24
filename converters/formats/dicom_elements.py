"""Find the elements of DICOM headers in the plain transfer syntaxes by their lengths (DICOM PS3.5, 7.1)."""

# pydicom makes an object of every element, which takes longer than reading the pixels of a slice. What is not
# plain, such as sequences of undefined length and texts that need a character set, is left to pydicom.

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

_IMPLICIT = b"1.2.840.10008.1.2"
_EXPLICIT = b"1.2.840.10008.1.2.1"  # transfer syntaxes whose numbers stand in the file, lowest byte first
_BEGIN = 132  # byte behind the mark
_MOST = 1 << 16  # bytes of a header that are looked at
_HEAD = Struct("<HH2sH")
_LENGTH = Struct("<I")
_UNDEFINED = 0xFFFFFFFF
# Kinds of values whose length has four bytes, after two that are reserved.
_LONG = (b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT", b"UV")
_PIXELS = 0x7FE00010
_SOP_CLASS = 0x00020002
_SYNTAX = 0x00020010
# Number of frames, and what is said of each: of files with several planes.
_SEQUENCES = (0x00280008, 0x52009229, 0x52009230)
_TEXTS = {0x0020000E: "SeriesInstanceUID", 0x00100020: "PatientID", 0x00280004: "PhotometricInterpretation"}
_WHOLE = {
    0x00280010: "Rows",
    0x00280011: "Columns",
    0x00280100: "BitsAllocated",
    0x00280101: "BitsStored",
    0x00280103: "PixelRepresentation",
}
_DECIMALS = {
    0x00180050: "SliceThickness",
    0x00200032: "ImagePositionPatient",
    0x00200037: "ImageOrientationPatient",
    0x00280030: "PixelSpacing",
    0x00281052: "RescaleIntercept",
    0x00281053: "RescaleSlope",
}
_IMAGE_TYPE = 0x00080008
_WANTED = {_SOP_CLASS, _SYNTAX, _IMAGE_TYPE, *_TEXTS, *_WHOLE, *_DECIMALS}


class Elements(NamedTuple):
    """What a header says, as pydicom would: values by keyword, and the byte at which the numbers begin."""

    values: dict[str, Any]
    sop_class: str
    start: int


def read_elements(path: Path) -> Elements | None:
    """Read the header of a file of one plane (None: it is for pydicom)."""
    with path.open("rb") as file:
        head = file.read(_MOST)
    try:
        elements, start = _found(head)
        texts = {tag: elements[tag].decode("ascii").rstrip("\0 ") for tag in elements.keys() - _WHOLE.keys()}
        values: dict[str, Any] = {name: texts[tag] for tag, name in _TEXTS.items() if tag in texts}
        for tag, name in _DECIMALS.items():
            if texts.get(tag):
                numbers = tuple(map(float, texts[tag].split("\\")))
                values[name] = numbers if len(numbers) > 1 else numbers[0]
    except (ValueError, LookupError):
        return None
    if any("\\" in values[name] for name in _TEXTS.values() if name in values):
        return None
    values |= {
        name: int.from_bytes(elements[tag], "little") for tag, name in _WHOLE.items() if tag in elements
    }
    values["ImageType"] = texts.get(_IMAGE_TYPE, "").split("\\")
    return Elements(values, texts[_SOP_CLASS], start)


def _found(head: bytes) -> tuple[dict[int, bytes], int]:
    """Return the wanted values by tag, and where the numbers begin, and raise for what pydicom is to read."""
    elements: dict[int, bytes] = {}
    position = _BEGIN
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
        if tag == _PIXELS and syntax in (_IMPLICIT, _EXPLICIT):
            return elements, start
        if length == _UNDEFINED or tag in _SEQUENCES:
            break
        position = start + length
        if tag in _WANTED:
            elements[tag] = head[start:position]
    message = "is no plain header of one plane"
    raise ValueError(message)
