"""File formats by name and content: HDF5 of any suffix, formats that are not supported, other files."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from unistore.errors import Problem

_DOCUMENT = re.compile(
    r"(readme|license|licence|copying|citation|changelog|notes?)\b.*|.*\.(md|rst)", re.IGNORECASE
)
_FILE_LIST = re.compile(r".*(files|file_?list)\.(txt|lst)|metadata\.(csv|json)", re.IGNORECASE)

_FORMAT_NAMES = {
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
"""By lower-case suffix; the longest one that matches counts."""


_LFS_POINTER = b"version https://git-lfs"
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_HDF5_SUFFIX = ".h5"
_HDF5_OFFSETS = (0, 512, 1024, 2048)
"""Offsets of the signature: behind a user block, such as that of MATLAB."""
_COPIES = (".tmp", ".part", ".partial", ".crdownload", ".bak", ".old", ".orig", ".swp", "~")
_NEVER_HDF5 = (
    *(".npy", ".npz", ".dat", ".png", ".jpg", ".jpeg", ".bmp", ".txt", ".json", ".yaml", ".yml", ".toml"),
    *(".md", ".rst", ".py", ".xml", ".html", ".log", ".pdf"),
)


def has_ending(path: str | Path, endings: Sequence[str]) -> bool:
    """Whether a file name has one of the given suffixes, or the file is HDF5 under another suffix.

    Parameters
    ----------
    path
        The file. Unfinished downloads and backup copies are recognised by their names, never by content.
    endings
        Lower-case suffixes. If ``.h5`` is among them, HDF5 files with suffixes that no other format has, such
        as ``.mat``, ``.h5ad`` or ``.jld2``, match too.
    """
    name = os.path.basename(path).lower()  # noqa: PTH119  asked of millions
    if name.endswith(tuple(endings)):
        return True
    if _HDF5_SUFFIX not in endings or name.endswith((*_COPIES, *_NEVER_HDF5, *_FORMAT_NAMES)):
        return False
    return _is_hdf5(Path(path))


def _is_hdf5(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(_HDF5_OFFSETS[-1] + len(HDF5_SIGNATURE))
    except OSError:
        return False
    return any(head.startswith(HDF5_SIGNATURE, offset) for offset in _HDF5_OFFSETS)


def lfs_pointer_problem(head: bytes, location: str) -> Problem | None:
    """Problem of a file that begins with `head`, if it is a Git LFS pointer, or None."""
    if not head.startswith(_LFS_POINTER):
        return None
    return Problem(location, "is a Git LFS pointer, not the file itself", "run `git lfs pull`", "format")


def unread_format(path: Path) -> str:
    """Name of an unsupported file's format by its suffix, ``"NIfTI"``; empty if it is not in the table."""
    name = path.name.lower()
    endings = [ending for ending in _FORMAT_NAMES if name.endswith(ending)]
    return _FORMAT_NAMES[max(endings, key=len)] if endings else ""


def is_about(path: Path) -> bool:
    """Whether a file is documentation, by its name."""
    return _DOCUMENT.fullmatch(path.name) is not None


def why_left_out(path: Path) -> str:
    """Why no family takes a file: ``"NIfTI, which is not read"``."""
    if is_about(path):
        return "a text about the others"
    if _FILE_LIST.fullmatch(path.name):
        return "a list of files"
    unread = unread_format(path)
    return f"{unread}, which is not read" if unread else "of no known format"
