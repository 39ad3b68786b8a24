"""Options of recordings of event cameras."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unistore.converters.options import Options, option

Unit = Literal["auto", "us", "ms", "ns", "s"]


@dataclass(frozen=True, kw_only=True)
class EventsOptions(Options):
    """Options of recordings of event cameras."""

    sensor: tuple[int, int] | None = option(
        None, "Width and height of the sensor, where files do not say them.", metavar="PIXELS", least=1
    )
    unit: Unit = option("auto", "Unit of the times; by default microseconds if they are whole numbers.")
    events: str = option("", "Group or array of the events in a file: davis/left/events.", metavar="PATH")
