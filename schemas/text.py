"""Text columns: a flat array of UTF-8 bytes and one of offsets, as Zarr v3 has no standard string dtype."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.schemas.tables import Field, bounds_field, own_axes


def text_arrays(
    path: str, strings: Iterable[str], *, axis: str = "row", description: str = ""
) -> list[tuple[Field, NDArray[Any]]]:
    """Store strings as ``path/data`` and ``path/offsets``.

    Parameters
    ----------
    path
        Path of the group: ``"volumes/name"``.
    strings
        One string per row. Undecodable bytes of file names (surrogates) are written as backslash escapes.
    axis
        What a string belongs to: ``"volume"``.
    description
        One sentence about the strings.

    Returns
    -------
    list of (Field, array)
        ``data`` u1 (bytes of all strings) and ``offsets`` i8 (n + 1): string *i* is
        ``data[offsets[i]:offsets[i + 1]]``.
    """
    column = path.rpartition("/")[2]
    encoded, ends = bytearray(), array("q", [0])
    for string in strings:
        encoded += string.encode("utf-8", "backslashreplace")
        ends.append(len(encoded))
    data, offsets = np.frombuffer(bytes(encoded), np.uint8), np.array(ends, np.int64)
    data_field = Field(
        path=f"{path}/data",
        dtype="uint8",
        axes=own_axes(column, "byte", 1),
        description=f"{description or column}: UTF-8 text of all rows",
    )
    bounds = f"string i is data[offsets[i]:offsets[i + 1]], one a {axis}"
    return [(data_field, data), (bounds_field(f"{path}/offsets", axis, bounds), offsets)]


def text_values(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> list[str]:
    """Strings of a text column.

    Parameters
    ----------
    data
        (bytes,) u1, UTF-8.
    offsets
        (n + 1,) i8.
    """
    raw = data.tobytes()
    return [raw[lo:hi].decode() for lo, hi in pairwise(offsets.tolist())]
