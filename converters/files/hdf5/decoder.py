"""Decoding of HDF5 chunks whose filters are native code, in a helper process."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from unistore.converters.files.hdf5.helper_process import HelperDiedError, HelperProcess

_TIMEOUT = 60.0
"""Seconds for a chunk and the start of the process; chunks above 60 MB get one second a MB."""


class Filter(NamedTuple):
    """One filter of a dataset: its registered number and its parameters."""

    number: int
    values: tuple[int, ...]


_helper = HelperProcess("unistore.converters.files.hdf5.decoder_process")
stop = _helper.stop


def decode_in_helper(stored: bytes, target: memoryview, filters: Sequence[Filter]) -> None:
    """Decode a chunk.

    Parameters
    ----------
    stored
        The chunk's bytes in the file.
    target
        Filled with the decoded bytes.
    filters
        Those that were applied, in the order of writing.

    Raises
    ------
    ValueError
        If the chunk does not decode to exactly the bytes of `target`, or its filter crashes or hangs.
    """
    message = {"bytes": len(target), "stored": len(stored), "filters": filters}
    head = bytearray(8)
    try:
        with _helper.request(max(_TIMEOUT, len(target) / 1e6)) as request:
            request.write(message, stored)
            request.read(memoryview(head))
            (size,) = struct.unpack("<q", head)
            if size == len(target):
                request.read(target)
                return
            error_text = bytearray(min(1000, max(0, -size)))
            request.read(memoryview(error_text))
    except HelperDiedError as error:
        raise ValueError(_describe_exit(error.code)) from error
    raise ValueError(error_text.decode("utf-8", "replace"))


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "its filter hangs"
    return f"its filter crashed (signal {-code})" if code < 0 else f"its filter ended the process ({code})"
