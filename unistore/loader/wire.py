"""What the Loader and its workers send each other: messages with descriptors, and batches.

Arrays of a batch that lie in its slab are sent as their place there, others are copied into the slab first;
what does not fit travels inside the message.
"""

from __future__ import annotations

import array
import io
import os
import pickle
import socket
import struct
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.lib.array_utils import byte_bounds

from unistore.errors import LoaderError
from unistore.memory import Arena
from unistore.system.hints import AnyArray, Shape

# The socket to a worker: framed messages, with file descriptors as ancillary data.

_HEADER = struct.Struct("<QB")
_RECEIVE_BYTES = 256 * 1024
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

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Send a message and copies of some descriptors."""
        data = pickle.dumps(message, protocol=5)
        data = _HEADER.pack(len(data), len(descriptors)) + data
        sent = socket.send_fds(self.socket, [data], descriptors) if descriptors else 0
        self.socket.sendall(memoryview(data)[sent:])

    def receive(self, *, wait: bool = True) -> list[tuple[Any, list[int]]]:
        """Return received messages, each with its descriptors, which the caller closes.

        Where `wait` is False there may be none; the rest of an incomplete one is waited for in any case.
        """
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


# Batches.

# Whether it is a tensor, offset in the slab, dtype, shape, strides
_Place: TypeAlias = tuple[bool, int, str, Shape, Shape]


class _Packer(pickle.Pickler):
    """Pickles a batch around the arrays in its slab."""

    def __init__(self, file: io.BytesIO, arena: Arena) -> None:
        super().__init__(file, protocol=5)
        self._arena = arena
        # by identity, of objects that are kept: the same one twice stays the same memory
        self._places: dict[int, tuple[Any, _Place | None]] = {}

    def persistent_id(self, value: Any) -> _Place | None:
        """Return the place of an array or tensor; None for anything that is pickled as it is."""
        if type(value) not in (np.ndarray, torch.Tensor):
            return None
        if id(value) not in self._places:
            self._places[id(value)] = value, self._place(value)
        return self._places[id(value)][1]

    def _place(self, value: Any) -> _Place | None:
        is_tensor = type(value) is torch.Tensor
        try:
            values: AnyArray = value.numpy() if is_tensor else value
        except (RuntimeError, TypeError):  # sparse, with a gradient, of a dtype that numpy lacks
            return None
        if values.dtype.kind in "OV" or not values.size:
            return None
        offset = self._find(values)
        if offset is None:
            values = self._copy(values)
            offset = self._find(values)
        return None if offset is None else (is_tensor, offset, values.dtype.str, values.shape, values.strides)

    def _find(self, values: AnyArray) -> int | None:
        first: int = values.__array_interface__["data"][0]
        low, high = (first, first + values.nbytes) if values.flags.c_contiguous else byte_bounds(values)
        offset = self._arena.find(low, high - low)
        return None if offset is None else offset + first - low

    def _copy(self, values: AnyArray) -> AnyArray:
        """Copy an array into the slab, its axes in the same order."""
        axes = np.argsort([-abs(stride) for stride in values.strides], kind="stable")
        ordered = values.transpose(axes)
        copy = self._arena.allocate(ordered.shape, ordered.dtype)
        copy[...] = ordered
        return copy.transpose(np.argsort(axes))


class _Unpacker(pickle.Unpickler):
    """Rebuilds a batch over the memory of its slab."""

    def __init__(self, data: bytes, memory: Any, *, copy: bool) -> None:
        super().__init__(io.BytesIO(data))
        self._memory = memory
        self._copy = copy

    def persistent_load(self, place: _Place) -> Any:
        """Return the array or tensor at a place."""
        is_tensor, offset, dtype, shape, strides = place
        values: AnyArray = np.ndarray(shape, dtype, self._memory, offset, strides)
        if self._copy:
            values = values.copy(order="K")
        return torch.from_numpy(values) if is_tensor else values


def encode(
    batch: Any,  # anything that can be pickled
    arena: Arena,  # the batch's memory; arrays outside of it are copied into it, as far as it has room
) -> bytes:
    """Serialise a batch."""
    file = io.BytesIO()
    _Packer(file, arena).dump(batch)
    return file.getvalue()


def decode(message: bytes, memory: Any, *, copy: bool = False) -> Any:
    """Rebuild a batch from what `encode` returned, over the memory of its slab, or of copied arrays."""
    return _Unpacker(message, memory, copy=copy).load()
