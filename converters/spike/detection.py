"""Whether given paths hold spike recordings, from names and headers alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from unistore.converters.common.faults import as_problem
from unistore.converters.detection import Detection
from unistore.converters.files.npy.archive import npz_members
from unistore.converters.files.paths import is_special
from unistore.converters.spike.frames import SUFFIXES
from unistore.errors import InputError

__all__ = ["detect"]

_FOLDERS = 2_000
"""Folders looked into before giving up: detection must not walk a whole archive."""


def detect(paths: Sequence[Path]) -> Detection | None:
    """Recognise sequence folders, ``.dat`` streams, and ``.npz`` files that hold ``spk``."""
    found = [(path, _file(path) if path.is_file() else _folder(path)) for path in paths]
    if any(detection is None for path, detection in found if path.is_file()):
        return None
    return next((detection for _, detection in found if detection is not None), None)


def _file(path: Path) -> Detection | None:
    if is_special(path):
        return None
    if path.suffix.lower() == ".dat":
        return Detection("spike", "stream", f"{path.name} is a headerless .dat stream")
    if path.suffix.lower() != ".npz":
        return None
    with suppress(InputError), as_problem(str(path)):
        header = npz_members(path)["spk"].header
        return Detection("spike", "array", f"{path.name} holds spk {header.shape}")
    return None


def _folder(path: Path) -> Detection | None:
    for folder, inside, files in islice(_walk(path), _FOLDERS):
        for name in ("spike", "spike_vox"):
            if name in inside and _holds_any(Path(folder, name), SUFFIXES["spike"]):
                reason = f"{os.path.relpath(Path(folder, name), path.parent)}/ holds a file for every frame"
                return Detection("spike", "sequences", reason)
        for file in files:
            detection = _file(Path(folder, file))
            if detection is not None:
                return detection
    return None


def _walk(path: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Folders below, without entering links: sorted names, at most one ``.npz`` file a folder."""
    for folder, inside, files in os.walk(path):
        inside.sort()
        streams = sorted(name for name in files if name.lower().endswith(".dat"))
        arrays = sorted(name for name in files if name.lower().endswith(".npz"))
        yield folder, inside, [*streams[:1], *arrays[:1]]


def _holds_any(folder: Path, suffixes: Sequence[str]) -> bool:
    try:
        return any(entry.suffix.lower() in suffixes for entry in folder.iterdir())
    except OSError:
        return False
