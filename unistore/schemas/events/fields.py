"""Declare what a store of recordings of event cameras holds."""

# - ``events/t`` (N,) microseconds, uint32 if all files have their times so, else int64. Within a recording,
#   times do not fall.
# - ``events/x``, ``events/y`` (N,) uint16, ``events/p`` (N,) uint8: 1 if the pixel became brighter, else 0.
# - ``recordings/offsets`` (R + 1,): recording i has the events ``offsets[i]:offsets[i + 1]``.
# - ``marks/t``: the times of every 4,096th event of each recording, and of its last one.
#   ``sources/marks/offsets`` says which marks are whose.
# - ``sources/width``, ``sources/height``: pixels of the sensor. ``sources/t_offset``: microseconds to add to
#   ``t`` for the time on the clock that the file names.
# - ``frames/t``, ``frames/image`` and ``boxes/t``, ``boxes/<field>``: what lies beside some recordings, with
#   times on the clock of ``t`` plus ``t_offset``. ``sources/frames/offsets`` and ``sources/boxes/offsets``
#   say which rows are whose.

from __future__ import annotations

FAMILY_NAME = "events"
TIMES, COLUMNS, ROWS, POLARITIES = (f"events/{name}" for name in ("t", "x", "y", "p"))
RECORDINGS = "recordings/offsets"
MARKS = "marks/t"
MARKS_OF = "sources/marks/offsets"
WIDTHS = "sources/width"
HEIGHTS = "sources/height"
T_OFFSETS = "sources/t_offset"
BESIDE = ("frames", "boxes")  # tables of what lies beside recordings, each with a column `t`
MARK_ROWS = 4096  # events from one mark to the next
