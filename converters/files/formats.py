"""Formats of research data that unistore knows by name and does not read."""

from __future__ import annotations

from pathlib import Path

__all__ = ["unread_format"]

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
    ".pt": "PyTorch file",
    ".pth": "PyTorch file",
    ".pkl": "pickle",
    ".pickle": "pickle",
    ".zip": "archive",
    ".tar": "archive",
    ".gz": "compressed file",
}
"""By lower-case ending; the longest that fits counts."""


def unread_format(path: Path) -> str:
    """Name of a file's format by its ending: ``"NIfTI"``; empty if it is not in the table."""
    name = path.name.lower()
    endings = [ending for ending in _NAMES if name.endswith(ending)]
    return _NAMES[max(endings, key=len)] if endings else ""
