"""Keys of users' training configurations that describe a family's samples.

`unistore.config` reads the files and the keys of every family (the store, splits, batches, workers); a family
reads the keys of its samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unistore.errors import Location, Problem

_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "text"}


class Keys:
    """The keys of one configuration file; records which of them were used.

    Parameters
    ----------
    values
        Value by dotted key: ``{"DATA.ROOT": "data"}``.
    location
        Name of the file in messages.
    """

    def __init__(self, values: Mapping[str, Any], location: str) -> None:
        self._values = values
        self._location = location
        self._used: set[str] = set()
        self.problems: list[Problem] = []

    @property
    def unused(self) -> tuple[str, ...]:
        """Keys that were not read, in the file's order."""
        return tuple(key for key in self._values if key not in self._used)

    def has(self, *keys: str) -> bool:
        """Whether any of the keys is there."""
        return any(key in self._values for key in keys)

    def take(self, key: str, kind: type, default: Any = None, *, least: float | None = None) -> Any:
        """Value of a key, or `default` where it is absent, null or of the wrong type (a Problem then)."""
        value = self._values.get(key)
        self._used.add(key)
        if value is None:
            return default
        fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
        if not fits or (isinstance(value, bool) and kind is not bool):
            self.refuse(key, f"is {value!r}, expected {_NAMES[kind]}", "type")
            return default
        if isinstance(value, float) and not math.isfinite(value):
            self.refuse(key, f"is {value}, expected a finite number", "value")
            return default
        if least is not None and value < least:
            self.refuse(key, f"is {value}, must be at least {least:g}", "value")
            return default
        return value

    def workers(self, key: str) -> str | int | None:
        """``"auto"``, ``"cpu*0.9"`` or a number; None where the key is absent."""
        value = self._values.get(key)
        self._used.add(key)
        if value is None or (isinstance(value, (int, str)) and not isinstance(value, bool)):
            return value
        self.refuse(key, f"is {value!r}, expected 'auto', 'cpu*0.9' or a number", "type")
        return None

    def refuse(self, key: str, message: str, kind: str = "contradiction", cure: str = "") -> None:
        """Add a Problem of a key."""
        self.problems.append(Problem.at(Location(self._location, key), message, cure, kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleKeys:
    """How training configurations describe a family's samples.

    Attributes
    ----------
    kind
        Class of the kind of samples: ``"unistore:Clips"``.
    read
        ``read(keys) -> Mapping[str, Any]``: its arguments by name; None values are omitted.
    keys
        A file with any of these keys describes such samples: ``("DATA.CLIP_LEN",)``.
    datasets
        Values of ``dataset.name`` in a file that describes such samples.
    names
        Names that training code uses for keys of samples, see `Dataset`: ``{"voxel": "spike_vox"}``.
    convert
        ``convert(keys) -> Mapping[str, Any]``: options to convert its store with.
    draws
        Whether `kind` has an argument ``random``: true for training, false for validation.
    """

    kind: str
    read: Callable[[Keys], Mapping[str, Any]]
    keys: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    convert: Callable[[Keys], Mapping[str, Any]] = lambda _keys: {}
    draws: bool = False
