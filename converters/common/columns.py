"""Merging the columns of many sources: same names, same row shapes, dtypes promoted without loss."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.errors import Problem, first_few, printable

_STORABLE = ("?", "u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8")
# Of a float by its size in bytes, with the implicit bit (IEEE 754, table 3.5)
_SIGNIFICANT_BITS = {2: 11, 4: 24, 8: 53}
_MAX_FORMS = 6
TEXT_KINDS = "SUO"  # kinds of the dtypes of texts: of one length, and of any
ANY_TEXT = np.dtype(object, metadata={"vlen": str})  # of texts of any length, as h5py has it


@dataclass(frozen=True)
class SourceColumn:
    """Dtype and row shape of a column in one source."""

    dtype: str  # NumPy's dtype string, byte order included: `">f4"`
    row_shape: tuple[int, ...] = ()  # Shape after axis 0

    def __str__(self) -> str:
        dtype = np.dtype(self.dtype)
        name = "text" if dtype.kind in TEXT_KINDS else dtype.name
        return f"{name} {self.row_shape}" if self.row_shape else name


class Merged(NamedTuple):
    """Dtype and row shape of a column in the store."""

    dtype: str  # NumPy dtype name, native: the smallest that represents every source's values exactly
    row_shape: tuple[int, ...]  # Shape after axis 0, the same in every source
    # `source_dtype`: the dtype in all sources, or the indices of the sources by dtype. `missing_in`:
    # indices of the sources without the column, where it is filled.
    attributes: Mapping[str, Any]


def storable(dtype: np.dtype[Any]) -> bool:
    """Return whether values of a dtype can be stored: bool, integers and floats of up to 8 bytes."""
    return dtype.kind in "biuf" and dtype.newbyteorder("=") in map(np.dtype, _STORABLE)


def any_length(values: np.dtype[Any], row_shape: tuple[int, ...] = ()) -> np.dtype[Any]:
    """Return the dtype of an array whose rows have any number of values each, as h5py has it."""
    return np.dtype(object, metadata={"vlen": values, "shape": row_shape})


def is_text(dtype: np.dtype[Any]) -> bool:
    """Return whether rows are texts or byte strings, of one length or any."""
    told: Mapping[str, Any] = dtype.metadata or {}
    return dtype.kind in "SU" or told.get("vlen") is str or told.get("vlen") is bytes


def values_of(dtype: np.dtype[Any]) -> SourceColumn | None:
    """Return the form of the values in rows of any length, texts among them (None: the rows are others)."""
    if is_text(dtype):
        return SourceColumn(dtype.str)
    told: Mapping[str, Any] = dtype.metadata or {}
    values = told.get("vlen")
    if not isinstance(values, np.dtype) or not storable(values):
        return None
    return SourceColumn(values.str, told.get("shape", ()))


def is_lossless(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Whether `target` represents every value of `source` exactly (stricter than NumPy's "safe" casts)."""
    if source.kind in TEXT_KINDS:
        return False
    if source.kind == "b" or target.kind == "b":
        return source.kind == "b"
    if source.kind == "f":
        return target.kind == "f" and target.itemsize >= source.itemsize
    bits = 8 * source.itemsize - (source.kind == "i")
    if target.kind == "f":
        return bits <= _SIGNIFICANT_BITS[target.itemsize]
    if source.kind == "i" and target.kind == "u":
        return False
    return bits <= 8 * target.itemsize - (target.kind == "i")


def promote(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any] | None:
    """Return the smallest storable dtype that represents all values of all `dtypes` exactly, or None."""
    storable = map(np.dtype, _STORABLE)
    return next((each for each in storable if all(is_lossless(dtype, each) for dtype in dtypes)), None)


def missing_value(dtype: str) -> float | bool:
    """Fill value where a source lacks a column: NaN for floats, else 0 or False."""
    return float("nan") if np.dtype(dtype).kind == "f" else 0


def reconcile(
    found: Iterable[tuple[str, Mapping[str, SourceColumn]]], mode: str
) -> tuple[dict[str, Merged], list[Problem]]:
    """Merge the columns of all sources in the order of their first appearance."""
    # "intersection" leaves out columns of several shapes, too.
    sets: dict[tuple[tuple[str, SourceColumn], ...], _ColumnSet] = {}
    numbers = array("i")
    for source, columns in found:
        same = sets.setdefault(tuple(columns.items()), _ColumnSet(source, dict(columns), len(sets)))
        same.count += 1
        numbers.append(same.number)
    column_sets = list(sets.values())
    names = list(dict.fromkeys(name for each in column_sets for name in each.columns))
    everywhere = [name for name in names if all(name in each.columns for each in column_sets)]
    if mode == "intersection":
        names = everywhere
    missing = [name for name in names if name not in everywhere] if mode == "exact" else []
    merged: dict[str, Merged] = {}
    incompatible: list[str] = []
    for name in names:
        column = _merge([each.columns.get(name) for each in column_sets], np.frombuffer(numbers, np.intc))
        if column is not None:
            merged[name] = column
        elif mode != "intersection":
            incompatible.append(name)
    if not missing and not incompatible:
        return merged, []
    differing = [name for name in names if name in missing or name in incompatible]
    has_common = any(name in merged for name in everywhere)
    problem = _columns_differ(
        column_sets, differing, len(numbers), resolvable=not incompatible, has_common=has_common
    )
    return merged, [problem]


