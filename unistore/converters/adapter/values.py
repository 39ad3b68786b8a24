"""Values as columns have them: numbers, numbers of classes, texts, and lists of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from unistore.converters.adapter.stored_columns import CLASSES, field_of, ragged_field_of
from unistore.converters.schema import Column
from unistore.errors import InputError, Location, Problem, first_few
from unistore.schemas.ragged import TEXT_SUFFIX
from unistore.schemas.tables import Field, IndexValues, bounds_field, offsets_of
from unistore.system.types import AnyArray, Dtype, Int64s, UInt8s

# Dtype of numbers, by the first of these kinds that a column allows, and the integers that it holds
_DTYPES = {"i": "int64", "u": "uint64", "f": "float64", "b": "bool"}
_LARGEST = int(np.finfo(np.float64).max)
_BOUNDS = {
    "int64": (-(1 << 63), (1 << 63) - 1),
    "uint64": (0, (1 << 64) - 1),
    "uint8": (0, 255),
    "bool": (0, 1),
    "float64": (-_LARGEST, _LARGEST),
}
_WORDS = {
    "int64": "whole number",
    "uint64": "whole number from 0",
    "float64": "number",
    "bool": "truth value",
}


def number_dtype(column: Column) -> str:
    """Return the dtype of a number of samples or sources, or of the items of a ragged column of these."""
    if column.classes:
        return "uint8"
    return next(dtype for kind, dtype in _DTYPES.items() if kind in column.kinds)


def _is_number(value: object, dtype: str) -> bool:
    """Return whether a value is a number that a dtype of `number_dtype` holds."""
    if not isinstance(value, (int, float, np.integer, np.floating, np.bool_)):
        return False
    if isinstance(value, (float, np.floating)):
        if dtype == "float64":
            return True
        if not float(value).is_integer():
            return False
    least, most = _BOUNDS[dtype]
    return least <= int(value) <= most


def expected_of(name: str, column: Column) -> str:
    """Return what a value of samples or sources is to be, for messages."""
    if name.endswith(TEXT_SUFFIX):
        return "a text"
    if column.classes:
        return f"one of {first_few(column.classes)}"
    number = _WORDS[number_dtype(column)]
    return f"a list of {number}s" if column.ragged else f"a {number}"


def stored_value(name: str, column: Column, value: object) -> AnyArray | None:
    """Return a value of a sample or source as its column has it, (items,) (None: it cannot have it)."""
    if name.endswith(TEXT_SUFFIX):
        return _utf8(value) if isinstance(value, str) else None
    dtype = number_dtype(column)
    if column.ragged:
        items = value.tolist() if isinstance(value, np.ndarray) else value
        is_list = isinstance(items, (list, tuple)) and all(_is_number(item, dtype) for item in items)
        return np.array(items, dtype) if is_list else None
    if column.classes and isinstance(value, str):
        value = column.classes.index(value) if value in column.classes else None
    if not _is_number(value, dtype) or (column.classes and np.array(value, dtype) >= len(column.classes)):
        return None
    return np.array([value], dtype)


def _utf8(text: str) -> UInt8s:
    """Return the bytes of a text, in which stray surrogates become backslash escapes."""
    return np.frombuffer(text.encode("utf-8", "backslashreplace"), np.uint8)


def value_arrays(
    table: str, name: str, column: Column, values: Iterable[AnyArray], counts: Int64s, axis: str
) -> Iterator[tuple[Field, IndexValues]]:
    """Yield a column of values of `stored_value`: an array, or the two of a ragged column.

    `counts` says how many items the value of each sample or source has, ``axis`` of them.
    """
    dtype = np.dtype(np.uint8) if name.endswith(TEXT_SUFFIX) else np.dtype(number_dtype(column))
    joined = np.concatenate([np.empty(0, dtype), *values]).astype(dtype)
    if not column.ragged:
        yield field_of(f"{table}/{name}", column, axis, dtype.name), joined
        return
    yield ragged_field_of(f"{table}/{name}", column, dtype.name), joined
    yield item_bounds(f"{table}/{name}", axis), offsets_of(counts)


def item_bounds(group: str, axis: str) -> Field:
    """Return the field of the offsets of a ragged column."""
    return bounds_field(f"{group}/offsets", axis, f"{axis} i is data[offsets[i]:offsets[i + 1]]")


def coded(texts: Iterable[Any], classes: Sequence[str], location: Location) -> UInt8s:
    """Return the numbers of classes, from their names.

    Raises
    ------
    InputError
        If a text is the name of none. Rows are counted from that of `location`.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    codes = []
    for row, text in enumerate(texts, location.row or 0):
        name = text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else str(text)
        if name not in numbers:
            message = f"is {name!r:.60}, which is not one of the classes {first_few(classes)}"
            fix = "skip the file with --exclude; the family can also declare this class"
            raise InputError(Problem.at(location._replace(row=row), message, fix, "values"))
        codes.append(numbers[name])
    return np.array(codes, np.uint8)


def check_codes(codes: AnyArray, classes: Sequence[str], location: Location) -> None:
    """Refuse numbers of rows that stand for no class, where a file has numbers and not names.

    Raises
    ------
    InputError
        For the first of them. Rows are counted from that of `location`.
    """
    outside = np.flatnonzero((codes < 0) | (codes >= len(classes)))
    if len(outside):
        row = int(outside[0])
        message = (
            f"is {codes.flat[row]}, but the classes {first_few(classes)} have the numbers 0 to "
            f"{len(classes) - 1}"
        )
        row = row // max(1, codes[:1].size) + (location.row or 0)
        fix = "write the file again, or skip it with --exclude; the family can also declare this class"
        raise InputError(Problem.at(location._replace(row=row), message, fix, "values"))


def class_texts(codes: AnyArray, attributes: Mapping[str, Any], dtype: Dtype) -> AnyArray:
    """Return names of classes from their numbers, as a source has texts: the inverse of `coded`."""
    names = attributes[CLASSES]
    texts: list[Any] = [names[str(code)] for code in codes.tolist()]
    if dtype.kind != "U":  # text_rows gives bytes, too
        texts = [text.encode("utf-8", "surrogateescape") for text in texts]
    return np.array(texts, dtype)
