"""What to do about an error of the operating system."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from unistore.errors import ConversionError

__all__ = ["WritingError", "named", "refusal", "writing_failed"]

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
    """The system refused to write; `error` is what it said, with the file's name."""

    def __init__(self, error: OSError) -> None:
        self.error = error
        super().__init__(error)

    def __str__(self) -> str:
        return refusal(self.error, "then run the same command: it continues")


def refusal(error: OSError, then: str) -> str:
    """One line: the file, why it was refused, the cure, and what to do `then`."""
    cure = _CURES.get(error.errno or 0, "fix the destination or choose another")
    return f"{error.filename}: {error.strerror or error}; {cure}, {then}"


def named(error: OSError, where: Path) -> OSError:
    """The error with the name of a file: `where`, if the system named none."""
    return OSError(error.errno or 0, error.strerror or str(error), os.fspath(error.filename or where))


def writing_failed(error: OSError, where: Path) -> WritingError:
    """The error to raise in place of `error`; `where` is named if the system named no file."""
    return WritingError(named(error, where))
