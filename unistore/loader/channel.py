"""The socket to a worker: framed messages, with file descriptors as ancillary data."""

from __future__ import annotations

import array
import os
import pickle
import socket
import struct
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

from unistore.errors import LoaderError

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
        """Send a message and copies of some descriptors.

        Raises
        ------
        OSError
            If the other end is closed.
        """
        data = pickle.dumps(message, protocol=5)
        data = _HEADER.pack(len(data), len(descriptors)) + data
        sent = socket.send_fds(self.socket, [data], descriptors) if descriptors else 0
        self.socket.sendall(memoryview(data)[sent:])

    def receive(self, *, wait: bool = True) -> list[tuple[Any, list[int]]]:
        """Return received messages, each with its descriptors, which the caller closes.

        Parameters
        ----------
        wait
            Whether to wait for a message; the rest of an incomplete one is waited for in any case.

        Raises
        ------
        EOFError
            If the other end is closed.
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
