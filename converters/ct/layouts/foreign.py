"""Formats of CT volumes that are not read; messages name them and a remedy."""

from __future__ import annotations

from pathlib import Path

from unistore.converters.ct.layouts import format_of, suffixes

_NAMES = {
    ".nii": "NIfTI",
    ".nii.gz": "NIfTI",
    ".dcm": "DICOM",
    ".mha": "MHA",
    ".mhd": "MHD",
    ".nrrd": "NRRD",
}
FOREIGN = tuple(_NAMES)
"""Suffixes of their files."""
FOREIGN_CURE = "load it with its own library and save the voxels: np.save('volume.npy', voxels)"


def foreign_message(path: Path) -> str | None:
    """Message for a file with the suffix of such a format, or None."""
    if format_of(path) is not None:
        return None
    ending = max((each for each in FOREIGN if path.name.lower().endswith(each)), key=len, default=None)
    return None if ending is None else f"is {_NAMES[ending]}, which this version does not read"


def known_formats() -> str:
    """Suffixes of the formats that are read, for messages."""
    return " or ".join(suffixes())
