"""Sample kinds by name and as code: kinds of unistore and of installed packages."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from typing import Any

from unistore.converters.registry import leave_out
from unistore.data.kinds.protocol import Kind, SampleKind
from unistore.errors import InputError, Problem
from unistore.system.arguments import wrong_argument

ENTRY_POINTS = "unistore.kinds"  # Group of the entry points by which packages add kinds

# Module of each kind of unistore, beside this one
OWN = {
    "Clips": "clips",
    "Episodes": "episodes",
    "Events": "events",
    "Patches": "volumes",
    "Ragged": "rows",
    "Rows": "rows",
    "Segments": "segments",
    "SparsePoints": "sparse_points",
    "Steps": "clips",
    "Transitions": "episodes",
    "Volumes": "volumes",
    "Windows": "windows",
}


@cache
def installed_kinds() -> Mapping[str, type[Kind]]:
    """Return the sample kinds of installed packages by name. Kinds that fail are named on standard error."""
    from importlib.metadata import entry_points

    kinds: dict[str, type[Kind]] = {}
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        try:
            kind: type[Kind] = point.load()
        except Exception as error:  # noqa: BLE001  whatever a package raises, the other kinds work
            reason = f"cannot be imported: {type(error).__name__}: {error}"
        else:
            reason = _what_is_wrong(kind, kinds)
            if not reason:
                kinds[kind.__name__] = kind
        if reason:
            leave_kind_out(point.name, f"{point.value} {reason}")
    return kinds


def _what_is_wrong(kind: Any, others: Collection[str]) -> str:
    is_kind = isinstance(kind, type) and issubclass(kind, Kind) and is_dataclass(kind)
    if not is_kind:
        return "is not a dataclass that inherits unistore.plugin.Kind"
    if missing := sorted(kind.__abstractmethods__):
        return f"has no {', '.join(missing)}"
    return "has the same name as another sample kind" if kind.__name__ in {*OWN, *others} else ""


def leave_kind_out(name: str, why: str) -> None:
    """Print on standard error that a sample kind is skipped, and why."""
    leave_out(name, why, "sample kind")


def parse_kind(expression: str) -> SampleKind:
    """Parse a sample kind written as code. The code is not run.

    Parameters
    ----------
    expression : str
        A call with literal arguments: ``"unistore.Patches(96)"``, ``"Patches(96)"`` or ``"Rows"``.

    Returns
    -------
    SampleKind
        The sample kind.

    Raises
    ------
    InputError
        If there is no such kind, its arguments are invalid, or the text is not such a call.

    Examples
    --------
    >>> parse_kind("Patches(96, random=False)")  # doctest: +SKIP
    Patches(size=(96, 96, 96), random=False, per_volume=1, pad=None, step=1, overlap=0.0, foreground=None)
    """
    fix = 'give for example "Patches(96)" or "SparsePoints(\'lung\', max_points=2000)"'
    try:
        code = ast.parse(expression.removeprefix("unistore."), mode="eval").body
        call = code if isinstance(code, ast.Call) else ast.Call(code, [], [])
        positional = [ast.literal_eval(argument) for argument in call.args]
        named = {key.arg: ast.literal_eval(key.value) for key in call.keywords if key.arg is not None}
        kind: SampleKind = _named(ast.unparse(call.func))(*positional, **named)
    except (SyntaxError, ValueError, TypeError) as error:
        reason = str(error)
        if reason.startswith("malformed node"):  # of `literal_eval`, with the repr of a syntax tree
            reason = "its arguments must be numbers, texts in quotes, tuples or lists"
        message = f"{expression!r} is not a sample kind: {reason}"
        raise wrong_argument("samples", message, fix) from error
    return kind


def _named(name: str) -> Callable[..., Any]:
    if name in OWN:
        try:
            kind_class: Callable[..., Any] = getattr(import_module(f"unistore.data.kinds.{OWN[name]}"), name)
        except ImportError as error:
            message = f"needs {error.name}, which cannot be imported: {error}"
            raise InputError(Problem(f"samples={name}", message, "install unistore again")) from error
        return kind_class
    if name not in installed_kinds():
        msg = f"there are {', '.join([*OWN, *installed_kinds()])}"
        raise ValueError(msg)
    return installed_kinds()[name]


def as_code(kind: Any) -> str:
    """Return a sample kind as Python code, without options that have their default value.

    Examples
    --------
    >>> as_code(unistore.Patches(32, random=False))  # doctest: +SKIP
    'unistore.Patches(size=32, random=False)'
    """
    if not is_dataclass(kind):
        return repr(kind)
    arguments = []
    for option in fields(kind):
        value = _value_code(getattr(kind, option.name))
        if value != _value_code(option.default):
            arguments.append(f"{option.name}={value}")
    code = f"{type(kind).__name__}({', '.join(arguments)})"
    return f"unistore.{code}" if type(kind).__module__.startswith("unistore.") else f"'{code}'"


def _value_code(value: Any) -> str:
    if isinstance(value, tuple) and value and all(type(one) is int and one == value[0] for one in value):
        return repr(value[0])
    if isinstance(value, str):
        return f'"{value}"'
    return f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else repr(value)
