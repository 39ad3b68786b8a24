"""Files that are no sources, known by name: formats that are not read, lists, texts about the others."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["unread_format", "why_left_out"]

_ABOUT = re.compile(
    r"(readme|license|licence|copying|citation|changelog|notes?)\b.*|.*\.(md|rst)", re.IGNORECASE
)
_LIST = re.compile(r".*(files|file_?list)\.(txt|lst)|metadata\.(csv|json)", re.IGNORECASE)

_NAMES = {
    ".nii": "NIfTI",
    ".nii.gz": "NIfTI",
    ".dcm": "DICOM",
    ".mha": "MetaImage",
    ".mhd": "MetaImage",
    ".nrrd": "NRRD",
    ".las": "LAS",
    ".laz": "LAZ",
    ".ply": "PLY",
    ".pcd": "PCD",
    ".e57": "E57",
    ".bag": "ROS bag",
    ".mcap": "MCAP",
    ".db3": "ROS 2 bag",
    ".parquet": "Parquet",
    ".arrow": "Arrow",
    ".feather": "Feather",
    ".csv": "CSV",
    ".tfrecord": "TFRecord",
    ".lmdb": "LMDB",
    ".mp4": "MP4 video",
    ".avi": "AVI video",
    ".mkv": "Matroska video",
    ".mov": "QuickTime video",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".exr": "OpenEXR",
    ".png": "a picture",
    ".jpg": "a picture",
    ".jpeg": "a picture",
    ".bmp": "a picture",
    ".webp": "a picture",
    ".pt": "a PyTorch file",
    ".pth": "a PyTorch file",
    ".pkl": "a pickle",
    ".pickle": "a pickle",
    ".zip": "an archive",
    ".tar": "an archive",
    ".gz": "a compressed file",
    ".json": "JSON",
    ".yaml": "YAML",
    ".yml": "YAML",
    ".txt": "text",
}
"""By lower-case ending; the longest that fits counts."""


def unread_format(path: Path) -> str:
    """Name of a file's format by its ending: ``"NIfTI"``; empty if it is not in the table."""
    name = path.name.lower()
    endings = [ending for ending in _NAMES if name.endswith(ending)]
    return _NAMES[max(endings, key=len)] if endings else ""


def why_left_out(path: Path) -> str:
    """Why a file that no family takes is none of its sources: ``"NIfTI, which is not read"``."""
    if _ABOUT.fullmatch(path.name):
        return "a text about the others"
    if _LIST.fullmatch(path.name):
        return "a list of files"
    unread = unread_format(path)
    return f"{unread}, which is not read" if unread else "of no known format"
