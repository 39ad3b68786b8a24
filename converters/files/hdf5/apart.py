"""A Python process that this one keeps for what may crash or hang; they talk over two pipes."""

from __future__ import annotations

import atexit
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Apart", "DiedError"]

_PASSED_ON = ("HDF5_PLUGIN_PATH", "LD_LIBRARY_PATH", "PATH")
"""Environment variables that the process gets: no others, so that it holds no secrets."""


class DiedError(Exception):
    """The process ended, with `code` (minus the number of a signal), or was too slow: None."""

    def __init__(self, code: int | None) -> None:
        super().__init__(code)
        self.code = code


class Apart:
    """The process that runs a module, started when first needed (in about 0.2 s); one for each process.

    It ends with this one. A process forked from this one starts another for itself.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._inherited: list[Any] = []
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self.stop)

    def _after_fork(self) -> None:
        self._inherited.append(self._process)
        self._process, self._lock = None, threading.Lock()

    @contextmanager
    def talk(self, seconds: float) -> Iterator[Talk]:
        """Have the process for one request, which must be answered within that time.

        Raises
        ------
        DiedError
            It ended, or was too slow; the next request starts another one.
        """
        with self._lock:
            if self._process is None:
                self._process = self._start()
            try:
                yield Talk(self._process, time.monotonic() + seconds)
            except DiedError:
                self.stop()
                raise

    def _start(self) -> subprocess.Popen[bytes]:
        if not sys.executable:
            msg = "a Python process of its own is needed, but sys.executable is empty"
            raise ValueError(msg)
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        return subprocess.Popen(
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            bufsize=0,
        )

    def stop(self) -> None:
        """End the process; the next request starts another one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                stream.close()
        self._process = None


class Talk:
    """One request and its answer."""

    def __init__(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        self._process, self._deadline = process, deadline

    def write(self, data: bytes) -> None:
        """Send all of it."""
        assert self._process.stdin is not None
        view = memoryview(data)
        try:
            while view:
                view = view[self._process.stdin.write(view) :]
        except BrokenPipeError:
            raise DiedError(self._process.wait()) from None

    def read(self, target: memoryview) -> None:
        """Receive until `target` is full."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while target:
            if not poll.poll(max(0.0, self._deadline - time.monotonic()) * 1000):
                raise DiedError(None)
            count = os.readv(pipe, [target])
            if not count:
                raise DiedError(self._process.wait())
            target = target[count:]
