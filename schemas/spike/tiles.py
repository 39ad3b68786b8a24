"""Chunk shapes inside a frame: pure numbers, from measured reads of random crops.

Measured on 360 x 640 pixels, 88 steps, crops of 128 and 256 pixels: wide tiles of about 100 KiB win over
tiles of less amplification, since copying short rows and starting a decoder cost more than the bytes outside
the crop (spikes in tiles of 36 x 40 bytes: 300 and 125 µs; of 36 x 16 bytes: 470 and 170 µs).
"""

from __future__ import annotations

_SPIKE_BYTES = 128 << 10
_SPIKE_STEPS = 128
_SPIKE_COLUMNS = 40
_VOXEL_BYTES = 80 << 10
_PIXELS = 128
"""Rows and columns of pixels. Columns are multiples of 8 where they can be: blosc's bit shuffle takes whole
groups of 8 values and silently leaves other blocks as they are."""


def even_tile(extent: int, wanted: int, step: int = 1) -> int:
    """Tile length near `wanted` that covers `extent` with the least padding.

    Padding inside packed rows hardly compresses, so 80 bytes are cut in two of 40 and not in 32, 32, 16 + 16.
    Lengths from 0.6 to 1.6 times `wanted` are tried; the least padded extent wins, then multiples of `step`,
    then nearness in ratio.
    """
    if extent <= wanted:
        return max(1, extent)
    lengths = range(max(1, wanted * 6 // 10), min(extent, wanted * 16 // 10) + 1)

    def cost(length: int) -> tuple[int, bool, float]:
        return -(-extent // length) * length, length % step != 0, max(length / wanted, wanted / length)

    return min(lengths, key=cost)


def spike_tile(length: int, height: int, row_bytes: int) -> tuple[int, int, int]:
    """Time steps, rows and bytes of a tile of packed spikes: all steps up to 200, about 128 KiB."""
    steps = even_tile(length, _SPIKE_STEPS)
    columns = even_tile(row_bytes, _SPIKE_COLUMNS)
    rows = even_tile(height, min(_PIXELS, max(8, _SPIKE_BYTES // (steps * columns))))
    return steps, rows, columns


def voxel_tile(bins: int, height: int, width: int, itemsize: int) -> tuple[int, int, int]:
    """Bins, rows and columns of a tile of voxels: all bins, about 80 KiB."""
    columns = even_tile(width, _PIXELS, 8)
    wanted = _VOXEL_BYTES // (bins * columns * itemsize)
    return bins, even_tile(height, min(_PIXELS, max(16, wanted))), columns


def image_tile(height: int, width: int) -> tuple[int, int, int]:
    """Rows, columns and channels of a tile of pixels: about 128 x 128."""
    return even_tile(height, _PIXELS), even_tile(width, _PIXELS, 8), 3
