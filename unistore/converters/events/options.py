"""Options of recordings of event cameras, and what their stores hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unistore.converters.options import Options, option
from unistore.plugin import Column, Schema
from unistore.schemas.events.fields import MARK_ROWS

Unit = Literal["auto", "us", "ms", "ns", "s"]


@dataclass(frozen=True, kw_only=True)
class EventsOptions(Options):
    """Options of recordings of event cameras, for `unistore.convert` and for the command line.

    ``unistore convert events --help`` describes each of them.

    Examples
    --------
    >>> unistore.convert("recordings/", "events.zarr", sensor=(640, 480), unit="us")  # doctest: +SKIP
    """

    sensor: tuple[int, int] | None = option(
        None, "Width and height of the sensor, if the files do not state them.", metavar="PIXELS", least=1
    )
    unit: Unit = option("auto", "Unit of the times. auto reads whole numbers as microseconds.")
    order: Literal["auto", "txyp", "xytp", "xypt"] = option(
        "auto",
        "Order of the four numbers of an event in (N, 4) arrays and text. auto chooses the only "
        "order that fits.",
        late=True,
    )
    events: str = option(
        "", "Group or array of the events in a file. Example: davis/left/events.", metavar="PATH"
    )


OWN = "recording/"  # begins the names of metadata that are the family's, not the file's
WIDTH, HEIGHT, OFFSET, COLUMNS, LOW, BOXES = (
    f"{OWN}{name}" for name in ("width", "height", "t_offset", "columns", "low", "boxes")
)
# Chosen by the time to decode 50,000 events, which a trial by size would miss: coordinates 31 instead of 40
# microseconds, and smaller; polarities 1 instead of 50, for 0.9 bytes an event.
_BITS = "lz4 bitshuffle 2"

SCHEMA = Schema(
    table="events",
    columns={
        "t": Column(kinds="iuf", unit="us", description="Time", dtype="int64"),
        "x": Column(kinds="iu", unit="px", description="Column of the pixel", dtype="uint16", codec=_BITS),
        "y": Column(kinds="iu", unit="px", description="Row of the pixel", dtype="uint16", codec=_BITS),
        "p": Column(kinds="biuf", description="1: became brighter, 0: darker", dtype="uint8", codec="none"),
    },
    samples="recordings",
    per_source={
        "width": Column(kinds="i", unit="px", description="Columns of the sensor", source=WIDTH),
        "height": Column(kinds="i", unit="px", description="Rows of the sensor", source=HEIGHT),
        "t_offset": Column(kinds="i", unit="us", description="Added to t: the clock", source=OFFSET),
    },
    tables={
        "marks": {
            "t": Column(
                kinds="i",
                unit="us",
                description=f"Time of every {MARK_ROWS}th event of a recording, and of its last",
                dtype="int64",
            )
        }
    },
)
