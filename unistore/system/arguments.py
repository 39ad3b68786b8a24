"""Checks of arguments. All problems are reported at once."""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, TypeGuard, Union, get_args, get_origin

from unistore.errors import InputError, Problem

MAX_COUNT = 2**31 - 1  # Largest count of batches, samples of a batch, voxels of an axis
MAX_EPOCH = 2**62  # Largest epoch, and most samples of an epoch
MAX_WORKERS = 4096  # Largest number of workers of a loader, and of batches prefetched by each


def is_integer(value: object, least: int | None = None, most: int | None = None) -> TypeGuard[int]:
    """Return whether a value is an integer (Python or numpy, not bool) from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return False
    number = int(value)
    return (least is None or number >= least) and (most is None or number <= most)


def checked_epoch(epoch: int) -> int:
    """Return an epoch as a Python integer. Raises `InputError` if it is not one from 0 to `MAX_EPOCH`."""
    check = Arguments()
    check.integer("epoch", epoch, most=MAX_EPOCH)
    check.raise_problems()
    return int(epoch)


def as_names(names: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Return names that were given as one text, or as several. None: none were given."""
    if names is None:
        return None
    return (names,) if isinstance(names, str) else tuple(names)


def wrong_argument(name: str, message: str, cure: str = "") -> InputError:
    """Return the error of one argument, option or file that was given."""
    return InputError(Problem(name, message, cure, "option"))


class Arguments:
    """Collects problems of arguments for `raise_problems`, as checks return whether a value is valid."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def refuse(self, name: str, message: str, cure: str = "") -> bool:
        """Add a problem and return False."""
        self.problems.append(Problem(name, message, cure, "option"))
        return False

    def raise_problems(self) -> None:
        """Raise an `InputError` with all problems, if there are any."""
        if self.problems:
            raise InputError(self.problems)

    def integer(
        self, name: str, value: object, least: int | None = 0, most: int = MAX_COUNT, *, none: bool = False
    ) -> bool:
        """Expect an integer from `least` to `most`. Least None: any integer."""
        if least is None:
            return self.expect(name, value, is_integer(value), "a whole number", none=none)
        bound = f"at most {most}" if is_integer(value, least) else f"at least {least}"
        right = is_integer(value, least, most)
        return self.expect(name, value, right, f"a whole number of {bound}", none=none)

    def sizes(self, name: str, value: object, count: int, *, none: bool = False) -> bool:
        """Expect `count` integers of at least 1, or one for all of them."""
        numbers = [value] * count if is_integer(value) else value
        several = numbers if isinstance(numbers, (list, tuple)) and len(numbers) == count else [None]
        right = all(is_integer(number, 1, MAX_COUNT) for number in several)
        return self.expect(name, value, right, f"one or {count} whole numbers of at least 1", none=none)

    def number(self, name: str, value: object, *, none: bool = False) -> bool:
        right = matches_type(value, float) and value > 0  # type: ignore[operator]
        return self.expect(name, value, right, "a number above 0", none=none)

    def flag(self, name: str, value: object, *, none: bool = False) -> bool:
        return self.expect(name, value, matches_type(value, bool), "True or False", none=none)

    def one_of(self, name: str, value: object, choices: Collection[str]) -> bool:
        right = isinstance(value, str) and value in choices
        return self.expect(name, value, right, f"one of {', '.join(map(repr, choices))}")

    def text(self, name: str, value: object, *, none: bool = False) -> bool:
        return self.expect(name, value, isinstance(value, str), "a text", none=none)

    def path(self, name: str, value: object, *, none: bool = False) -> bool:
        return self.expect(name, value, isinstance(value, (str, os.PathLike)), "a path", none=none)

    def names(self, name: str, value: object, *, none: bool = True) -> bool:
        """Expect a string, or a collection of strings."""
        several = isinstance(value, Collection) and all(isinstance(item, str) for item in value)
        return self.expect(name, value, several, "a name, or several", none=none)

    def function(self, name: str, value: Callable[..., Any] | None) -> bool:
        return self.expect(name, value, callable(value), "a function", none=True)

    def expect(self, name: str, value: object, right: bool, expected: str, *, none: bool = False) -> bool:
        """Expect anything else: `right` says whether the value is valid, `expected` what it must be."""
        if right or (none and value is None):
            return True
        return self.refuse(name, f"must be {expected}, got {reprlib.repr(value)}")


def _is_finite(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


_NUMPY_BOOLS = ("bool", "bool_")
_BASIC_TYPES: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    int: ("a whole number", is_integer),
    float: ("a finite number", _is_finite),
    bool: ("True or False", lambda value: isinstance(value, bool) or type(value).__name__ in _NUMPY_BOOLS),
    str: ("a text", lambda value: isinstance(value, str)),
    NoneType: ("None", lambda value: value is None),
}


def matches_type(value: Any, hint: Any) -> bool:
    """Return whether a value matches a type annotation."""
    if hint in _BASIC_TYPES:
        return _BASIC_TYPES[hint][1](value)
    origin = get_origin(hint)
    inner = get_args(hint)
    if origin in (Union, UnionType):
        return any(matches_type(value, option) for option in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            matches_type(key, inner[0]) and matches_type(item, inner[1]) for key, item in value.items()
        )
    if isinstance(origin, type) and issubclass(origin, Sequence):
        several = isinstance(value, Collection) and not isinstance(value, (str, bytes, Mapping))
        if not several or getattr(value, "ndim", 1) != 1 or len(value) != (_fixed_length(hint) or len(value)):
            return False
        return all(matches_type(item, inner[0]) for item in value)
    return isinstance(value, hint)


def _fixed_length(hint: Any) -> int | None:
    inner = get_args(hint)
    return len(inner) if get_origin(hint) is tuple and Ellipsis not in inner else None


def describe_type(hint: Any) -> str:
    """Return a type annotation in words, for messages."""
    if hint in _BASIC_TYPES:
        return _BASIC_TYPES[hint][0]
    origin = get_origin(hint)
    inner = get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(describe_type, inner))
    if origin is Literal:
        return f"one of {', '.join(map(repr, inner))}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a mapping of names"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        many = "a list" if _fixed_length(hint) is None else f"a list of {_fixed_length(hint)}"
        return f"{many}, each {describe_type(inner[0])}"
    return f"a {hint.__name__}"
