"""Comparison of stored attributes with those of the source file, read with h5py alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.left_out import names_without_numbers
from unistore.converters.common.originals import Compared, difference, objects_in, open_with_h5py
from unistore.converters.files.hdf5.attributes import parse_attributes
from unistore.errors import Location


def compare_attributes(source: str, path: Path, text: str) -> Iterator[Compared]:
    """Compare every attribute that the store has of a file.

    Parameters
    ----------
    source, path
        Name of the source, and its file; opened only if the store has attributes of it.
    """
    kept = parse_attributes(text)
    if not kept:
        return
    with open_with_h5py(path) as file:
        for item, entries in kept.items():
            for name, stored in entries.items():
                found = _difference(file, item, name, stored)
                location = Location(source, f"attribute {name} of {item or '/'}")
                yield Compared(location, path, int(getattr(stored, "size", 0) or 0), found)


def attributes_left_out(
    file: Any,
    text: str,
    stored: Callable[[str], bool],
    otherwise: Callable[[str, Any, Any], bool] = lambda *_: False,
) -> list[str]:
    """Attributes of an open file that the store does not have.

    Parameters
    ----------
    file, text
        The file, and the text of the source, see `attribute_texts`.
    otherwise
        ``(path, object, name)``: whether the store has an attribute in another form.
    """
    kept = parse_attributes(text)
    found: list[str] = []

    for path, item in [("", file), *objects_in(file)]:
        if isinstance(item, h5py.Group) or stored(path):
            known = kept.get(path, {})
            names = [name for name in item.attrs if name not in known and not otherwise(path, item, name)]
            shown = (name if isinstance(name, str) else repr(name) for name in names)
            found.extend(f"attribute {name} of {path or '/'}" for name in shown)
    return names_without_numbers(found)


def _difference(file: Any, path: str, name: str, stored: Any) -> str | None:
    is_there = not path or path in file
    if is_there and name in file[path or "/"].attrs:
        attributes = file[path or "/"].attrs
        dtype = attributes.get_id(name).dtype
        if not _same_type(dtype, stored.dtype):
            return f"dtypes {_shown(stored.dtype)} and {_shown(dtype)}"
        value = attributes[name]
        if isinstance(value, h5py.Empty) or isinstance(stored, h5py.Empty):
            both_empty = isinstance(value, h5py.Empty) and isinstance(stored, h5py.Empty)
            return None if both_empty else "only one of them has a value"
        return _values_difference(stored, np.asarray(value, dtype if dtype.names else None))
    return "only the store has it"


def _same_type(one: np.dtype[Any], two: np.dtype[Any]) -> bool:
    """Whether dtypes are equal, with their fields, text lengths and encodings, and names of enumerations."""
    if one.fields is not None and two.fields is not None and one.names == two.names:
        return all(
            one.fields[name][0].shape == two.fields[name][0].shape
            and _same_type(one.fields[name][0].base, two.fields[name][0].base)
            for name in one.names or ()
        )
    metadata = [(h5py.check_string_dtype(each), h5py.check_enum_dtype(each)) for each in (one, two)]
    return one == two and metadata[0] == metadata[1]


def _shown(dtype: np.dtype[Any]) -> str:
    text = h5py.check_string_dtype(dtype)
    return str(dtype) if text is None else f"text {text.encoding} of {text.length or 'any'} bytes"


def _values_difference(stored: NDArray[Any], value: NDArray[Any]) -> str | None:
    if stored.shape != value.shape:
        return f"shapes {stored.shape} and {value.shape}"
    if stored.dtype.names is not None:
        parts = (_values_difference(stored[name], value[name]) for name in stored.dtype.names)
        return next((part for part in parts if part is not None), None)
    if stored.dtype.kind in "OSU":
        texts = [(_bytes(one), _bytes(two)) for one, two in zip(stored.flat, value.flat, strict=True)]
        unlike = next(((one, two) for one, two in texts if one != two), None)
        return None if unlike is None else f"{unlike[0]!r:.60} and {unlike[1]!r:.60}"
    if stored.dtype.kind == "c":
        return _values_difference(stored.real, value.real) or _values_difference(stored.imag, value.imag)
    return difference(stored.reshape(-1), value.reshape(-1))


def _bytes(text: Any) -> bytes:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else bytes(text)
