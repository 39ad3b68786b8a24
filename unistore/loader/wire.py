"""Serialisation of batches: a small pickle, and arrays that stay in shared memory.

In the pickle, arrays and CPU tensors are replaced by the number of a description: dtype, shape, strides and
offset in the batch's memory. Views stay views, so that permuted images keep their layout. Arrays that are not
in that memory are copied into it once. Everything else is pickled with protocol 5, its out-of-band buffers in
the same memory.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unistore.data.packed import Packed
from unistore.memory.segments import Arena, SegmentOffset

INLINE_BYTES = 8 * 1024
"""Longer pickles are put into the batch's memory, so that messages stay far below a socket's buffer."""
PACKED_ITEMS = 4
"""Items in the description of a `Packed`; that of an array has six."""

_plain_dtypes: dict[np.dtype[Any], str | np.dtype[Any]] = {}


Message: TypeAlias = bytes | tuple[int, int, int]
"""The pickle of a batch, or its segment, offset and length in the batch's memory."""


def _dtype_name(dtype: np.dtype[Any]) -> str | np.dtype[Any]:
    """Return ``dtype.str`` if it describes the dtype completely, else the dtype."""
    known = _plain_dtypes.get(dtype)
    if known is None:
        plain = dtype.names is None and dtype.metadata is None and np.dtype(dtype.str) == dtype
        known = _plain_dtypes[dtype] = dtype.str if plain else dtype
    return known


def _like(array: NDArray[Any], arena: Arena) -> NDArray[Any]:
    """Return memory for a copy of an array with the same order of axes in memory."""
    if array.flags.c_contiguous:
        return arena.allocate(array.shape, array.dtype)
    axes = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    memory = arena.allocate(tuple(array.shape[axis] for axis in axes), array.dtype)
    return memory.transpose(np.argsort(axes))


class _Packer(pickle.Pickler):
    """Pickles a batch around its arrays."""

    def __init__(self, file: io.BytesIO, arena: Arena) -> None:
        self.described: list[tuple[Any, ...]] = []
        self.buffers: list[tuple[int, int, int, bool]] = []
        self._arena = arena
        self._torch = sys.modules.get("torch")
        self._seen: dict[int, tuple[Any, Any]] = {}
        super().__init__(file, protocol=5, buffer_callback=self._keep_buffer)

    def persistent_id(self, obj: Any) -> int | None:
        """Number of the description of an array, tensor or `Packed`; None for anything else.

        Not the description itself: the pickler would call this method for each of its items.
        """
        description = None
        if type(obj) is np.ndarray:
            description = self._array(obj)
        elif type(obj) is Packed:  # by far quicker than the pickling of dataclasses
            values = self._array(obj.values)
            description = values and (values, self._array(obj.offsets), obj.group, self._array(obj.shapes))
        elif self._torch is not None and type(obj) is self._torch.Tensor:
            description = self._tensor(obj)
        if description is None:
            return None
        self.described.append(description)
        return len(self.described) - 1

    def packed(self, batch: Any) -> list[tuple[Any, ...]] | None:
        """Describe a dict of `Packed`, which needs no pickling; None for any other batch."""
        if type(batch) is not dict:
            return None
        found = []
        for key, value in batch.items():
            if type(key) is not str or type(value) is not Packed or value.values.dtype.hasobject:
                return None
            shared = self._array(value.offsets), value.group, self._array(value.shapes)
            found.append((key, (self._array(value.values), *shared)))
        return found

    def _array(self, array: NDArray[Any] | None) -> Any:
        return None if array is None or array.dtype.hasobject else self._describe_once(array, array, None)

    def _tensor(self, tensor: Any) -> Any:
        torch = self._torch
        assert torch is not None
        plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
        if not plain or tensor.requires_grad or tensor.is_conj() or tensor.is_neg():
            return None
        try:
            return self._describe_once(tensor, tensor.numpy(), "")
        except TypeError:  # bfloat16, float8: torch has them, numpy does not
            carrier = {1: torch.uint8, 2: torch.int16}.get(tensor.element_size())
            if carrier is None or tensor.ndim == 0:
                return None
            return self._describe_once(tensor, tensor.view(carrier).numpy(), tensor.dtype)

    def _describe_once(self, owner: Any, array: NDArray[Any], tensor_dtype: Any) -> Any:
        """Describe an array once, however often the object occurs."""
        seen = self._seen.get(id(owner))
        if seen is None:
            seen = self._seen[id(owner)] = (owner, self._describe(array, tensor_dtype))
        return seen[1]

    def _describe(self, array: NDArray[Any], tensor_dtype: Any) -> Any:
        location = self._locate(array)
        if location is None:
            copy = _like(array, self._arena)
            np.copyto(copy, array)
            array, location = copy, self._locate(copy)
        assert location is not None
        strides = None if array.flags.c_contiguous else array.strides
        return location[0], location[1], _dtype_name(array.dtype), array.shape, strides, tensor_dtype

    def _locate(self, array: NDArray[Any]) -> SegmentOffset | None:
        if array.size == 0:
            return 0, -1
        address: int = array.__array_interface__["data"][0]
        if array.flags.c_contiguous:
            return self._arena.find(address, array.nbytes)
        low, high = np.lib.array_utils.byte_bounds(array)
        location = self._arena.find(low, high - low)
        return location and (location[0], location[1] + address - low)

    def _keep_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        with buffer.raw() as raw:
            memory = self._arena.allocate((raw.nbytes,), np.dtype(np.uint8))
            memory[:] = np.frombuffer(raw, np.uint8)
            segment, offset = self._locate(memory) or (0, 0)
            self.buffers.append((segment, offset, raw.nbytes, raw.readonly))
        return False


