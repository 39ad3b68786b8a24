"""RLDS episodes in TFRecord files, as TensorFlow Datasets writes them (Open X-Embodiment).

A TFRecord file is a sequence of records: a length (uint64), its masked CRC32C, the bytes, their masked CRC32C
(https://www.tensorflow.org/tutorials/load_data/tfrecord). A record is an episode: a `tf.train.Example`, a
protocol buffer that has a list of bytes, float32 or int64 for each name. ``features.json`` beside says their
shapes. TensorFlow is not needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from mmap import ACCESS_READ, mmap
from struct import Struct
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.plugin import Array, Claim, Facts, Format, Opened, SourceFile, no, sure

_HEAD = Struct("<QI")
_TAIL = 4
_FEATURES = "features.json"
_STEPS = "steps/"
_SPLIT = re.compile(r".*-(\w+)\.tfrecord")
_TEXT = "text"
_AGAIN = "get the file again"


class _Feature(NamedTuple):
    """What ``features.json`` says of a feature."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]


class _Span(NamedTuple):
    """A field of a protocol buffer: its number, how it is encoded, where its value lies."""

    field: int
    wire: int
    start: int
    stop: int


class _Record(NamedTuple):
    """Where a record lies, and the list of each name in it."""

    number: int
    start: int
    stop: int
    lists: Mapping[str, _Span]


class Rlds(Format):
    """Episodes of a TFRecord file as ``data/episode_0/<feature of a step>``."""

    name: ClassVar[str] = "rlds"
    suffixes: ClassVar[tuple[str, ...]] = (".tfrecord",)
    offered: ClassVar[bool] = False

    def recognise(self, file: SourceFile) -> Claim:
        """Check the length of the first record."""
        head = file.head(_HEAD.size)
        if len(head) == _HEAD.size and _masked_crc(head[:8]) == _HEAD.unpack(head)[1]:
            return sure("begins with a record of TFRecord")
        return no("does not begin with a record of TFRecord, or is compressed")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[Opened]:
        """Find the records and the lists in them; values are read when arrays are sliced."""
        described = file.beside(_FEATURES)
        features = _features(described)
        with file.path.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as content:
            records = _Records(file, content)
            try:
                yield _opened(file, described, features, records)
            finally:
                records.close()


@dataclass(frozen=True, eq=False, kw_only=True)
class _OpenedEpisodes(Opened):
    """An open file; texts and numbers of an episode are facts of its group."""

    of_episodes: Mapping[str, Facts]

    def group_facts(self, group: str = "") -> Facts:
        """See `Opened`."""
        return self.of_episodes.get(group, {})


def _opened(
    file: SourceFile, described: SourceFile, features: Sequence[_Feature], records: _Records
) -> Opened:
    arrays: dict[str, Array] = {}
    of_episodes: dict[str, Facts] = {}
    left_out: dict[str, str] = {}
    for record in records:
        group = f"data/episode_{record.number}"
        length = records.step_count(record, features)
        facts: dict[str, Any] = {}
        for feature in features:
            name = feature.name.removeprefix(_STEPS)
            if feature.kind == _TEXT:
                texts = list(dict.fromkeys(records.texts(record, feature.name)))
                facts[name] = texts[0] if len(texts) == 1 else texts
                if len(texts) > 1 and feature.name.startswith(_STEPS):
                    left_out[name] = "is text that differs a step; the texts of an episode are kept"
            elif feature.kind == "unread":
                left_out[name] = f"is {feature.dtype}, which is not read"
            elif feature.name.startswith(_STEPS):
                arrays[f"{group}/{name}"] = Array(_Values(records, record, feature, length))
            else:
                facts[name] = _Values(records, record, feature, 1)[:].tolist()
        of_episodes[group] = facts
    split = _SPLIT.match(file.path.name)
    if split is not None and of_episodes:
        names = [group.removeprefix("data/") for group in of_episodes]
        arrays[f"mask/{split[1]}"] = Array(np.array(names))
    largest = max((record.stop - record.start for record in records), default=0)
    return _OpenedEpisodes(
        arrays=arrays,
        further=[described],
        memory=largest,
        left_out=left_out,
        of_episodes=of_episodes,
        file=file,
    )


