"""Groups of pictures of a video, as stores keep them: packets bit for bit, and what decodes them."""

# A record is the length of a JSON text (4 bytes, little-endian), that text, and the packets back to back.
# It begins with a key frame, and no other group needs its packets: it is decoded alone.

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypedDict

import numpy as np

from unistore.errors import CorruptionError, InputError, Where
from unistore.schemas.indices import IndexColumn, StoreView
from unistore.schemas.tables import offsets_of
from unistore.system.extras import require
from unistore.system.types import Int64s, UInt8s

# The decoder of each codec, which PyAV's wheels have
DECODERS = {"h264": "h264", "hevc": "hevc", "av1": "libdav1d", "vp9": "vp9"}
_LENGTH_BYTES = 4
# Pixels a side by which a decoder pads frames, at most
PADDING = 128
# First PyAV that converts an image in several threads, and has an argument for their number
_PYAV_WITH_THREADS = 17


class Packet(NamedTuple):
    """A packet of a video."""

    time: int  # of its frame, in units of the time base
    is_key: bool
    content: bytes


class RecordHead(TypedDict):
    """The text of a record. A store's may be anything."""

    codec: str
    extradata: str  # of the codec, as hexadecimal digits
    pixel_format: str
    size: list[int]  # height, width
    colour: list[int]  # primaries, transfer, matrix and range, as FFmpeg numbers them
    time_base: list[int]  # a unit of time is this fraction of a second
    steps: list[int]  # times of the frames that are shown
    times: list[int]  # of the frame of each packet
    keys: list[int]  # 1: a packet is a key frame
    sizes: list[int]  # bytes of each packet


def head_of(stream: Any) -> RecordHead:
    """Return what decodes the packets of an open stream, without any."""
    context = stream.codec_context
    return {
        "codec": context.codec.canonical_name,
        "extradata": (context.extradata or b"").hex(),
        "pixel_format": str(context.pix_fmt),
        "size": [context.height, context.width],
        "colour": [context.color_primaries, context.color_trc, context.colorspace, context.color_range],
        "time_base": [stream.time_base.numerator, stream.time_base.denominator],
        "steps": [],
        "times": [],
        "keys": [],
        "sizes": [],
    }


def groups(packets: Sequence[Packet]) -> Iterator[Sequence[Packet]]:
    """Divide the packets of a video, in the order of decoding, into groups that decode independently.

    No frame of a group is shown before its first frame, and no earlier frame after it.
    """
    times = np.array([packet.time for packet in packets])
    latest_before = np.maximum.accumulate(times)[:-1]
    earliest_after = np.minimum.accumulate(times[::-1])[::-1][1:]
    is_apart = (latest_before < times[1:]) & (times[1:] <= earliest_after)
    is_key = np.array([packet.is_key for packet in packets[1:]], bool)
    bounds = [0, *(np.flatnonzero(is_apart & is_key) + 1).tolist(), len(packets)]
    for first, stop in pairwise(bounds):
        yield packets[first:stop]


def record_of(head: RecordHead, packets: Sequence[Packet], steps: Sequence[int]) -> UInt8s:
    """Write a group whose frames at the times `steps` are shown."""
    own: RecordHead = {
        **head,
        "steps": list(steps),
        "times": [packet.time for packet in packets],
        "keys": [int(packet.is_key) for packet in packets],
        "sizes": [len(packet.content) for packet in packets],
    }
    return _record(own, b"".join(packet.content for packet in packets))


def _record(head: Mapping[str, object], content: bytes) -> UInt8s:
    text = json.dumps(head, separators=(",", ":")).encode()
    return np.frombuffer(len(text).to_bytes(_LENGTH_BYTES, "little") + text + content, np.uint8)


# Stands in the first row of an episode that has no video. Its frames are zeros
NO_VIDEO = _record({"sizes": []}, b"")


def images_in(
    record: UInt8s, numbers: Sequence[int], size: tuple[int, int], where: Where
) -> Iterator[UInt8s]:
    """Decode the frames of ascending steps of a group, (height, width, 3) u1 RGB each."""
    import av

    wrong = (LookupError, TypeError, ValueError, ArithmeticError, RecursionError, av.FFmpegError)
    try:
        yield from _decoded(record.tobytes(), numbers, size)
    except wrong as error:
        raise InputError.at(
            where, f"contains a video that cannot be decoded: {error}", "convert the source again", "damaged"
        ) from error


