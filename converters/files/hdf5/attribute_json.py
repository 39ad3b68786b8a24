"""Lossless JSON of one HDF5 attribute: dtype, shape and values.

::

    {"dtype": "<f4", "value": 0.5}                        a number
    {"dtype": ">i2", "shape": [2], "value": [1, 2]}       an array, its values in C order
    {"dtype": "text", "encoding": "utf-8", "value": "m"}  text; "bytes": its length, if fixed
    {"dtype": "<f4", "shape": null}                       empty (a null dataspace)
    {"shape": [], "fields": {"a": …, "b": …}}             a compound value: its fields, each as above

Floats that JSON lacks are strings, as in Zarr's fill values: "NaN", "Infinity", "-Infinity", and "0x" with
the bits of any other NaN. Complex numbers are pairs. Bytes that are not UTF-8 are {"hex": "ff"}.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.hdf5 import library as h5py

_TEXT = "text"
_SPECIAL_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def type_problem(dtype: np.dtype[Any]) -> str | None:
    """Why values of a dtype cannot be stored; None if they can."""
    if dtype.fields is not None:
        inner = (type_problem(field) for field, *_ in dtype.fields.values())
        return next((problem for problem in inner if problem is not None), None)
    if dtype.subdtype is not None:
        return type_problem(dtype.base)
    if h5py.check_string_dtype(dtype) is not None:
        return None
    if h5py.check_ref_dtype(dtype) is not None:
        return "references"
    if dtype.kind == "O":
        return "values of variable length"
    if dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8):
        return None
    return f"values of dtype {dtype}"


def encode(values: NDArray[Any] | None, dtype: np.dtype[Any]) -> dict[str, Any]:
    """An attribute as JSON.

    Parameters
    ----------
    values
        As `h5py.h5a.AttrID.read` returns them: text as bytes. None for an empty attribute.
    dtype
        Of the attribute; `type_problem` must be None for it.
    """
    if values is None:
        return {**_describe_dtype(dtype)[0], "shape": None}
    if dtype.fields is not None:
        fields = {name: encode(values[name], field.base) for name, (field, *_) in dtype.fields.items()}
        return {"shape": list(values.shape), "fields": fields}
    kind, element = _describe_dtype(dtype)
    found = [element(value) for value in values.reshape(-1)]
    if not values.shape:
        return {**kind, "value": found[0]}
    return {**kind, "shape": list(values.shape), "value": found}


def _describe_dtype(dtype: np.dtype[Any]) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """JSON of a dtype, and the function that converts one value of it to JSON."""
    text = h5py.check_string_dtype(dtype)
    if text is not None:
        length = {} if text.length is None else {"bytes": text.length}
        return {"dtype": _TEXT, "encoding": text.encoding, **length}, _text_to_json
    names = h5py.check_enum_dtype(dtype)
    enum = {} if names is None else {"enum": {str(name): int(number) for name, number in names.items()}}
    if dtype.kind == "c":
        return {"dtype": dtype.str}, lambda value: [_float_to_json(value.real), _float_to_json(value.imag)]
    return {"dtype": dtype.str, **enum}, _float_to_json if dtype.kind == "f" else np.generic.item


def _text_to_json(value: bytes) -> Any:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def _float_to_json(value: Any) -> Any:
    number = float(value)
    if math.isfinite(number):
        return number
    for name, known in _SPECIAL_FLOATS.items():
        if np.asarray(known, value.dtype).tobytes() == value.tobytes():
            return name
    return f"0x{int(value.view(f'u{value.itemsize}')):0{2 * value.itemsize}x}"


def is_plain(entry: Mapping[str, Any]) -> bool:
    """Whether h5py writes the same attribute given the value alone: UTF-8 text or Python numbers."""
    value = entry.get("value")
    if entry.get("dtype") == _TEXT:
        return isinstance(value, str) and entry["encoding"] == "utf-8" and "bytes" not in entry
    values = value if isinstance(value, list) else [value]
    is_python = entry.get("dtype") in ("<i8", "<f8", "|b1") and "enum" not in entry
    return is_python and bool(values) and all(isinstance(each, int | float) for each in values)


def decode(entry: Mapping[str, Any]) -> Any:
    """Inverse of `encode`: an array of the attribute's dtype, with text as bytes; or `h5py.Empty`.

    Raises
    ------
    AttributeError, LookupError, TypeError, ValueError
        If `entry` was not written by `encode`.
    """
    if "fields" in entry:
        return _decode_compound(entry)
    dtype = _decode_dtype(entry)
    if "shape" not in entry:
        return _decode_array([entry["value"]], dtype).reshape(())
    if entry["shape"] is None:
        return h5py.Empty(dtype)
    return _decode_array(entry["value"], dtype).reshape(tuple(entry["shape"]))


def _decode_compound(entry: Mapping[str, Any]) -> NDArray[Any]:
    fields = {name: decode(field) for name, field in entry["fields"].items()}
    shape = tuple(entry["shape"])
    if any(values.shape[: len(shape)] != shape for values in fields.values()):
        msg = f"fields of a compound value of shape {shape} have another shape"
        raise ValueError(msg)
    forms = [(name, values.dtype, values.shape[len(shape) :]) for name, values in fields.items()]
    whole = np.empty(shape, np.dtype(forms))
    for name, values in fields.items():
        whole[name] = values
    return whole


def _decode_dtype(entry: Mapping[str, Any]) -> np.dtype[Any]:
    if entry["dtype"] == _TEXT:
        text: np.dtype[Any] = h5py.string_dtype(entry["encoding"], entry.get("bytes"))
        return text
    dtype: np.dtype[Any] = np.dtype(entry["dtype"])
    if (problem := type_problem(dtype)) is not None or dtype.fields is not None:
        msg = f"attributes cannot have {problem or 'fields in their dtype'}"
        raise ValueError(msg)
    if "enum" in entry:
        dtype = h5py.enum_dtype(entry["enum"], dtype)
    return dtype


def _decode_array(values: Sequence[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Values of one axis, (n,)."""
    if dtype.kind == "c":
        parts = np.dtype(f"{dtype.str[0]}f{dtype.itemsize // 2}")
        return _decode_array([part for pair in values for part in pair], parts).view(dtype)
    if h5py.check_string_dtype(dtype) is not None:
        plain = [
            bytes.fromhex(each["hex"]) if isinstance(each, Mapping) else each.encode() for each in values
        ]
    else:
        plain = [_parse_special_float(each, dtype) if isinstance(each, str) else each for each in values]
    out = np.empty(len(plain), dtype)
    for number, value in enumerate(plain):
        out[number] = value
    return out


def _parse_special_float(text: str, dtype: np.dtype[Any]) -> Any:
    if text in _SPECIAL_FLOATS:
        return _SPECIAL_FLOATS[text]
    return np.array(int(text, 16), f"u{dtype.itemsize}").view(dtype.newbyteorder("="))[()]
