"""Columns of many sources brought to one form: same names, same row shapes, dtypes promoted without loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from unistore.errors import InputError, Problem, printable

__all__ = [
    "Column",
    "Columns",
    "Merged",
    "check_mode",
    "is_lossless",
    "missing_value",
    "promote",
    "reconcile",
    "storable",
]

Columns = Literal["exact", "union", "intersection"]
"""What to do when sources have different columns: refuse, fill what is missing, take the common ones."""

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


def check_mode(mode: str) -> None:
    """Raise InputError for a mode that `reconcile` does not know."""
    if mode not in get_args(Columns):
        msg = f"columns={mode!r}: expected one of {', '.join(get_args(Columns))}"
        raise InputError(msg)


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
    found: Sequence[tuple[str, Mapping[str, Column]]], mode: Columns
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
    names = list(dict.fromkeys(name for _, columns in found for name in columns))
    everywhere = [name for name in names if all(name in columns for _, columns in found)]
    if mode == "intersection":
        names = everywhere
    missing = [name for name in names if name not in everywhere] if mode == "exact" else []
    merged: dict[str, Merged] = {}
    clashing: list[str] = []
    for name in names:
        form = _merge([columns.get(name) for _, columns in found])
        if form is None:
            clashing.append(name)
        else:
            merged[name] = form
    if not missing and not clashing:
        return merged, []
    differing = [name for name in names if name in missing or name in clashing]
    return merged, [_difference(found, differing, resolvable=not clashing)]


def _merge(forms: Sequence[Column | None]) -> Merged | None:
    present = [form for form in forms if form is not None]
    dtype = promote([np.dtype(form.dtype) for form in present])
    if dtype is None or len({form.row_shape for form in present}) > 1:
        return None
    kinds = list(dict.fromkeys(form.dtype for form in present))
    attributes: dict[str, Any] = {"source_dtype": kinds[0]}
    if len(kinds) > 1:
        attributes["source_dtype"] = {
            kind: [i for i, form in enumerate(forms) if form is not None and form.dtype == kind]
            for kind in kinds
        }
    if len(present) < len(forms):
        attributes["missing_in"] = [i for i, form in enumerate(forms) if form is None]
    return Merged(dtype.name, present[0].row_shape, attributes)


def _difference(
    found: Sequence[tuple[str, Mapping[str, Column]]], names: Sequence[str], *, resolvable: bool
) -> Problem:
    """One Problem holding a table: a line a column, one column for all sources that look alike."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for source, columns in found:
        look = tuple(str(columns[name]) if name in columns else "-" for name in names)
        alike.setdefault(look, []).append(source)
    heads = [members[0] + (f" (+{len(members) - 1})" if members[1:] else "") for members in alike.values()]
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
    return Problem(f"{len(found)} sources", f"columns differ:\n{table}{more}\n   ", cure, "columns")
