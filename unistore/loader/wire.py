"""Serialisation of batches: a small pickle, and arrays that stay in shared memory.

Protocol 5 of pickle hands out the memory of arrays. What lies in the batch's arena is sent as its position
there; anything else is copied into the arena once.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from unistore.data.packed import Packed
from unistore.memory.segments import Arena

INLINE_BYTES = 8 * 1024
"""Longer pickles are put into the batch's memory, so that messages stay far below a socket's buffer."""

Message: TypeAlias = bytes | tuple[int, int, int]
"""The pickle of a batch, or its segment, offset and length in the batch's memory."""


class _Packer(pickle.Pickler):
    """Pickles a batch around the memory of its arrays."""

    def __init__(self, file: io.BytesIO, arena: Arena) -> None:
        self.positions: list[tuple[int, int, int]] = []
        self._arena = arena
        super().__init__(file, protocol=5, buffer_callback=self._keep)
        # one of its own hides what torch has registered with copyreg
        self.dispatch_table = {**copyreg.dispatch_table, **_REDUCERS}

    def _keep(self, buffer: pickle.PickleBuffer) -> None:
        with buffer.raw() as raw:
            self.positions.append(_position(np.asarray(raw), self._arena))


def _position(data: NDArray[np.uint8], arena: Arena) -> tuple[int, int, int]:
    """Return segment, offset and length of some bytes in an arena; they are copied if they lie elsewhere."""
    if not len(data):
        return 0, 0, 0
    location = arena.find(_address(data), len(data))
    if location is None:
        copy = arena.allocate(data.shape, data.dtype)
        copy[:] = data
        location = arena.find(_address(copy), len(copy))
    assert location is not None
    return *location, len(data)


def _address(data: NDArray[Any]) -> int:
    address: int = data.__array_interface__["data"][0]
    return address


def _reduce_packed(packed: Packed) -> Any:
    return Packed, (packed.values, packed.offsets, packed.group, packed.shapes)


def _reduce_array(array: NDArray[Any]) -> Any:
    flags = array.flags
    if flags.c_contiguous or flags.f_contiguous or array.dtype.hasobject:
        return array.__reduce_ex__(5)  # hands out the memory, or pickles the objects
    # images are permuted views: contiguous once their axes are in the order of memory
    axes = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    dense = np.ascontiguousarray(array.transpose(axes))
    return np.transpose, (dense, np.argsort(axes).tolist())


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    strided = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    if not strided or tensor.requires_grad or tensor.is_conj() or tensor.is_neg():
        return tensor.__reduce_ex__(5)  # type: ignore[no-untyped-call]
    try:
        return torch.from_numpy, (tensor.numpy(),)
    except TypeError:  # bfloat16, float8: torch has them, numpy does not
        data = tensor.contiguous().view(-1).view(torch.uint8).numpy()
        return _tensor_of_bytes, (data, tensor.dtype, tensor.shape)


def _tensor_of_bytes(data: NDArray[np.uint8], dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    return torch.from_numpy(data).view(dtype).view(shape)


_REDUCERS: dict[type, Callable[[Any], Any]] = {
    Packed: _reduce_packed,
    np.ndarray: _reduce_array,
    torch.Tensor: _reduce_tensor,
}


def encode(batch: Any, arena: Arena) -> Message:
    """Serialise a batch.

    Parameters
    ----------
    batch
        Anything that can be pickled.
    arena
        The batch's memory; arrays outside of it are copied into it.
    """
    file = io.BytesIO()
    packer = _Packer(file, arena)
    packer.dump(batch)
    message = pickle.dumps((file.getvalue(), packer.positions), protocol=5)
    if len(message) <= INLINE_BYTES:
        return message
    return _position(np.frombuffer(message, np.uint8), arena)


def decode(message: Message, memory: Sequence[Any], *, copy: bool = False) -> Any:
    """Rebuild a batch.

    Parameters
    ----------
    message
        What `encode` returned in the worker.
    memory
        One buffer for each segment of the batch's memory, the slab first.
    copy
        Copy all arrays, so that the memory is free when this returns.
    """

    def part(segment: int, offset: int, length: int) -> Any:
        if not length:
            return bytearray()
        view = memoryview(memory[segment]).cast("B")[offset : offset + length]
        return np.array(view) if copy else view

    if not isinstance(message, bytes):
        message = bytes(part(*message))
    stream, positions = pickle.loads(message)  # noqa: S301 - from our own process
    return pickle.loads(stream, buffers=[part(*position) for position in positions])  # noqa: S301