def _features(file: SourceFile) -> list[_Feature]:
    """Read ``features.json``."""
    try:
        features = list(_flat(json.loads(file.bytes()[:].tobytes()), ""))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"does not describe features: {error!r}"
        raise file.problem(message, _AGAIN, "damaged") from error
    if not any(feature.name.startswith(_STEPS) for feature in features):
        raise file.problem("names no steps, so that this is no RLDS dataset", "leave it out", "layout")
    return features


def _flat(said: Mapping[str, Any], name: str) -> Iterator[_Feature]:
    """Yield the features below one that has others, as TensorFlow Datasets names them in a record."""
    if "featuresDict" in said:
        for key, below in said["featuresDict"]["features"].items():
            yield from _flat(below, f"{name}/{key}" if name else key)
    elif "sequence" in said and name == "steps":
        yield from _flat(said["sequence"]["feature"], name)
    elif _TEXT in said:
        yield _Feature(name, _TEXT, "", ())
    elif "image" in said:
        yield _Feature(name, "image", "", ())
    elif said.get("tensor", {}).get("encoding") == "none" and said["tensor"]["dtype"] != "string":
        tensor = said["tensor"]
        shape = tuple(map(int, tensor["shape"].get("dimensions", ())))
        is_fixed = min(shape, default=0) >= 0
        yield _Feature(name, "tensor" if is_fixed else "unread", str(np.dtype(tensor["dtype"])), shape)
    else:
        yield _Feature(name, "unread", said["pythonClassName"].rpartition(".")[2], ())


class _Records:
    """The records of an open file, and the lists in them."""

    def __init__(self, file: SourceFile, content: mmap) -> None:
        self.file = file
        self._bytes = memoryview(content)
        self._checked: set[int] = set()
        try:
            self._all = list(self._found())
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[_Record]:
        return iter(self._all)

    def close(self) -> None:
        """Let go of the file."""
        self._bytes.release()

    def _found(self) -> Iterator[_Record]:
        position = 0
        number = 0
        size = len(self._bytes)
        while position < size:
            start = position + _HEAD.size
            head = bytes(self._bytes[position:start])
            if len(head) < _HEAD.size or _masked_crc(head[:8]) != _HEAD.unpack(head)[1]:
                message = f"has no sound record at byte {position:,}"
                raise self.file.problem(message, _AGAIN, "damaged")
            position = start + _HEAD.unpack(head)[0] + _TAIL
            if position > size:
                message = f"ends in record {number}, which begins at byte {start - _HEAD.size:,}"
                raise self.file.problem(message, _AGAIN, "truncated")
            try:
                lists = dict(self._lists(start, position - _TAIL))
            except (IndexError, ValueError) as error:
                message = f"record {number} is no tf.train.Example"
                raise self.file.problem(message, _AGAIN, "damaged") from error
            yield _Record(number, start, position - _TAIL, lists)
            number += 1

    def _lists(self, start: int, stop: int) -> Iterator[tuple[str, _Span]]:
        """Yield the list of each name: fields 1 (bytes), 2 (float32) or 3 (int64) of a feature."""
        for features in _fields(self._bytes, start, stop):
            for entry in _fields(self._bytes, features.start, features.stop):
                key, value = _fields(self._bytes, entry.start, entry.stop)
                name = bytes(self._bytes[key.start : key.stop]).decode()
                for values in _fields(self._bytes, value.start, value.stop):
                    yield name, values

    def checked(self, record: _Record) -> memoryview:
        """Return the bytes of the file, once the checksum of a record is right."""
        if record.number not in self._checked:
            stored_checksum = int.from_bytes(self._bytes[record.stop : record.stop + _TAIL], "little")
            if _masked_crc(bytes(self._bytes[record.start : record.stop])) != stored_checksum:
                message = f"record {record.number} has another checksum than the file says"
                raise self.file.problem(message, _AGAIN, "damaged")
            self._checked.add(record.number)
        return self._bytes

    def step_count(self, record: _Record, features: Sequence[_Feature]) -> int:
        """Count the steps of an episode, by the shortest of the lists that have values for each."""
        lists = record.lists
        tensors = [one for one in features if one.kind == "tensor" and one.name.startswith(_STEPS)]
        counted = [one for one in tensors if one.name in lists]
        if not counted:
            return 0
        shortest = min(counted, key=lambda one: lists[one.name].stop - lists[one.name].start)
        return len(self.numbers(record, shortest.name)) // prod(shortest.shape)

    def texts(self, record: _Record, name: str) -> list[str]:
        """Return the texts of a list."""
        return [text.decode("utf-8", "backslashreplace") for text in self.strings(record, name)]

    def strings(self, record: _Record, name: str) -> list[bytes]:
        """Return the byte strings of a list."""
        values = record.lists.get(name)
        if values is None:
            return []
        content = self.checked(record)
        return [bytes(content[one.start : one.stop]) for one in _fields(content, values.start, values.stop)]

    def numbers(self, record: _Record, name: str) -> NDArray[Any]:
        """Return the numbers of a list, float32 or int64."""
        values = record.lists.get(name)
        if values is None:
            return np.empty(0, np.int64)
        content = self.checked(record)
        parts = []
        for one in _fields(content, values.start, values.stop):
            raw = np.frombuffer(content[one.start : one.stop], np.uint8).copy()
            parts.append(raw.view("<f4") if values.field == 2 else _from_varints(raw))
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


