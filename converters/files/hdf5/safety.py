"""Checks made before the HDF5 library opens a file, since a damaged file can hang or crash it.

Most files have a structure so simple that it can be checked here (`structure`, at a few percent of the time
of opening and walking the file); small ones of the simplest form are read from what was parsed (`plain`).
All others are first opened in a helper process (`trial_process`): if that crashes or hangs, the file is
damaged.
"""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path
from typing import Any

import h5py

from unistore.converters.files.hdf5.helper_process import HelperDiedError, HelperProcess
from unistore.converters.files.hdf5.plain import PlainGroup, read_plain
from unistore.converters.files.hdf5.structure import FAILURES
from unistore.converters.files.paths import file_version
from unistore.errors import InputError, Location, Problem

_TIMEOUT = 120.0
"""Seconds for a request, besides one for each 100 kB; the process itself limits its processor time."""
_OUT_OF_CPU_TIME = signal.SIGXCPU
_SENT_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_ATTEMPTS = 2
_MAX_REMEMBERED = 100_000
_sound: set[int] = set()
"""Hashes of the versions of files without defects."""
_defects: dict[tuple[int, ...], str] = {}
"""What is wrong with the versions of other files."""
_helper = HelperProcess("unistore.converters.files.hdf5.trial_process")
stop = _helper.stop


def check_safe_to_open(path: Path, location: Location | str) -> PlainGroup | None:
    """Check that the HDF5 library can open, walk and describe a file without hanging or crashing.

    Parameters
    ----------
    path
        The file. If it cannot be opened as a file, nothing is checked: the library says so.

    Returns
    -------
    PlainGroup or None
        The root group of a file that can be read without the library.

    Raises
    ------
    InputError
        Of kind ``"damaged"``, or ``"unreadable"`` if the check itself cannot run.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(file)
        version = file_version(status)
        if not stat.S_ISREG(status.st_mode) or hash(version) in _sound:
            return None
        defect = _defects.get(version)
        if defect is None:
            try:
                if (plain := read_plain(file, status.st_size, path)) is not None:
                    return plain
                defect = ""
            except FAILURES:
                defect = _try({"path": os.fspath(path)}, status.st_size)
            if len(_defects) + len(_sound) >= _MAX_REMEMBERED:
                _defects.clear()
                _sound.clear()
            if defect:
                _defects[version] = defect
            else:
                _sound.add(hash(version))
    except ChildProcessError as error:
        raise InputError(Problem.at(location, str(error), "run again", "unreadable")) from error
    finally:
        os.close(file)
    if defect:
        message = f"is damaged: looking at it {defect}"
        raise InputError(Problem.at(location, message, "get or write it again", "damaged"))
    return None


def check_safe_to_read(dataset: h5py.Dataset, lo: int, hi: int) -> None:
    """Read rows of a dataset in the helper process first.

    Raises
    ------
    ValueError
        If that crashes or hangs.
    """
    path = dataset.file.filename
    size = dataset.dtype.itemsize * dataset.size
    defect = _try({"path": path, "dataset": dataset.name, "rows": [lo, hi]}, size)
    if defect:
        msg = f"reading it {defect}"
        raise ValueError(msg)


def _try(request: dict[str, Any], size: int) -> str:
    """What goes wrong in the helper process; tried again if the process was killed or could not run."""
    answer, code = bytearray(1), 0
    for _ in range(_ATTEMPTS):
        try:
            with _helper.request(_TIMEOUT + size / 1e5) as pipes:
                pipes.write(request)
                pipes.read(memoryview(answer))
        except HelperDiedError as error:
            if error.code is None or -error.code == _OUT_OF_CPU_TIME:
                return "hangs the HDF5 library"
            if error.code < 0 and -error.code not in _SENT_BY_OTHERS:
                return f"crashes the HDF5 library (signal {-error.code})"
            code = error.code
        else:
            return ""
    msg = f"the process that opens HDF5 files first cannot run (exit code {code}): is there memory left?"
    raise ChildProcessError(msg)
