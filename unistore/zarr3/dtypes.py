"""Zarr v3 data types and fill values (core specification, "Data types" and "Fill value")."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from unistore.errors import StoreError
from unistore.zarr3.documents import shown
from unistore.zarr3.unsupported import unsupported

DTYPE_NAMES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
"""Names of the data types that the engine reads and writes; numpy uses the same names."""

_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def parse_dtype(name: object, where: str) -> np.dtype[Any]:
    """Turn a ``data_type`` member into a native numpy dtype.

    Parameters
    ----------
    name
        ``data_type`` of a ``zarr.json``.
    where
        What to name in an error.

    Raises
    ------
    UnsupportedError
        For any data type but `DTYPE_NAMES`.
    """
    if isinstance(name, str) and name in DTYPE_NAMES:
        return np.dtype(name)
    found = name.get("name", name) if isinstance(name, dict) else name
    raise unsupported(where, f"data type {shown(found)}", ", ".join(DTYPE_NAMES))


def decode_fill(value: object, dtype: np.dtype[Any], where: str) -> np.generic:
    """Turn a ``fill_value`` member into a scalar of `dtype`, bit for bit (NaN payloads included).

    Raises
    ------
    StoreError
        If the value is no fill value of `dtype`.
    """
    try:
        scalar = _decode(value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        msg = f"{where}: fill_value {shown(value)} is not a fill value of {dtype.name} ({error})"
        raise StoreError(msg) from error
    return scalar


def encode_fill(fill: np.generic) -> Any:
    """Turn a scalar into the JSON form of ``fill_value``; `decode_fill` gives the same bits back."""
    kind = fill.dtype.kind
    if kind == "b":
        return bool(fill)
    if kind in "iu":
        return int(fill)
    if kind == "f":
        return _encode_float(fill)
    parts = np.atleast_1d(fill).view(f"f{fill.dtype.itemsize // 2}")
    return [_encode_float(part) for part in parts]


def _decode(value: object, dtype: np.dtype[Any]) -> np.generic:
    kind = dtype.kind
    if kind == "b":
        if not isinstance(value, bool):
            raise ValueError("true or false expected")
        return np.bool_(value)
    if kind in "iu":
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("an integer expected")
        return _scalar(value, dtype)
    if kind == "f":
        return _decode_float(value, dtype)
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("a list of real and imaginary part expected")
    part = np.dtype(f"f{dtype.itemsize // 2}")
    scalar: np.generic = np.array([_decode_float(item, part) for item in value], part).view(dtype)[0]
    return scalar


def _decode_float(value: object, dtype: np.dtype[Any]) -> np.generic:
    if isinstance(value, str):
        if value.startswith("0x"):
            bits = bytes.fromhex(value[2:])
            if len(bits) != dtype.itemsize:
                msg = f"{dtype.itemsize} bytes of hexadecimal digits expected"
                raise ValueError(msg)
            native = bits[::-1] if sys.byteorder == "little" else bits
            scalar: np.generic = np.frombuffer(native, dtype)[0]
            return scalar
        if value not in _SPECIAL:
            raise ValueError("NaN, Infinity, -Infinity or 0x… expected")
        return _scalar(_SPECIAL[value], dtype)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a number expected")
    with np.errstate(over="ignore"):
        return _scalar(value, dtype)


def _scalar(value: object, dtype: np.dtype[Any]) -> np.generic:
    scalar: np.generic = np.array([value], dtype)[0]
    return scalar


def _encode_float(fill: Any) -> float | str:
    number: float = float(fill)
    if math.isnan(number):
        canonical = np.array(math.nan, fill.dtype)
        if canonical.tobytes() == fill.tobytes():
            return "NaN"
        bits: bytes = fill.tobytes()
        return "0x" + (bits[::-1] if sys.byteorder == "little" else bits).hex()
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return number
