"""Comparison of stored attributes and single values with those of the file, read with h5py alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from unistore.converters.common.difference import difference
from unistore.converters.common.exported import VALUE
from unistore.converters.common.left_out import names_without_numbers
from unistore.converters.files.hdf5 import library as h5py
from unistore.converters.files.hdf5.attributes import attribute_label, parse_attributes, single_values
from unistore.converters.files.libraries import objects_in


def attribute_differences(file: Any, text: str) -> Iterator[tuple[str, int, str | None]]:
    """Yield label, number of values and difference of all that a text of `attribute_texts` has of a file."""
    for path, entries in parse_attributes(text).items():
        for name, stored in entries.items():
            size = int(getattr(stored, "size", 0) or 0)
            yield attribute_label(path, name), size, _difference(file, path, name, stored)


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
    left_out: list[str] = []
    for path, item in [("", file), *objects_in(file)]:
        if isinstance(item, h5py.Group) or stored(path):
            known = kept.get(path, {})
            names = [name for name in item.attrs if name not in known and not otherwise(path, item, name)]
            shown = (name if isinstance(name, str) else repr(name) for name in names)
            left_out.extend(f"attribute {name} of {path or '/'}" for name in shown)
    return names_without_numbers(left_out)


def without_single_values(names: Iterable[str], text: str) -> list[str]:
    """Return names of datasets without those of the single values that the store has."""
    stored = single_values(parse_attributes(text))
    return [name for name in names if name not in stored]


def _difference(file: Any, path: str, name: str, stored: Any) -> str | None:
    item = file.get(path or "/")
    if item is not None and name == VALUE:
        return _value_difference(stored, item[()], item.dtype)
    if item is None or name not in item.attrs:
        return "only the store has it"
    return _value_difference(stored, item.attrs[name], item.attrs.get_id(name).dtype)


def _value_difference(stored: Any, value: Any, dtype: np.dtype[Any]) -> str | None:
    """Compare a stored value with the one that h5py gives, which has this dtype in its file."""
    if not _same_type(dtype, stored.dtype):
        return f"dtypes {_shown(stored.dtype)} and {_shown(dtype)}"
    if isinstance(value, h5py.Empty) or isinstance(stored, h5py.Empty):
        both_empty = isinstance(value, h5py.Empty) and isinstance(stored, h5py.Empty)
        return None if both_empty else "only one of them has a value"
    read = np.asarray(value, dtype if dtype.names else None)
    if stored.shape != read.shape:
        return f"shapes {stored.shape} and {read.shape}"
    return difference(stored.reshape(-1), read.reshape(-1))


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
