"""Group DICOM files into series, and find what keeps a series from being one volume."""

# A series is called by its number, ``series-0007``, and no text of its files is stored: names, folders and
# UIDs may identify the patient. Digests say which volumes are of one patient, and which are the same
# series:
#
# - of a series, BLAKE2b of its SeriesInstanceUID: who has the UID finds it again, and nobody else;
# - of a patient, BLAKE2b of the PatientID with the smallest of the patient's series UIDs as its key: an ID
#   alone has so few digits that all of them can be tried.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unistore.converters.ct.names import SLICES
from unistore.converters.formats.dicom_headers import (
    DicomHeader,
    DicomPixels,
    normal_of,
    order_of,
    read_header,
)
from unistore.errors import AddOptions
from unistore.plugin import (
    Group,
    Grouping,
    Problem,
    ProblemCollector,
    SourceFile,
)

_DIGEST_BYTES = 16
# How far slices may be from where they should, in parts of their distance: positions are rounded.
_TOLERANCE = 0.01
# Parts of the names of objects that are no images of a patient's volume.
_NO_IMAGES = ("RT ", "Segmentation", "SR", "Presentation State", "Media Storage Directory")


class Series(NamedTuple):
    """What the headers of a series say together: the `Group.detail` of its volume."""

    patient: str  # digests, texts of 32 hexadecimal digits
    series: str
    problem: Problem | None  # what keeps it from being a volume
    pixels: tuple[DicomPixels, ...] = ()  # of each of its files


def group_series(files: Sequence[SourceFile], *, keep_names: bool) -> Grouping:
    """Group DICOM files by their SeriesInstanceUID, whatever folders they lie in."""
    grouping = Grouping()
    if not files:
        return grouping
    files[0].library("pydicom", "medical")
    folders: dict[Path, str] = {}  # names of folders, which are told only if names are kept
    if keep_names:
        parents = list(dict.fromkeys([file.path.parent for file in files]))
        names = [f"{name}/" for name in SourceFile.names_of(parents)]
        folders = dict(zip(parents, names, strict=True))
    by_series: dict[str, list[tuple[SourceFile, DicomHeader]]] = {}
    unreadable: list[Group] = []
    for file in files:
        try:
            header = read_header(file.path)
        except Exception as error:  # noqa: BLE001  pydicom raises anything at a damaged header
            # A source whose series is unknown, so that it can be left out.
            name = f"{folders.get(file.path.parent, '')}unreadable-{len(unreadable) + 1:04d}"
            series = Series("", "", _problem(name, *_why_unreadable(error)))
            renamed = replace(file, name=name)
            unreadable.append(Group(name, (renamed,), roles=("image/0",), detail=series))
            continue
        reason = _why_left_out(header)
        if reason:
            grouping.left_out.append((file, reason))
        else:
            by_series.setdefault(header.series, []).append((file, header))
    patients = _patients({uid: members[0][1].patient for uid, members in by_series.items()})
    for number, (uid, members) in enumerate(by_series.items()):
        name = f"{folders.get(members[0][0].path.parent, '')}series-{number + 1:04d}"
        # By their first planes, so that the order of a folder changes nothing.
        order = order_of([header.pixels.planes[0] for _, header in members])
        ordered = [members[number] for number in order]
        pixels = tuple([header.pixels for _, header in ordered])
        message = _why_no_volume(pixels)
        if len({header.patient for _, header in members if header.patient}) > 1:
            message = "its slices are of several patients"
        problem = _problem(name, message, "series") if message else None
        slices = tuple([replace(file, name=name) for file, _ in ordered])
        roles = ("image/0", *[SLICES] * (len(slices) - 1))
        series = Series(patients[uid], _digest(uid, b""), problem, pixels)
        grouping.sources.append(Group(name, slices, roles=roles, detail=series))
    grouping.sources += unreadable
    return grouping


def _why_unreadable(error: Exception) -> tuple[str, str]:
    """Return what is said of a header that cannot be read, without any text of it, and the problem's kind."""
    collected = ProblemCollector()
    with collected.attempt(""):
        _reraise(error)
    kind = collected.problems[0].kind
    if kind == "memory":
        return "is a DICOM file whose header needs more memory than is available", kind
    named = type(error).__name__
    return f"is a DICOM file whose header cannot be read ({named}), so its series is unknown", kind


def _reraise(error: Exception) -> None:
    raise error


def _problem(name: str, message: str, kind: str) -> Problem:
    fix = AddOptions(("--exclude", name)), AddOptions(("--keep-names",), "to show the folder of its files")
    return Problem(name, message, fix, kind, name)


def _why_left_out(header: DicomHeader) -> str:
    """Say why a file is no slice of a volume. Empty: it is one."""
    if any(part in header.kind for part in _NO_IMAGES):
        return f"is a DICOM file of the kind {header.kind}, not an image"
    if header.is_localiser:
        return "is a DICOM localiser, not a slice of a volume"
    if not header.pixels.planes:
        return f"is a DICOM file of the kind {header.kind}, and {header.pixels.unsupported}"
    return "" if header.is_gray else "is a DICOM image in colour"


def _patients(patient_of: Mapping[str, str]) -> dict[str, str]:
    """Return the digest of the patient of each series. One without PatientID has a patient of its own."""
    smallest = {patient: uid for uid, patient in sorted(patient_of.items(), reverse=True)}
    return {
        uid: _digest(patient, (smallest[patient] if patient else uid).encode())
        for uid, patient in patient_of.items()
    }


def _digest(text: str, key: bytes) -> str:
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES, key=key[:64]).hexdigest()


def _why_no_volume(pixels: Sequence[DicomPixels]) -> str:
    """Say what keeps slices from being one volume. Nothing is ever interpolated."""
    unsupported = next((one.unsupported for one in pixels if one.unsupported), "")
    if unsupported:
        return unsupported
    if len({(one.shape, one.dtype, one.bits) for one in pixels}) > 1:
        return "its slices differ in size or dtype"
    planes = list(chain.from_iterable([one.planes for one in pixels]))
    planes = [planes[number] for number in order_of(planes)]
    first = planes[0]
    if not np.allclose([plane.orientation for plane in planes], first.orientation, atol=1e-3):
        return "its slices are not parallel"
    if not np.allclose([plane.spacing for plane in planes], first.spacing, rtol=1e-3):
        return "its slices differ in pixel spacing"
    if len(planes) == 1:
        return ""
    normal = normal_of(first)
    steps = np.diff([plane.position for plane in planes], axis=0)
    gaps = steps @ normal
    lateral = np.linalg.norm(steps - np.outer(gaps, normal), axis=1).max()
    usual = float(np.median(gaps))
    if usual > 0 and max(np.abs(gaps - usual).max(), lateral) <= _TOLERANCE * usual:
        return ""
    moved = f"{gaps.min():.3f} to {gaps.max():.3f} mm apart and shifted by up to {lateral:.3f} mm"
    return f"its slices are {moved}: some are missing or repeated, or the gantry was tilted"
