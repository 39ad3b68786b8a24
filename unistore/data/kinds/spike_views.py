"""What is made of the spikes of a window of time: pixels, bits, voxels, gray pictures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.schemas.spike.fields import count_dtype, row_bytes, unpack, voxelize

# Pixels that are unpacked at a time: they stay in the cache until they are copied
_CACHED_PIXELS = 1 << 20


class View(ABC):
    """What is made of the bits of consecutive time steps.

    Attributes
    ----------
    dtype
        Of its values.
    """

    dtype: np.dtype[Any] = np.dtype(np.uint8)

    @abstractmethod
    def shape(self, steps: int, height: int, width: int) -> tuple[int, ...]:
        """Shape of the view of `steps` time steps of `height` x `width` pixels."""

    @abstractmethod
    def fill(self, bits: NDArray[np.uint8], left: int, width: int, out: NDArray[Any]) -> None:
        """Fill `out`, which may have room for more steps, from bits (t, h, bytes).

        The first of `width` pixels is at bit `left` of each row.
        """


class Pixels(View):
    """Spikes as 0 and 1, (T, h, w); zeros behind the last step."""

    def shape(self, steps: int, height: int, width: int) -> tuple[int, ...]:
        """See `View.shape`."""
        return steps, height, width

    def fill(self, bits: NDArray[np.uint8], left: int, width: int, out: NDArray[Any]) -> None:
        """See `View.fill`."""
        together = max(1, _CACHED_PIXELS // max(1, bits[0].size * 8)) if len(bits) else 1
        for start in range(0, len(bits), together):
            part = bits[start : start + together]
            out[start : start + len(part)] = unpack(part, width, left)
        out[len(bits) :] = 0


class PackedBits(View):
    """Spikes as bits, (T, h, ⌈w/8⌉), least significant first; zeros behind the last step."""

    def shape(self, steps: int, height: int, width: int) -> tuple[int, ...]:
        """See `View.shape`."""
        return steps, height, row_bytes(width)

    def fill(self, bits: NDArray[np.uint8], left: int, width: int, out: NDArray[Any]) -> None:
        """See `View.fill`."""
        _shift_bits(bits, left, width, out[: len(bits)])
        out[len(bits) :] = 0


class Voxels(View):
    """Spikes counted in bins of time, (B, h, w), as `unistore.schemas.spike.fields.voxelize` does."""

    def __init__(self, bins: int, most_steps: int) -> None:
        self._bins = bins
        self.dtype = np.dtype(count_dtype(most_steps, bins))

    def shape(self, steps: int, height: int, width: int) -> tuple[int, ...]:
        """See `View.shape`."""
        del steps
        return self._bins, height, width

    def fill(self, bits: NDArray[np.uint8], left: int, width: int, out: NDArray[Any]) -> None:
        """See `View.fill`."""
        voxelize(bits, width, self._bins, left=left, out=out)


class Texture(View):
    """A gray picture (h, w) float32 of the time steps, see `tfp` and `tfi`."""

    dtype = np.dtype(np.float32)

    def __init__(self, rule: Callable[[NDArray[np.uint8], int, int], NDArray[np.float32]]) -> None:
        self._rule = rule

    def shape(self, steps: int, height: int, width: int) -> tuple[int, ...]:
        """See `View.shape`."""
        del steps
        return height, width

    def fill(self, bits: NDArray[np.uint8], left: int, width: int, out: NDArray[Any]) -> None:
        """See `View.fill`."""
        out[...] = self._rule(bits, left, width)


def _shift_bits(bits: NDArray[np.uint8], left: int, width: int, out: NDArray[np.uint8]) -> None:
    """Copy `width` bits of every row from bit `left` on, padded with zeros to whole bytes."""
    columns = out.shape[-1]
    if left:
        np.right_shift(bits[..., :columns], np.uint8(left), out=out)
        carried = bits[..., 1 : columns + 1]
        out[..., : carried.shape[-1]] |= carried << np.uint8(8 - left)
    elif bits is not out:
        out[...] = bits[..., :columns]
    if width % 8:
        out[..., -1] &= np.uint8((1 << width % 8) - 1)


def tfp(bits: NDArray[np.uint8], left: int, width: int) -> NDArray[np.float32]:
    """Reconstruct texture from playback (TFP): the mean of the spikes over a window of time.

    A pixel that fires n times in T steps has the value n / T, from 0 to 1; gray levels are 255 n / T.
    Zhu, Dong, Huang and Tian, "A retina-inspired sampling method for visual texture reconstruction", ICME
    2019, doi:10.1109/ICME.2019.00248.

    Parameters
    ----------
    bits
        (T, h, bytes) u1, packed spikes.
    left, width
        Bits to leave out at the start of every row, and pixels wanted.

    Returns
    -------
    (h, width) float32
    """
    counts = voxelize(bits, width, 1, left=left)[0]
    mean: NDArray[np.float32] = counts.astype(np.float32) / np.float32(max(1, len(bits)))
    return mean


def tfi(bits: NDArray[np.uint8], left: int, width: int) -> NDArray[np.float32]:
    """Reconstruct texture from inter-spike intervals (TFI), at the middle of a window of time.

    A pixel whose last spike up to step c = T // 2 is at step a, and whose next is at step b, has the value
    1 / (b - a), from 0 to 1; gray levels are 255 / (b - a). It is 0 where the window lacks one of the two.
    Zhu, Dong, Huang and Tian, "A retina-inspired sampling method for visual texture reconstruction", ICME
    2019, doi:10.1109/ICME.2019.00248.

    Parameters
    ----------
    bits
        (T, h, bytes) u1, packed spikes.
    left, width
        Bits to leave out at the start of every row, and pixels wanted.

    Returns
    -------
    (h, width) float32
    """
    middle = len(bits) // 2 + 1
    before = _steps_behind(bits[:middle][::-1], left, width)
    behind = _steps_behind(bits[middle:], left, width)
    has_both = (before > 0) & (behind > 0)
    # both counts begin at the first spike, so that what they lack is the interval
    interval = np.float32(len(bits) + 1) - before - behind
    values: NDArray[np.float32] = np.divide(1, interval, out=np.zeros_like(interval), where=has_both)
    return values


def _steps_behind(bits: NDArray[np.uint8], left: int, width: int) -> NDArray[np.float32]:
    """Steps from the first spike of each pixel to the end, 0 where there is none, (h, width)."""
    fired = np.bitwise_or.accumulate(bits, axis=0)
    steps: NDArray[np.float32] = voxelize(fired, width, 1, left=left)[0].astype(np.float32)
    return steps


VIEWS: Mapping[str, View] = {
    "spike": Pixels(),
    "spike_packed": PackedBits(),
    "tfp": Texture(tfp),
    "tfi": Texture(tfi),
}
"""Views of spikes by key."""
