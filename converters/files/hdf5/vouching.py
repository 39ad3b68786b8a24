"""No HDF5 file is opened here before it is known that the HDF5 library comes back from it.

Most files are so plain that a look at their structure tells (`plain`, at a few percent of what opening and
walking them takes). All others are opened in a process apart first (`trial`): where that crashes or does not
come to an end, the file is damaged.
"""

from __future__ import annotations

import json
import os
import signal
import stat
from pathlib import Path
from typing import Any

import h5py

from unistore.converters.files.hdf5.apart import Apart, DiedError
from unistore.converters.files.hdf5.plain import is_plain
from unistore.errors import InputError, Problem

__all__ = ["stop", "try_rows", "vouch"]

_PATIENCE = 120.0
"""Seconds for any request, besides one for each 100 kB: a busy trial is ended sooner."""
_OUT_OF_TIME = signal.SIGXCPU
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_ATTEMPTS = 2
_REMEMBERED = 100_000
_sound: set[int] = set()
"""Hashes of the versions of files that nothing is wrong with."""
_known: dict[tuple[int, ...], str] = {}
"""What is wrong with others, by their version."""
_trial = Apart("unistore.converters.files.hdf5.trial")
stop = _trial.stop


def vouch(path: Path, location: str) -> None:
    """See that a file can be opened, walked and described by the HDF5 library without end or crash.

    Parameters
    ----------
    path
        The file. What is no file is left to the library, which says so.
    location
        What messages call it.

    Raises
    ------
    InputError
        Of kind ``"damaged"``; ``"unreadable"`` where that cannot be found out.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        wrong = _wrong_with(file, path)
    except ChildProcessError as error:
        raise InputError(Problem(location, str(error), "run again", "unreadable")) from error
    finally:
        os.close(file)
    if wrong:
        message = f"is damaged: looking at it {wrong}"
        raise InputError(Problem(location, message, "get or write it again", "damaged"))


def try_rows(dataset: h5py.Dataset, lo: int, hi: int) -> None:
    """Read rows of a dataset in the process apart, where nothing here can check them.

    Raises
    ------
    ValueError
        If it crashes or does not come to an end.
    """
    path = dataset.file.filename
    size = dataset.dtype.itemsize * dataset.size
    wrong = _tried({"path": path, "dataset": dataset.name, "rows": [lo, hi]}, size)
    if wrong:
        msg = f"reading it {wrong}"
        raise ValueError(msg)


def _wrong_with(file: int, path: Path) -> str:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        return ""
    version = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    if hash(version) in _sound:
        return ""
    wrong = _known.get(version)
    if wrong is None:
        size = status.st_size
        wrong = "" if is_plain(file, size) else _tried({"path": os.fspath(path)}, size)
        if len(_known) + len(_sound) >= _REMEMBERED:
            _known.clear()
            _sound.clear()
        if wrong:
            _known[version] = wrong
        else:
            _sound.add(hash(version))
    return wrong


def _tried(request: dict[str, Any], size: int) -> str:
    """What becomes of the process apart; if it is killed or cannot run, it is tried twice."""
    answer, code = bytearray(1), 0
    for _ in range(_ATTEMPTS):
        try:
            with _trial.talk(_PATIENCE + size / 1e5) as talk:
                talk.write(json.dumps(request).encode() + b"\n")
                talk.read(memoryview(answer))
        except DiedError as error:
            if error.code is None or -error.code == _OUT_OF_TIME:
                return "does not come to an end inside the HDF5 library"
            if error.code < 0 and -error.code not in _FROM_OUTSIDE:
                return f"ends the HDF5 library (signal {-error.code})"
            code = error.code
        else:
            return ""
    msg = f"the process that opens HDF5 files first cannot run (exit code {code}): is there memory left?"
    raise ChildProcessError(msg)
