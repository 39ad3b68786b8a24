"""The consumer: reads every byte of a batch, as a copy to an accelerator would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def consume(batch: Any) -> tuple[int, int]:
    """Sum all of a batch's tensors and arrays, 8 bytes at a time.

    Returns
    -------
    Number of bytes, and their sum (so that nothing can be left out).
    """
    if isinstance(batch, Mapping):
        return _total(batch.values())
    if isinstance(batch, (list, tuple)):
        return _total(batch)
    if hasattr(batch, "detach"):
        return _read(batch.detach().numpy())
    if isinstance(batch, np.ndarray):
        return _read(batch)
    return 0, 0


def _total(parts: Any) -> tuple[int, int]:
    count = total = 0
    for part in parts:
        more, value = consume(part)
        count, total = count + more, total + value
    return count, total


def _read(array: NDArray[Any]) -> tuple[int, int]:
    """Sum an array in the order of its memory."""
    if array.dtype.kind not in "biuf" or not array.size:
        return 0, 0
    laid = array
    if not laid.flags.c_contiguous:
        laid = array.transpose(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))
    if not laid.flags.c_contiguous:
        if laid.ndim == 1:
            return array.nbytes, int(laid.sum())
        found = [_read(part) for part in laid]
        return array.nbytes, sum(value for _, value in found)
    flat = laid.reshape(-1)
    if array.nbytes % 8 == 0:
        return array.nbytes, int(flat.view(np.int64).sum())
    flat = flat.view(np.uint8)
    whole = len(flat) // 8 * 8
    return array.nbytes, int(flat[:whole].view(np.int64).sum()) + int(flat[whole:].sum())