def _decoded(record: bytes, numbers: Sequence[int], size: tuple[int, int]) -> Iterator[UInt8s]:
    """Decode frames, or raise what Python and PyAV raise of wrong values."""
    import av

    start = _LENGTH_BYTES + int.from_bytes(record[:_LENGTH_BYTES], "little")
    head: RecordHead = json.loads(record[_LENGTH_BYTES:start])
    bounds = (offsets_of(head["sizes"]) + start).tolist()
    if bounds == [len(record)]:
        yield from np.zeros((len(numbers), *size, 3), np.uint8)
        return
    if min(head["sizes"]) < 1:
        raise ValueError(f"a packet has a size of {min(head['sizes'])} bytes")
    if bounds[-1] != len(record):
        raise ValueError(f"its packets end at byte {bounds[-1]:,}, but {len(record):,} bytes are stored")
    times = [head["steps"][number] for number in numbers]
    last = max(head["times"].index(time) for time in times)
    decoder: Any = av.CodecContext.create(DECODERS[head["codec"]], "r")
    decoder.thread_count = 1
    decoder.extradata = bytes.fromhex(head["extradata"])
    decoder.color_primaries, decoder.color_trc, decoder.colorspace, decoder.color_range = head["colour"]
    decoder.options = {"max_pixels": str((size[0] + PADDING) * (size[1] + PADDING))}
    waiting = iter(times)
    time: int | None = next(waiting)
    for number in range(last + 2):  # after the last packet, the frames that the decoder holds back
        packet = None
        if number <= last:
            packet = av.Packet(record[bounds[number] : bounds[number + 1]])
            packet.pts = head["times"][number]
        for frame in decoder.decode(packet):
            if frame.pts == time:
                if (frame.height, frame.width) != size:
                    raise ValueError(
                        f"a frame has {frame.height} x {frame.width} pixels, not {size[0]} x {size[1]}"
                    )
                yield rgb(frame)
                time = next(waiting, None)
    if time is not None:
        raise ValueError(f"its {last + 1} packets contain no frame at the time {time}")


def rgb(frame: Any) -> UInt8s:
    """Convert a decoded frame to (height, width, 3) u1 RGB, as everything here that reads video does."""
    import av

    # By itself, FFmpeg starts a thread a core for each image. PyAV before 17 converts in one thread.
    options = {"threads": 1} if int(av.__version__.split(".")[0]) >= _PYAV_WITH_THREADS else {}
    image: UInt8s = frame.to_ndarray(format="rgb24", **options)
    return image


class KeptVideo:
    """Video of a store: each group of pictures in the row of its first step, the rows after it empty."""

    def __init__(self, store: StoreView, group: str) -> None:
        self._data = store.array(f"{group}/data")
        self._offsets = IndexColumn(store, f"{group}/offsets")
        self._where = f"{store.path}: {group}"
        height, width, *_ = self._data.attributes["shape"]
        self._size = height, width

    def read(self, rows: Int64s) -> list[UInt8s]:
        """Decode the frames of ascending rows, from the key frame before each."""
        require("av", f"{self._where}: decoding video needs", "robots")
        starts = self._starts(rows)
        groups, firsts = np.unique(starts, return_index=True)
        lo, hi = self._offsets.ranges(groups)
        stored = self._data.read_ranges(lo, hi)
        bounds = offsets_of(hi - lo).tolist()
        stops = [*firsts[1:].tolist(), len(rows)]
        images: list[UInt8s] = []
        for number, group in enumerate(groups.tolist()):
            steps = rows[firsts[number] : stops[number]] - group
            record = stored[bounds[number] : bounds[number + 1]]
            where = f"{self._where}: row {group}"
            try:
                images += images_in(record, steps.tolist(), self._size, where)
            except InputError as error:
                raise CorruptionError(f"{where} {error.problems[0].message}") from error
        return images

    def stretch(self, start: int, stop: int) -> UInt8s:
        """Decode the frames of rows ``start:stop``, (rows, height, width, 3) u1."""
        return np.stack(self.read(np.arange(start, stop)))

    def _starts(self, rows: Int64s) -> Int64s:
        """Return the row of the group of each row: the last one up to it that is not empty."""
        starts = rows.copy()
        ends = self._offsets.take(rows + 1)
        is_empty = self._offsets.take(starts) == ends
        while is_empty.any():
            starts[is_empty & (starts > 0)] -= 1
            is_empty = (self._offsets.take(starts) == ends) & (starts > 0)
        return starts
