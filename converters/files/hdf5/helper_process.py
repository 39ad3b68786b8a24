"""A child Python process for code that may crash or hang; requests and answers go through two pipes."""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

_INHERITED_VARIABLES = ("HDF5_PLUGIN_PATH", "LD_LIBRARY_PATH", "PATH")
"""All other environment variables are withheld: they may hold secrets."""


class HelperDiedError(Exception):
    """The process ended with exit `code` (minus the signal number), or missed its deadline: None."""

    def __init__(self, code: int | None) -> None:
        super().__init__(code)
        self.code = code


class HelperProcess:
    """Runs a module in a child process, started by the first request (in about 0.2 s).

    The child ends with its parent. A fork of the parent starts a child of its own.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._parents_processes: list[Any] = []
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self.stop)

    def _after_fork(self) -> None:
        self._parents_processes.append(self._process)  # Popen warns if it is collected while running
        self._process, self._lock = None, threading.Lock()

    @contextmanager
    def request(self, seconds: float) -> Iterator[Request]:
        """Make one request, which must be answered within `seconds`.

        Raises
        ------
        HelperDiedError
            The process ended or was too slow. The next request starts a new one.
        """
        with self._lock:
            if self._process is None:
                self._process = self._start()
            try:
                yield Request(self._process, time.monotonic() + seconds)
            except HelperDiedError:
                self.stop()
                raise

    def _start(self) -> subprocess.Popen[bytes]:
        if not sys.executable:
            msg = "a child Python process is needed, but sys.executable is empty"
            raise ValueError(msg)
        environment = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
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
        """End the process; the next request starts a new one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                stream.close()
        self._process = None


class Request:
    """One request and its answer."""

    def __init__(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        self._process, self._deadline = process, deadline

    def write(self, request: dict[str, Any], data: bytes = b"") -> None:
        """Send a request, and the bytes that belong to it."""
        assert self._process.stdin is not None
        view = memoryview(json.dumps(request).encode() + b"\n" + data)
        try:
            while view:
                view = view[self._process.stdin.write(view) :]
        except BrokenPipeError:
            raise HelperDiedError(self._process.wait()) from None

    def read(self, target: memoryview) -> None:
        """Receive until `target` is full."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while target:
            if not poll.poll(max(0.0, self._deadline - time.monotonic()) * 1000):
                raise HelperDiedError(None)
            count = os.readv(pipe, [target])
            if not count:
                raise HelperDiedError(self._process.wait())
            target = target[count:]


def serve(answer: Callable[[dict[str, Any], BinaryIO], Iterable[bytes]]) -> None:
    """In the child: answer requests until they end; ``answer(request, requests)`` returns what is written."""
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # some filters print to standard output
        while line := sys.stdin.buffer.readline():
            for part in answer(json.loads(line), sys.stdin.buffer):
                answers.write(part)
            answers.flush()
