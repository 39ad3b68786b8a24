"""Roles of the files of a frame."""

from __future__ import annotations

from typing import NamedTuple

ROLES = ("spike", "voxel", "blur", "sharp")
"""Roles of the files of a frame; the first file present names the frame."""
IMAGE_ROLES = ("blur", "sharp")
IMAGE_FORMATS = ("png", "jpeg")
RAW_FORMAT = "raw"
STREAM_ENDING = ".dat"
"""Ending of recordings without a header that lie in no folder of a sequence."""


class Place(NamedTuple):
    """What names say of a frame."""

    sequence: str
    split: str | None


def may_be(format: str, role: str) -> bool:
    """Whether files of a format (empty: unknown) can have a role."""
    if role in IMAGE_ROLES:
        return format in IMAGE_FORMATS
    if role == "voxel" and format == RAW_FORMAT:
        return False
    return bool(format) and format not in IMAGE_FORMATS
