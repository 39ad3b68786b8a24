"""Point coordinates from their stored form: quantised i4, f4 or f8.

Defined in float64, in this order of operations: ``absolute = q * scale + offset``, or, for decimals,
``absolute = (q + offset) / scale``; ``local = float32(absolute - origin)``. Results equal the definition bit
for bit. Blocks stay in the processor's cache, and quantised values are decoded into the memory of the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 16384
"""Points converted at a time: their float64 values fit into the second-level cache."""

_TILE = 2048
"""Repetitions of a row of three numbers: with half as many, numpy takes twice as long."""


def quantised_view(out: NDArray[Any]) -> NDArray[np.int32]:
    """Part of the memory of `out` for its quantised coordinates (N, 3) i4, to be converted in place.

    All of the memory for float32, the second half for float64: a conversion from front to back never
    overwrites values that are not yet read.
    """
    memory = out.reshape(-1).view(np.int32)
    return memory[len(memory) - out.size :].reshape(out.shape)


class Dequantiser:
    """Converts quantised coordinates of one source to float64, or to float32 relative to an origin.

    Parameters
    ----------
    scale, offset
        (3,) float64 each, the source's own.
    decimal
        Whether they are those of decimals.
    """

    def __init__(
        self, scale: NDArray[np.float64], offset: NDArray[np.float64], *, decimal: bool = False
    ) -> None:
        self._decimal = decimal
        self._scale: NDArray[np.float64] | float = _tiled(scale)
        if (scale == scale[0]).all():
            self._scale = float(scale[0])
        # x + 0.0 is x unless x is -0.0, which no product of an integer and a positive scale is
        added = offset.any() or (not decimal and not (scale > 0).all())
        self._offset = _tiled(offset) if added else None

    def absolute(self, quantised: NDArray[np.int32], out: NDArray[np.float64]) -> None:
        """Coordinates of `quantised`, which may be `quantised_view` of `out`. Both (N, 3)."""
        source, target = quantised.reshape(-1), out.reshape(-1)
        memory = np.empty(min(len(source), 3 * _BLOCK))
        for lo in range(0, len(source), 3 * _BLOCK):
            work = self._block(source[lo : lo + 3 * _BLOCK], memory)
            target[lo : lo + len(work)] = work

    def local(
        self, quantised: NDArray[np.int32], origin: NDArray[np.float64], out: NDArray[np.float32]
    ) -> None:
        """``out = float32(absolute - origin)``; `quantised` may be `quantised_view` of `out`."""
        source, target = quantised.reshape(-1), out.reshape(-1)
        origins = _tiled(origin, len(out))
        memory = np.empty(min(len(source), 3 * _BLOCK))
        for lo in range(0, len(source), 3 * _BLOCK):
            work = self._block(source[lo : lo + 3 * _BLOCK], memory)
            _row_wise(np.subtract, work, origins)
            target[lo : lo + len(work)] = work

    def _block(self, source: NDArray[np.int32], memory: NDArray[np.float64]) -> NDArray[np.float64]:
        work = memory[: len(source)]
        np.copyto(work, source)
        if self._decimal:
            self._add_offset(work)
        scaled: np.ufunc = np.divide if self._decimal else np.multiply
        if isinstance(self._scale, float):
            scaled(work, self._scale, out=work)
        else:
            _row_wise(scaled, work, self._scale)
        if not self._decimal:
            self._add_offset(work)
        return work

    def _add_offset(self, work: NDArray[np.float64]) -> None:
        if self._offset is not None:
            _row_wise(np.add, work, self._offset)


def to_local(
    values: NDArray[np.floating[Any]], origin: NDArray[np.float64], out: NDArray[np.float32]
) -> None:
    """``out = float32(float64(values) - origin)`` for coordinates (N, 3) stored as f4 or f8."""
    source, target = values.reshape(-1), out.reshape(-1)
    origins = _tiled(origin, len(out))
    memory = np.empty(min(len(source), 3 * _BLOCK))
    for lo in range(0, len(source), 3 * _BLOCK):
        part = source[lo : lo + 3 * _BLOCK]
        work = memory[: len(part)]
        np.copyto(work, part)
        _row_wise(np.subtract, work, origins)
        target[lo : lo + len(part)] = work


def _row_wise(operation: np.ufunc, work: NDArray[np.float64], tile: NDArray[np.float64]) -> None:
    """Apply an operation with a repeated row (3,), `tile`, to each row of flat `work`, in place."""
    whole = len(work) // len(tile) * len(tile)
    rows, rest = work[:whole].reshape(-1, len(tile)), work[whole:]
    operation(rows, tile, out=rows)
    operation(rest, tile[: len(rest)], out=rest)


def _tiled(row: NDArray[np.float64], points: int = _TILE) -> NDArray[np.float64]:
    """`row` (3,) repeated for up to `_TILE` points, flat."""
    return np.frombuffer(row.tobytes() * max(1, min(points, _TILE)), np.float64)
