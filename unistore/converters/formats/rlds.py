"""Read RLDS episodes in TFRecord files, as TensorFlow Datasets writes them (Open X-Embodiment)."""

# A TFRecord file is a sequence of records: a length (uint64), its masked CRC32C, the bytes, their masked
# CRC32C (https://www.tensorflow.org/tutorials/load_data/tfrecord). A record is an episode: a
# `tf.train.Example`, a protocol buffer that has a list of bytes, float32 or int64 for each name.
# ``features.json`` beside says their shapes. TensorFlow is not needed.

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from math import prod
from mmap import ACCESS_READ, mmap
from struct import Struct
from typing import NamedTuple

import numpy as np

from unistore.converters.array import Array
from unistore.converters.claims import Claim, no, sure
from unistore.converters.common.columns import ANY_TEXT
from unistore.converters.common.faults import WRITE_AGAIN
from unistore.converters.formats.images import decode, header_of
from unistore.converters.formats.lazy import LazyRows
from unistore.converters.opened import Format, Metadata, OpenFile, SourceFile
from unistore.system.types import AnyArray, Dtype, Int64s, JsonObject, Shape, UInt8s

_HEAD = Struct("<QI")
_TAIL = 4
# First bytes of gzip, and of zlib at each of its levels
_COMPRESSED = (b"\x1f\x8b", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
_FEATURES = "features.json"
_STEPS = "steps/"
_SPLIT = re.compile(r".*-(\w+)\.tfrecord")
_TEXT = "text"
# Images of one float32 a pixel, of which each is stored as the four bytes of a pixel of a PNG
_FLOAT_IMAGE = "float image"
_FLOAT_BYTES = 4
# Of TensorFlow, which NumPy does not have
_UNREAD_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4")

_DTYPES = {"image": np.dtype(object), _TEXT: ANY_TEXT}  # of features that are bytes


class _StatedFeature(NamedTuple):
    """What ``features.json`` says of a feature."""

    name: str
    kind: str
    dtype: str
    shape: Shape

    @property
    def stored(self) -> Dtype:
        return _DTYPES[self.kind] if self.kind in _DTYPES else np.dtype(self.dtype)


class _ProtoField(NamedTuple):
    """A field of a protocol buffer: its number, and where its value lies."""

    field: int
    start: int
    stop: int


class Rlds(Format):
    """Episodes of a TFRecord file as ``data/episode_0/<feature of a step>``."""

    name = "rlds"
    suffixes = (".tfrecord",)
    offered = False

    def recognise(self, file: SourceFile) -> Claim:
        beginning = file.head(_HEAD.size)
        if _is_record(beginning):
            return sure("begins with a record of TFRecord")
        if beginning.startswith(_COMPRESSED):
            return no("is compressed TFRecord, which is not supported")
        raise file.wrong_beginning("with a record of TFRecord")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        """Find the records and the lists in them. Values are read when arrays are sliced."""
        described = file.beside(_FEATURES)
        features = _features(described)
        with file.path.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as content:
            view = memoryview(content)
            try:
                yield _opened(file, described, features, list(_records(file, view)))
            finally:
                view.release()


def _opened(
    file: SourceFile, described: SourceFile, features: Sequence[_StatedFeature], records: Sequence[_Record]
) -> OpenFile:
    arrays: dict[str, Array] = {}
    of_groups: dict[str, Metadata] = {}
    left_out: dict[str, str] = {}
    for record in records:
        group = f"data/episode_{record.number}"
        length = record.step_count(features)
        metadata: JsonObject = {}
        for feature in features:
            name = feature.name.removeprefix(_STEPS)
            is_step = name != feature.name
            if feature.kind == "unread" or (feature.kind == _FLOAT_IMAGE and not is_step):
                left_out[name] = f"because its type {feature.dtype} is not supported"
                continue
            if feature.kind == _TEXT:
                raw_texts = dict.fromkeys(record.strings(feature.name))
                texts = [text.decode("utf-8", "backslashreplace") for text in raw_texts]
                metadata[name] = texts[0] if len(texts) == 1 else texts
            elif not is_step:
                metadata[name] = record.values(feature, 1, 0, 1).tolist()
            if is_step:
                if feature.kind == _FLOAT_IMAGE:
                    rows = record.float_images(feature, length)
                else:
                    read = partial(record.values, feature, length)
                    rows = LazyRows((length, *feature.shape), feature.stored, read)
                arrays[f"{group}/{name}"] = Array(rows)
        of_groups[group] = metadata
    split = _SPLIT.match(file.path.name)
    if split is not None and of_groups:
        names = [group.removeprefix("data/") for group in of_groups]
        arrays[f"mask/{split[1]}"] = Array(np.array(names))
    return OpenFile(
        arrays=arrays,
        further=[described],
        memory=max((record.held for record in records), default=0),
        left_out=left_out,
        of_groups=of_groups,
        file=file,
    )


def _features(file: SourceFile) -> list[_StatedFeature]:
    try:
        features = list(_flat(json.loads(file.bytes()[:].tobytes()), ""))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise file.problem(f"does not describe features: {error!r}", WRITE_AGAIN, "damaged") from error
    if not any(feature.name.startswith(_STEPS) for feature in features):
        message = "lists no steps, so it does not describe an RLDS dataset"
        raise file.problem(message, "skip the folder with --exclude", "layout")
    return features


def _flat(said: Metadata, name: str) -> Iterator[_StatedFeature]:
    """Yield the features below one that has others, as TensorFlow Datasets names them in a record."""
    if "featuresDict" in said:
        for key, below in said["featuresDict"]["features"].items():
            yield from _flat(below, f"{name}/{key}" if name else key)
    elif "sequence" in said and name == "steps":
        yield from _flat(said["sequence"]["feature"], name)
    elif _TEXT in said:
        yield _StatedFeature(name, _TEXT, "", ())
    elif "image" in said:
        if said["image"].get("dtype") == "float32":
            yield _StatedFeature(name, _FLOAT_IMAGE, "float32", ())
        else:
            yield _StatedFeature(name, "image", "", ())
    elif said.get("tensor", {}).get("encoding") == "none":
        tensor = said["tensor"]
        shape = tuple(map(int, tensor["shape"].get("dimensions", ())))
        if tensor["dtype"] == "string":
            yield _StatedFeature(name, "unread" if shape else _TEXT, "string", ())
            return
        is_read = min(shape, default=0) >= 0 and tensor["dtype"] not in _UNREAD_DTYPES
        dtype = str(np.dtype(tensor["dtype"])) if is_read else tensor["dtype"]
        yield _StatedFeature(name, "tensor" if is_read else "unread", dtype, shape)
    else:
        yield _StatedFeature(name, "unread", said["pythonClassName"].rpartition(".")[2], ())


def _is_record(head: bytes) -> bool:
    return len(head) == _HEAD.size and _masked_crc(head[:8]) == _HEAD.unpack(head)[1]


def _records(file: SourceFile, content: memoryview) -> Iterator[_Record]:
    position = 0
    number = 0
    while position < len(content):
        start = position + _HEAD.size
        head = bytes(content[position:start])
        if not _is_record(head):
            raise file.problem(f"its record at byte {position:,} is damaged", WRITE_AGAIN, "damaged")
        stop = start + _HEAD.unpack(head)[0]
        position = stop + _TAIL
        if position > len(content):
            raise file.problem(
                f"is truncated: it ends inside record {number}, which begins at byte {start - _HEAD.size:,}",
                WRITE_AGAIN,
                "truncated",
            )
        try:
            yield _Record(file, content, number, start, stop)
        except (IndexError, ValueError) as error:
            message = f"its record {number} is not a tf.train.Example"
            raise file.problem(message, WRITE_AGAIN, "damaged") from error
        number += 1


class _Record:
    """An episode: where it lies, and the list of each name in it."""

    def __init__(self, file: SourceFile, content: memoryview, number: int, start: int, stop: int) -> None:
        self.number = number
        self.start = start
        self.stop = stop
        self._file = file
        self._content = content
        self._is_checked = False
        self._lists: dict[str, _ProtoField] = {}
        for features in _fields(content, start, stop):
            for entry in _fields(content, features.start, features.stop):
                key, value = _fields(content, entry.start, entry.stop)
                # Fields 1 (bytes), 2 (float32) or 3 (int64) of a feature.
                for values in _fields(content, value.start, value.stop):
                    self._lists[bytes(content[key.start : key.stop]).decode()] = values

    @property
    def held(self) -> int:
        """Bytes that reading takes: those of the record, and of its largest list while it is decoded."""
        # Of a byte of an int64: where it stands, its bits, and each of these shifted, eight bytes each
        lists = [(one.stop - one.start) * (48 if one.field == 3 else 3) for one in self._lists.values()]
        return self.stop - self.start + max(lists, default=0)

    def _values(self, name: str) -> Iterator[_ProtoField]:
        """Yield what a list holds, once the checksum of the record is right."""
        if not self._is_checked:
            stored = int.from_bytes(self._content[self.stop : self.stop + _TAIL], "little")
            if _masked_crc(bytes(self._content[self.start : self.stop])) != stored:
                raise self._file.problem(
                    f"the checksum of its record {self.number} does not match", WRITE_AGAIN, "damaged"
                )
            self._is_checked = True
        if name in self._lists:
            yield from _fields(self._content, *self._lists[name][1:])

    def step_count(self, features: Sequence[_StatedFeature]) -> int:
        """Count the steps, by the shortest of the lists that have values for each."""
        lists = self._lists
        tensors = [one for one in features if one.kind == "tensor" and one.name.startswith(_STEPS)]
        counted = [one for one in tensors if one.name in lists]
        if not counted:
            return 0
        shortest = min(counted, key=lambda one: lists[one.name].stop - lists[one.name].start)
        return len(self._numbers(shortest.name)) // prod(shortest.shape)

    def strings(self, name: str) -> list[bytes]:
        return [bytes(self._content[one.start : one.stop]) for one in self._values(name)]

    def _numbers(self, name: str) -> AnyArray:
        """Return the numbers of a list, float32 or int64."""
        parts = [np.empty(0, np.int64)]
        for one in self._values(name):
            raw = np.frombuffer(self._content[one.start : one.stop], np.uint8).copy()
            parts.append(raw.view("<f4") if self._lists[name].field == 2 else _from_varints(raw))
        return np.concatenate(parts[1:] or parts)

    def float_images(self, feature: _StatedFeature, length: int) -> LazyRows:
        """Return images of one float32 a pixel, (length, height, width, 1), of the size of the first."""
        where = f"{self._file.name}: {feature.name} of record {self.number}"
        places = list(self._values(feature.name))
        if len(places) != length:
            message = f"{feature.name} of record {self.number} has {len(places):,} images, not {length:,}"
            raise self._file.problem(message, WRITE_AGAIN, "shape")
        height = width = 0
        if places:
            header = header_of(BytesIO(self._content[places[0].start : places[0].stop]), where)
            height, width = header.height, header.width

        def read(lo: int, hi: int) -> AnyArray:
            images = np.empty((hi - lo, height, width, 1), np.float32)
            for row, place in enumerate(places[lo:hi]):
                pixels = decode(bytes(self._content[place.start : place.stop]), where, exact=True)
                if pixels.shape != (height, width, _FLOAT_BYTES) or pixels.dtype != np.uint8:
                    message = f"image {lo + row} of {feature.name} of record {self.number} has the shape "
                    message += f"{pixels.shape}, not {(height, width, _FLOAT_BYTES)}"
                    raise self._file.problem(message, WRITE_AGAIN, "shape")
                images[row] = np.ascontiguousarray(pixels).view("<f4")
            return images

        return LazyRows((length, height, width, 1), np.dtype(np.float32), read)

    def values(self, feature: _StatedFeature, length: int, lo: int, hi: int) -> AnyArray:
        if feature.kind in _DTYPES:
            files = self.strings(feature.name)
            values = np.empty(len(files), object)
            values[:] = files
        else:
            values = self._numbers(feature.name).astype(feature.dtype, copy=False)
        shape = (length, *feature.shape)
        if values.size != prod(shape):
            raise self._file.problem(
                f"{feature.name} of record {self.number} has {values.size:,} values, not the shape {shape}",
                WRITE_AGAIN,
                "shape",
            )
        return values.reshape(shape)[lo:hi]


def _fields(content: memoryview, position: int, stop: int) -> Iterator[_ProtoField]:
    """Yield the fields of a protocol buffer. That of a number is a span of its bytes."""
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
            raise ValueError(f"unknown wire type {wire}")
        if position > stop:
            raise ValueError("a field ends after the end of its message")
        yield _ProtoField(tag >> 3, start, position)


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


def _from_varints(raw: UInt8s) -> Int64s:
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
