"""DICOM series: which files are slices of one volume, and what keeps them from being one.

A series is called by its number, ``series-0007``, and no text of its files is stored: names, folders and UIDs
may tell who the patient is. Digests say which volumes are of one patient, and which are the same series:

- of a series, BLAKE2b of its SeriesInstanceUID: who has the UID finds it again, and nobody else;
- of a patient, BLAKE2b of the PatientID with the smallest of the patient's series UIDs as its key: an ID
  alone has so few digits that all of them can be tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import atan, degrees
from typing import NamedTuple

import numpy as np

from unistore.converters.files.paths import relative_names
from unistore.converters.formats.dicom_headers import Header, Pixels, Plane, normal_of, order_of, read_header
from unistore.converters.formats.extras import needed
from unistore.converters.plugin import Group, Problem, SourceFile

_DIGEST_BYTES = 16
_TOLERANCE = 0.01
"""How far slices may be from where they should, in parts of their distance: positions are rounded."""
_CURE = "leave it out with --exclude {name}; --keep-names says where its files are"
_NO_IMAGES = ("RT ", "Segmentation", "SR", "Presentation State", "Media Storage Directory")
"""Parts of the names of objects that are no images of a patient's volume."""


class Series(NamedTuple):
    """What the headers of a series say together: the `Group.detail` of its volume."""

    patient: str  # digests, texts of 32 hexadecimal digits
    series: str
    problem: Problem | None  # what keeps it from being a volume
    pixels: tuple[Pixels, ...] = ()  # of each of its files


class _Member(NamedTuple):
    """A file of a series."""

    file: SourceFile
    header: Header


def group_series(
    files: Sequence[SourceFile], *, keep_names: bool
) -> Iterator[Group | tuple[SourceFile, str] | Problem | str]:
    """Group DICOM files by their SeriesInstanceUID, whatever folders they lie in."""
    if not files:
        return
    needed("pydicom", "medical", files[0])
    by_series: dict[str, list[_Member]] = {}
    unreadable: list[Group] = []
    for file in files:
        try:
            header = read_header(file.path)
        except Exception as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            name = f"unreadable-{len(unreadable) + 1:04d}"
            unreadable.append(_unreadable(name, file, error, keep_names=keep_names))
            continue
        reason = _why_left_out(header)
        if reason:
            yield file, reason
        else:
            by_series.setdefault(header.series, []).append(_Member(file, header))
    patients = _patients(by_series)
    folders = [members[0].file.path.parent for members in by_series.values()]
    shown = relative_names(folders) if keep_names else []
    for number, (uid, members) in enumerate(by_series.items()):
        name = f"series-{number + 1:04d}"
        if keep_names:
            name = f"{shown[number]}/{name}"
        problem = _problem_of(name, [member.header.pixels for member in members])
        ordered = _in_order(members)
        pixels = tuple([member.header.pixels for member in ordered])
        series = Series(patients[uid], _digest(uid, b""), problem, pixels)
        roles = ("image/0", *["slices"] * (len(ordered) - 1))
        renamed = tuple([replace(member.file, name=name) for member in ordered])
        yield Group(name, renamed, roles, detail=series)
    yield from unreadable


def _unreadable(name: str, file: SourceFile, error: Exception, *, keep_names: bool) -> Group:
    """Make a source of a file whose series is unknown, so that it can be left out; no text of it is told."""
    if keep_names:
        name = f"{relative_names([file.path.parent])[0]}/{name}"
    message = f"is DICOM with a header that cannot be read ({type(error).__name__}): a slice of any series"
    problem = Problem(name, message, _CURE.format(name=name), "damaged", name)
    return Group(name, (replace(file, name=name),), ("image/0",), detail=Series("", "", problem))


def _why_left_out(header: Header) -> str:
    """Say why a file is no slice of a volume; empty: it is one."""
    if any(part in header.kind for part in _NO_IMAGES):
        return f"is DICOM of the kind {header.kind}, no image"
    if header.is_localiser:
        return "is a DICOM localiser, no slice of a volume"
    if not header.pixels.planes:
        return f"is DICOM of the kind {header.kind} without pixels that lie in the patient"
    return "" if header.is_gray else "is a DICOM image in colours"


def _patients(by_series: Mapping[str, Sequence[_Member]]) -> dict[str, str]:
    """Return the digest of the patient of each series; one without PatientID has a patient of its own."""
    patient_of = {uid: members[0].header.patient for uid, members in by_series.items()}
    ordered = sorted(patient_of.items(), reverse=True)
    smallest = {patient: uid for uid, patient in ordered}
    digests = {}
    for uid, patient in patient_of.items():
        key = smallest[patient] if patient else uid
        digests[uid] = _digest(patient, key.encode())
    return digests


def _digest(text: str, key: bytes) -> str:
    from hashlib import blake2b

    return blake2b(text.encode(), digest_size=_DIGEST_BYTES, key=key[:64]).hexdigest()


def _in_order(members: Sequence[_Member]) -> list[_Member]:
    """Return the files by their first planes, so that the order of a folder changes nothing."""
    order = order_of([member.header.pixels.planes[0] for member in members])
    return [members[number] for number in order]


def _problem_of(name: str, pixels: Sequence[Pixels]) -> Problem | None:
    """Return what keeps slices from being one volume; nothing is ever interpolated."""
    planes = [plane for one in pixels for plane in one.planes]
    message = _differing(pixels, planes) or _misplaced([planes[number] for number in order_of(planes)])
    if not message:
        return None
    return Problem(name, message, _CURE.format(name=name), "series", name)


def _differing(pixels: Sequence[Pixels], planes: Sequence[Plane]) -> str:
    """Say what slices do not have in common."""
    extents = sorted({one.shape for one in pixels})
    if len(extents) > 1:
        return f"has slices of several sizes: {', '.join(map(str, extents))}"
    if len({(one.dtype, one.bits) for one in pixels}) > 1:
        return "has slices of several dtypes"
    orientations = np.array([plane.orientation for plane in planes])
    if not np.allclose(orientations, orientations[0], atol=1e-3):
        return "has slices that are not parallel"
    spacings = np.array([plane.spacing for plane in planes])
    if not np.allclose(spacings, spacings[0], rtol=1e-3):
        return "has slices of several pixel spacings"
    return ""


def _misplaced(planes: Sequence[Plane]) -> str:
    """Say where planes do not lie one behind the other at one distance."""
    if len(planes) == 1:
        return ""
    normal = normal_of(planes[0])
    places = np.array([plane.position for plane in planes])
    steps = np.diff(places, axis=0)
    gaps = steps @ normal
    usual = float(np.median(gaps))
    doubled = int(np.count_nonzero(gaps < _TOLERANCE * max(usual, float(gaps.max()))))
    if doubled:
        return f"has {doubled} slices at the place of another: several volumes, or copies"
    lateral = np.linalg.norm(steps - np.outer(gaps, normal), axis=1)
    if (lateral > _TOLERANCE * gaps).any():
        tilt = degrees(atan(float(np.median(lateral / gaps))))
        return f"has slices that are not stacked along their normal: a gantry tilted by {tilt:.1f} degrees"
    far = np.flatnonzero(np.abs(gaps - usual) > _TOLERANCE * usual)
    if not far.size:
        return ""
    multiples = gaps[far] / usual
    if np.allclose(multiples, np.round(multiples), atol=_TOLERANCE * 10):
        missing = int(np.round(multiples).sum()) - far.size
        return f"lacks {missing} of {len(planes) + missing} slices, the first behind number {far[0] + 1}"
    return f"has slices at several distances: {gaps.min():.3f} to {gaps.max():.3f} mm"