class _Values:
    """Values of a feature in an episode."""

    def __init__(self, records: _Records, record: _Record, feature: _Feature, length: int) -> None:
        self._records = records
        self._record = record
        self._feature = feature
        self.shape = (length, *feature.shape)
        self.dtype = np.dtype(object if feature.kind == "image" else feature.dtype)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        name = self._feature.name
        if self._feature.kind == "image":
            files = self._records.strings(self._record, name)
            values = np.empty(len(files), object)
            values[:] = files
        else:
            values = self._records.numbers(self._record, name)
        if values.size != prod(self.shape):
            message = f"record {self._record.number}: {name} has {values.size} values, expected {self.shape}"
            raise self._records.file.problem(message, _AGAIN, "shape")
        return values.reshape(self.shape)[rows].astype(self.dtype, copy=False)


def _fields(content: memoryview, position: int, stop: int) -> Iterator[_Span]:
    """Yield the fields of a protocol buffer; that of a number is a span of its bytes."""
    while position < stop:
        tag, position = _varint(content, position)
        wire = tag & 7
        start = position
        if wire == 0:
            _, position = _varint(content, position)
        elif wire == 2:
            length, start = _varint(content, position)
            position = start + length
        elif wire in (1, 5):
            position += 8 if wire == 1 else 4
        else:
            message = f"wire type {wire}"
            raise ValueError(message)
        if position > stop:
            message = "a field ends behind its message"
            raise ValueError(message)
        yield _Span(tag >> 3, wire, start, position)


def _varint(content: memoryview, position: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, the lowest first, and where it ends."""
    value = shift = 0
    while True:
        byte = content[position]
        value |= (byte & 0x7F) << shift
        position += 1
        shift += 7
        if byte < 0x80:
            return value, position


def _from_varints(raw: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return many such numbers as int64, of which negative ones take ten bytes."""
    last = np.flatnonzero(raw < 0x80)
    starts = np.concatenate([[0], last[:-1] + 1])
    lengths = last + 1 - starts
    if not len(last) or last[-1] + 1 != len(raw):
        return np.empty(0, np.int64)
    places = np.arange(len(raw)) - np.repeat(starts, lengths)
    bits = (raw & 0x7F).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.bitwise_or.reduceat(bits, starts).view(np.int64)


def _masked_crc(raw: bytes) -> int:
    """Return the CRC32C of bytes, rotated by 15 bits and shifted, as TFRecord has it."""
    from google_crc32c import value

    crc: int = value(raw)
    rotated = (crc >> 15) | (crc << 17 & 0xFFFFFFFF)
    return (rotated + 0xA282EAD8) & 0xFFFFFFFF
