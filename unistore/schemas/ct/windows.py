"""Intensity windows of CT: what radiologists call window (width) and level, and the presets known by name."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from unistore.errors import InputError, Problem

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Window:
    """An intensity window, both ends inclusive: low = level - width/2, high = level + width/2."""

    name: str  # letters, digits, `_`, `.`, `-`: it becomes a group of the store
    # `width` and `level`: in the image's unit (HU).
    width: float
    level: float

    @property
    def low(self) -> float:
        """Smallest value inside."""
        return self.level - self.width / 2

    @property
    def high(self) -> float:
        """Largest value inside."""
        return self.level + self.width / 2

    def __str__(self) -> str:
        return f"{self.name}:{self.width:g}:{self.level:g}"


# Windows that are known by name.
PRESETS: Mapping[str, Window] = {
    window.name: window
    for window in (
        Window("lung", 1500.0, -600.0),
        Window("bone", 1500.0, 300.0),
        Window("soft_tissue", 400.0, 50.0),
        Window("brain", 80.0, 35.0),
        Window("mediastinum", 350.0, 40.0),
    )
}


# Where the values of a window's points come from. `volume`: the image. `sparse`: files of points; 1 for
# volumes whose window is a mask. `scaled`: windows of floats scaled to 0…1. `mask`: nothing has values, all
# are 1.
ValueSource = Literal["volume", "sparse", "scaled", "mask"]

# Where points have values that neither an image nor the window tells.
OWN_VALUES: tuple[ValueSource, ...] = ("sparse", "scaled")

# What the attribute `values` of a window says to people.
VALUE_SENTENCES: Mapping[ValueSource, str] = {
    "volume": "volumes/image at the point",
    "sparse": "as in the sparse file; 1 where the source is a mask",
    "scaled": "as in the scaled window",
    "mask": "1",
}


def value_source(attributes: Mapping[str, Any]) -> ValueSource:
    """Return where the values of a window's points come from, by the attributes of its group."""
    word = attributes.get("value_source")
    for source in VALUE_SENTENCES:
        if word == source:
            return source
    msg = f"the value source {word!r} of a window is unknown, expected one of {', '.join(VALUE_SENTENCES)}"
    raise ValueError(msg)


def parse_window(text: str) -> Window:
    """Read ``"lung"`` or ``"mywin:400:50"`` (name, width, level)."""
    if text in PRESETS:
        return PRESETS[text]
    name, *numbers = text.split(":")
    try:
        width, level = map(float, numbers)
    except ValueError:
        width = level = math.nan
    if width > 0 and math.isfinite(width) and math.isfinite(level) and _NAME.fullmatch(name):
        return Window(name, width, level)
    form = "a name of letters, digits, '_', '.' and '-', a width above 0 and a level"
    message = f"is neither a window that is known by name nor NAME:WIDTH:LEVEL with {form}"
    fix = f"use one of {', '.join(PRESETS)}, or define a window, for example mywin:400:50"
    raise InputError(Problem(f"--window {text}", message, fix, "option"))
