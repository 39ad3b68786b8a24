"""What the Loader and its workers send each other: messages with descriptors, and batches."""

# Arrays of a batch that lie in its slab are sent as their place there, others are copied into it first, and
# what does not fit travels inside the message

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import select
import weakref
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.lib.array_utils import byte_bounds

from unistore.memory import ALIGNMENT, Arena
from unistore.system.hints import AnyArray, Shape

# The connection to a worker, over which descriptors go as well.

_parent_ends: weakref.WeakSet[Channel] = weakref.WeakSet()


class Channel:
    """One end of a connection."""

    # When the other process dies, however it dies, the stream ends. That holds only while no other process
    # has a copy of that end, so forked children close the ones they inherit

    def __init__(self, end: Connection[Any, Any]) -> None:
        self.connection = end
        self._poll = select.poll()  # a tenth of the time of `Connection.poll`
        self._poll.register(end, select.POLLIN)

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Send a message and copies of some descriptors."""
        self.connection.send_bytes(pickle.dumps((message, len(descriptors)), protocol=5))
        for descriptor in descriptors:
            reduction.send_handle(self.connection, descriptor, None)

    def receive(self, *, wait: bool = True) -> list[tuple[Any, list[int]]]:
        """Return received messages, each with its descriptors, which the caller closes."""
        # `EOFError` says that the other end is closed
        messages: list[tuple[Any, list[int]]] = []
        while (wait and not messages) or self._poll.poll(0):
            try:
                message, count = pickle.loads(self.connection.recv_bytes())  # noqa: S301 - from our own process
            except (EOFError, ConnectionError) as error:
                if messages:  # the next call says so
                    break
                raise EOFError from error
            messages.append((message, [reduction.recv_handle(self.connection) for _ in range(count)]))
        return messages

    def close(self) -> None:
        """Close this end."""
        self.connection.close()


def open_channel() -> tuple[Channel, Connection[Any, Any]]:
    """Return the parent's end, and that of the worker."""
    ours, theirs = multiprocessing.Pipe()
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
    def __init__(self, file: io.BytesIO, arena: Arena) -> None:
        super().__init__(file, protocol=5)
        self._arena = arena
        self.outside = 0  # bytes of arrays that are sent inside the message
        # by identity, of objects that are kept: the same one twice stays the same memory
        self._places: dict[int, tuple[Any, _Place | None]] = {}

    def persistent_id(self, value: Any) -> _Place | None:
        # None: pickled as it is
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
        if offset is None and self._arena.has_room(values.nbytes):
            values = self._copy(values)
            offset = self._find(values)
        if offset is None:
            self.outside += -(-values.nbytes // ALIGNMENT) * ALIGNMENT
            return None
        return is_tensor, offset, values.dtype.str, values.shape, values.strides

    def _find(self, values: AnyArray) -> int | None:
        first: int = values.__array_interface__["data"][0]
        low, high = (first, first + values.nbytes) if values.flags.c_contiguous else byte_bounds(values)
        offset = self._arena.find(low, high - low)
        return None if offset is None else offset + first - low

    def _copy(self, values: AnyArray) -> AnyArray:
        axes = np.argsort([-abs(stride) for stride in values.strides], kind="stable")
        ordered = values.transpose(axes)
        copy = self._arena.allocate(ordered.shape, ordered.dtype)
        copy[...] = ordered
        return copy.transpose(np.argsort(axes))


class _Unpacker(pickle.Unpickler):
    def __init__(self, data: bytes, memory: Any, *, copy: bool) -> None:
        super().__init__(io.BytesIO(data))
        self._memory = memory
        self._copy = copy

    def persistent_load(self, place: _Place) -> Any:
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
    packer = _Packer(file, arena)
    packer.dump(batch)
    arena.needed += max(0, packer.outside - arena.overflow)  # so that the next slab has room for them
    return file.getvalue()


def decode(message: bytes, memory: Any, *, copy: bool = False) -> Any:
    """Rebuild a batch from what `encode` returned, over the memory of its slab, or of copied arrays."""
    return _Unpacker(message, memory, copy=copy).load()
