"""Recordings of Prophesee's event cameras: decoded events in ``.dat``, the sensor's words in ``.raw``.

Both begin with lines of text, each with ``%`` at its start.
https://docs.prophesee.ai/stable/data/file_formats/dat.html
https://docs.prophesee.ai/stable/data/file_formats/raw.html
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.formats.forward import ForwardRecords
from unistore.converters.formats.raw import begins_with_text
from unistore.converters.plugin import Array, Claim, Facts, Format, Opened, SourceFile, no, sure

EVENTS = "events"
"""Name of the array of a recording."""
EVENT = np.dtype([("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "u1")])
"""An event: microseconds, column, row, and 1 if it became brighter, else 0."""

_DAT_EVENT = np.dtype([("t", "<u4"), ("x", "<u2"), ("y", "<u2"), ("p", "u1")])
_DAT_RECORD = np.dtype([("t", "<u4"), ("place", "<u4")])
# Types of events with a place: of any kind, and of a change of brightness
_DAT_TYPES = (0, 12)
_CURE = "export it again: metavision_file_to_dat -i FILE"
# Words that are decoded together
_BLOCK = 1 << 16


class Header(NamedTuple):
    """The text at the beginning of a recording."""

    lines: Sequence[str]  # without the percent sign
    size: int  # bytes until what follows

    def value(self, key: str) -> str:
        """Return the value of a line, or the empty text if there is none."""
        for line in self.lines:
            name, _, value = line.partition(" ")
            if name.lower() == key:
                return value.strip()
        return ""

    def facts(self, width: str, height: str) -> dict[str, Any]:
        """Return the lines, and what they say of the sensor and of its clock."""
        facts: dict[str, Any] = {"header": list(self.lines)}
        if width.isdigit() and height.isdigit():
            facts["width"] = int(width)
            facts["height"] = int(height)
        offset = self.value("t0")
        if offset.isdigit():
            facts["t_offset"] = int(offset)
        return facts


def read_header(file: SourceFile) -> Header:
    """Read the lines that begin with a percent sign, up to the line ``% end`` if there is one."""
    lines = []
    size = 0
    with file.path.open("rb") as handle:
        while handle.peek(2)[:2] == b"% ":
            line = handle.readline()
            size += len(line)
            lines.append(line[1:].decode("utf-8", "backslashreplace").strip())
            if lines[-1] == "end":
                break
    return Header(lines, size)


def _begins_with_text(file: SourceFile) -> Claim:
    if begins_with_text(file):
        return sure("begins with a header of lines with %")
    return no("does not begin with a header of lines with %")


class _DatEvents:
    """Events of a ``.dat`` file, which are unpacked when they are sliced."""

    dtype = _DAT_EVENT

    def __init__(self, records: NDArray[Any]) -> None:
        self._records = records
        self.shape = records.shape

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        records = self._records[rows]
        place = records["place"]
        events = np.empty(len(records), _DAT_EVENT)
        events["t"] = records["t"]
        events["x"] = place & 0x3FFF
        events["y"] = place >> 14 & 0x3FFF
        events["p"] = place >> 28
        return events


class Dat(Format):
    """Decoded events, 8 bytes each: version 2 of ``.dat``."""

    name: ClassVar[str] = "prophesee_dat"
    suffixes: ClassVar[tuple[str, ...]] = (".dat",)

    def recognise(self, file: SourceFile) -> Claim:
        """Look for the header: recordings of spike cameras have the same ending and none."""
        return _begins_with_text(file)

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[Opened]:
        """Map the events."""
        header = read_header(file)
        if header.value("version") != "2":
            message = f"is of version {header.value('version') or 'unknown'}, expected 2"
            raise file.problem(message, _CURE)
        with file.path.open("rb") as handle:
            handle.seek(header.size)
            kind = handle.read(2)
        if len(kind) < 2:
            raise file.problem("ends in its header", "copy it again", "truncated")
        if kind[0] not in _DAT_TYPES or kind[1] != _DAT_RECORD.itemsize:
            message = f"holds events of type {kind[0]} in {kind[1]} bytes, expected type 0 or 12 in 8"
            raise file.problem(message, _CURE)
        start = header.size + 2
        beyond = (file.size - start) % _DAT_RECORD.itemsize
        if beyond:
            message = f"ends {beyond} bytes into an event"
            raise file.problem(message, "copy it again", "truncated")
        if file.size == start:
            raise file.problem("holds no events", "leave it out", "empty")
        records = np.memmap(file.path, _DAT_RECORD, "r", start)
        facts = header.facts(header.value("width"), header.value("height"))
        facts["type"] = kind[0]
        yield Opened({EVENTS: Array(_DatEvents(records))}, facts)

    def write(self, path: Path, arrays: Mapping[str, Array], facts: Facts) -> None:
        """Write the header and the events."""
        with path.open("wb") as file:
            for line in facts["header"]:
                file.write(f"% {line}\n".encode())
            file.write(bytes((facts["type"], _DAT_RECORD.itemsize)))
            for _, events in arrays[EVENTS].blocks():
                records = np.empty(len(events), _DAT_RECORD)
                place = events["p"].astype(np.uint32) << 28
                place |= events["y"].astype(np.uint32) << 14
                records["place"] = place | events["x"]
                records["t"] = events["t"]
                file.write(records.tobytes())


class Evt(Format):
    """Words of the sensor: EVT 2.0 and EVT 3.0."""

    name: ClassVar[str] = "prophesee_raw"
    suffixes: ClassVar[tuple[str, ...]] = (".raw",)

    def recognise(self, file: SourceFile) -> Claim:
        """Look for the header."""
        return _begins_with_text(file)

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[Opened]:
        """Read the header; events are decoded from the first to the last."""
        header = read_header(file)
        version = _version_of(header)
        if version not in _DECODERS:
            read_versions = " and ".join(_DECODERS)
            message = f"is of format {version or 'unknown'}, of which {read_versions} are read"
            raise file.problem(message, _CURE)
        decoder = _DECODERS[version]
        beyond = (file.size - header.size) % decoder.word.itemsize
        if beyond:
            message = f"ends {beyond} bytes into a word"
            raise file.problem(message, "copy it again", "truncated")
        if file.size == header.size:
            raise file.problem("holds no events", "leave it out", "empty")
        words = np.memmap(file.path, decoder.word, "r", header.size)
        records = ForwardRecords(EVENT, partial(_packets, words, decoder), partial(_count, words, decoder))
        width, height = _size_of(header)
        memory = 40 * _BLOCK * EVENT.itemsize
        yield Opened({EVENTS: Array(records)}, header.facts(width, height), forward_only=True, memory=memory)


def _version_of(header: Header) -> str:
    """Return the version as ``EVT3``, from the line that says the format or from that with its number."""
    name = header.value("format").partition(";")[0].strip().upper()
    number = header.value("evt").removesuffix(".0").replace(".", "")
    return name or (f"EVT{number}" if number else "")


def _size_of(header: Header) -> tuple[str, str]:
    """Return width and height of the sensor as digits; empty texts if the header does not say them."""
    settings = dict(re.findall(r"(\w+)=(\w+)", header.value("format")))
    if "width" in settings and "height" in settings:
        return settings["width"], settings["height"]
    width, _, height = header.value("geometry").partition("x")
    return width, height


class _Decoder(NamedTuple):
    """How words of a version become events; the state of one block is that of the next one."""

    word: np.dtype[Any]
    first_state: Callable[[], Any]
    decode: Callable[[NDArray[Any], Any], NDArray[Any]]
    events_in: Callable[[NDArray[Any]], NDArray[Any]]
    time_high: Callable[[NDArray[Any]], NDArray[np.bool_]]


def _packets(words: NDArray[Any], decoder: _Decoder) -> Iterator[NDArray[Any]]:
    state = decoder.first_state()
    for start in range(0, len(words), _BLOCK):
        yield decoder.decode(np.asarray(words[start : start + _BLOCK]), state)


def _count(words: NDArray[Any], decoder: _Decoder) -> int:
    """Count the events that have a time: the first word of a time is before them."""
    total = 0
    has_time = False
    for start in range(0, len(words), _BLOCK):
        block = np.asarray(words[start : start + _BLOCK])
        if not has_time:
            times = np.flatnonzero(decoder.time_high(block))
            block = block[times[0] :] if len(times) else block[:0]
            has_time = bool(len(times))
        total += int(decoder.events_in(block).sum())
    return total


class _Clock:
    """Undoes the overflow of a counter: a fall by more than half its range is one."""

    def __init__(self, bits: int) -> None:
        self._range = 1 << bits
        self._last = 0
        self._loops = 0

    def unwrapped(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the counts as if the counter had no end."""
        steps = np.diff(counts, prepend=self._last)
        loops = self._loops + np.cumsum(steps < -self._range // 2)
        if len(counts):
            self._last = int(counts[-1])
            self._loops = int(loops[-1])
        return counts + loops * self._range


def _held(is_set: NDArray[np.bool_], values: NDArray[np.int64], before: int) -> NDArray[np.int64]:
    """Return at every word the last value that was set; `values` has those of the words that set one."""
    number = np.cumsum(is_set)
    return np.concatenate(([before], values))[number]


class _State2:
    """Time of the last word of an EVT 2.0 block; negative: there was none."""

    def __init__(self) -> None:
        self.clock = _Clock(28)
        self.high = -1


def _decode2(words: NDArray[np.uint32], state: _State2) -> NDArray[Any]:
    """Decode EVT 2.0, https://docs.prophesee.ai/stable/data/encoding_formats/evt2.html."""
    is_high = _time_high2(words)
    highs = state.clock.unwrapped((words[is_high] & 0xFFFFFFF).astype(np.int64))
    high = _held(is_high, highs, state.high)
    state.high = int(high[-1])
    is_event = (_count2(words) > 0) & (high >= 0)
    chosen = words[is_event]
    events = np.empty(len(chosen), EVENT)
    events["t"] = high[is_event] << 6 | (chosen >> 22 & 0x3F)
    events["x"] = chosen >> 11 & 0x7FF
    events["y"] = chosen & 0x7FF
    events["p"] = chosen >> 28
    return events


def _count2(words: NDArray[np.uint32]) -> NDArray[Any]:
    """Return the number of events in each word."""
    return (words >> 28 <= 1).astype(np.uint8)


def _time_high2(words: NDArray[np.uint32]) -> NDArray[np.bool_]:
    is_high: NDArray[np.bool_] = words >> 28 == 8
    return is_high


class _State3:
    """What words of EVT 3.0 set until others set it anew; a negative time: there was none."""

    def __init__(self) -> None:
        self.clock = _Clock(12)
        self.high = -1
        self.low = 0
        self.y = 0
        self.base = 0
        self.polarity = 0


_ADDRESS_Y = 0
_ADDRESS_X = 2
_BASE_X = 3
_VECTOR_12 = 4
_VECTOR_8 = 5
_TIME_LOW = 6
_TIME_HIGH = 8
_ADVANCE = np.zeros(16, np.int64)
_ADVANCE[_VECTOR_12] = 12
_ADVANCE[_VECTOR_8] = 8
"""Columns that a word of each type moves the base of the next vector."""
_PLACES = np.zeros(16, np.uint16)
_PLACES[_ADDRESS_X] = 0x8000
_PLACES[_VECTOR_12] = 0xFFF
_PLACES[_VECTOR_8] = 0xFF
"""Bits of a word of each type of which one that is set is an event."""


def _decode3(words: NDArray[np.uint16], state: _State3) -> NDArray[Any]:
    """Decode EVT 3.0, https://docs.prophesee.ai/stable/data/encoding_formats/evt3.html."""
    kind = words >> 12
    body = (words & 0xFFF).astype(np.int64)
    is_high = kind == _TIME_HIGH
    high = _held(is_high, state.clock.unwrapped(body[is_high]), state.high)
    is_time = is_high | (kind == _TIME_LOW)
    low = _held(is_time, np.where(is_high, 0, body)[is_time], state.low)
    is_row = kind == _ADDRESS_Y
    y = _held(is_row, body[is_row] & 0x7FF, state.y)
    is_base = kind == _BASE_X
    polarity = _held(is_base, body[is_base] >> 11, state.polarity)
    advanced = np.cumsum(_ADVANCE[kind]) - _ADVANCE[kind]
    base = advanced + _held(is_base, (body & 0x7FF)[is_base] - advanced[is_base], state.base)

    counts = _count3(words)
    counts[high < 0] = 0
    word = np.repeat(np.arange(len(words)), counts)
    is_alone = kind[word] == _ADDRESS_X
    vectors = np.flatnonzero((counts > 0) & (kind != _ADDRESS_X))
    bits = body[vectors] & _PLACES[kind[vectors]]
    _, column = np.nonzero(bits[:, None] >> np.arange(12) & 1)
    x = body[word] & 0x7FF
    x[~is_alone] = base[word[~is_alone]] + column
    events = np.empty(len(word), EVENT)
    events["t"] = (high << 12 | low)[word]
    events["x"] = x
    events["y"] = y[word]
    events["p"] = np.where(is_alone, body[word] >> 11, polarity[word])

    state.high = int(high[-1])
    state.low = int(low[-1])
    state.y = int(y[-1])
    state.polarity = int(polarity[-1])
    state.base = int(base[-1] + _ADVANCE[kind[-1]])
    return events


def _count3(words: NDArray[np.uint16]) -> NDArray[Any]:
    """Return the number of events in each word."""
    kind = words >> 12
    counts: NDArray[np.uint8] = np.bitwise_count(words & _PLACES[kind])
    counts[kind == _ADDRESS_X] = 1
    return counts


def _time_high3(words: NDArray[np.uint16]) -> NDArray[np.bool_]:
    is_high: NDArray[np.bool_] = words >> 12 == _TIME_HIGH
    return is_high


_DECODERS: Mapping[str, _Decoder] = {
    "EVT2": _Decoder(np.dtype("<u4"), _State2, _decode2, _count2, _time_high2),
    "EVT3": _Decoder(np.dtype("<u2"), _State3, _decode3, _count3, _time_high3),
}
