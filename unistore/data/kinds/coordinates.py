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
    """Converts coordinates of one source to float64, or relative to an origin.

    Parameters
    ----------
    scale, offset
        (3,) float64 each, the source's own; None: coordinates are not quantised.
    decimal
        Whether they are those of decimals.
    """

    def __init__(
        self,
        scale: NDArray[np.float64] | None = None,
        offset: NDArray[np.float64] | None = None,
        *,
        decimal: bool = False,
    ) -> None:
        self._decimal = decimal
        self._scaled: np.ufunc = np.divide if decimal else np.multiply
        self._scale: NDArray[np.float64] | float | None = None
        self._offset: NDArray[np.float64] | None = None
        if scale is None or offset is None:
            return
        self._scale = float(scale[0]) if (scale == scale[0]).all() else _tiled(scale)
        # x + 0.0 is x unless x is -0.0, which no product of an integer and a positive scale is
        if offset.any() or (not decimal and not (scale > 0).all()):
            self._offset = _tiled(offset)

    def convert(
        self,
        stored: NDArray[Any],
        out: NDArray[np.floating[Any]],
        origin: NDArray[np.float64] | None = None,
    ) -> None:
        """Write ``absolute``, or with an origin ``absolute - origin``, to `out`.

        Parameters
        ----------
        stored
            (N, 3), as stored; quantised ones may be `quantised_view` of `out`.
        out
            (N, 3) float32 or float64.
        origin
            (3,) float64.
        """
        source, target = stored.reshape(-1), out.reshape(-1)
        origins = None if origin is None else _tiled(origin, len(out))
        memory = np.empty(min(len(source), 3 * _BLOCK))
        for lo in range(0, len(source), 3 * _BLOCK):
            part = source[lo : lo + 3 * _BLOCK]
            work = memory[: len(part)]
            np.copyto(work, part)
            if self._decimal:
                _row_wise(np.add, work, self._offset)
            _row_wise(self._scaled, work, self._scale)
            if not self._decimal:
                _row_wise(np.add, work, self._offset)
            _row_wise(np.subtract, work, origins)
            target[lo : lo + len(part)] = work


def _row_wise(
    operation: np.ufunc, work: NDArray[np.float64], tile: NDArray[np.float64] | float | None
) -> None:
    """Apply an operation with a number or a repeated row (3,), `tile`, to flat `work`, in place."""
    if isinstance(tile, float):
        operation(work, tile, out=work)
    elif tile is not None:
        whole = len(work) // len(tile) * len(tile)
        rows, rest = work[:whole].reshape(-1, len(tile)), work[whole:]
        operation(rows, tile, out=rows)
        operation(rest, tile[: len(rest)], out=rest)


def _tiled(row: NDArray[np.float64], points: int = _TILE) -> NDArray[np.float64]:
    """`row` (3,) repeated for up to `_TILE` points, flat."""
    return np.frombuffer(row.tobytes() * max(1, min(points, _TILE)), np.float64)
