"""Formats by name and by content: HDF5 of any ending, those that are not read, lists, texts about others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["has_ending", "is_about", "unread_format", "why_left_out"]

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


_HDF5 = b"\x89HDF\r\n\x1a\n"
_HDF5_ENDING = ".h5"
_OFFSETS = (0, 512, 1024, 2048)
"""Where HDF5 begins: behind a block that is the user's, as MATLAB's is."""
_UNFINISHED = (".tmp", ".part", ".partial", ".crdownload", ".bak", ".old", ".orig", ".swp", "~")
_NEVER = (
    *(".npy", ".npz", ".dat", ".png", ".jpg", ".jpeg", ".bmp", ".txt", ".json", ".yaml", ".yml", ".toml"),
    *(".md", ".rst", ".py", ".xml", ".html", ".log", ".pdf"),
)


def has_ending(path: Path, endings: Sequence[str]) -> bool:
    """Whether a file is one of those that endings stand for: by its name, or as HDF5 by its content.

    Copies that something is still writing, or has put aside, are known by their names alone.

    Parameters
    ----------
    endings
        In lower case. Where ``.h5`` is among them, HDF5 files of endings that no other format has, such as
        ``.mat``, ``.h5ad`` or ``.jld2``, are there, too.
    """
    name = path.name.lower()
    if name.endswith(tuple(endings)):
        return True
    if _HDF5_ENDING not in endings or name.endswith((*_UNFINISHED, *_NEVER, *_NAMES)):
        return False
    return _is_hdf5(path)


def _is_hdf5(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(_OFFSETS[-1] + len(_HDF5))
    except OSError:
        return False
    return any(head.startswith(_HDF5, at) for at in _OFFSETS)


def unread_format(path: Path) -> str:
    """Name of a file's format by its ending: ``"NIfTI"``; empty if it is not in the table."""
    name = path.name.lower()
    endings = [ending for ending in _NAMES if name.endswith(ending)]
    return _NAMES[max(endings, key=len)] if endings else ""


def is_about(path: Path) -> bool:
    """Whether a file is a text about the others, by its name."""
    return _ABOUT.fullmatch(path.name) is not None


def why_left_out(path: Path) -> str:
    """Why a file that no family takes is none of its sources: ``"NIfTI, which is not read"``."""
    if is_about(path):
        return "a text about the others"
    if _LIST.fullmatch(path.name):
        return "a list of files"
    unread = unread_format(path)
    return f"{unread}, which is not read" if unread else "of no known format"
