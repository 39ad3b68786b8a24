"""Columns of many sources brought to one form: same names, same row shapes, dtypes promoted without loss."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.options import Columns
from unistore.errors import Problem, printable

__all__ = [
    "Column",
    "Merged",
    "is_lossless",
    "missing_value",
    "promote",
    "reconcile",
    "storable",
]

_STORABLE = ("?", "u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8")
_MANTISSA = {2: 11, 4: 24, 8: 53}
"""Significant bits of a float by its size in bytes, the implicit one included (IEEE 754, table 3.5)."""
_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Column:
    """Form of a column in one source.

    Attributes
    ----------
    dtype
        As numpy writes it, byte order included: ``">f4"``.
    row_shape
        Shape after axis 0.
    """

    dtype: str
    row_shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        name = np.dtype(self.dtype).name
        return f"{name} {self.row_shape}" if self.row_shape else name


@dataclass(frozen=True, slots=True)
class Merged:
    """Form of a column in the store.

    Attributes
    ----------
    dtype
        numpy dtype name, native: the smallest that holds every source's values exactly.
    row_shape
        Shape after axis 0, the same in every source.
    attributes
        ``source_dtype``: the one dtype of all sources, or their indices by dtype; ``missing_in``: indices of
        the sources that lack the column and are filled.
    """

    dtype: str
    row_shape: tuple[int, ...]
    attributes: Mapping[str, Any]


def storable(dtype: np.dtype[Any]) -> bool:
    """Whether values of a dtype can be stored: bool, integers and floats of up to 8 bytes."""
    return dtype.kind in "biuf" and dtype.newbyteorder("=").str[1:] in {
        np.dtype(d).str[1:] for d in _STORABLE
    }


def is_lossless(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Whether every value of `source` has an equal value in `target` (numpy's "safe" casts are laxer)."""
    if source.kind == "b" or target.kind == "b":
        return source.kind == "b"
    if source.kind == "f":
        return target.kind == "f" and target.itemsize >= source.itemsize
    bits = 8 * source.itemsize - (source.kind == "i")
    if target.kind == "f":
        return bits <= _MANTISSA[target.itemsize]
    if source.kind == "i" and target.kind == "u":
        return False
    return bits <= 8 * target.itemsize - (target.kind == "i")


def promote(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any] | None:
    """Smallest storable dtype that holds all values of all `dtypes` exactly; None if there is none."""
    for candidate in map(np.dtype, _STORABLE):
        if all(is_lossless(dtype, candidate) for dtype in dtypes):
            return candidate
    return None


def missing_value(dtype: str) -> float | bool:
    """What stands where a source lacks a column: NaN for floats, else 0 or False."""
    return float("nan") if np.dtype(dtype).kind == "f" else 0


def reconcile(
    found: Iterable[tuple[str, Mapping[str, Column]]], mode: Columns
) -> tuple[dict[str, Merged], list[Problem]]:
    """Bring the columns of all sources to one form.

    Parameters
    ----------
    found
        Name of each source and its columns.
    mode
        What to do with columns that some sources lack.

    Returns
    -------
    dict of Merged, list of Problem
        Columns in the order of their first appearance; one Problem with a table column × source if they
        cannot be reconciled.
    """
    sets: dict[tuple[tuple[str, Column], ...], _Alike] = {}
    numbers = array("i")
    for source, columns in found:
        alike = sets.setdefault(tuple(columns.items()), _Alike(source, dict(columns), len(sets)))
        alike.count += 1
        numbers.append(alike.number)
    alike_sets = list(sets.values())
    names = list(dict.fromkeys(name for each in alike_sets for name in each.columns))
    everywhere = [name for name in names if all(name in each.columns for each in alike_sets)]
    if mode == "intersection":
        names = everywhere
    missing = [name for name in names if name not in everywhere] if mode == "exact" else []
    merged: dict[str, Merged] = {}
    clashing: list[str] = []
    for name in names:
        form = _merge([each.columns.get(name) for each in alike_sets], np.frombuffer(numbers, np.intc))
        if form is None:
            clashing.append(name)
        else:
            merged[name] = form
    if not missing and not clashing:
        return merged, []
    differing = [name for name in names if name in missing or name in clashing]
    return merged, [_difference(alike_sets, differing, len(numbers), resolvable=not clashing)]


@dataclass(slots=True)
class _Alike:
    """Sources with the same columns: the first, and how many there are."""

    source: str
    columns: Mapping[str, Column]
    number: int
    count: int = 0


def _merge(forms: Sequence[Column | None], numbers: NDArray[np.intc]) -> Merged | None:
    """Form of a column, of which each set of columns has one; `numbers` are the sources' sets."""
    present = [form for form in forms if form is not None]
    dtype = promote([np.dtype(form.dtype) for form in present])
    if dtype is None or len({form.row_shape for form in present}) > 1:
        return None

    def sources(dtype: str | None) -> list[int]:
        chosen = np.array([(None if form is None else form.dtype) == dtype for form in forms])
        found: list[int] = np.flatnonzero(chosen[numbers]).tolist()
        return found

    kinds = list(dict.fromkeys(form.dtype for form in present))
    attributes: dict[str, Any] = {"source_dtype": kinds[0]}
    if len(kinds) > 1:
        attributes["source_dtype"] = {kind: sources(kind) for kind in kinds}
    if len(present) < len(forms):
        attributes["missing_in"] = sources(None)
    return Merged(dtype.name, present[0].row_shape, attributes)


def _difference(found: Sequence[_Alike], names: Sequence[str], count: int, *, resolvable: bool) -> Problem:
    """One Problem holding a table: a line a column, one column for all sources that look alike."""
    alike: dict[tuple[str, ...], tuple[str, int]] = {}
    for each in found:
        look = tuple(str(each.columns[name]) if name in each.columns else "-" for name in names)
        first, others = alike.get(look, (each.source, -1))
        alike[look] = first, others + each.count
    heads = [first + (f" (+{others})" if others else "") for first, others in alike.values()]
    lines = [
        ["column", *heads],
        *([printable(name), *(look[i] for look in alike)] for i, name in enumerate(names)),
    ]
    shown = [line[: _SHOWN + 1] for line in lines]
    widths = [max(len(line[i]) for line in shown) for i in range(len(shown[0]))]
    table = "\n".join(
        "    " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in shown
    )
    more = f"\n    and {len(heads) - _SHOWN} further combinations" if len(heads) > _SHOWN else ""
    cure = (
        "--columns union fills what is missing, --columns intersection takes what all have"
        if resolvable
        else "no one shape and dtype holds them all: convert them apart, or rename with --map"
    )
    return Problem(f"{count} sources", f"columns differ:\n{table}{more}\n   ", cure, "columns")
