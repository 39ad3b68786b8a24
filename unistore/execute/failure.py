"""What the operating system refused, in words that say what to do."""

from __future__ import annotations

import errno
from pathlib import Path

from unistore.errors import ConversionError

__all__ = ["writing_failed"]

_CURES = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free some of the quota",
    errno.EROFS: "choose a destination that can be written",
    errno.ENOENT: "choose a destination that can be written",
    errno.EACCES: "mend the rights or choose another destination",
    errno.EPERM: "mend the rights or choose another destination",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


def writing_failed(error: OSError, where: Path) -> ConversionError:
    """The error to raise in place of `error`; `where` is named if the system named no file."""
    cure = _CURES.get(error.errno or 0)
    then = f"{cure}, then run the same command: it continues" if cure else "the same command continues"
    return ConversionError(f"{error.filename or where}: {error.strerror or error}; {then}")
