"""Read ``info.json`` of a case: its text, and the geometry of the volume."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unistore.errors import InputError, Problem

_MAX_BYTES = 16 << 20
_GEOMETRY = {"spacing": 3, "origin": 3, "direction": 9}


def read_info(path: Path, location: str) -> tuple[str, dict[str, list[float]]]:
    """Text of the file, and ``spacing``, ``origin``, ``direction`` as far as it has them.

    Raises
    ------
    InputError
        No JSON, or too long.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
        if len(raw) > _MAX_BYTES:
            message = f"is longer than {_MAX_BYTES} bytes"
            raise InputError(Problem(location, message, "it should describe one volume", "json"))
        text = raw.decode("utf-8")
        content = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        message = f"is no JSON: {error}"
        raise InputError(Problem(location, message, "correct it or leave it out", "json")) from error
    if not isinstance(content, Mapping):
        return text, {}
    found = {name: _numbers(content.get(name), count) for name, count in _GEOMETRY.items()}
    return text, {name: numbers for name, numbers in found.items() if numbers is not None}


def _numbers(value: Any, count: int) -> list[float] | None:
    """Flat list of `count` finite numbers, or None."""
    if isinstance(value, list) and all(isinstance(row, list) for row in value):
        value = [number for row in value for number in row]
    if not isinstance(value, list) or len(value) != count:
        return None
    if not all(isinstance(number, int | float) and not isinstance(number, bool) for number in value):
        return None
    numbers = [float(number) for number in value]
    return numbers if all(map(math.isfinite, numbers)) else None
