"""The first difference of two arrays, described for people."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import is_lossless


def difference(stored: NDArray[Any], other: NDArray[Any], first: int = 0) -> str | None:
    """Describe the first difference of two arrays with rows on axis 0, or return None if they are equal."""
    # Values of different dtypes are compared in one that represents both exactly. Rows are counted from
    # `first`.
    if stored.shape != other.shape:
        return f"shapes {stored.shape} and {other.shape}"
    if stored.dtype.names is not None:
        fields = (difference(stored[name], other[name], first) for name in stored.dtype.names)
        return next((reason for reason in fields if reason is not None), None)
    if stored.dtype.kind in "OSU":
        return _text_difference(stored, other, first)
    if stored.dtype.kind == "c" and stored.size:
        real = difference(stored.real, other.real, first)
        return real or difference(stored.imag, other.imag, first)
    common = np.promote_types(stored.dtype, other.dtype)
    if not (is_lossless(stored.dtype, common) and is_lossless(other.dtype, common)):
        return f"dtypes {stored.dtype} and {other.dtype}, which no dtype holds both"
    if not stored.size:
        return None
    one = _bits(stored, common)
    two = _bits(other, common)
    if np.array_equal(one, two):
        return None
    wrong = (one != two).reshape(len(stored), -1)
    row = int(np.flatnonzero(wrong.any(axis=1))[0])
    column = int(np.flatnonzero(wrong[row])[0])
    ours, theirs = (values.reshape(len(values), -1)[row, column] for values in (stored, other))
    return f"row {first + row}: {ours} and {theirs}, {np.count_nonzero(wrong)} of {wrong.size} values differ"


def _text_difference(stored: NDArray[Any], other: NDArray[Any], first: int) -> str | None:
    for row, (one, two) in enumerate(zip(stored.flat, other.flat, strict=True)):
        ours = _bytes(one)
        theirs = _bytes(two)
        if ours != theirs:
            return f"row {first + row}: {ours!r:.60} and {theirs!r:.60}"
    return None


def _bytes(text: Any) -> bytes:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else bytes(text)


def _bits(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return values in a dtype, viewed as unsigned integers of native byte order."""
    plain = np.ascontiguousarray(values, dtype.newbyteorder("="))
    return plain.view(f"u{plain.itemsize}")
