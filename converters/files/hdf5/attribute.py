"""One HDF5 attribute as JSON, exactly: dtype, shape and values; and back again.

::

    {"dtype": "<f4", "value": 0.5}                        a number
    {"dtype": ">i2", "shape": [2], "value": [1, 2]}       an array, its values in C order
    {"dtype": "text", "encoding": "utf-8", "value": "m"}  text; "bytes" beside it: of a fixed length
    {"dtype": "<f4", "shape": null}                       no value at all
    {"shape": [], "fields": {"a": …, "b": …}}             a compound value: its fields, each as above

Numbers that JSON lacks are text, as in the fill values of Zarr: "NaN", "Infinity", "-Infinity", and "0x" with
the bits of any other NaN. Complex numbers are pairs, bytes that are no UTF-8 are {"hex": "ff"}.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

__all__ = ["decoded", "encoded", "is_plain", "type_problem"]

_TEXT = "text"
_NAMED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def type_problem(dtype: np.dtype[Any]) -> str | None:
    """Why values of a dtype cannot be kept; None if they can. Nothing is read."""
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


def encoded(values: NDArray[Any] | None, dtype: np.dtype[Any]) -> dict[str, Any]:
    """An attribute as JSON.

    Parameters
    ----------
    values
        As `h5py.h5a.AttrID.read` gives them: text as bytes. None where there are none.
    dtype
        Of the attribute, one that `type_problem` has nothing against.
    """
    if values is None:
        return {**_described(dtype)[0], "shape": None}
    if dtype.fields is not None:
        fields = {name: encoded(values[name], field.base) for name, (field, *_) in dtype.fields.items()}
        return {"shape": list(values.shape), "fields": fields}
    kind, element = _described(dtype)
    found = [element(value) for value in values.reshape(-1)]
    if not values.shape:
        return {**kind, "value": found[0]}
    return {**kind, "shape": list(values.shape), "value": found}


def _described(dtype: np.dtype[Any]) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """What is said of a dtype, and how one value of it is written."""
    text = h5py.check_string_dtype(dtype)
    if text is not None:
        length = {} if text.length is None else {"bytes": text.length}
        return {"dtype": _TEXT, "encoding": text.encoding, **length}, _plain_text
    names = h5py.check_enum_dtype(dtype)
    enum = {} if names is None else {"enum": {str(name): int(number) for name, number in names.items()}}
    element = {"f": _plain_float, "c": _plain_complex}.get(dtype.kind, _plain_number)
    return {"dtype": dtype.str, **enum}, element


def _plain_number(value: Any) -> Any:
    return value.item()


def _plain_text(value: bytes) -> Any:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def _plain_complex(value: Any) -> list[Any]:
    return [_plain_float(value.real), _plain_float(value.imag)]


def _plain_float(value: Any) -> Any:
    number = float(value)
    if math.isfinite(number):
        return number
    for name, known in _NAMED.items():
        if np.asarray(known, value.dtype).tobytes() == value.tobytes():
            return name
    return f"0x{int(value.view(f'u{value.itemsize}')):0{2 * value.itemsize}x}"


def is_plain(entry: Mapping[str, Any]) -> bool:
    """Whether h5py makes the same attribute of the value alone: text in UTF-8, numbers as Python has them."""
    value = entry.get("value")
    if entry.get("dtype") == _TEXT:
        return isinstance(value, str) and entry["encoding"] == "utf-8" and "bytes" not in entry
    values = value if isinstance(value, list) else [value]
    is_python = entry.get("dtype") in ("<i8", "<f8", "|b1") and "enum" not in entry
    return is_python and bool(values) and all(isinstance(each, int | float) for each in values)


def decoded(entry: Mapping[str, Any]) -> Any:
    """What `encoded` wrote: an array of the attribute's own dtype, text in it as bytes; or `h5py.Empty`.

    Raises
    ------
    AttributeError, LookupError, TypeError, ValueError
        If it is no such entry.
    """
    if "fields" in entry:
        return _compound(entry)
    dtype = _dtype(entry)
    if "shape" not in entry:
        return _array([entry["value"]], dtype).reshape(())
    if entry["shape"] is None:
        return h5py.Empty(dtype)
    return _array(entry["value"], dtype).reshape(tuple(entry["shape"]))


def _compound(entry: Mapping[str, Any]) -> NDArray[Any]:
    fields = {name: decoded(field) for name, field in entry["fields"].items()}
    shape = tuple(entry["shape"])
    if any(values.shape[: len(shape)] != shape for values in fields.values()):
        msg = f"fields of a compound value of shape {shape} have another one"
        raise ValueError(msg)
    forms = [(name, values.dtype, values.shape[len(shape) :]) for name, values in fields.items()]
    whole = np.empty(shape, np.dtype(forms))
    for name, values in fields.items():
        whole[name] = values
    return whole


def _dtype(entry: Mapping[str, Any]) -> np.dtype[Any]:
    if entry["dtype"] == _TEXT:
        text: np.dtype[Any] = h5py.string_dtype(entry["encoding"], entry.get("bytes"))
        return text
    dtype: np.dtype[Any] = np.dtype(entry["dtype"])
    if (problem := type_problem(dtype)) is not None or dtype.fields is not None:
        msg = f"no attribute is kept with {problem or 'fields in its dtype'}"
        raise ValueError(msg)
    if "enum" in entry:
        dtype = h5py.enum_dtype(entry["enum"], dtype)
    return dtype


def _array(values: Sequence[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Values that `encoded` wrote, (n,)."""
    if dtype.kind == "c":
        parts = np.dtype(f"{dtype.str[0]}f{dtype.itemsize // 2}")
        return _array([part for pair in values for part in pair], parts).view(dtype)
    if h5py.check_string_dtype(dtype) is not None:
        plain = [
            bytes.fromhex(each["hex"]) if isinstance(each, Mapping) else each.encode() for each in values
        ]
    else:
        plain = [_number(each, dtype) if isinstance(each, str) else each for each in values]
    out = np.empty(len(plain), dtype)
    for number, value in enumerate(plain):
        out[number] = value
    return out


def _number(text: str, dtype: np.dtype[Any]) -> Any:
    """A number that JSON lacks."""
    if text in _NAMED:
        return _NAMED[text]
    return np.array(int(text, 16), f"u{dtype.itemsize}").view(dtype.newbyteorder("="))[()]
