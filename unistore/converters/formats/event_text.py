"""Events as text, four numbers a line: time, column, row and polarity, in the order that the numbers show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from unistore.converters.array import Array
from unistore.converters.claims import Claim, no, sure
from unistore.converters.formats.lazy import TextRows
from unistore.converters.opened import HEAD_BYTES, Format, Metadata, OpenFile, SourceFile
from unistore.system.types import AnyArray

EVENTS = "events"  # name of the array, (N, 4)
ORDERS = ("txyp", "xytp", "xypt")  # of four numbers, as v2e, MVSEC and others write them
_COMMENTS = ("#", "%", "//")
_LEAST = 2  # lines of events that tell a file of them


class EventText(Format):
    """Lines of four numbers, behind comments and perhaps a line with width and height of the sensor."""

    name = "event_text"
    suffixes = ("events.txt",)  # clouds and texts about other files end in .txt, too
    offered = False

    def recognise(self, file: SourceFile) -> Claim:
        """Take lines that fit."""
        lines = _lines(file)
        _, rows, _ = _beginning(lines)
        if _are_events(rows):
            return sure("begins with lines of t, x, y and p")
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith(_COMMENTS) or len(line.split()) == 2:
                continue
            _, behind, _ = _beginning(lines[number:])
            if _are_events(behind):  # a first line that lost its sense
                message = f"line {number} is {line.strip()[:40]!r}, but the next lines are t, x, y and p"
                raise file.problem(message, "correct or remove this line")
            break
        return no("does not begin with lines of t, x, y and p")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        file.check_whole()
        first, _, metadata = _beginning(_lines(file))
        rows = TextRows(file, np.dtype([(EVENTS, "f8", (4,))]), first)
        yield OpenFile({EVENTS: Array(rows.columns()[EVENTS])}, metadata, memory=rows.memory)


def fits(rows: AnyArray, order: str) -> bool:
    """Return whether rows are events: times do not fall, places are whole, and polarities two values."""
    t, x, y, p = (rows[:, order.index(column)] for column in "txyp")
    places = np.stack([x, y])
    is_place = bool(((places >= 0) & (places < 1 << 16) & (places == np.floor(places))).all())
    low = p.min()
    is_flag = bool(low in (-1, 0, 1) and np.isin(p, [low, 1]).all())
    return is_place and is_flag and bool((t[1:] >= t[:-1]).all())


def _are_events(rows: AnyArray) -> bool:
    return len(rows) >= _LEAST and any(fits(rows, order) for order in ORDERS)


def _lines(file: SourceFile) -> list[str]:
    """Return the whole lines at the beginning of a file."""
    head = file.head()
    lines = head.decode("utf-8-sig", "replace").split("\n")
    if len(head) == HEAD_BYTES:
        lines.pop()  # it may be cut
    return lines


def _beginning(lines: Sequence[str]) -> tuple[int, AnyArray, Metadata]:
    """Return the number of lines before the events, the first events, and the size that a line says."""
    metadata: Metadata = {}
    first = 0
    events: list[Sequence[float]] = []
    for number, line in enumerate(lines):
        words = line.split()
        if not events and (not words or line.lstrip().startswith(_COMMENTS)):
            first = number + 1
        elif not events and not metadata and len(words) == 2 and all(word.isdecimal() for word in words):
            metadata = {"width": int(words[0]), "height": int(words[1])}
            first = number + 1
        elif words:
            numbers = _numbers(words)
            if len(numbers) != 4:
                break
            events.append(numbers)
    return first, np.array(events).reshape(-1, 4), metadata


def _numbers(words: Sequence[str]) -> list[float]:
    """Return the numbers of a line, none if a word is no number."""
    try:
        return [float(word) for word in words]
    except ValueError:
        return []
