"""The axis of a value that has its components: the channels of an image, the numbers of a vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from unistore.errors import InputError
from unistore.system.arguments import is_integer, wrong_argument
from unistore.system.types import Shape

AxisLike: TypeAlias = int | str | None  # a number below 0, a name, "auto", or None: a single component

_AUTO = "auto"
_CHANNEL = "channel"
_COLOURS = {-3: (3,), -1: (3, 4)}  # Extents of the axes that may be the channels of an image in colour
_SHORT = 4  # No picture has so few rows or columns
_PIXELS = ("bool", "uint8", "uint16")  # Without channels, values of these dtypes with two axes are pictures


@dataclass(frozen=True, slots=True)
class ComponentAxis:
    """An axis of a value."""

    index: int  # counted from the end, below 0
    name: str | None = None  # as the store records it


def component_axis(
    key: str,
    shape: Shape,  # of a value; an extent of 0 is not known
    dtype: np.dtype[Any],
    names: Sequence[str],  # that the store records for the last axes; empty: none
    asked: AxisLike = _AUTO,
    *,
    is_box: bool = False,  # a part of a volume or a recording: all values are one component, but for channels
) -> ComponentAxis | None:
    """Return the axis of the components of a value, or None for a single component.

    Raises
    ------
    InputError
        If two axes may be meant, or there is no such axis.
    """
    if asked != _AUTO:
        return _axis_asked_for(key, shape, names, asked)
    if not shape:
        return None
    channels = [index for index in range(-len(names), 0) if _is_called(names[index], _CHANNEL)]
    if len(channels) == 1:
        return _axis(channels[0], names)
    if is_box:
        return None
    if len(shape) == 1:
        return _axis(-1, names)
    candidates = _possible_channels(shape)
    is_picture = dtype.name in _PIXELS
    if len(candidates) == 1:
        return _axis(candidates[0], names)
    if len(shape) == 2 and not is_picture and min(shape) <= _SHORT:
        return _axis(-1, names)
    if not candidates and is_picture:
        return None
    raise _undecided(key, shape, names)


def is_asked_for(axis: ComponentAxis | None, asked: AxisLike) -> bool:
    """Return whether an axis is the one that an argument names."""
    if axis is None or asked is None:
        return axis is None and asked is None
    if isinstance(asked, str):
        return axis.name is not None and _is_called(axis.name, asked)
    return axis.index == asked


def _axis(index: int, names: Sequence[str]) -> ComponentAxis:
    return ComponentAxis(index, names[index] if len(names) >= -index else None)


def _is_called(name: str, asked: str) -> bool:
    # Names of axes that only one column has begin with the name of the column
    return name == asked or name.endswith(f"_{asked}")


def _possible_channels(shape: Shape) -> list[int]:
    ends = [-1] if len(shape) < 3 else [-3, -1]
    colours = [index for index in ends if shape[index] in _COLOURS[index]]
    return colours or [index for index in ends if shape[index] == 1][:1]


def _axis_asked_for(
    key: str, shape: Shape, names: Sequence[str], asked: int | str | None
) -> ComponentAxis | None:
    if asked is None:
        return None
    if isinstance(asked, str):
        found = [index for index in range(-len(names), 0) if _is_called(names[index], asked)]
        if len(found) != 1:
            there = f"has the axes {', '.join(names)}" if names else "has axes without names"
            message = f"is {asked!r}, but {key} {there}"
            raise wrong_argument("axis", message, _ways(shape, names))
        return _axis(found[0], names)
    if not is_integer(asked):
        message = f"must be a negative number, the name of an axis, None or 'auto', got {asked!r}"
        raise wrong_argument("axis", message)
    if not -len(shape) <= asked < 0:
        form = f"have the shape {shape}" if shape else "are single numbers"
        message = f"must be a negative number that counts from the end, got {asked}; values of {key} {form}"
        is_from_start = 0 <= asked < len(shape)
        fix = f"give axis={asked - len(shape)}" if is_from_start else _ways(shape, names)
        raise wrong_argument("axis", message, fix)
    return _axis(asked, names)


def _undecided(key: str, shape: Shape, names: Sequence[str]) -> InputError:
    message = f"values of {key} have the shape {shape}, and more than one axis may be the components"
    return wrong_argument("axis", message, _ways(shape, names))


def _ways(shape: Shape, names: Sequence[str]) -> str:
    if not shape:
        return "give axis=None"
    ways = []
    for index in range(-len(shape), 0):
        name = _axis(index, names).name
        about = f"{shape[index]} components" if name is None else f"{name}, {shape[index]} components"
        ways.append(f"axis={index} ({about})")
    return f"give {', '.join(ways)}, or axis=None for all values together"