@dataclass(slots=True)
class _ColumnSet:
    """Sources with the same columns: the first, and how many there are."""

    source: str
    columns: Mapping[str, SourceColumn]
    number: int
    count: int = 0


def _merge(columns: Sequence[SourceColumn | None], numbers: NDArray[np.intc]) -> Merged | None:
    """Merge a column, given as each set of columns has it. `numbers` are the sets of the sources."""
    present = [column for column in columns if column is not None]
    dtypes_present = [np.dtype(column.dtype) for column in present]
    are_texts = all(dtype.kind in TEXT_KINDS for dtype in dtypes_present)
    dtype = np.dtype(np.uint8) if are_texts else promote(dtypes_present)
    if dtype is None or len({column.row_shape for column in present}) > 1:
        return None

    def sources(dtype: str | None) -> list[int]:
        chosen = np.array([(None if column is None else column.dtype) == dtype for column in columns])
        found: list[int] = np.flatnonzero(chosen[numbers]).tolist()
        return found

    dtypes = list(dict.fromkeys(column.dtype for column in present))
    attributes: dict[str, Any] = {"source_dtype": dtypes[0]}
    if len(dtypes) > 1:
        attributes["source_dtype"] = {each: sources(each) for each in dtypes}
    if len(present) < len(columns):
        attributes["missing_in"] = sources(None)
    return Merged(dtype.name, present[0].row_shape, attributes)


def shape_labels(found: Iterable[tuple[str, Mapping[str, SourceColumn]]]) -> dict[str, str]:
    """Return a label of the columns of each source by its name, alike where no column differs in form."""
    of_sources = {source: dict(columns) for source, columns in found}
    names = list(dict.fromkeys(chain.from_iterable(of_sources.values())))
    forms = list(dict.fromkeys(tuple(map(columns.get, names)) for columns in of_sources.values()))
    parts: list[list[str]] = [[] for _ in forms]
    for number, name in enumerate(names):
        own = [form[number] for form in forms]
        if len(set(own)) > 1 and len(set(map(tuple, parts))) < len(forms):
            for label, column in zip(parts, own, strict=True):
                label.append(_form_label(name, column))
    labels = {form: "-".join(label) for form, label in zip(forms, parts, strict=True)}
    return {source: labels[tuple(map(columns.get, names))] for source, columns in of_sources.items()}


def _form_label(name: str, column: SourceColumn | None) -> str:
    short = re.sub(r"[^A-Za-z0-9]+", "_", name.rpartition("/")[2]).strip("_")
    if column is None:
        return f"no_{short}"
    sizes = "x".join(map(str, column.row_shape))
    return f"{short}_{np.dtype(column.dtype).name}" + (f"_{sizes}" if sizes else "")


def length_table(lengths: Mapping[str, object]) -> str:
    """Return a line for each array: its path, and its length or what stands for it."""
    width = max(map(len, lengths))
    return "\n".join(f"    {path.ljust(width)}  {length}" for path, length in lengths.items())


def _columns_differ(
    found: Sequence[_ColumnSet], names: Sequence[str], count: int, *, resolvable: bool, has_common: bool
) -> Problem:
    """Return the problem with a line for each column: its forms, each with the first source that has it."""
    lines = []
    for name in names:
        sources: dict[str, tuple[str, int]] = {}  # by form: the first, and how many others there are
        for each in found:
            form = str(each.columns[name]) if name in each.columns else "missing"
            first, others = sources.get(form, (each.source, -1))
            sources[form] = first, others + each.count
        forms = [
            f"{form} in {first}" + (f" (+{others})" if others else "")
            for form, (first, others) in sources.items()
        ]
        lines.append(f"    {printable(name)}: {first_few(forms, _MAX_FORMS)}")
    cure = "no one shape and dtype holds them all: --one-store-per-shape, or rename with --map"
    if resolvable:
        cure = "--columns union fills what is missing, --columns intersection takes what all have"
    elif has_common:
        cure = f"{cure}; --columns intersection leaves them out"
    message = "\n".join(["columns differ:", *lines, "   "])
    return Problem(f"{count} sources", message, cure, "columns")
