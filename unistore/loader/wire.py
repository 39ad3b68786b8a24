"""Serialisation of batches: a small pickle, and arrays that stay in shared memory.

Protocol 5 of pickle hands out the memory of arrays. What lies in the batch's arena is sent as its position
there; anything else is copied into the arena once.
"""

from __future__ import annotations

import array
import copyreg
import io
import os
import pickle
import socket
import struct
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from unistore.data.packed import Packed
from unistore.errors import LoaderError
from unistore.memory import Arena
from unistore.system.hints import AnyArray, UInt8s

# The socket to a worker: framed messages, with file descriptors as ancillary data.

_HEADER = struct.Struct("<QB")
_RECEIVE_BYTES = 64 * 1024
_ANCILLARY = socket.CMSG_SPACE(250 * array.array("i").itemsize)  # Linux sends at most 253 with a message
_NOT_INHERITED = getattr(socket, "MSG_CMSG_CLOEXEC", 0)

_parent_ends: weakref.WeakSet[Channel] = weakref.WeakSet()


class Channel:
    """One end of a pair of connected sockets.

    When the other process dies, however it dies, the stream ends. That holds only while no other process has
    a copy of that end, so forked children close the ones they inherit.

    Descriptors arrive in order, no later than the first byte of their message, so they wait in a queue.
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._buffer = bytearray()
        self._descriptors: deque[int] = deque()

    def fileno(self) -> int:
        """Return the descriptor, for waiting."""
        return self.socket.fileno()

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Send a message and copies of some descriptors."""
        data = pickle.dumps(message, protocol=5)
        data = _HEADER.pack(len(data), len(descriptors)) + data
        sent = socket.send_fds(self.socket, [data], descriptors) if descriptors else 0
        self.socket.sendall(memoryview(data)[sent:])

    def receive(
        self,
        *,
        # whether to wait for a message; the rest of an incomplete one is waited for in any case
        wait: bool = True,
    ) -> list[tuple[Any, list[int]]]:
        """Return received messages, each with its descriptors, which the caller closes."""
        messages: list[tuple[Any, list[int]]] = []
        while not messages or self._buffer:
            if not self._read(wait=wait or bool(self._buffer)):
                break
            while (message := self._pop_message()) is not None:
                messages.append(message)
        return messages

    def _read(self, *, wait: bool) -> bool:
        flags = _NOT_INHERITED | (0 if wait else socket.MSG_DONTWAIT)
        try:
            data, ancillary, flags, _ = self.socket.recvmsg(_RECEIVE_BYTES, _ANCILLARY, flags)
        except BlockingIOError:
            return False
        except ConnectionError as error:
            raise EOFError from error
        for _, _, rights in ancillary:
            self._descriptors.extend(array.array("i", rights))
        if flags & socket.MSG_CTRUNC:
            msg = "no file descriptors left to receive a batch's memory: raise `ulimit -n`"
            raise LoaderError(msg)
        if not data:
            raise EOFError
        self._buffer += data
        return True

    def _pop_message(self) -> tuple[Any, list[int]] | None:
        """Remove the first message from the buffer; None if it is incomplete."""
        if len(self._buffer) < _HEADER.size:
            return None
        length, count = _HEADER.unpack_from(self._buffer)
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view:
            message = pickle.loads(view[_HEADER.size : end])  # noqa: S301 - from our own process
        del self._buffer[:end]
        return message, [self._descriptors.popleft() for _ in range(count)]

    def close(self) -> None:
        """Close this end and unclaimed descriptors."""
        self.socket.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())


def open_channel() -> tuple[Channel, socket.socket]:
    """Return the parent's end, and the worker's socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    channel = Channel(ours)
    _parent_ends.add(channel)
    return channel, theirs


def _close_parent_ends() -> None:
    for channel in list(_parent_ends):
        channel.close()
    _parent_ends.clear()


os.register_at_fork(after_in_child=_close_parent_ends)


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


def _position(data: UInt8s, arena: Arena) -> tuple[int, int, int]:
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


def _address(data: AnyArray) -> int:
    address: int = data.__array_interface__["data"][0]
    return address


def _reduce_packed(packed: Packed) -> Any:
    return Packed, (packed.values, packed.offsets, packed.group, packed.shapes)


def _reduce_array(array: AnyArray) -> Any:
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


def _tensor_of_bytes(data: UInt8s, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    return torch.from_numpy(data).view(dtype).view(shape)


_REDUCERS: dict[type, Callable[[Any], Any]] = {
    Packed: _reduce_packed,
    np.ndarray: _reduce_array,
    torch.Tensor: _reduce_tensor,
}


# Key, segment, offset, dtype and shape
_DenseArray: TypeAlias = tuple[str, int, int, str, tuple[int, ...]]


def _dense_arrays(batch: Any, arena: Arena) -> list[_DenseArray] | None:
    """Describe a batch of dense arrays in its memory, as rows are; None for others.

    Small batches come many a second, and a pickler of its own takes twice as long as reading one.
    """
    if type(batch) is not dict:
        return None
    described = []
    for key, packed in batch.items():
        if type(packed) is not Packed or packed.offsets is not None:
            return None
        values = packed.values
        is_plain = values.dtype.kind in "biufcU" and values.flags.c_contiguous and values.nbytes
        location = arena.find(_address(values), values.nbytes) if is_plain else None
        if location is None:
            return None
        described.append((key, *location, values.dtype.str, values.shape))
    return described


def encode(
    batch: Any,  # anything that can be pickled
    arena: Arena,  # the batch's memory; arrays outside of it are copied into it
) -> Message:
    """Serialise a batch."""
    dense = _dense_arrays(batch, arena)
    if dense is not None:
        message = pickle.dumps(dense, protocol=5)
    else:
        file = io.BytesIO()
        packer = _Packer(file, arena)
        packer.dump(batch)
        message = pickle.dumps((file.getvalue(), packer.positions), protocol=5)
    if len(message) <= INLINE_BYTES:
        return message
    return _position(np.frombuffer(message, np.uint8), arena)


def decode(
    message: Message,  # what `encode` returned in the worker
    memory: Sequence[Any],  # one buffer for each segment of the batch's memory, the slab first
    *,
    copy: bool = False,  # copy all arrays, so that the memory is free when this returns
) -> Any:
    """Rebuild a batch."""

    def part(segment: int, offset: int, length: int) -> Any:
        if not length:
            return bytearray()
        view = memoryview(memory[segment]).cast("B")[offset : offset + length]
        return np.array(view) if copy else view

    if not isinstance(message, bytes):
        message = bytes(part(*message))
    content = pickle.loads(message)  # noqa: S301 - from our own process
    if isinstance(content, list):
        return _dense_batch(content, memory, copy=copy)
    stream, positions = content
    return pickle.loads(stream, buffers=[part(*position) for position in positions])  # noqa: S301


def _dense_batch(described: list[_DenseArray], memory: Sequence[Any], *, copy: bool) -> dict[str, Packed]:
    batch = {}
    for key, segment, offset, dtype, shape in described:
        values: AnyArray = np.ndarray(shape, dtype, memory[segment], offset)
        batch[key] = Packed(values.copy() if copy else values)
    return batch