class _Unpacker(pickle.Unpickler):
    """Rebuilds a batch over its memory."""

    def __init__(
        self,
        file: io.BytesIO,
        described: Sequence[tuple[Any, ...]],
        buffers: Sequence[memoryview],
        build: _Builder,
    ) -> None:
        super().__init__(file, buffers=buffers)
        self._described = described
        self._build = build

    def persistent_load(self, number: int) -> Any:
        """Build what `_Packer.persistent_id` described."""
        description = self._described[number]
        if len(description) == PACKED_ITEMS:
            return self._build.packed(*description)
        return self._build.array(description)


class _Builder:
    """Builds arrays that `_Packer` described, as views or copies."""

    __slots__ = ("_copy", "_memory")

    def __init__(self, memory: Sequence[Any], copy: bool) -> None:
        self._memory = memory
        self._copy = copy

    def packed(self, values: Any, offsets: Any, group: str, shapes: Any) -> Packed:
        return Packed(self.array(values), self.array(offsets), group, self.array(shapes))

    def array(self, description: tuple[Any, ...] | None) -> Any:
        if description is None:
            return None
        segment, offset, dtype, shape, strides, tensor_dtype = description
        array: NDArray[Any]
        if offset < 0:
            array = np.empty(shape, dtype)
        else:
            array = np.ndarray(shape, dtype, self._memory[segment], offset, strides)
            if self._copy:
                array = np.array(array, copy=True, order="K")
        if tensor_dtype is None:
            return array
        import torch

        tensor = torch.from_numpy(array)
        return tensor.view(tensor_dtype) if tensor_dtype else tensor


def encode(batch: Any, arena: Arena) -> Message:
    """Serialise a batch; arrays outside the arena are copied into it.

    Parameters
    ----------
    batch
        Anything that can be pickled.
    arena
        The batch's memory.
    """
    file = io.BytesIO()
    packer = _Packer(file, arena)
    described = packer.packed(batch)
    if described is None:
        packer.dump(batch)
        message = pickle.dumps((file.getvalue(), packer.described, packer.buffers), protocol=5)
    else:
        message = pickle.dumps((None, described, ()), protocol=5)
    if len(message) <= INLINE_BYTES:
        return message
    memory = arena.allocate((len(message),), np.dtype(np.uint8))
    memory[:] = np.frombuffer(message, np.uint8)
    location = arena.find(memory.__array_interface__["data"][0], len(message))
    assert location is not None
    return *location, len(message)


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

    def part(segment: int, offset: int, length: int) -> memoryview:
        view = memoryview(memory[segment]).cast("B")[offset : offset + length]
        return memoryview(bytearray(view)) if copy else view

    if not isinstance(message, bytes):
        message = bytes(part(*message))
    stream, described, out_of_band = pickle.loads(message)  # noqa: S301 - from our own process
    build = _Builder(memory, copy)
    if stream is None:
        return {key: build.packed(*description) for key, description in described}
    buffers = []
    for segment, offset, length, readonly in out_of_band:
        view = part(segment, offset, length) if length else memoryview(bytearray())
        buffers.append(view.toreadonly() if readonly else view)
    return _Unpacker(io.BytesIO(stream), described, buffers, build).load()
