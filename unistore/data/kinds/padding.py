"""Padding of boxes, crops and windows that extend beyond their data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, Literal, TypeAlias

import numpy as np

from unistore.data.packed import Allocate, Packed, offsets_from_lengths
from unistore.errors import InputError, Problem
from unistore.system.arguments import Arguments, matches_type
from unistore.system.hints import AnyArray, Int64s

Pad: TypeAlias = Literal["valid", "edge", "zero", "drop"] | float | None
"""None: an error. ``"valid"``: zeros, and keys with the valid extent. ``"edge"``: the last value is repeated.
``"zero"`` or a number: a constant. ``"drop"``: such samples are left out."""

_WORDS = ("valid", "edge", "zero", "drop")


def check_pad(check: Arguments, pad: object) -> None:
    """Add a problem if `pad` is not a `Pad`."""
    number = matches_type(pad, float) or (isinstance(pad, (float, np.floating)) and not isinstance(pad, bool))
    right = number or (isinstance(pad, str) and pad in _WORDS)
    expected = f"one of {', '.join(map(repr, _WORDS))}, or a number"
    check.expect("pad", pad, right, expected, none=True)


def normalize_pad(pad: Any) -> Pad:
    """A valid `pad`, with a number as Python int or float, so that equal ones have the same repr."""
    if pad is None or isinstance(pad, str):
        return pad  # type: ignore[return-value]
    return int(pad) if isinstance(pad, Integral) else float(pad)


def fill_values(pad: Pad, dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, Any]:
    """Fill value of each key; 0 unless `pad` is a number."""
    if pad is None or isinstance(pad, str):
        return dict.fromkeys(dtypes, 0)
    wrong = [key for key, dtype in dtypes.items() if not _is_representable(dtype, pad)]
    if wrong:
        named = ", ".join(f"{key} ({dtypes[key]})" for key in wrong)
        cure = "give a number in their range, or fields=[…] without them"
        raise InputError(Problem("pad", f"is {pad}, not a value of {named}", cure, "option"))
    return dict.fromkeys(dtypes, pad)


def _is_representable(dtype: np.dtype[Any], number: float) -> bool:
    """Whether a dtype can represent the number; floating-point ones after rounding."""
    if dtype.kind == "b":
        return number in (0, 1)
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return math.isfinite(number) and number == int(number) and bounds.min <= int(number) <= bounds.max
    if dtype.kind not in "fc":
        return False
    if not isinstance(number, int) and not math.isfinite(number):
        return True
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.asarray(float(number)).astype(dtype)))
    except OverflowError:
        return False


def copy_padded(inside: AnyArray, out: AnyArray, pad: Pad, fill: Any) -> None:
    """Copy data to the low corner of `out` and pad the rest; as ``np.pad``."""
    if pad == "edge" and not inside.size:
        message = "is 'edge', and there are no data to repeat: an extent is 0"
        raise InputError(Problem("pad", message, 'give a number, or "drop"', "option"))
    filled = [slice(extent) for extent in inside.shape]
    if pad != "edge":
        out[...] = fill
        out[tuple(filled)] = inside
        return
    out[tuple(filled)] = inside
    for axis, extent in enumerate(inside.shape):
        if extent < out.shape[axis]:
            before = filled.copy()
            behind = filled.copy()
            before[axis] = slice(extent - 1, extent)
            behind[axis] = slice(extent, None)
            out[tuple(behind)] = out[tuple(before)]
            filled[axis] = slice(None)


def valid_masks(
    key: str,  # of the masks, and group of their offsets if they are ragged
    sizes: Int64s,  # (B, n) extents of each box
    inside: Int64s,  # (B, n) extents of the data at its low corner
    shape: Sequence[int] | None,  # common shape of the boxes; None if they differ
    allocate: Allocate,
) -> Packed:
    """Masks of boxes, (B, …) bool, True where they have data."""
    offsets = offsets_from_lengths(sizes.prod(axis=1))
    values = allocate((int(offsets[-1]),), np.dtype(np.bool_))
    values[...] = False
    for i, (size, extents) in enumerate(zip(sizes.tolist(), inside.tolist(), strict=True)):
        mask = values[offsets[i] : offsets[i + 1]].reshape(size)
        mask[tuple(slice(extent) for extent in extents)] = True
    if shape is None:
        return Packed(values, offsets, key, sizes)
    return Packed(values.reshape(len(sizes), *shape))
