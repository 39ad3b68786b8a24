"""Patches, crops and windows of a batch, and the values outside of their data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.protocol import Reach
from unistore.data.packed import Allocate, Packed, offsets_from_lengths
from unistore.system.arguments import Arguments, matches_type, wrong_argument
from unistore.system.types import AnyArray, Int64s, Shape

# None: an error. ``"valid"``: zeros, and keys with the valid extent. ``"edge"``: the last value is
# repeated. ``"zero"`` or a number: a constant. ``"drop"``: such samples are left out.
Pad: TypeAlias = Literal["valid", "edge", "zero", "drop"] | float | None

_WORDS = ("valid", "edge", "zero", "drop")


def checked_pad(check: Arguments, pad: Any) -> Pad:
    """Check the argument `pad` of a sample kind.

    Parameters
    ----------
    check : Arguments
        Collects a problem if the argument is invalid.
    pad : object
        Value of the argument.

    Returns
    -------
    Pad
        The same value; a number as Python int or float, so that equal kinds have the same repr.
    """
    if isinstance(pad, str) and pad in _WORDS:
        return pad  # type: ignore[return-value]
    is_number = matches_type(pad, float) or isinstance(pad, (float, np.floating))  # NaN and inf, too
    expected = f"one of {', '.join(map(repr, _WORDS))}, or a number"
    if pad is None or not check.expect("pad", pad, is_number, expected):
        return None
    return int(pad) if isinstance(pad, Integral) else float(pad)


def fill_values(pad: Pad, dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, float]:
    """Return the value that each key is padded with.

    Parameters
    ----------
    pad : Pad
        Option of a sample kind.
    dtypes : mapping of str to dtype
        Dtype of each key that is padded with a number.

    Returns
    -------
    dict of str to number
        `pad` if it is a number, otherwise 0.

    Raises
    ------
    InputError
        If the number is not a value of a dtype. The message names the keys.
    """
    if pad is None or isinstance(pad, str):
        return dict.fromkeys(dtypes, 0)
    wrong = [key for key, dtype in dtypes.items() if not _is_representable(dtype, pad)]
    if wrong:
        named = ", ".join(f"{key} ({dtypes[key]})" for key in wrong)
        fix = "give a number in their range, or leave these keys out of fields=[…]"
        raise wrong_argument("pad", f"is {pad}, which is not a value of {named}", fix)
    return dict.fromkeys(dtypes, pad)


def _is_representable(dtype: np.dtype[Any], number: float) -> bool:
    # Floating-point dtypes after rounding
    if dtype.kind not in "biufc":
        return False
    try:
        with np.errstate(over="ignore"):
            value = dtype.type(number)
    except (OverflowError, ValueError):
        return False
    if dtype.kind in "biu":
        return bool(value == number)
    return bool(np.isfinite(value)) or not math.isfinite(number)


def copy_padded(inside: AnyArray, out: AnyArray, pad: Pad, fill: Any) -> None:
    """Copy data to the low corner of `out` and pad the rest.

    Parameters
    ----------
    inside : array
        Data, at most as large as `out` on each axis.
    out : array
        Receives the data.
    pad : Pad
        ``"edge"``: the last values are repeated, as in ``np.pad``. Otherwise `fill` is used.
    fill : scalar
        Value of the padding.

    Raises
    ------
    InputError
        If `pad` is ``"edge"`` and there is no value to repeat.
    """
    if pad == "edge" and not inside.size:
        message = "is 'edge', but an empty sample has no value to repeat"
        raise wrong_argument("pad", message, 'give a number, or pad="drop"')
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


def packed_boxes(
    key: str,
    shapes: Int64s,
    common: Shape | None,
    dtype: np.dtype[Any],
    allocate: Allocate,
    read: Callable[[int, AnyArray], None],
) -> Packed:
    r"""Read the patches of a batch: dense if all have one shape, otherwise flat, one after another.

    Parameters
    ----------
    key : str
        Group of their offsets and shapes, if they differ in shape.
    shapes : int64 array of shape (B, n)
        Shape of each patch.
    common : tuple of int or None
        Shape of the patches of all samples. None: they differ.
    dtype : numpy.dtype
        Dtype of the values.
    allocate : callable
        Called as ``allocate(shape, dtype)`` for the memory of the batch.
    read : callable
        Called as ``read(number, out)`` to fill the memory of patch `number`.

    Returns
    -------
    Packed
        Values of shape (B, \*common), or flat values with offsets and shapes.
    """
    offsets = offsets_from_lengths(shapes.prod(axis=1))
    values = allocate((int(offsets[-1]),), dtype)
    for number, shape in enumerate(shapes.tolist()):
        read(number, values[offsets[number] : offsets[number + 1]].reshape(shape))
    if common is not None and len(shapes):
        return Packed(values.reshape(len(shapes), *common))
    return Packed(values, offsets, key, shapes)


def valid_masks(key: str, sizes: Int64s, inside: Int64s, common: Shape | None, allocate: Allocate) -> Packed:
    """Return masks of patches that are True inside the data.

    Parameters
    ----------
    key : str
        Group of their offsets and shapes, if they differ in shape.
    sizes : int64 array of shape (B, n)
        Shape of each patch.
    inside : int64 array of shape (B, n)
        Extent, from the low corner on, that is inside the data.
    common : tuple of int or None
        Shape of the patches of all samples. None: they differ.
    allocate : callable
        Called as ``allocate(shape, dtype)`` for the memory of the batch.

    Returns
    -------
    Packed
        Bool values.
    """

    def fill(number: int, mask: AnyArray) -> None:
        mask[...] = False
        mask[tuple(map(slice, inside[number]))] = True

    return packed_boxes(key, sizes, common, np.dtype(np.bool_), allocate, fill)


def common_shape(sizes: AnyArray) -> Shape | None:
    """Return the shape that all patches of `sizes` (n, k) have. None: they differ, or there are none."""
    return tuple(sizes[0].tolist()) if len(sizes) and (sizes == sizes[:1]).all() else None


def reach_of_boxes(
    kind: Any,
    option: str,
    extents: Int64s,
    counts: Int64s,
    nouns: tuple[str, str],
) -> tuple[Reach, NDArray[np.bool_]]:
    """Return how patches fit their data, and which data have samples.

    Parameters
    ----------
    kind : SampleKind
        The sample kind.
    option : str
        Name of its option with the size of the patches, (k,). If the option is None, patches are whole.
    extents : int64 array of shape (n, k)
        Extents of the data that patches are taken from.
    counts : int64 array of shape (n,)
        Number of samples from each.
    nouns : (str, str)
        Words of the message for patches (with ``{}`` for their size) and for data.

    Returns
    -------
    reach : Reach
        The fit of the kind.
    has_samples : bool array of shape (n,)
        False for data without samples, because ``pad="drop"`` and patches are larger.
    """
    size = getattr(kind, option)
    smaller = np.zeros(len(extents), np.bool_) if size is None else (extents < size).any(axis=1)
    samples = int(counts.sum())
    if not smaller.any():
        return Reach(samples), ~smaller
    smallest_extents = extents.min(axis=0)
    pad = getattr(kind, "pad", None)
    options: dict[str, Any] = {option: tuple(np.minimum(size, np.maximum(smallest_extents, 1)).tolist())}
    if hasattr(kind, "pad"):
        options["pad"] = None
    fitting = replace(kind, **options)
    shown, smallest = (" × ".join(map(str, extent)) for extent in (size, smallest_extents.tolist()))
    boxes, data = nouns
    message = f"{boxes.format(shown)} do not fit into {int(smaller.sum()):,} of {len(extents):,} {data}"
    message += f"; the smallest has {smallest}"
    beyond = int(counts[smaller].sum())
    if pad == "drop":
        return Reach(samples - beyond, problem=message, fitting=fitting), ~smaller
    return Reach(samples, beyond, pad is not None, message, fitting), np.ones_like(smaller)


def set_sizes(kind: Any, option: str, count: int) -> None:
    """Replace an option of a kind that gives one size for `count` axes by a tuple with a size for each."""
    sizes = getattr(kind, option)
    if sizes is not None:
        several = tuple(sizes) if isinstance(sizes, Sequence) else (sizes,) * count
        object.__setattr__(kind, option, several)
