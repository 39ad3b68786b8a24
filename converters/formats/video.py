"""Frames of a video file, found by their times and decoded when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.formats.extras import needed
from unistore.converters.plugin import Array, SourceFile
from unistore.errors import InputError, Problem
from unistore.system.foreign import opening

LIBRARY = "FFmpeg"
TOLERANCE = 1e-4  # seconds between the time of a step and that of its frame
_AGAIN = "get or record the video again"


class Frames(Array):
    """Frames of a stretch of a video, (steps, height, width, 3) uint8, RGB as PyAV converts pixels."""

    __slots__ = ("_count", "_file", "_rate", "_size", "_start")

    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.uint8)

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
    def shape(self) -> tuple[int, ...]:
        """See `Array`."""
        return (self._count, *self._size, 3)

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        """Say what is told without decoding: another size, fewer frames than steps, a file cut short."""
        del as_objects
        try:
            with self._open() as (container, stream):
                self._check_size(stream.height, stream.width)
                self._check_end(container, stream)
        except InputError as error:
            return error.problems
        return ()

    def read(self, lo: int, hi: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Decode frames ``lo:hi``, from the key frame before the first of them."""
        frames = np.empty((hi - lo, *self.shape[1:]), self.dtype) if out is None else out
        step = lo
        with self._open() as (container, stream):
            container.seek(int(self._time(lo) / stream.time_base), stream=stream)
            for frame in container.decode(stream):
                if step == hi or frame.time > self._time(step) + TOLERANCE:
                    break
                if frame.time >= self._time(step) - TOLERANCE:
                    self._check_size(frame.height, frame.width)
                    frames[step - lo] = frame.to_ndarray(format="rgb24")
                    step += 1
        if step < hi:
            message = f"has no frame at {self._time(step):.4f} s, the time of step {step}"
            raise self._file.problem(message, _AGAIN, "missing")
        return frames

    def _time(self, step: int) -> float:
        return self._start + step / self._rate

    def _check_size(self, height: int, width: int) -> None:
        if (height, width) != self._size:
            message = f"has frames of {height} x {width}, expected {self._size[0]} x {self._size[1]}"
            raise self._file.problem(message, _AGAIN, "shape")

    def _check_end(self, container: Any, stream: Any) -> None:
        """Look for the packet of the last step."""
        last = self._time(self._count - 1)
        end = 0.0
        container.seek(int(last / stream.time_base), stream=stream)
        for packet in container.demux(stream):
            if packet.pts is not None:
                end = max(end, float((packet.pts + packet.duration) * stream.time_base))
        if end < last:
            message = f"ends after {end:.2f} s, and step {self._count - 1} is at {last:.2f} s"
            raise self._file.problem(message, _AGAIN, "truncated")

    @contextmanager
    def _open(self) -> Iterator[tuple[Any, Any]]:
        """Open the video. One thread decodes, so that nothing outlives the reading."""
        av = needed("av", "robots", self._file)
        with opening(self._file.path, self._file.name, LIBRARY):
            try:
                with av.open(str(self._file.path)) as container:
                    stream = container.streams.video[0]
                    stream.codec_context.thread_count = 1
                    yield container, stream
            except (av.FFmpegError, IndexError) as error:
                message = f"cannot be decoded: {error}"
                raise self._file.problem(message, _AGAIN, "damaged") from error
