"""Memory of a batch as tensors: ordinary, lent by a Loader, or shared in a worker of torch's DataLoader.

A worker of a DataLoader sends a batch by moving every storage into shared memory. Memory allocated here is
shared from the start, as in torch's own collation, so that sending copies nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from unistore.data.packed import lent_memory

_ALIGNMENT = 64
"""Alignment of arrays in bytes: a cache line."""


def empty_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised contiguous tensor, in the batch's memory if it has any."""
    size = math.prod(shape) * dtype.itemsize
    allocate = lent_memory()
    if size and allocate is not None:
        memory = torch.from_numpy(allocate((size,), np.dtype(np.uint8)))
        return memory.view(dtype).view(tuple(shape))
    if size == 0 or get_worker_info() is None:
        return torch.empty(tuple(shape), dtype=dtype)
    # as torch's default_collate does; `share_memory_` of an ordinary tensor would copy it
    storage: torch.UntypedStorage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=dtype).set_(storage).view(tuple(shape))


class Memory:
    """Allocates the arrays of a batch, and makes tensors of them.

    In a worker, the arrays of a batch share one storage as far as they fit: each storage costs the parent a
    descriptor and a connection.

    Parameters
    ----------
    expected
        Expected bytes of the batch: the size of the first storage.
    """

    def __init__(self, expected: int = 0) -> None:
        self._lent = lent_memory()
        self._in_worker = self._lent is None and get_worker_info() is not None
        self._expected = expected
        self._pieces: list[tuple[int, torch.Tensor]] = []
        self._free = 0
        self.used = 0
        """Bytes allocated in shared memory."""

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """See `unistore.data.packed.Allocate`. Text is not allocated in shared memory."""
        size = math.prod(shape) * dtype.itemsize
        if self._lent is not None and dtype.kind != "U":
            return self._lent(shape, dtype)
        if not self._in_worker or size == 0 or dtype.kind == "U":
            return np.empty(shape, dtype)
        room = -(-size // _ALIGNMENT) * _ALIGNMENT
        if room > self._free:
            piece = empty_tensor((max(room, self._expected - self.used),), torch.uint8)
            self._pieces.append((piece.data_ptr(), piece))
            self._free = piece.numel()
        piece = self._pieces[-1][1]
        start = piece.numel() - self._free
        self._free -= room
        self.used += room
        array: NDArray[Any] = piece[start : start + size].numpy().view(dtype).reshape(shape)
        return array

    def tensor(self, array: NDArray[Any]) -> torch.Tensor:
        """Tensor over the memory of an array, with its strides."""
        if not self._pieces:
            return torch.from_numpy(array)
        start = array.__array_interface__["data"][0]
        for address, piece in self._pieces:
            if address <= start < address + piece.numel() and array.size:
                dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
                strides = tuple(stride // array.itemsize for stride in array.strides)
                offset = (start - address) // array.itemsize
                return torch.empty(0, dtype=dtype).set_(piece.untyped_storage(), offset, array.shape, strides)
        return torch.from_numpy(array)

    def foreign_tensor(self, array: NDArray[Any]) -> torch.Tensor:
        """Tensor of an array from other memory: in a worker a copy in shared memory, else a view."""
        if not self._in_worker:
            return torch.from_numpy(array)
        out = self.allocate(array.shape, array.dtype)
        out[...] = array
        return self.tensor(out)
