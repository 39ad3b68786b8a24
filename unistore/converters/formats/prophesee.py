"""Read recordings of Prophesee's event cameras: decoded events in ``.dat``, words in ``.raw``."""

# https://docs.prophesee.ai/stable/data/file_formats/dat.html and raw.html. Both begin with lines of text,
# each with `%` at its start.

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.array import Array
from unistore.converters.claims import Claim, no, sure
from unistore.converters.common.faults import COPY_AGAIN
from unistore.converters.formats.arrays import begins_with_text, lost_its_first_line
from unistore.converters.formats.lazy import ForwardRecords, LazyRows
from unistore.converters.opened import Format, Metadata, OpenFile, SourceFile
from unistore.system.types import AnyArray, Dtype, Int64s, JsonObject, UInt8s

EVENTS = "events"  # name of the array of a recording
# An event: microseconds, column, row, and 1 if it became brighter, else 0.
EVENT = np.dtype([("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "u1")])

_DAT_EVENT = np.dtype([("t", "<u4"), ("x", "<u2"), ("y", "<u2"), ("p", "u1")])
_DAT_RECORD = np.dtype([("t", "<u4"), ("place", "<u4")])
# Types of events with a place: of any kind, and of a change of brightness
_DAT_TYPES = (0, 12)
_FIX = "export it again: metavision_file_to_dat -i FILE"
# Words that are decoded together
_BLOCK = 1 << 16


class PropheseeHeader(NamedTuple):
    """The text at the beginning of a recording."""

    lines: Sequence[str]  # without the percent sign
    values: Mapping[str, str]  # by the first word of a line, in lower case
    size: int  # bytes until what follows

    def metadata(self, width: str, height: str) -> JsonObject:
        """Return the lines, and what they say of the sensor and of its clock."""
        metadata: JsonObject = {"header": self.lines}
        numbers = {"width": width, "height": height, "t_offset": self.values.get("t0", "")}
        if not (width.isdigit() and height.isdigit()):
            numbers = {"t_offset": numbers["t_offset"]}
        return metadata | {name: int(text) for name, text in numbers.items() if text.isdigit()}


def read_header(file: SourceFile) -> PropheseeHeader:
    """Read the lines that begin with a percent sign, up to the line ``% end`` if there is one."""
    lines: list[str] = []
    values: dict[str, str] = {}
    size = 0
    with file.path.open("rb") as handle:
        while "end" not in lines and handle.peek(2)[:2] == b"% ":
            line = handle.readline()
            size += len(line)
            lines.append(line[1:].decode("utf-8", "backslashreplace").strip())
            name, _, value = lines[-1].partition(" ")
            values.setdefault(name.lower(), value.strip())
    return PropheseeHeader(lines, values, size)


def _mapped(file: SourceFile, start: int, record: Dtype) -> AnyArray:
    beyond = (file.size - start) % record.itemsize
    if beyond:
        raise file.problem(f"is truncated: it ends {beyond} bytes into an event", COPY_AGAIN, "truncated")
    if file.size == start:
        raise file.problem("contains no events", "skip it with --exclude", "empty")
    return np.memmap(file.path, record, "r", start)


# Recordings as the camera writes them, and as Metavision decodes them, under the same name
TWINS = (".raw", ".dat", ".hdf5", ".h5")


class PropheseeFormat(Format):
    """A format that begins with lines of text: recordings of spike cameras have the same endings and none."""

    def recognise(self, file: SourceFile) -> Claim:
        if begins_with_text(file):
            return sure("begins with a header of lines with %")
        if lost_its_first_line(file):
            raise file.wrong_beginning("with %, as its other lines do")
        return no("does not begin with a header of lines with %")


class Dat(PropheseeFormat):
    """Decoded events, 8 bytes each: version 2 of ``.dat``."""

    name = "prophesee_dat"
    suffixes = (".dat",)
    twins = TWINS

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        header = read_header(file)
        version = header.values.get("version", "unknown")
        if version != "2":
            raise file.problem(f"has version {version}, and only version 2 is supported", _FIX)
        with file.path.open("rb") as handle:
            handle.seek(header.size)
            kind = handle.read(2)
        if len(kind) < 2:
            raise file.problem("is truncated: it ends inside its header", COPY_AGAIN, "truncated")
        if kind[0] not in _DAT_TYPES or kind[1] != _DAT_RECORD.itemsize:
            raise file.problem(
                f"has events of type {kind[0]} with {kind[1]} bytes, but type 0 or 12 with 8 is expected",
                _FIX,
            )
        records = _mapped(file, header.size + 2, _DAT_RECORD)

        def events(lo: int, hi: int) -> AnyArray:
            place = records["place"][lo:hi]
            events = np.empty(hi - lo, _DAT_EVENT)
            events["t"] = records["t"][lo:hi]
            events["x"] = place & 0x3FFF
            events["y"] = place >> 14 & 0x3FFF
            events["p"] = place >> 28
            return events

        metadata = header.metadata(header.values.get("width", ""), header.values.get("height", ""))
        metadata["type"] = kind[0]
        yield OpenFile({EVENTS: Array(LazyRows(records.shape, _DAT_EVENT, events))}, metadata)

    def write(self, path: Path, arrays: Mapping[str, Array], metadata: Metadata) -> None:
        with path.open("wb") as file:
            for line in metadata["header"]:
                file.write(f"% {line}\n".encode())
            file.write(bytes((metadata["type"], _DAT_RECORD.itemsize)))
            for _, events in arrays[EVENTS].blocks():
                records = np.empty(len(events), _DAT_RECORD)
                place = events["p"].astype(np.uint32) << 28
                place |= events["y"].astype(np.uint32) << 14
                records["place"] = place | events["x"]
                records["t"] = events["t"]
                file.write(records.tobytes())


class Evt(PropheseeFormat):
    """Words of the sensor: EVT 2.0 and EVT 3.0."""

    name = "prophesee_raw"
    suffixes = (".raw",)
    twins = TWINS

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        """Read the header. Events are decoded from the first to the last."""
        header = read_header(file)
        version = _version_of(header)
        if version not in _DECODERS:
            read_versions = " and ".join(_DECODERS)
            raise file.problem(
                f"has the format '{version or 'unknown'}', and only {read_versions} are supported", _FIX
            )
        decoder = _DECODERS[version]
        words = _mapped(file, header.size, decoder.word)
        records = ForwardRecords(EVENT, partial(_packets, words, decoder), partial(_count, words, decoder))
        width, height = _size_of(header)
        memory = 40 * _BLOCK * EVENT.itemsize
        yield OpenFile(
            {EVENTS: Array(records)}, header.metadata(width, height), forward_only=True, memory=memory
        )


def _version_of(header: PropheseeHeader) -> str:
    """Return the version as ``EVT3``, from the line that says the format or from that with its number."""
    name = header.values.get("format", "").partition(";")[0].strip().upper()
    number = header.values.get("evt", "").removesuffix(".0").replace(".", "")
    return name or (f"EVT{number}" if number else "")


def _size_of(header: PropheseeHeader) -> tuple[str, str]:
    """Return width and height of the sensor as digits, or empty texts if the header does not say them."""
    settings = dict(re.findall(r"(\w+)=(\w+)", header.values.get("format", "")))
    width, _, height = header.values.get("geometry", "").partition("x")
    return settings.get("width", width), settings.get("height", height)


def _packets(words: AnyArray, kind: type[_Decoder]) -> Iterator[AnyArray]:
    decoder = kind()
    for start in range(0, len(words), _BLOCK):
        yield decoder.decode(np.asarray(words[start : start + _BLOCK]))


def _count(words: AnyArray, decoder: type[_Decoder]) -> int:
    """Count the events that have a time: the first word of a time is before them."""
    total = 0
    has_time = False
    for start in range(0, len(words), _BLOCK):
        block = np.asarray(words[start : start + _BLOCK])
        if not has_time:
            times = np.flatnonzero(_types(block) == _TIME_HIGH)
            block = block[times[0] :] if len(times) else block[:0]
            has_time = bool(len(times))
        total += int(decoder.counts(block).sum())
    return total


_TIME_HIGH = 8  # type of words that have the upper bits of a time, in every version


def _types(words: AnyArray) -> AnyArray:
    """Return the upper four bits of each word, which are its type."""
    types: AnyArray = words >> 8 * words.itemsize - 4
    return types


class _Decoder(ABC):
    """Makes events of words, block by block: what words set stands until others set it anew."""

    word: ClassVar[Dtype]  # dtype of a word
    alone: ClassVar[NDArray[np.bool_]]  # whether words of a type are an event each
    places: ClassVar[AnyArray]  # bits of a word of a type of which one that is set is an event
    clock_bits: ClassVar[int]  # bits of the upper part of a time, which overflows

    def __init__(self) -> None:
        self._last = {"count": 0, "high": -1}  # a negative time: there was none
        self._loops = 0

    @classmethod
    def counts(cls, words: AnyArray) -> UInt8s:
        types = _types(words)
        counts: UInt8s = np.bitwise_count(words & cls.places[types])
        counts[cls.alone[types]] = 1
        return counts

    @abstractmethod
    def decode(self, words: AnyArray) -> AnyArray:
        """Return the events of a block of words."""

    def _held(self, name: str, is_set: NDArray[np.bool_], values: Int64s) -> Int64s:
        """Return at every word the last value that was set. `values` has those of the words that set one."""
        held = np.concatenate(([self._last.get(name, 0)], values))[np.cumsum(is_set)]
        self._last[name] = int(held[-1])
        return held

    def _upper_times(self, words: AnyArray) -> Int64s:
        """Return the upper part of the time at every word, as if its counter had no end."""
        # A fall by more than half its range is an overflow.
        is_high = _types(words) == _TIME_HIGH
        counter_range = 1 << self.clock_bits
        counts = (words[is_high] & counter_range - 1).astype(np.int64)
        steps = np.diff(counts, prepend=self._last["count"])
        loops = self._loops + np.cumsum(steps < -counter_range // 2)
        if len(counts):
            self._last["count"] = int(counts[-1])
            self._loops = int(loops[-1])
        return self._held("high", is_high, counts + loops * counter_range)


_ROW = 0
_COLUMN = 2
_BASE = 3
_TIME_LOW = 6


class _Evt2(_Decoder):
    """EVT 2.0, https://docs.prophesee.ai/stable/data/encoding_formats/evt2.html."""

    word = np.dtype("<u4")
    alone = np.arange(16) <= 1
    places = np.zeros(16, np.uint32)
    clock_bits = 28

    def decode(self, words: NDArray[np.uint32]) -> AnyArray:
        high = self._upper_times(words)
        is_event = self.alone[_types(words)] & (high >= 0)
        chosen = words[is_event]
        events = np.empty(len(chosen), EVENT)
        events["t"] = high[is_event] << 6 | (chosen >> 22 & 0x3F)
        events["x"] = chosen >> 11 & 0x7FF
        events["y"] = chosen & 0x7FF
        events["p"] = chosen >> 28
        return events


class _Evt3(_Decoder):
    """EVT 3.0, https://docs.prophesee.ai/stable/data/encoding_formats/evt3.html."""

    word = np.dtype("<u2")
    alone = np.arange(16) == _COLUMN
    places = np.array([0, 0, 0, 0, 0xFFF, 0xFF, *[0] * 10], np.uint16)
    clock_bits = 12
    # Columns that a word of each type moves the base of the next vector.
    advance = np.array([0, 0, 0, 0, 12, 8, *[0] * 10])

    def decode(self, words: NDArray[np.uint16]) -> AnyArray:
        """Take words of one event, and each bit that is set of vectors."""
        types = _types(words)
        body = (words & 0xFFF).astype(np.int64)
        high = self._upper_times(words)
        is_low = types == _TIME_LOW
        is_time = is_low | (types == _TIME_HIGH)
        low = self._held("low", is_time, np.where(is_low, body, 0)[is_time])
        is_row = types == _ROW
        y = self._held("y", is_row, body[is_row] & 0x7FF)
        is_base = types == _BASE
        polarity = self._held("polarity", is_base, body[is_base] >> 11)
        advanced = np.cumsum(self.advance[types]) - self.advance[types]
        base = advanced + self._held("base", is_base, (body & 0x7FF)[is_base] - advanced[is_base])
        self._last["base"] = int(base[-1] + self.advance[types[-1]])

        counts = self.counts(words)
        counts[high < 0] = 0
        word = np.repeat(np.arange(len(words)), counts)
        is_alone = self.alone[types[word]]
        vectors = np.flatnonzero((counts > 0) & ~self.alone[types])
        bits = body[vectors] & self.places[types[vectors]]
        _, column = np.nonzero(bits[:, None] >> np.arange(12) & 1)
        x = body[word] & 0x7FF
        x[~is_alone] = base[word[~is_alone]] + column
        events = np.empty(len(word), EVENT)
        events["t"] = (high << 12 | low)[word]
        events["x"] = x
        events["y"] = y[word]
        events["p"] = np.where(is_alone, body[word] >> 11, polarity[word])
        return events


_DECODERS: Mapping[str, type[_Decoder]] = {"EVT2": _Evt2, "EVT3": _Evt3}
