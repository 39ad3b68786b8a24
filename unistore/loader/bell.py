"""Waking the other side of a channel."""

from __future__ import annotations

import contextlib
import os
import select

__all__ = ["Bell", "Waiter"]


class Bell:
    """Tells another process that something lies in its sockets.

    A message alone would do, but Linux takes the sender of one for somebody who is about to wait, and moves
    the receiver to the sender's core: a worker that goes on decoding and a consumer that could go on
    computing then share one core while another is idle. An eventfd wakes without that guess. Where there is
    none, sockets are waited for as they are.

    Parameters
    ----------
    descriptor
        Of an eventfd made elsewhere; None: make one.
    """

    available = hasattr(os, "eventfd")

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if self.available else -1
        self.descriptor = descriptor

    def ring(self) -> None:
        """Wake whoever waits."""
        if self.descriptor >= 0:
            with contextlib.suppress(BlockingIOError):  # rung more often than it can count: still ringing
                os.eventfd_write(self.descriptor, 1)

    def silence(self) -> None:
        """Take note of having been rung."""
        if self.descriptor >= 0:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.descriptor)

    def close(self) -> None:
        """Close the descriptor."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Waiter:
    """Waits for a bell, for sockets, and for the ends of processes.

    Parameters
    ----------
    bell
        Rung for messages.
    sockets
        Descriptors that messages come through; watched for their ends where the bell tells of messages.
    sentinels
        Descriptors that become readable when a process ends.
    """

    def __init__(self, bell: Bell, sockets: list[int], sentinels: list[int]) -> None:
        self._bell = bell
        self._poll = select.poll()
        if bell.descriptor >= 0:
            self._poll.register(bell.descriptor, select.POLLIN)
        for descriptor in sockets:
            self._poll.register(descriptor, 0 if bell.descriptor >= 0 else select.POLLIN)
        for descriptor in sentinels:
            self._poll.register(descriptor, select.POLLIN)

    def wait(self) -> set[int]:
        """Wait; return the descriptors that woke, the bell's apart."""
        woke = {descriptor for descriptor, _ in self._poll.poll()}
        if self._bell.descriptor in woke:
            self._bell.silence()
            woke.discard(self._bell.descriptor)
        return woke
