"""Formats of CT volumes that are not read: they are named, with what to do, instead of passed over."""

from __future__ import annotations

from pathlib import Path

from unistore.converters.ct.layouts import format_of, suffixes

__all__ = ["FOREIGN", "FOREIGN_CURE", "foreign_message", "known_formats"]

_NAMES = {
    ".nii": "NIfTI",
    ".nii.gz": "NIfTI",
    ".dcm": "DICOM",
    ".mha": "MHA",
    ".mhd": "MHD",
    ".nrrd": "NRRD",
}
FOREIGN = tuple(_NAMES)
"""Endings of their files."""
FOREIGN_CURE = "load it with its own library and save the voxels: np.save('volume.npy', voxels)"


def foreign_message(path: Path) -> str | None:
    """What is said of a file whose ending is that of another format; None for other files."""
    if format_of(path) is not None:
        return None
    ending = max((each for each in FOREIGN if path.name.lower().endswith(each)), key=len, default=None)
    return None if ending is None else f"is {_NAMES[ending]}, which this version does not read"


def known_formats() -> str:
    """Endings of the formats that are read, as messages list them."""
    return " or ".join(suffixes())
