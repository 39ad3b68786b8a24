"""Filters of HDF5 whose decoders are not ours run in a process apart, which holds nothing but the chunk."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import NamedTuple

from unistore.converters.files.hdf5.apart import Apart, DiedError

__all__ = ["Filter", "decode_apart", "stop"]

_PATIENCE = 60.0
"""Seconds for the process to start, and for any chunk; chunks above 64 MB get a second for each MB."""


class Filter(NamedTuple):
    """One filter of a dataset: its registered number and its parameters."""

    number: int
    values: tuple[int, ...]


_decoder = Apart("unistore.converters.files.hdf5.child")
stop = _decoder.stop


def decode_apart(stored: bytes, target: memoryview, filters: Sequence[Filter]) -> None:
    """Decode a chunk in a process apart.

    Parameters
    ----------
    stored
        The chunk's bytes in the file.
    target
        Where the decoded bytes go, all of them.
    filters
        Those that were applied, in the order of writing.

    Raises
    ------
    ValueError
        If the chunk cannot be decoded to as many bytes, or its decoder crashed or never ends.
    """
    request = {"bytes": len(target), "stored": len(stored), "filters": filters}
    head = bytearray(8)
    try:
        with _decoder.talk(max(_PATIENCE, len(target) / 1e6)) as talk:
            talk.write(json.dumps(request).encode() + b"\n")
            talk.write(stored)
            talk.read(memoryview(head))
            (size,) = struct.unpack("<q", head)
            if size == len(target):
                talk.read(target)
                return
            message = bytearray(min(1000, max(0, -size)))
            talk.read(memoryview(message))
    except DiedError as error:
        raise ValueError(_end(error.code)) from error
    raise ValueError(message.decode("utf-8", "replace"))


def _end(code: int | None) -> str:
    if code is None:
        return "its filter does not come to an end"
    return f"its filter crashed (signal {-code})" if code < 0 else f"its filter ended the process ({code})"
