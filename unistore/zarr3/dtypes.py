"""Zarr v3 data types and fill values (core specification, "Data types" and "Fill value")."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from unistore.errors import StoreError
from unistore.zarr3.documents import shown, unsupported

DTYPE_NAMES = (
    "bool",
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
"""Names of the data types that the engine reads and writes; numpy uses the same names."""

_JSON_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "b": ((bool,), "true or false"),
    "i": ((int,), "an integer"),
    "u": ((int,), "an integer"),
    "f": ((int, float), "a number"),
}
"""By kind of a dtype: types of a fill value in JSON."""
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def parse_dtype(name: object, where: str) -> np.dtype[Any]:
    """Turn a ``data_type`` member into a native numpy dtype; raises `UnsupportedError`."""
    if isinstance(name, str) and name in DTYPE_NAMES:
        return np.dtype(name)
    found = name.get("name", name) if isinstance(name, dict) else name
    raise unsupported(where, f"data type {shown(found)}", ", ".join(DTYPE_NAMES))


def decode_fill(value: object, dtype: np.dtype[Any], where: str) -> np.generic:
    """Turn a ``fill_value`` member into a scalar of `dtype`, bit for bit (NaN payloads included)."""
    try:
        if dtype.kind != "c":
            return _decode(value, dtype)
        if not isinstance(value, list) or len(value) != 2:
            raise ValueError("a list of real and imaginary part expected")
        part = np.dtype(f"f{dtype.itemsize // 2}")
        scalar: np.generic = np.array([_decode(item, part) for item in value], part).view(dtype)[0]
    except (TypeError, ValueError, OverflowError) as error:
        msg = f"{where}: fill_value {shown(value)} is not a fill value of {dtype.name} ({error})"
        raise StoreError(msg) from error
    return scalar


def encode_fill(fill: np.generic) -> Any:
    """Turn a scalar into the JSON form of ``fill_value``; `decode_fill` gives the same bits back."""
    kind = fill.dtype.kind
    if kind != "c":
        return _encode_float(fill) if kind == "f" else fill.item()
    parts = np.atleast_1d(fill).view(f"f{fill.dtype.itemsize // 2}")
    return [_encode_float(part) for part in parts]


def _decode(value: object, dtype: np.dtype[Any]) -> np.generic:
    if dtype.kind == "f" and isinstance(value, str):
        return _decode_float(value, dtype)
    if dtype.kind in "iu" and isinstance(value, float) and value.is_integer():
        value = int(value)
    types, expected = _JSON_TYPES[dtype.kind]
    if type(value) not in types:
        msg = f"{expected} expected"
        raise ValueError(msg)
    with np.errstate(over="ignore"):
        scalar: np.generic = np.array([value], dtype)[0]
    return scalar


def _decode_float(value: str, dtype: np.dtype[Any]) -> np.generic:
    if value in _SPECIAL:
        bits = np.array(_SPECIAL[value], dtype).tobytes()
    elif value.startswith("0x"):
        bits = _big_endian(bytes.fromhex(value[2:]))
    else:
        raise ValueError("NaN, Infinity, -Infinity or 0x… expected")
    if len(bits) != dtype.itemsize:
        msg = f"{dtype.itemsize} bytes of hexadecimal digits expected"
        raise ValueError(msg)
    scalar: np.generic = np.frombuffer(bits, dtype)[0]
    return scalar


def _encode_float(fill: Any) -> float | str:
    number: float = float(fill)
    if math.isnan(number):
        bits: bytes = fill.tobytes()
        return "NaN" if bits == np.array(math.nan, fill.dtype).tobytes() else f"0x{_big_endian(bits).hex()}"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return number


def _big_endian(bits: bytes) -> bytes:
    """Native bytes of a number in big-endian order, or the other way round."""
    return bits[::-1] if sys.byteorder == "little" else bits
