"""The compiled kernel: `kernel.c` beside this module as a shared library, where it could be built."""

# A shared library without Python: ctypes lets other threads run while it works

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

PATH = Path(__file__).with_name("_kernel.abi3.so")
# Of `unistore_kernel_version`
_VERSION = 4
_POINTER = ctypes.c_void_p
_INTEGER = ctypes.c_int64
# Memory of one frame, of one chunk, decoder (None: chunks are uncompressed), checksum
_DECODING = (_POINTER, _INTEGER, _POINTER, _POINTER, _POINTER)
_ARGUMENTS = {
    "unistore_find_points": [_POINTER, *[_INTEGER] * 3, _POINTER, _INTEGER, _POINTER],
    "unistore_draw_subset": [ctypes.c_uint64, *[_INTEGER] * 2, _POINTER, _INTEGER, _POINTER],
    "unistore_dequantise": [_POINTER, _INTEGER, *[_POINTER] * 3, _INTEGER, _INTEGER, _POINTER],
    "unistore_read_ranges": [
        *(_POINTER, _INTEGER),  # ranges
        *(_POINTER, _INTEGER),  # shards
        *(_INTEGER, _INTEGER),  # rows of a chunk, bytes of a row
        *(_POINTER, _INTEGER),  # output, its rows
        *_DECODING,
    ],
    "unistore_read_boxes": [
        *(_POINTER, _INTEGER),  # boxes
        *(_INTEGER, _POINTER, _INTEGER),  # axes, shapes of a chunk and of the output, bytes of an element
        _POINTER,  # output
        *_DECODING,
    ],
}


@cache
def kernel() -> ctypes.CDLL | None:
    """Load the kernel, once a process. None: Python does its work.

    That is so where no compiler was found when unistore was installed, where an older build is left, and with
    ``UNISTORE_KERNEL=0`` in the environment.
    """
    return None if os.environ.get("UNISTORE_KERNEL") == "0" else load(PATH)


def load(path: Path) -> ctypes.CDLL | None:
    """Load a built kernel, or return None if there is none of this version."""
    try:
        library = ctypes.CDLL(str(path))
        version: int = library.unistore_kernel_version()
    except (OSError, AttributeError):
        return None
    if version != _VERSION:
        return None
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = _INTEGER
    return library
