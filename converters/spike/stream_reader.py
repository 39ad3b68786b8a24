"""Reading a headerless stream of known layout and resolution as packed bits with row 0 = top.

A ``.dat`` stream holds its bottom row first (checked with a real recording: with the right bit order and
flip, the mean of its frames correlates with the scene at 0.97, unflipped below 0.15). Arrays hold their top
row first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from unistore.converters.spike.source import Extent, FrameSource, StreamSource
from unistore.errors import InputError, Problem
from unistore.schemas.spike.bits import pack, row_bytes

_BLOCK = 8 << 20


@dataclass(frozen=True, kw_only=True)
class ShapedStream(FrameSource):
    """Spikes of a stream of known layout and resolution."""

    stream: StreamSource
    layout: str
    """``"packed"``, ``"stream"`` or ``"bytes"``; see `unistore.converters.spike.geometry`."""
    flip: bool
    """Whether it holds its bottom row first."""

    @classmethod
    def of(cls, stream: StreamSource, extent: Extent, layout: str, flip: bool) -> Self:
        """Make it from a stream and its extent."""
        return cls(
            path=stream.path, location=stream.location, extent=extent, stream=stream, layout=layout, flip=flip
        )

    def read(self, out: NDArray[np.uint8]) -> None:
        """Read the first T time steps; see `FrameSource.read`."""
        frames, height, stored = out.shape
        pixels = height * self.extent.width
        frame_bits = {"packed": height * stored * 8, "stream": pixels, "bytes": pixels * 8}[self.layout]
        step = max(1, _BLOCK * 8 // frame_bits)
        if self.layout == "stream":
            step = -(-step // 8) * 8  # so that every block begins at a whole byte
        with self.stream.open() as read:
            for start in range(0, frames, step):
                count = min(step, frames - start)
                raw = read(-(-count * frame_bits // 8))
                if raw.size * 8 < count * frame_bits:
                    message = f"ended in frame {start + raw.size * 8 // frame_bits} of {frames}"
                    cure = "it changed during the conversion: run again when it is complete"
                    raise InputError(Problem(self.location, message, cure, "truncated"))
                rows = self._rows(raw, count, height)
                out[start : start + count] = rows[:, ::-1] if self.flip else rows

    def _rows(self, raw: NDArray[np.uint8], frames: int, height: int) -> NDArray[np.uint8]:
        """Packed rows (frames, H, ⌈W/8⌉) in file order."""
        shape = (frames, height, self.extent.width)
        if self.layout == "packed":
            return raw.reshape(frames, height, row_bytes(self.extent.width))
        if self.layout == "stream":
            pixels = np.unpackbits(raw, count=frames * height * self.extent.width, bitorder="little")
            return pack(pixels.reshape(shape))
        if raw.max(initial=0) > 1:
            message = f"holds a byte of {raw.max()}, expected 0 or 1 in one byte a pixel"
            raise InputError(Problem(self.location, message, "take --layout packed or auto", "values"))
        return pack(raw.reshape(shape))
