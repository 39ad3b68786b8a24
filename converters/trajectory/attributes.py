"""What a trajectory file says about itself, as JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from unistore.converters.trajectory.source import Array

__all__ = ["plain_value", "small_values"]


def plain_value(value: Any) -> Any:
    """An attribute's or small array's value as JSON; what JSON lacks becomes text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        return [plain_value(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def small_values(array: Array) -> Any:
    """All values of a small array as JSON.

    Raises
    ------
    InputError
        If they cannot be read.
    """
    return plain_value(array.value())
