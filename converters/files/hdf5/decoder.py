"""Filters of HDF5 whose decoders are not ours run in a process apart, which holds nothing but the chunk."""

from __future__ import annotations

import atexit
import json
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Filter", "decode_apart", "stop"]

_PATIENCE = 60.0
"""Seconds for the process to start, and for any chunk; chunks above 64 MB get a second for each MB."""
_PASSED_ON = ("HDF5_PLUGIN_PATH", "LD_LIBRARY_PATH", "PATH")
"""Environment variables that the process gets: no others, so that it holds no secrets."""


class Filter(NamedTuple):
    """One filter of a dataset: its registered number and its parameters."""

    number: int
    values: tuple[int, ...]


def decode_apart(stored: bytes, target: memoryview, filters: Sequence[Filter]) -> None:
    """Decode a chunk in the process that this one keeps for it (started when first needed, in about 0.3 s).

    Parameters
    ----------
    stored
        The chunk's bytes in the file.
    target
        Where the decoded bytes go, all of them.
    filters
        Those that were applied, in the order of writing.

    Raises
    ------
    ValueError
        If the chunk cannot be decoded to as many bytes, or its decoder crashed or never ends.
    """
    global _decoder  # noqa: PLW0603  one a process
    with _lock:
        if _decoder is None:
            _decoder = _Decoder()
        try:
            _decoder.decode(stored, target, filters)
        except _DiedError as error:
            stop()
            raise ValueError(str(error)) from error


class _DiedError(Exception):
    """The process ended, or was too slow."""


class _Decoder:
    def __init__(self) -> None:
        if not sys.executable:
            msg = "its filter needs a Python process of its own, but sys.executable is empty"
            raise ValueError(msg)
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "unistore.converters.files.hdf5.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            bufsize=0,
        )

    def decode(self, stored: bytes, target: memoryview, filters: Sequence[Filter]) -> None:
        request = {"bytes": len(target), "stored": len(stored), "filters": filters}
        deadline = time.monotonic() + max(_PATIENCE, len(target) / 1e6)
        try:
            self._write(json.dumps(request).encode() + b"\n")
            self._write(stored)
        except BrokenPipeError:
            self._raise_died()
        head = bytearray(8)
        self._read(memoryview(head), deadline)
        (size,) = struct.unpack("<q", head)
        if size == len(target):
            self._read(target, deadline)
            return
        message = bytearray(min(1000, max(0, -size)))
        self._read(memoryview(message), deadline)
        raise ValueError(message.decode("utf-8", "replace"))

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        view = memoryview(data)
        while view:
            view = view[self._process.stdin.write(view) :]

    def _read(self, target: memoryview, deadline: float) -> None:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while target:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                msg = "its filter does not come to an end"
                raise _DiedError(msg)
            count = os.readv(pipe, [target])
            if not count:
                self._raise_died()
            target = target[count:]

    def _raise_died(self) -> None:
        code = self._process.wait()
        msg = f"its filter crashed (signal {-code})" if code < 0 else f"its filter ended the process ({code})"
        raise _DiedError(msg)

    def end(self) -> None:
        """Stop the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


_decoder: _Decoder | None = None
_lock = threading.Lock()
_inherited: list[_Decoder] = []
"""Those of processes that this one was forked from: theirs to use and to stop."""


def _after_fork() -> None:
    global _decoder, _lock
    if _decoder is not None:
        _inherited.append(_decoder)
    _decoder, _lock = None, threading.Lock()


def stop() -> None:
    """End the process; the next chunk starts another one."""
    global _decoder  # noqa: PLW0603
    if _decoder is not None:
        _decoder.end()
    _decoder = None


os.register_at_fork(after_in_child=_after_fork)
atexit.register(stop)
