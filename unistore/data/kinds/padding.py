"""What stands where a box, crop or window reaches beyond its data: ``pad``, of every kind that cuts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unistore.data.packed import Allocate, Packed, offsets_from_lengths
from unistore.errors import InputError, Problem
from unistore.system.arguments import Arguments, fits

__all__ = ["Pad", "as_pad", "check_pad", "fills", "put", "valid_masks"]

Pad: TypeAlias = Literal["valid", "edge", "zero", "drop"] | float | None
"""None: nothing may reach beyond its data. ``"valid"``: zeros, and each sample tells how far its data reach.
``"edge"``: the last value is repeated. ``"zero"`` or a number: that. ``"drop"``: such are no samples."""

_WORDS = ("valid", "edge", "zero", "drop")


def check_pad(check: Arguments, pad: object) -> None:
    """Note a `pad` that is not one of them."""
    number = fits(pad, float) or (isinstance(pad, (float, np.floating)) and not isinstance(pad, bool))
    right = number or (isinstance(pad, str) and pad in _WORDS)
    expected = f"one of {', '.join(map(repr, _WORDS))}, or a number"
    check.expect("pad", pad, right, expected, none=True)


def as_pad(pad: Any) -> Pad:
    """A checked `pad` with its number as Python's: equal ones are written alike."""
    if pad is None or isinstance(pad, str):
        return pad  # type: ignore[return-value]
    return int(pad) if isinstance(pad, Integral) else float(pad)


def fills(pad: Pad, dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, Any]:
    """Value of each key beyond its data; 0 unless `pad` is a number.

    Raises
    ------
    InputError
        If a dtype cannot hold the number; names all such keys.
    """
    if pad is None or isinstance(pad, str):
        return dict.fromkeys(dtypes, 0)
    wrong = [key for key, dtype in dtypes.items() if not _holds(dtype, pad)]
    if wrong:
        named = ", ".join(f"{key} ({dtypes[key]})" for key in wrong)
        cure = "a number that they can hold, or fields=[…] without them"
        raise InputError(Problem("pad", f"is {pad}, which cannot stand in {named}", cure, "option"))
    return dict.fromkeys(dtypes, pad)


def _holds(dtype: np.dtype[Any], number: float) -> bool:
    """Whether a value of this dtype is the number, rounded at most."""
    if dtype.kind == "b":
        return number in (0, 1)
    if dtype.kind in "iu":
        return (
            number == math.trunc(number) and _within(dtype, int(number)) if math.isfinite(number) else False
        )
    if dtype.kind not in "fc":
        return False
    if not isinstance(number, int) and not math.isfinite(number):
        return True
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.asarray(float(number)).astype(dtype)))
    except OverflowError:
        return False


def _within(dtype: np.dtype[Any], number: int) -> bool:
    bounds = np.iinfo(dtype)
    return int(bounds.min) <= number <= int(bounds.max)


def put(inside: NDArray[Any], out: NDArray[Any], pad: Pad, fill: Any) -> None:
    """Write data to the low corner of `out`, and what `pad` says behind them; as ``np.pad``.

    Parameters
    ----------
    inside
        The data, no axis longer than that of `out`.
    out
        Written as a whole.
    fill
        What stands there unless it is the edge, see `fills`.

    Raises
    ------
    InputError
        If there are no data whose edge could be repeated.
    """
    if pad == "edge" and not inside.size:
        message = "is 'edge', and there are no data to repeat: an extent is 0"
        raise InputError(Problem("pad", message, 'a number, or "drop"', "option"))
    filled = [slice(extent) for extent in inside.shape]
    if pad != "edge":
        out[...] = fill
        out[tuple(filled)] = inside
        return
    out[tuple(filled)] = inside
    for axis, extent in enumerate(inside.shape):
        if extent < out.shape[axis]:
            before, behind = filled.copy(), filled.copy()
            before[axis], behind[axis] = slice(extent - 1, extent), slice(extent, None)
            out[tuple(behind)] = out[tuple(before)]
            filled[axis] = slice(None)


def valid_masks(
    key: str,
    sizes: NDArray[np.int64],
    inside: NDArray[np.int64],
    shape: Sequence[int] | None,
    allocate: Allocate,
) -> Packed:
    """Masks of boxes (B, …) bool, True where they have data.

    Parameters
    ----------
    key
        Of the masks: the group of their offsets where they are ragged.
    sizes, inside
        (B, n) each: extents of the box, and of the data at its low corner.
    shape
        Of every box; None: they differ.
    """
    offsets = offsets_from_lengths(sizes.prod(axis=1))
    values = allocate((int(offsets[-1]),), np.dtype(np.bool_))
    values[...] = False
    for i, (size, extents) in enumerate(zip(sizes.tolist(), inside.tolist(), strict=True)):
        mask = values[offsets[i] : offsets[i + 1]].reshape(size)
        mask[tuple(slice(extent) for extent in extents)] = True
    return (
        Packed(values, offsets, key, sizes) if shape is None else Packed(values.reshape(len(sizes), *shape))
    )
