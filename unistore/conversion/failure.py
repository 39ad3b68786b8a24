"""OSError → ConversionError with a remedy."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from unistore.errors import ConversionError

_CURES = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free some of the quota",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.EIO: "the disk fails: see the system's log (dmesg), replace it or choose another",
    errno.EROFS: "choose a destination that can be written",
    errno.ENOENT: "choose a destination that can be written",
    errno.EACCES: "change the rights or choose another destination",
    errno.EPERM: "change the rights or choose another destination",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


class WritingError(ConversionError):
    """Writing failed with the OSError `error`, which has the name of the file."""

    def __init__(self, error: OSError) -> None:
        self.error = error
        super().__init__(error)

    def __str__(self) -> str:
        return refusal(self.error, "then run the same command: it continues")


def refusal(error: OSError, then: str) -> str:
    """Return one line: the file, the reason, the cure, and what to do `then`."""
    cure = _CURES.get(error.errno or 0, "fix the destination or choose another")
    return f"{error.filename}: {error.strerror or error}; {cure}, {then}"


def named(error: OSError, where: Path) -> OSError:
    """Return the error with a file name: its own, else `where`."""
    return OSError(error.errno or 0, error.strerror or str(error), os.fspath(error.filename or where))


def writing_failed(error: OSError, where: Path) -> WritingError:
    """`WritingError` of an OSError; `where` is used if that has no file name."""
    return WritingError(named(error, where))
