"""One socket a worker: framed messages with file descriptors riding on them."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import weakref
from collections.abc import Sequence
from typing import Any

__all__ = ["Channel", "open_channel"]

_HEADER = struct.Struct("<QB")
_MAX_DESCRIPTORS = 64

_parent_ends: weakref.WeakSet[Channel] = weakref.WeakSet()


class Channel:
    """One end of a pair of connected sockets.

    The sockets are streams, so the other end's death reads as end of file whatever kills it. That holds
    only while nobody else has a copy of that end: forked children close the ones they inherit.
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

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
        header = _HEADER.pack(len(data), len(descriptors))
        if descriptors:
            socket.send_fds(self.socket, [header], descriptors)
            self.socket.sendall(data)
        else:
            self.socket.sendall(header + data)

    def receive(self) -> tuple[Any, list[int]]:
        """Wait for a message; return it with the descriptors it brought, which are the caller's to close.

        Raises
        ------
        EOFError
            The other end is gone.
        """
        try:
            header, descriptors, _, _ = socket.recv_fds(self.socket, _HEADER.size, _MAX_DESCRIPTORS)
            header += self._exactly(_HEADER.size - len(header)) if header else b""
            if not header:
                raise EOFError
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            length, count = _HEADER.unpack(header)
            if len(descriptors) != count:
                message = f"{count} descriptors were sent and {len(descriptors)} arrived: raise `ulimit -n`"
                raise OSError(message)
            return pickle.loads(self._exactly(length)), descriptors  # noqa: S301 - from our own process
        except ConnectionError as error:
            raise EOFError from error

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = self.socket.recv(min(count, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close this end."""
        self.socket.close()


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
