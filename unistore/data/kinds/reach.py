"""Checks whether samples extend beyond their data, and whether limits leave any samples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from unistore.data.kinds.protocol import SampleKind, SampleReader
from unistore.errors import InputError, Problem

_PAD = (
    'pad them with pad="edge", "zero" or a number; kinds that are cut from larger data also have "valid" '
    '(zeros, with keys for the valid extent) and "drop", which leaves such samples out'
)


def check_reach(readers: Sequence[SampleReader], paths: Sequence[str]) -> None:
    """Refuse samples that extend beyond their data without `pad`, and limits that leave no samples."""
    reaches = [reader.reach() for reader in readers]
    problems = [
        Problem(path, reach.problem, _cure(reach.fitting), "padding")
        for path, reach in zip(paths, reaches, strict=True)
        if reach.beyond and not reach.padded
    ]
    if not problems and not any(reach.samples for reach in reaches):
        problems = [
            Problem(
                path, reach.problem, f"{as_code(reach.fitting)} has samples" if reach.fitting else "", "empty"
            )
            for path, reach in zip(paths, reaches, strict=True)
            if reach.problem
        ]
    if problems:
        raise InputError(problems)


def _cure(fitting: SampleKind | None) -> str:
    if fitting is None or getattr(fitting, "pad", None) is not None:
        return _PAD
    fits = f"{as_code(fitting)} fits"
    return f"{fits}; or {_PAD}" if hasattr(fitting, "pad") else fits


def as_code(kind: Any) -> str:
    """Return a kind as Python code without default values: ``unistore.Patches(size=32)``."""
    if not dataclasses.is_dataclass(kind):
        return repr(kind)
    arguments = []
    for option in dataclasses.fields(kind):
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
