"""The bytes of a file as an array."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.faults import as_problem
from unistore.errors import InputError, Problem


class FileBytes:
    """A file as it stands, (n,) u1, read where it is sliced; it is not kept open.

    Attributes
    ----------
    path, name
        The file, and what messages call it.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        with as_problem(name):
            self.shape = (path.stat().st_size,)

    def __getitem__(self, span: slice) -> NDArray[Any]:
        lo, hi, step = span.indices(self.shape[0])
        return self.read_into(lo, max(lo, hi))[::step]

    def read_into(self, lo: int, hi: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read bytes ``lo:hi``, in `out` if it is of bytes.

        Raises
        ------
        InputError
            If the file has become shorter.
        """
        content = out if out is not None and out.dtype == np.uint8 else np.empty(hi - lo, np.uint8)
        with as_problem(self.name), self.path.open("rb") as file:
            file.seek(lo)
            missing = hi - lo - file.readinto(content.data)  # np.fromfile takes a read error for the end
        if missing:
            message = f"ended {missing} bytes early while it was read"
            cure = "it changed during the conversion: run again when it is complete"
            raise InputError(Problem(self.name, message, cure, "truncated"))
        return content
