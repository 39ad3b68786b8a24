"""Frames of a video file, found by their times and decoded when they are read, and its packets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any
from zlib import crc32

import numpy as np

from unistore.converters.array import Array
from unistore.converters.common.faults import is_out_of_memory
from unistore.converters.formats.packets import (
    DECODERS,
    PADDING,
    Packet,
    RecordHead,
    groups,
    head_of,
    images_in,
    record_of,
    rgb,
)
from unistore.converters.opened import SourceFile
from unistore.errors import InputError, Problem
from unistore.system.foreign import begin_reading, opening
from unistore.system.types import AnyArray, Shape, UInt8s

LIBRARY = "FFmpeg"
TOLERANCE = 1e-4  # seconds between the time of a step and that of its frame
# Frames that a decoder holds: 16 that others refer to (H.264, table A-1), the next, and one on its way out
_FRAMES_HELD = 18
_PIXEL_BYTES = 3  # of such a frame, at most: of 8 bits without subsampling, or of more with it
_AGAIN = "download or record the video again"
_DECODE = "remove --video keep, so that decoded frames are stored"


def decoder_memory(size: tuple[int, int]) -> int:
    """Return the most bytes that decoding takes for frames of a height and width, the image among them."""
    height, width = (extent + PADDING for extent in size)
    return height * width * _PIXEL_BYTES * (_FRAMES_HELD + 2)


def _decoded_from(container: Any, stream: Any, time: float) -> Iterator[Any]:
    """Yield frames from a key frame on that is shown at a time in seconds or before it, if there is one."""
    # A container finds a key frame by the time at which it is decoded, and it may be shown later.
    begin = (stream.start_time or 0) - int(1 / stream.time_base)
    for place in (int(time / stream.time_base), begin):
        container.seek(place, stream=stream)
        frames = container.decode(stream)
        first = next(frames, None)
        if first is not None and (first.time <= time + TOLERANCE or place == begin):
            yield first
            yield from frames
            return


class Frames(Array):
    """Frames of a stretch of a video, (steps, height, width, 3) uint8, RGB as PyAV converts pixels."""

    __slots__ = ("_count", "_file", "_rate", "_size", "_start")

    dtype = np.dtype(np.uint8)
    chunk_rows = 0  # decoding begins again at a key frame

    def __init__(
        self, file: SourceFile, size: tuple[int, int], start: float, count: int, rate: float
    ) -> None:
        super().__init__(None)
        self._file = file
        self._size = size
        self._start = start  # seconds from the beginning of the video to the first step
        self._count = count
        self._rate = rate

    @property
    def shape(self) -> Shape:
        return (self._count, *self._size, 3)

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        """Say what is told without decoding: another size, fewer frames than steps, a file cut short."""
        try:
            with self._open() as (container, stream):
                self._check_size(stream.height, stream.width)
                self._check_end(container, stream)
        except InputError as error:
            return error.problems
        return ()

    def read(self, lo: int, hi: int, out: AnyArray | None = None) -> AnyArray:
        """Decode frames ``lo:hi``, from the key frame before the first of them."""
        frames = out
        if frames is None:
            frames = np.empty((hi - lo, *self.shape[1:]), self.dtype)
        for row, frame in enumerate(self._frames(lo, hi)):
            frames[row] = rgb(frame)
        return frames

    def kept(self, lo: int, hi: int) -> Iterator[tuple[UInt8s, int]]:
        """Yield the groups of pictures of steps ``lo:hi``, and how many steps each has.

        Their packets alone decode to the same pixels.
        """
        shown = [(frame.pts, crc32(rgb(frame).tobytes())) for frame in self._frames(lo, hi)]
        head, packets = self._packets(lo, {time for time, _ in shown})
        first = 0
        for group in groups(packets):
            latest = max(packet.time for packet in group)
            stop = bisect_right(shown, latest, first, key=itemgetter(0))
            if stop == first:
                continue
            own = shown[first:stop]
            record = record_of(head, group, [time for time, _ in own])
            with opening(self._file.path, self._file.name, LIBRARY):
                images = images_in(record, range(stop - first), self._size, self._file.name)
                is_same = [crc32(image.tobytes()) for image in images] == [checksum for _, checksum in own]
            if not is_same:
                message = "its stored packets would decode to other frames than the file"
                raise self._file.problem(message, _DECODE, "value")
            yield record, stop - first
            first = stop

    def _packets(self, lo: int, times: set[int]) -> tuple[RecordHead, list[Packet]]:
        """Read the packets from the key frame before a step to the last that a frame needs."""
        packets: list[Packet] = []
        with self._open() as (container, stream):
            head = head_of(stream)
            if head["codec"] not in DECODERS:
                kept = f"--video keep supports only {', '.join(DECODERS)}"
                raise self._file.problem(f"has the codec {head['codec']}, but {kept}", _DECODE, "format")
            container.seek(int(self._time(lo) / stream.time_base), stream=stream)
            for packet in container.demux(stream):
                if not times or not packet.size:
                    break
                if packet.pts is None:
                    message = "has packets that cannot be decoded without others, so they cannot be kept"
                    raise self._file.problem(message, _DECODE, "format")
                packets.append(Packet(packet.pts, packet.is_keyframe, bytes(packet)))
                times.discard(packet.pts)
        if times:
            message = "has frames at other times than its packets, so these cannot be kept"
            raise self._file.problem(message, _DECODE, "format")
        return head, packets

    def _frames(self, lo: int, hi: int) -> Iterator[Any]:
        step = lo
        with self._open() as (container, stream):
            for frame in _decoded_from(container, stream, self._time(lo)):
                begin_reading(self._file.path)
                if step == hi or frame.time > self._time(step) + TOLERANCE:
                    break
                if frame.time >= self._time(step) - TOLERANCE:
                    self._check_size(frame.height, frame.width)
                    yield frame
                    step += 1
        if step < hi:
            raise self._file.problem(
                f"has no frame at {self._time(step):.4f} s, the time of step {step}", _AGAIN, "missing"
            )

    def _time(self, step: int) -> float:
        return self._start + step / self._rate

    def _check_size(self, height: int, width: int) -> None:
        if (height, width) != self._size:
            raise self._file.problem(
                f"has frames of {height} x {width}, but meta/ states {self._size[0]} x {self._size[1]}",
                _AGAIN,
                "shape",
            )

    def _check_end(self, container: Any, stream: Any) -> None:
        """Look for the packet of the last step."""
        last = self._time(self._count - 1)
        end = 0.0
        container.seek(int(last / stream.time_base), stream=stream)
        for packet in container.demux(stream):
            if packet.pts is not None:
                end = max(end, float((packet.pts + packet.duration) * stream.time_base))
        if end < last:
            message = f"ends after {end:.2f} s, but step {self._count - 1} is at {last:.2f} s"
            raise self._file.problem(message, _AGAIN, "truncated")

    @contextmanager
    def _open(self) -> Iterator[tuple[Any, Any]]:
        """Open the video. One thread decodes, so that nothing outlives the reading."""
        av = self._file.library("av", "robots")
        with opening(self._file.path, self._file.name, LIBRARY):
            try:
                with av.open(str(self._file.path)) as container:
                    stream = container.streams.video[0]
                    stream.codec_context.thread_count = 1
                    yield container, stream
            except (av.FFmpegError, IndexError) as error:
                if is_out_of_memory(error):
                    raise
                raise self._file.problem(f"cannot be decoded: {error}", _AGAIN, "damaged") from error
