"""Files of stores, as bytes, and a disk that is full."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

from unistore.store.names import SOURCES


def tree(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder by its path, but for the times of sources in stores."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != SOURCES)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def flip(path: Path, at: int, mask: int = 1) -> None:
    """Change bits of a byte of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


def attributes_of(store: Path) -> dict[str, Any]:
    """Return what the root says of a store."""
    attributes: dict[str, Any] = json.loads((store / "zarr.json").read_text())["attributes"]["unistore"]
    return attributes


def full_disk(*_: object, **__: object) -> None:
    """Stand for what writes: there is no room."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
