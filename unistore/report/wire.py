"""How a view of a sample travels to a page: JSON, then arrays, in one piece of bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.views import View
from unistore.errors import printable
from unistore.remote.url import redact_urls

_ALIGN = 8
_MAX_TEXT = 200
# What a script has typed arrays of
_DTYPES = frozenset(("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64"))


def pack(view: View) -> bytes:
    """Pack a view: the length of the JSON (4 bytes), the JSON, and little-endian arrays at multiples of 8."""
    arrays: dict[str, dict[str, Any]] = {}
    parts = []
    place = 0
    for name, values in view.arrays.items():
        typed = _typed(values)
        data = typed.tobytes()
        arrays[name] = {"dtype": typed.dtype.name, "shape": list(typed.shape), "place": place}
        parts.append(data + bytes(-len(data) % _ALIGN))
        place += len(parts[-1])
    head = {"widget": view.widget, "title": view.title, **view.head, "arrays": arrays}
    text = json.dumps(clean(head), allow_nan=False).encode()
    text += b" " * (-(len(text) + 4) % _ALIGN)
    return len(text).to_bytes(4, "little") + text + b"".join(parts)


def pack_error(message: str) -> bytes:
    """Pack the reason why a sample cannot be shown, as `pack` does a view."""
    text = json.dumps({"widget": "error", "title": clean(message), "arrays": {}}).encode()
    return len(text).to_bytes(4, "little") + text


def clean(value: Any) -> Any:
    """Return JSON values with short printable texts without secrets, and None for what is no number."""
    if isinstance(value, str):
        text = printable(redact_urls(value[: 4 * _MAX_TEXT]))
        return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
    if isinstance(value, Mapping):
        return {key: clean(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return list(map(clean, value))
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def _typed(values: NDArray[Any]) -> NDArray[Any]:
    """Return values in a dtype of typed arrays. Integers of 64 bits become floats."""
    dtype = values.dtype
    if dtype.kind == "b":
        dtype = np.dtype(np.uint8)
    elif dtype == np.float16:
        dtype = np.dtype(np.float32)
    elif dtype.name not in _DTYPES:
        dtype = np.dtype(np.float64)
    return np.ascontiguousarray(values, dtype.newbyteorder("<"))
