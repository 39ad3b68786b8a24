"""Checks of arguments. All problems are reported at once."""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, TypeGuard, Union, get_args, get_origin

from unistore.errors import Fixes, InputError, Problem

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


def wrong_argument(name: str, message: str, fix: Fixes = "") -> InputError:
    """Return the error of one argument, option or file that was given."""
    return InputError(Problem(name, message, fix, "option"))


class Arguments:
    """Collects problems of arguments for `raise_problems`, as checks return whether a value is valid."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def refuse(self, name: str, message: str, fix: str = "") -> bool:
        """Add a problem and return False."""
        self.problems.append(Problem(name, message, fix, "option"))
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
        bound = f"at most {most:,}" if is_integer(value, least) else f"at least {least:,}"
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

    def names(self, name: str, value: object) -> bool:
        """Expect a string, or a collection of strings."""
        several = isinstance(value, Collection) and all(isinstance(item, str) for item in value)
        return self.expect(name, value, several, "a name, or several", none=True)

    def function(self, name: str, value: Callable[..., Any] | None) -> bool:
        return self.expect(name, value, callable(value), "a function", none=True)

    def expect(self, name: str, value: object, right: bool, expected: str, *, none: bool = False) -> bool:
        """Expect anything else: `right` says whether the value is valid, `expected` what it must be."""
        if right or (none and value is None):
            return True
        return self.refuse(name, f"must be {expected}, got {reprlib.repr(value)}")


def _is_finite(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")


def _is_list(value: Any) -> bool:
    is_several = isinstance(value, Collection) and not isinstance(value, (str, bytes, Mapping))
    return is_several and getattr(value, "ndim", 1) == 1


# What values of a type annotation are called, and whether a value is one
_Rule: TypeAlias = tuple[str, Callable[[Any], bool]]

_BASIC_RULES: dict[Any, _Rule] = {
    int: ("a whole number", is_integer),
    float: ("a finite number", _is_finite),
    bool: ("True or False", _is_bool),
    str: ("a text", lambda value: isinstance(value, str)),
    NoneType: ("None", lambda value: value is None),
}


def _rule(hint: Any) -> _Rule:
    if hint in _BASIC_RULES:
        return _BASIC_RULES[hint]
    origin = get_origin(hint)
    inner = get_args(hint)
    if origin is Literal:
        return (
            f"one of {', '.join(map(repr, inner))}",
            lambda value: isinstance(value, str) and value in inner,
        )
    if origin in (Union, UnionType):
        rules = list(map(_rule, inner))
        names = " or ".join(name for name, _ in rules)
        return names, lambda value: any(matches(value) for _, matches in rules)
    generic = origin if isinstance(origin, type) else object
    if issubclass(generic, Mapping):
        _, is_key = _rule(inner[0])
        _, is_item = _rule(inner[1])
        return (
            "a mapping of names",
            lambda value: (
                isinstance(value, Mapping) and all(map(is_key, value)) and all(map(is_item, value.values()))
            ),
        )
    if issubclass(generic, Sequence):
        name, is_item = _rule(inner[0])
        length = len(inner) if origin is tuple and Ellipsis not in inner else None
        many = "a list" if length is None else f"a list of {length}"
        return (
            f"{many}, each {name}",
            lambda value: _is_list(value) and length in (None, len(value)) and all(map(is_item, value)),
        )
    return f"a {hint.__name__}", lambda value: isinstance(value, hint)


def matches_type(value: Any, hint: Any) -> bool:
    """Return whether a value matches a type annotation."""
    _, matches = _rule(hint)
    return matches(value)


def describe_type(hint: Any) -> str:
    """Return a type annotation in words, for messages."""
    name, _ = _rule(hint)
    return name
