"""File formats by name and content: HDF5 of any suffix, formats that are not supported, other files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from struct import Struct

from unistore.converters.common.faults import as_problem
from unistore.errors import InputError, Problem, Where, printable

_DOCUMENT = re.compile(
    r"(readme|license|licence|copying|citation|changelog|notes?)\b.*|.*\.(md|rst)", re.IGNORECASE
)
_FILE_LIST = re.compile(r".*(files|file_?list)\.(txt|lst)|metadata\.(csv|json)", re.IGNORECASE)

_FORMATS = {
    "half of a NIfTI or Analyze pair": (".hdr", ".img"),
    "E57": (".e57",),
    "labels of a sweep": (".label",),
    "ROS bag": (".bag",),
    "MCAP": (".mcap",),
    "ROS 2 bag": (".db3",),
    "Arrow": (".arrow",),
    "Feather": (".feather",),
    "CSV": (".csv",),
    "TFRecord": (".tfrecord",),
    "LMDB": (".lmdb",),
    "MP4 video": (".mp4",),
    "AVI video": (".avi",),
    "Matroska video": (".mkv",),
    "QuickTime video": (".mov",),
    "OpenEXR": (".exr",),
    "a picture": (".png", ".jpg", ".jpeg", ".bmp", ".webp"),
    "a PyTorch file": (".pt", ".pth"),
    "a pickle": (".pkl", ".pickle"),
    "an archive": (".zip", ".tar"),
    "a compressed file": (".gz",),
    "JSON": (".json", ".jsonl"),
    "YAML": (".yaml", ".yml"),
    "text": (".txt",),
}
_FORMAT_NAMES: dict[str, str] = {}
for _name, _suffixes in _FORMATS.items():
    _FORMAT_NAMES |= dict.fromkeys(_suffixes, _name)

_LFS_POINTER = b"version https://git-lfs"
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_DETACHED = (".raw", ".zraw", ".raw.gz", ".gz")
# Endings of voxels without a header, and of headers beside them
_HEADERS = (".mhd", ".nhdr")
# What follows the ending of one of several files: `a.tfrecord-00000-of-00004`
_NUMBERED = re.compile(r"-[0-9]+-of-[0-9]+$")
# Offsets of the signature: behind a user block, such as that of MATLAB
_HDF5_OFFSETS = (0, 512, 1024, 2048)
_COPIES = (".tmp", ".part", ".partial", ".crdownload", ".bak", ".old", ".orig", ".swp", "~")
# Beginning of an element of DICOM: group and number, kind of value, length
_ELEMENT = Struct("<HH2sH")
_DICOM_KINDS = re.compile(rb"A[EST]|CS|D[AST]|F[DL]|IS|L[OT]|O[BDFLVW]|PN|S[HLQSTV]|TM|U[CILNRSTV]")
_LONG_KINDS = re.compile(rb"O[BDFLVW]|S[QV]|U[CNRTV]")  # whose length has four bytes, after two others
_FIRST_GROUPS = (0x0002, 0x0008)
_ELEMENTS = 3  # that tell DICOM from numbers that begin like one
_LONGEST = 1 << 12  # bytes of one of these
_NEVER_BY_CONTENT = (
    *(".npy", ".npz", ".dat", ".png", ".jpg", ".jpeg", ".bmp", ".txt", ".json", ".yaml", ".yml", ".toml"),
    *(".md", ".rst", ".py", ".xml", ".html", ".log", ".pdf", ".las", ".laz", ".ply", ".pcd"),
    *(".parquet", ".tfrecord", ".aedat4", ".mcap", ".zarr.zip"),
    *(".nii", ".nii.gz", ".dcm", ".ima", ".mha", ".mhd", ".nrrd", ".nhdr", ".tif", ".tiff"),
)


def has_ending(path: str | Path, endings: Sequence[str]) -> bool:
    """Return whether a file has one of the endings, or its content is HDF5 or DICOM.

    Unfinished downloads and backup copies are recognised by their names only.

    Parameters
    ----------
    path : str or Path
        The file.
    endings : sequence of str
        Endings in lower case. ``.h5`` also means HDF5 files with an ending that no other format has
        (``.mat``, ``.h5ad``, ``.jld2``); ``.dcm`` means the same for DICOM.
    """
    text = path if isinstance(path, str) else str(path)
    name = text[text.rfind(os.sep) + 1 :].lower()  # asked of millions
    if "-of-" in name:
        name = _NUMBERED.sub("", name)
    if name.endswith(tuple(endings)):
        return True
    signatures = [_SIGNATURES[ending] for ending in endings if ending in _SIGNATURES]
    if not signatures or name.endswith((*_COPIES, *_NEVER_BY_CONTENT, *_FORMAT_NAMES)):
        return False
    return _has_signature(Path(path), signatures)


def begins_as_hdf5(head: bytes) -> bool:
    """Return whether bytes begin an HDF5 file."""
    return any(head.startswith(HDF5_SIGNATURE, offset) for offset in _HDF5_OFFSETS)


def begins_as_dicom(head: bytes) -> bool:
    """Return whether bytes begin a DICOM file, with its mark or, as of old scanners, with an element."""
    if head.startswith(b"DICM", 128):
        return True
    last = -1
    position = 0
    for _ in range(_ELEMENTS):
        if len(head) < position + 12:
            return False
        group, number, kind, length = _ELEMENT.unpack_from(head, position)
        tag = group << 16 | number
        position += 8
        if not _DICOM_KINDS.fullmatch(kind):  # implicit: no kind, and a length of four bytes
            length = int.from_bytes(head[position - 4 : position], "little")
        elif _LONG_KINDS.fullmatch(kind):
            length = int.from_bytes(head[position : position + 4], "little")
            position += 4
        is_first = last < 0
        if (is_first and group not in _FIRST_GROUPS) or tag <= last or length % 2 or length > _LONGEST:
            return False
        position += length
        last = tag
    return True


# What files of a format hold under any name, by its own suffix
_SIGNATURES: Mapping[str, Callable[[bytes], bool]] = {".h5": begins_as_hdf5, ".dcm": begins_as_dicom}


def may_have_ending(path: str | Path, endings: Sequence[str]) -> bool:
    """As `has_ending`, but False of a file that cannot be read, which is told by the table of claims."""
    try:
        return has_ending(path, endings)
    except InputError:
        return False


def _has_signature(path: Path, signatures: Sequence[Callable[[bytes], bool]]) -> bool:
    if not path.is_file():
        return False
    with as_problem(str(path)), path.open("rb") as file:
        head = file.read(_HDF5_OFFSETS[-1] + len(HDF5_SIGNATURE))
    return any(begins(head) for begins in signatures)


def lfs_pointer_problem(head: bytes, location: Where) -> Problem | None:
    """Return the problem of a file that begins with `head`, if it is a Git LFS pointer, or None."""
    if not head.startswith(_LFS_POINTER):
        return None
    return Problem.at(location, "is a Git LFS pointer, not the data", "git lfs pull", "format")


def unread_format(path: Path) -> str:
    """Name of an unsupported file's format by its suffix, ``"NIfTI"``, empty if it is not in the table."""
    name = path.name.lower()
    endings = [ending for ending in _FORMAT_NAMES if name.endswith(ending)]
    return _FORMAT_NAMES[max(endings, key=len)] if endings else ""


def partner_of(path: Path) -> Path | None:
    """Return the file that a file is read with, by their names: a header beside its voxels, a sweep."""
    candidates = [path.parent.parent / "velodyne" / f"{path.stem}.bin"] if path.suffix == ".label" else []
    for ending in _DETACHED:
        if path.name.endswith(ending):
            stem = path.name.removesuffix(ending)
            candidates += [path.with_name(f"{stem}{header}") for header in _HEADERS]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def is_about(path: Path) -> bool:
    """Return whether a file is documentation, by its name."""
    return _DOCUMENT.fullmatch(path.name) is not None


def why_left_out(path: Path) -> str:
    """Return why no family takes a file: ``"E57, which is not supported"``."""
    if is_about(path):
        return "documentation"
    if _FILE_LIST.fullmatch(path.name):
        return "a list of files"
    partner = partner_of(path)
    if partner is not None:
        return f"read together with {printable(partner.name)}"
    unread = unread_format(path)
    return f"{unread}, which is not supported" if unread else "of an unknown format"
