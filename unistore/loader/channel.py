"""One socket a worker: framed messages with file descriptors riding on them."""

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

__all__ = ["Channel", "open_channel"]

_HEADER = struct.Struct("<QB")
_AT_ONCE = 64 * 1024
_DESCRIPTOR = array.array("i").itemsize
_ANCILLARY = socket.CMSG_SPACE(250 * _DESCRIPTOR)  # Linux sends at most 253 with a message
_NOT_INHERITED = getattr(socket, "MSG_CMSG_CLOEXEC", 0)

_parent_ends: weakref.WeakSet[Channel] = weakref.WeakSet()


class Channel:
    """One end of a pair of connected sockets.

    The sockets are streams, so the other end's death reads as end of file whatever kills it. That holds
    only while nobody else has a copy of that end: forked children close the ones they inherit.

    Descriptors arrive no later than the first byte of their message and in order, so messages take them from
    a queue.
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
            The other end is gone.
        """
        data = pickle.dumps(message, protocol=5)
        data = _HEADER.pack(len(data), len(descriptors)) + data
        sent = 0
        if descriptors:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
            sent = self.socket.sendmsg([data], [rights])
        if sent < len(data):
            self.socket.sendall(memoryview(data)[sent:])

    def receive(self, *, wait: bool = True) -> list[tuple[Any, list[int]]]:
        """Return messages that have come, each with its descriptors, which are the caller's to close.

        Parameters
        ----------
        wait
            Whether to wait for one; the rest of one that has begun is waited for anyway.

        Raises
        ------
        EOFError
            The other end is gone.
        """
        messages: list[tuple[Any, list[int]]] = []
        while not messages or self._buffer:
            if not self._read(wait=wait or bool(self._buffer)):
                break
            while (message := self._cut()) is not None:
                messages.append(message)
        return messages

    def _read(self, *, wait: bool) -> bool:
        flags = _NOT_INHERITED | (0 if wait else socket.MSG_DONTWAIT)
        try:
            data, ancillary, flags, _ = self.socket.recvmsg(_AT_ONCE, _ANCILLARY, flags)
        except BlockingIOError:
            return False
        except ConnectionError as error:
            raise EOFError from error
        for level, kind, rights in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(rights) - len(rights) % _DESCRIPTOR
                received = array.array("i", rights[:whole])
                if not _NOT_INHERITED:
                    for descriptor in received:
                        os.set_inheritable(descriptor, False)
                self._descriptors.extend(received)
        if flags & socket.MSG_CTRUNC:
            msg = "no file descriptors left to receive a batch's memory: raise `ulimit -n`"
            raise LoaderError(msg)
        if not data:
            raise EOFError
        self._buffer += data
        return True

    def _cut(self) -> tuple[Any, list[int]] | None:
        """Take one message off the buffer, if a whole one is there."""
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
        """Close this end, and descriptors that nobody took."""
        self.socket.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())


def open_channel() -> tuple[Channel, socket.socket]:
    """Return the parent's end, and the socket that the worker gets."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    channel = Channel(ours)
    _parent_ends.add(channel)
    return channel, theirs


def _close_parent_ends() -> None:
    for channel in list(_parent_ends):
        channel.close()
    _parent_ends.clear()


os.register_at_fork(after_in_child=_close_parent_ends)
