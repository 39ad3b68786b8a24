"""Whether some paths are CT volumes: decided by names first, then by headers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from unistore.converters.common.faults import as_problem
from unistore.converters.ct.layouts import format_of, open_voxels, stem_of, suffix_of, suffixes
from unistore.converters.ct.layouts.cases import FOREIGN, POINTS
from unistore.converters.ct.names import image_resolution, window_of
from unistore.converters.detection import Detection
from unistore.converters.files.paths import expand
from unistore.errors import InputError, printable

__all__ = ["detect"]

_HINT = re.compile(r"(^|[^a-z])(ct|hu|vol|volume|volumes|scan|scans)([^a-z]|$)", re.IGNORECASE)


def detect(paths: Sequence[Path]) -> Detection | None:
    """Recognise case folders, windows by their names, and folders of volumes.

    Integers of two or more bytes in three axes are taken for HU; floats and bytes only where a file's or its
    folder's name says ct, hu, volume or scan, since plain arrays may look the same.

    Parameters
    ----------
    paths
        Files or folders as the user gave them.
    """
    try:
        files = expand(paths, (*suffixes(), POINTS, *FOREIGN))
    except InputError:
        return None
    given = {path.parent.resolve() / path.name for path in paths if path.is_file()}
    for file in files:
        name = printable(file.name)
        if image_resolution(file) is not None:
            return Detection("ct", "cases", f"{name} is the volume of a case folder")
        found, points = format_of(file), file.name.lower().endswith(POINTS)
        named = window_of(file) if found or points else None
        if named and file.parent.name == "windows":
            return Detection("ct", "cases", f"windows/{name} is a window of a case folder")
        if named and found:
            return Detection("ct", "files", f"{name} names an intensity window")
        if found.ct_only if found else file in given and file.name.lower().endswith(FOREIGN):
            return Detection("ct", "files", f"{name} is a format of CT volumes")
    return _by_headers(files)


def _by_headers(files: Sequence[Path]) -> Detection | None:
    arrays = [file for file in files if format_of(file)]
    if not arrays or any(file.name.lower().endswith(POINTS) for file in files):
        return None
    for file in arrays:
        try:
            with as_problem(str(file)):
                source = open_voxels(file)
        except InputError:
            return None
        hinted = _HINT.search(stem_of(file)) or _HINT.search(file.parent.name)
        integers = source.dtype.kind in "iu" and source.dtype.itemsize > 1
        if len(source.shape) != 3 or not (integers or hinted):
            return None
    first = printable(arrays[0].name)
    shape, dtype = source.shape, source.dtype
    ending = suffix_of(arrays[0])
    reason = f"{len(arrays)} {ending} files of three axes each, such as {first}: the last is {dtype} {shape}"
    return Detection("ct", "files", reason)
