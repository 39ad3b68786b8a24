"""What a trajectory file says about itself, as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from unistore.converters.files.hdf5.file import names_in, place, read_objects

__all__ = ["plain_attributes", "small_values"]


def plain_value(value: Any) -> Any:
    """An attribute's or small dataset's value as JSON; what JSON lacks becomes text."""
    if isinstance(value, h5py.Empty):
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        return [plain_value(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def plain_attributes(group: h5py.Group) -> dict[str, Any]:
    """Attributes as JSON; one whose type cannot be read says so."""
    values: dict[str, Any] = {}
    for key in names_in(group.attrs, place(Path(group.file.filename).name, group.name)):
        try:
            values[key] = plain_value(group.attrs[key])
        except (OSError, TypeError, ValueError) as error:
            values[key] = f"unreadable: {error}"
    return values


def small_values(dataset: h5py.Dataset, location: str) -> Any:
    """All values of a small dataset as JSON.

    Raises
    ------
    InputError
        If they cannot be read.
    """
    return plain_value(read_objects(dataset, location))
