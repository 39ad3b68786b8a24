"""Files that a foreign library opens (HDF5, OpenCV): a damaged one may crash the process, or hang it."""

# So they are opened in worker processes alone. A worker names each file before a library opens it, where
# the process that started it can read the name after a death, and limits the processor time until the file
# is closed. A file at which a worker died is refused from then on, and the step runs again without it

from __future__ import annotations

import math
import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from unistore.errors import InputError, Location, Problem
from unistore.system.workers import environment_number

HDF5 = "the HDF5 library"
# Environment variable: processor seconds that one reading of a file may take, besides those for its size
SECONDS = "UNISTORE_FILE_SECONDS"
DEFAULT_SECONDS = 30
BYTES_PER_SECOND = 20e6  # Each so many bytes of a file add a second
NOTE_BYTES = 8192  # Size of a note; names of files have at most 4,096 bytes

DamagedFiles = dict[bytes, str]  # By note of a file: what it does to the library that opens it


class NeedsWorkerError(BaseException):
    """A foreign library would run in this process."""

    # Not an `Exception`, since converters turn those into problems of the file.


# What ends a reading and says nothing of the file. All else that a library raises is a fault of the file, if
# it is no `Exception`, too: the panics of Rust, `SystemExit`
NO_FAULTS = (KeyboardInterrupt, GeneratorExit, NeedsWorkerError)


class _OpenFile(NamedTuple):
    note: bytes
    seconds: float
    thread: int


class _OpenWorker:
    def __init__(self, descriptor: int) -> None:
        self.damaged: DamagedFiles = {}
        self._descriptor = descriptor
        self._seconds = environment_number(SECONDS, DEFAULT_SECONDS)
        self._hard_limit = resource.getrlimit(resource.RLIMIT_CPU)[1]
        self._open: dict[str, _OpenFile] = {}
        self._written = b""
        self._lock = threading.RLock()  # one note, for files that several threads open

    def open(self, path: str, location: Location | str, library: str) -> None:
        status = os.stat(path)  # noqa: PTH116  twice as fast as Path.stat
        name = os.fsencode(path)
        note = b"%s\0%s\0%d\0%d" % (library.encode(), name, status.st_size, status.st_mtime_ns)
        if note in self.damaged:
            message = f"is damaged: it {self.damaged[note]}"
            raise InputError(Problem.at(location, message, "copy or write it again", "damaged"))
        with self._lock:
            seconds = self._seconds + status.st_size / BYTES_PER_SECOND
            self._open[path] = _OpenFile(note, seconds, threading.get_ident())
            self.begin_reading(path)

    def begin_reading(self, path: str) -> None:
        with self._lock:
            if not self._open:
                return
            file = self._open.get(path) or self._open[next(reversed(self._open))]
            threads = {other.thread for other in self._open.values()}
            note = file.note if len(threads) == 1 else b""  # any of several threads may be the one that dies
            if note != self._written:
                os.pwrite(self._descriptor, note.ljust(NOTE_BYTES, b"\0"), 0)
                self._written = note
            self._limit(math.ceil(time.process_time() + file.seconds))

    def close(self, path: str) -> None:
        with self._lock:
            self._open.pop(path, None)
            if self._open:
                self.begin_reading("")
            else:
                os.pwrite(self._descriptor, bytes(NOTE_BYTES), 0)
                self._written = b""
                self._limit(self._hard_limit)

    def _limit(self, seconds: int) -> None:
        if self._hard_limit != resource.RLIM_INFINITY:
            seconds = min(seconds, self._hard_limit)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, self._hard_limit))


_worker: _OpenWorker | None = None
_refusals = 0
_refusals_lock = threading.Lock()


def become_worker(descriptor: int) -> None:
    """Write the name of each file that is opened from now on to `descriptor`."""
    global _worker  # noqa: PLW0603  a process is a worker, or it is none
    _worker = _OpenWorker(descriptor)


def set_damaged_files(damaged: DamagedFiles) -> None:
    """Refuse these files in a worker."""
    assert _worker is not None
    _worker.damaged = damaged


def last_note(descriptor: int) -> bytes:
    """Return the note of the file that a worker was reading when it died, empty unless it was one file."""
    return os.pread(descriptor, NOTE_BYTES, 0).rstrip(b"\0")


def library_of(note: bytes) -> str:
    """Return the library that was reading the file of a note."""
    return note.partition(b"\0")[0].decode()


@contextmanager
def refused() -> Iterator[None]:
    """Return a context in which `opening` raises `NeedsWorkerError`, unless this process is a worker."""
    global _refusals  # noqa: PLW0603
    with _refusals_lock:
        _refusals += 1
    try:
        yield
    finally:
        with _refusals_lock:
            _refusals -= 1


def refuse_here() -> None:
    """Raise `NeedsWorkerError` in a process that leaves foreign libraries to workers."""
    if _worker is None and _refusals:
        raise NeedsWorkerError


@contextmanager
def opening(path: str | os.PathLike[str], location: Location | str, library: str = HDF5) -> Iterator[None]:
    """Return a context in which a foreign library has a file open."""
    if _worker is None:
        refuse_here()
        yield
        return
    name = os.fspath(path)
    try:
        _worker.open(name, location, library)
    except OSError:  # the library tells what is wrong with a file that is not there
        yield
        return
    try:
        yield
    finally:
        _worker.close(name)


def begin_reading(path: Path | None = None) -> None:
    """Name an open file again (None: the last), and start its limit of processor time anew.

    Call it before each call of the library that may take long.
    """
    if _worker is not None:
        _worker.begin_reading("" if path is None else os.fspath(path))
